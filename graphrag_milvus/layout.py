"""The collections of a workspace as Milvus has them: their names, fields, indexes and limits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from pymilvus import CollectionSchema, DataType, Function, FunctionType, MilvusClient

from graphrag_milvus.errors import InputError, SettingsError
from graphrag_milvus.types import content_hash

__all__ = [
    "COLLECTIONS",
    "FIELDS",
    "MAX_BYTES",
    "MAX_ID_BYTES",
    "OPTIONAL",
    "OWNERS",
    "SCALAR_INDEXES",
    "WINDOW",
    "Collection",
    "blank_row",
    "check_row",
    "loaded",
    "make_schema",
    "slug",
    "stored",
]

Collection = Literal["documents", "passages", "entities", "relations", "enrichments"]
COLLECTIONS: tuple[Collection, ...] = ("documents", "passages", "entities", "relations")
"""Those that every workspace has."""
OPTIONAL: tuple[Collection, ...] = ("enrichments",)
"""Those that a workspace has once something is to be kept in them."""

MAX_BYTES = 65_535
"""Milvus counts the length of a VARCHAR in UTF-8 bytes and takes no more than this."""
MAX_ID_BYTES = 1_024
WINDOW = 16_384
"""Rows that one query or search gives at the most; beyond that a collection is iterated."""

_INT, _TEXT, _JSON = DataType.INT64, DataType.VARCHAR, DataType.JSON

FIELDS: dict[Collection, tuple[tuple[str, DataType, int], ...]] = {
    "documents": (
        ("doc_id", _TEXT, MAX_ID_BYTES),
        ("title", _TEXT, MAX_BYTES),
        ("source", _TEXT, MAX_BYTES),
        ("hash", _TEXT, 64),
        ("passages", _INT, 0),
        ("relations", _INT, 0),
        ("indexed_at", _INT, 0),
        ("metadata", _JSON, 0),
    ),
    "passages": (
        ("doc", _INT, 0),
        ("doc_id", _TEXT, MAX_ID_BYTES),
        ("title", _TEXT, MAX_BYTES),
        ("text", _TEXT, MAX_BYTES),
        ("position", _INT, 0),
        ("recipe", _TEXT, 64),
        ("relations", _INT, 0),
        ("metadata", _JSON, 0),
    ),
    "entities": (("name", _TEXT, MAX_BYTES), ("type", _TEXT, 1_024)),
    "relations": (
        ("doc", _INT, 0),
        ("doc_id", _TEXT, MAX_ID_BYTES),
        ("passage_id", _INT, 0),
        ("title", _TEXT, MAX_BYTES),
        ("text", _TEXT, MAX_BYTES),
        ("predicate", _TEXT, MAX_BYTES),
        ("entity_ids", _JSON, 0),
        ("names", _JSON, 0),
        ("metadata", _JSON, 0),
    ),
    "enrichments": (
        ("doc", _INT, 0),
        ("doc_id", _TEXT, MAX_ID_BYTES),
        ("passage_id", _INT, 0),
        ("kind", _TEXT, 64),
        ("title", _TEXT, MAX_BYTES),
        ("text", _TEXT, MAX_BYTES),
        ("metadata", _JSON, 0),
    ),
}
SCALAR_INDEXES: dict[Collection, tuple[str, ...]] = {
    "documents": (),
    "passages": ("doc",),
    "entities": (),
    "relations": ("doc", "passage_id"),
    "enrichments": ("doc", "passage_id"),
}
_LISTS = ("entity_ids", "names")
OWNERS: dict[Collection, str] = {
    "documents": "doc_id",
    "passages": "doc",
    "entities": "name",
    "relations": "doc",
    "enrichments": "doc",
}
"""The field that says whose content an id stands for; two values of it for one id are a collision."""


def make_schema(collection: Collection, dimension: int, *, bm25: bool) -> CollectionSchema:
    """The schema of a collection; with `bm25`, the engine ranks the words of `text` too."""
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    for name, kind, length in FIELDS[collection]:
        options: dict[str, Any] = {"max_length": length} if kind == _TEXT else {}
        if bm25 and name == "text":
            options["enable_analyzer"] = True
        schema.add_field(name, kind, **options)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
    if bm25:
        schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
        schema.add_function(
            Function(
                name="bm25",
                function_type=FunctionType.BM25,
                input_field_names=["text"],
                output_field_names=["sparse"],
            )
        )
    return schema


def stored(collection: Collection, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it goes to Milvus: a list stands inside an object, since older servers take nothing else as JSON."""
    return {**row, **{name: {"items": list(row[name])} for name in _LISTS if collection == "relations"}}


def loaded(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it was before `stored`."""
    return {**row, **{name: list(row[name]["items"]) for name in _LISTS if name in row}}


def blank_row(collection: Collection) -> dict[str, Any]:
    """A row with empty values in every field but `id` and `vector`."""
    empty: dict[DataType, Any] = {_TEXT: "", _INT: 0, _JSON: {}}
    return {name: empty[kind] for name, kind, _ in FIELDS[collection]}


def slug(workspace: str) -> str:
    """`workspace` where Milvus takes it as it is, else its ASCII part with a hash that tells it apart."""
    if not workspace.strip():
        raise SettingsError("the workspace has no name; set GRAPHRAG_WORKSPACE or --workspace to a text")
    if re.fullmatch(r"[A-Za-z0-9_]{1,64}", workspace):
        return workspace
    plain = re.sub(r"[^A-Za-z0-9]+", "_", workspace)[:40].strip("_")
    return f"{plain}_{content_hash('workspace', workspace)[:12]}"


def check_row(collection: Collection, row: Mapping[str, Any]) -> int:
    """The size of a row in bytes; raise where Milvus would refuse or cut a value."""
    size = 4 * len(row["vector"])
    for name, kind, length in FIELDS[collection]:
        if kind == _INT:
            continue
        text = row[name] if kind == _TEXT else json.dumps(row[name], ensure_ascii=False)
        used = len(text.encode("utf-8"))
        if used > (length or MAX_BYTES):
            raise InputError(
                f"{name} of a row in {collection} has {used:,} bytes, and Milvus keeps {length or MAX_BYTES:,}: "
                f"{text[:60]!r}...; shorten it"
            )
        size += used
    return size
