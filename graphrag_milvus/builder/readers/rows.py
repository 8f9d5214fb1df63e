"""Rows into documents: which column is the text, the title, the id, and what becomes of the others."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphrag_milvus.errors import InputError
from graphrag_milvus.types import Document

__all__ = ["Columns", "NoTextError", "row_document"]

TEXT = (
    "text",
    "content",
    "contents",
    "body",
    "passage",
    "page_content",
    "paragraph",
    "article",
    "document",
    "abstract",
)
TITLE = ("title", "headline", "heading", "name")
ID = ("id", "_id", "doc_id", "docid", "document_id")
TRIPLETS = ("triplets", "triples", "extracted_triples")

_SAID = 10  # columns that a message names
_INTEGER = re.compile(r"-?[1-9]\d{0,17}|0")
_DECIMAL = re.compile(r"-?\d{1,15}\.\d{1,15}")


class NoTextError(InputError):
    """A row has no column that is known to hold the text."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns, where they are not among the usual ones.

    Attributes:
        text: in place of `text`, `content`, `contents`, `body`, `passage`, `page_content`, `paragraph`, `article`,
            `document` and `abstract`, of which the first that is there is taken.
        title: in place of `title`, `headline`, `heading`, `name`.
        id: in place of `id`, `_id`, `doc_id`, `docid`, `document_id`.
    """

    text: str = ""
    title: str = ""
    id: str = ""

    def find(self, row: Mapping[str, Any]) -> dict[str, str]:
        """The keys of `row` that are `text`, `title` and `id`; capitals and spaces around a name do not matter.

        Raises:
            NoTextError: there is none for the text.
        """
        folded: dict[str, str] = {}
        for key in row:
            folded.setdefault(key.strip().casefold(), key)
        roles = (("text", self.text, TEXT), ("title", self.title, TITLE), ("id", self.id, ID))
        keys = ((role, _first(given, names, row, folded)) for role, given, names in roles)
        found = {role: key for role, key in keys if key is not None}
        if "text" not in found:
            raise NoTextError(self._missing(row))
        return found

    def _missing(self, row: Mapping[str, Any]) -> str:
        names = ", ".join(map(_quoted, list(row)[:_SAID])) + (", ..." if len(row) > _SAID else "")
        remedy = '; name the column of the text with text_column="..."' if row else ""
        return f"has no {_quoted(self.text or 'text')}; it has {names or 'nothing'}{remedy}"


def _first(given: str, names: tuple[str, ...], row: Mapping[str, Any], folded: Mapping[str, str]) -> str | None:
    if given:
        return given if given in row else folded.get(given.strip().casefold())
    return next((folded[name] for name in names if name in folded), None)


def row_document(row: object, source: str = "", columns: Columns = Columns(), *, typed: bool = True) -> Document:
    """The document in a row `{"id"?, "title"?, "text", "triplets"?, "metadata"?, ...}`.

    Other keys go into the metadata, where `metadata` has no such key itself, and nulls do not. `triplets` may be
    called `triples` or `extracted_triples` and is not checked here. A text that is JSON stands for its value in
    `triplets` and `metadata`. Without an id the id is "".

    Args:
        row: the row, with texts as keys.
        source: the path that it was read from.
        columns: the names of columns that are not the usual ones.
        typed: False where all values are texts. A number among the other keys is then one where it would be
            written back exactly so: `1990` and `2.5`, but neither `007` nor `1.10`. An empty text is a null.

    Raises:
        NoTextError: it has no column for the text.
        InputError: it is no such row.
    """
    if not isinstance(row, dict):
        raise InputError(f"the row is {_kind(row)}, not an object with a text")
    keys = columns.find(row)
    text = _text(row, keys["text"])
    id, title = (_name(row, keys.get(role)) for role in ("id", "title"))
    return Document(text, id, title, source, _metadata(row, {*keys.values()}, typed), _triplets(row))


def _text(row: Mapping[str, Any], key: str) -> str:
    text = row[key]
    if not isinstance(text, str):
        raise InputError(f"{_quoted(key)} is {_kind(text)}, not a text")
    if not text.strip():
        raise InputError(f"{_quoted(key)} is empty")
    return text


def _name(row: Mapping[str, Any], key: str | None) -> str:
    value = None if key is None else row[key]
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"{_quoted(str(key))} is {_kind(value)}, not a text or a number")
    return str(value)


def _metadata(row: Mapping[str, Any], used: set[str], typed: bool) -> dict[str, Any]:
    given = _from_json(row.get("metadata"), "{")
    if given is not None and not isinstance(given, dict):
        raise InputError(f'"metadata" is {_kind(given)}, not an object')
    others = {key: value for key, value in row.items() if key not in used and key not in ("metadata", *TRIPLETS)}
    if not typed:
        others = {key: _number(value) for key, value in others.items() if value != ""}
    return {key: value for key, value in others.items() if value is not None} | (given or {})


def _number(cell: Any) -> Any:
    if _INTEGER.fullmatch(cell):
        return int(cell)
    if _DECIMAL.fullmatch(cell) and repr(float(cell)) == cell:
        return float(cell)
    return cell


def _triplets(row: Mapping[str, Any]) -> list[Any] | None:
    """As they came. What is no list becomes a list of one, for the extractor to refuse by name."""
    value = next((row[key] for key in TRIPLETS if row.get(key) not in (None, "")), None)
    value = _from_json(value, "[")
    return value if value is None or isinstance(value, list) else [value]


def _from_json(value: Any, opening: str) -> Any:
    """What a cell of a table holds that has no type for lists and objects."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    if not value.lstrip().startswith(opening):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return json.dumps(value)
    kinds = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), type(value).__name__)
