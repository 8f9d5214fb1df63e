"""JSON and JSON Lines into rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

from graphrag_milvus.builder.paths import ReadFailure, source_of
from graphrag_milvus.builder.readers.charset import decode, is_utf16
from graphrag_milvus.builder.readers.files import LARGEST, opened
from graphrag_milvus.builder.readers.registry import Row, missing, reader, with_gzip
from graphrag_milvus.errors import InputError, one_line

__all__ = ["read_json", "read_json_lines"]

_HEAD = 4096  # bytes that are looked at to tell a binary file
_WHOLE = 1 << 24  # bytes of a JSON file that is read into memory; with line and column in its errors, and any layout
_NO_SPACE_AFTER = re.compile(r"[\s。！？]\Z")


@reader(*with_gzip(".jsonl", ".ndjson"))
def read_json_lines(path: Path) -> Iterator[Row | ReadFailure]:
    """One row a line, line by line, so that the file may be of any size; UTF-8, or UTF-16 with a byte order mark."""
    source = source_of(path)
    empty = True
    with opened(path) as file:
        for number, line in enumerate(_lines(file), 1):
            result = _line_row(line, f"{source}:{number}")
            if result:
                empty = False
                yield result
    if empty:
        raise InputError("is empty")


@reader(*with_gzip(".json"))
def read_json(path: Path) -> Iterator[Row]:
    """A list of rows, one row, HippoRAG's `{"docs": [...]}`, or HotpotQA's mapping of titles to sentences.

    A file of more than 16 MB is not read into memory but row by row; it is no single row then, and UTF-8.
    """
    source = source_of(path)
    with opened(path) as file:
        head = file.read(_WHOLE + 1)
        if len(head) > _WHOLE:
            file.seek(0)
            rows = _streamed(file)
        else:
            text = decode(head)
            rows = iter(_rows(_parsed(text)) if text.strip() else [])
        empty = True
        for place, row in rows:
            empty = False
            yield Row(row, source + place)
    if empty:
        raise InputError("is empty")


# --- lines --------------------------------------------------------------------------------------------------------


def _lines(file: BinaryIO) -> Iterator[bytes | str | None]:
    """None for a line that is too long to be held."""
    head = file.read(_HEAD)
    file.seek(0)
    if is_utf16(head):
        yield from _limited(TextIOWrapper(file, "utf-16", newline="\n"), "\n")
    elif b"\0" in head:
        decode(head)  # raises: a line of a binary file is no line
    else:
        yield from _limited(file, b"\n")


def _limited(file: Any, end: bytes | str) -> Iterator[Any]:
    while line := file.readline(LARGEST):
        if len(line) < LARGEST or line.endswith(end):
            yield line
            continue
        while line and not line.endswith(end):
            line = file.readline(LARGEST)
        yield None


def _line_row(line: bytes | str | None, place: str) -> Row | ReadFailure | None:
    """None for a line that is blank."""
    if line is None:
        return ReadFailure(place, f"the line has more than {LARGEST >> 20} MB, too much for one document")
    try:
        text = decode(line) if isinstance(line, bytes) else line
        return Row(_parsed(text.rstrip()), place) if text.strip() else None
    except InputError as error:
        return ReadFailure(place, str(error))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        hint = "; for one object a line call it .jsonl" if error.msg == "Extra data" and error.lineno > 1 else ""
        where = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise InputError(f"not JSON ({error.msg} at {where}){hint}") from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"not usable as JSON ({error})") from None
    except RecursionError:
        raise InputError("not usable as JSON: lists in lists, too deep") from None


# --- layouts ------------------------------------------------------------------------------------------------------


def _rows(value: Any) -> list[tuple[str, Any]]:
    """Each row and where it stands, in whichever layout the file has."""
    if isinstance(value, list):
        return [(f"[{index}]", row) for index, row in enumerate(value)]
    if not isinstance(value, dict):
        return [("", value)]
    if isinstance(value.get("docs"), list):
        return [(f".docs[{index}]", _openie_row(row)) for index, row in enumerate(value["docs"])]
    if all(isinstance(sentences, list) for sentences in value.values()):
        return [_titled_row(title, sentences) for title, sentences in value.items()]
    return [("", value)]


def _openie_row(row: Any) -> Any:
    """HippoRAG writes title and text into one `passage`, the title as its first line; some files have both apart.

    Its numbers and lists of names are left out.
    """
    if not isinstance(row, dict):
        return row
    row = {key: value for key, value in row.items() if key not in ("idx", "extracted_entities")}
    passage = row.pop("passage", None)
    if not isinstance(passage, str) or "text" in row:
        return row
    title, line_end, text = passage.partition("\n")
    if not line_end or row.get("title", title) != title:
        return {**row, "text": passage}
    return {**row, "title": title, "text": text}


def _titled_row(title: str, sentences: Any) -> tuple[str, Any]:
    text = _joined(sentences) if isinstance(sentences, list) else sentences
    return f"[{json.dumps(title, ensure_ascii=False)}]", {"title": title, "text": text}


def _joined(sentences: list[Any]) -> Any:
    """One text; HotpotQA's sentences begin with their space, others' do not. What is not sentences is left as it is."""
    if not all(isinstance(sentence, str) for sentence in sentences):
        return sentences
    text = ""
    for sentence in sentences:
        bare = text and not sentence[:1].isspace() and not _NO_SPACE_AFTER.search(text[-1:])
        text += f" {sentence}" if bare else sentence
    return text


# --- files that are too large for memory --------------------------------------------------------------------------


def _streamed(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    try:
        import ijson
    except ImportError:
        raise missing("ijson", f"a JSON file of more than {_WHOLE >> 20} MB") from None
    start = _skip_mark(file)
    count = 0
    try:
        prefix = _layout(ijson.parse(file))
        file.seek(start)
        for place, row in _items(ijson, file, prefix):
            yield place, row
            count += 1
    except ijson.JSONError as error:
        raise InputError(f"not JSON from its row {count} on ({one_line(str(error), 200)})") from None


def _skip_mark(file: BinaryIO) -> int:
    """Stand behind the byte order mark of UTF-8, if there is one; where that is."""
    head = file.read(3)
    if is_utf16(head):
        raise InputError(f"is UTF-16 of more than {_WHOLE >> 20} MB; convert it to UTF-8, for example with iconv")
    start = 3 if head == b"\xef\xbb\xbf" else 0
    file.seek(start)
    return start


def _layout(events: Iterator[tuple[str, str, Any]]) -> str:
    """The place of the rows: those of a list, of `docs`, or "" for a mapping of titles."""
    for place, event, _ in events:
        if event == "start_array":
            return "item" if not place else "docs.item" if place == "docs" else ""
    raise InputError(f"is neither a list of rows nor a mapping of titles to sentences, in more than {_WHOLE >> 20} MB")


def _items(ijson: Any, file: BinaryIO, prefix: str) -> Iterator[tuple[str, Any]]:
    if not prefix:
        for title, sentences in ijson.kvitems(file, "", use_float=True):
            yield _titled_row(title, sentences)
        return
    for index, row in enumerate(ijson.items(file, prefix, use_float=True)):
        yield (f"[{index}]", row) if prefix == "item" else (f".docs[{index}]", _openie_row(row))
