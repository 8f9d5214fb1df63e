"""Files, folders and patterns into documents, one at a time.

A kind of file is one function; another kind is three lines:

    @reader(".rst")
    def read_rst(path: Path) -> Iterator[Document]:
        yield file_document(path, whole_text(path))

A reader yields `Document`s, and a `ReadFailure` for each part that it could not use. It raises `InputError`
(or `OSError`, `UnicodeError`) where the whole file is of no use. `read` makes a failure of that, goes on with the
next file, and replaces what Milvus cannot store.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar

from graphrag_milvus.builder.paths import ReadFailure, find, known, normal_path, source_of, suffix_of, system_says
from graphrag_milvus.errors import InputError, UsageError
from graphrag_milvus.types import Document, content_id

__all__ = [
    "ReadFailure",
    "decode",
    "file_document",
    "read",
    "reader",
    "row_document",
    "shard_of",
    "source_of",
    "whole_text",
]


Result: TypeAlias = "Document | ReadFailure"
Reader: TypeAlias = "Callable[[Path], Iterable[Document | ReadFailure]]"
R = TypeVar("R", bound=Reader)

_READERS: dict[str, Reader] = {}


def reader(*suffixes: str) -> Callable[[R], R]:
    """Make the decorated function the reader of files whose names end so, in capitals or not.

    A later reader takes the place of an earlier one; of two that fit (`.gz`, `.jsonl.gz`), the longer one reads.

    Raises:
        UsageError: a suffix does not begin with a full stop.
    """
    for suffix in suffixes:
        if not suffix.startswith("."):
            raise UsageError(f"{suffix!r} is no suffix; did you mean {'.' + suffix!r}?")

    def register(function: R) -> R:
        _READERS.update(dict.fromkeys(map(str.lower, suffixes), function))
        return function

    return register


def read(paths: Sequence[str | Path] | str | Path) -> Iterator[Result]:
    """The documents behind `paths`, in order, each file as it is asked for and none twice.

    Args:
        paths: files; folders, which are read with all below them, sorted, without hidden files and files of an
            unknown kind; patterns with `*`, `?`, `[...]` and `**`, sorted, likewise. A folder that links lead to
            once more is read once.

    Yields:
        Documents, and a `ReadFailure` for what was named and gave none. The id of a whole file is its path below
        the current directory, or else its absolute path; a row without an id has "", for it to be derived from
        title and text. Lone surrogates, which no UTF-8 can hold, become U+FFFD.
    """
    seen: set[str] = set()
    for path in [paths] if isinstance(paths, (str, Path)) else paths:
        for found in find(str(path), _READERS):
            if isinstance(found, ReadFailure):
                yield found
            elif (key := normal_path(found)) not in seen:
                seen.add(key)
                yield from _read_file(found)


def shard_of(doc_id: str, count: int) -> int:
    """Which of `count` shards a document belongs to, from 0: the same on every machine.

    Raises:
        InputError: `count` is below 1.
    """
    if count < 1:
        raise InputError(f"{count} shards cannot be; there is at least 1")
    return content_id("shard", doc_id) % count


# --- for readers --------------------------------------------------------------------------------------------------


def whole_text(path: Path) -> str:
    r"""The text of a file as `decode` reads it, with `\n` at the end of lines.

    Raises:
        InputError: its bytes are no text.
    """
    return decode(path.read_bytes()).replace("\r\n", "\n").replace("\r", "\n")


def file_document(path: Path, text: str, title: str = "") -> Document:
    """The document that a whole file is; without a `title` the file's name gives one.

    Raises:
        InputError: `text` is empty or nothing but white space.
    """
    if not text.strip():
        raise InputError("is empty")
    source = source_of(path)
    return Document(text, id=source, title=title or _title_of(path), source=source)


def row_document(row: object, source: str = "") -> Document:
    """The document in a row `{"id"?, "title"?, "text", "triplets"?, "metadata"?}`; other keys are left alone.

    `triplets` may be called `triples` or `extracted_triples` and is not checked here. Without an id the id is "".

    Raises:
        InputError: it is no such row.
    """
    if not isinstance(row, dict):
        raise InputError(f"the row is {_kind(row)}, not an object with a text")
    id, title = _name(row, "id"), _name(row, "title")
    return Document(_text(row), id, title, source, _metadata(row), _triplets(row))


def decode(data: bytes) -> str:
    """The text that `data` is: UTF-8, or UTF-16 after a byte order mark. The mark is not part of it.

    Raises:
        InputError: it is neither, or there is a NUL in it.
    """
    wide = _is_utf16(data)
    if b"\0" in data and not wide:
        raise InputError(f"is binary, or UTF-16 without a byte order mark (NUL at position {data.index(0)})")
    try:
        text = data.decode("utf-16" if wide else "utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(_undecodable(error)) from None
    if "\0" in text:
        raise InputError(f"is binary, or UTF-32 (NUL at character {text.index(chr(0))})")
    return text


def _undecodable(error: UnicodeDecodeError) -> str:
    name = "UTF-16, as its byte order mark says" if error.encoding.startswith("utf-16") else "UTF-8"
    where = f"byte 0x{error.object[error.start]:02X} at position {error.start}"
    return f"not {name} ({where}); convert it, for example with iconv"


def _is_utf16(data: bytes) -> bool:
    return data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def _title_of(path: Path) -> str:
    return " ".join(path.stem.replace("_", " ").replace("-", " ").split())


# --- texts --------------------------------------------------------------------------------------------------------

_HEADING = re.compile(r" {0,3}#[ \t]+(\S.*?)(?:[ \t]+#+)?[ \t]*")
_FENCE = re.compile(r" {0,3}(```|~~~)")


@reader(".txt", ".text")
def read_text(path: Path) -> Iterator[Document]:
    """One document; its title is the file's name with spaces."""
    yield file_document(path, whole_text(path))


@reader(".md", ".markdown")
def read_markdown(path: Path) -> Iterator[Document]:
    """One document; its title is the first heading of the first level, or else the file's name with spaces."""
    text = whole_text(path)
    yield file_document(path, text, _first_heading(text))


def _first_heading(text: str) -> str:
    fence = ""  # the mark of the code block that is open: a comment of a shell looks like a heading
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark and (not fence or fence == mark.group(1)):
            fence = "" if fence else mark.group(1)
        elif not fence and (heading := _HEADING.fullmatch(line)):
            return heading.group(1)
    return ""


# --- JSON ---------------------------------------------------------------------------------------------------------

_HEAD = 4096  # bytes that are looked at to tell a binary file
_NO_SPACE_AFTER = re.compile(r"[\s。！？]\Z")
_TRIPLETS = ("triplets", "triples", "extracted_triples")


@reader(".jsonl", ".ndjson")
def read_json_lines(path: Path) -> Iterator[Result]:
    """One document a line, as `row_document` reads it, and line by line, so that the file may be of any size."""
    source = source_of(path)
    empty = True
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), 1):
            result = _line_result(line, f"{source}:{number}", source)
            if result:
                empty = False
                yield result
    if empty:
        raise InputError("is empty")


@reader(".json")
def read_json(path: Path) -> Iterator[Result]:
    """A list of rows, one row, HippoRAG's `{"docs": [...]}`, or HotpotQA's mapping of titles to sentences.

    The file is read into memory whole; JSON Lines are not.
    """
    source = source_of(path)
    text = whole_text(path)
    rows = _rows(_parsed(text)) if text.strip() else []
    if not rows:
        raise InputError("is empty")
    for place, row in rows:
        yield _row_result(row, source + place, source)


def _lines(file: BinaryIO) -> Iterator[bytes | str]:
    head = file.read(_HEAD)
    file.seek(0)
    if _is_utf16(head):
        yield from TextIOWrapper(file, "utf-16", newline="\n")
    elif b"\0" in head:
        decode(head)  # raises: a line of a binary file is no line
    else:
        yield from file


def _line_result(line: bytes | str, place: str, source: str) -> Result | None:
    """None for a line that is blank."""
    try:
        text = decode(line) if isinstance(line, bytes) else line
        return row_document(_parsed(text.rstrip()), source) if text.strip() else None
    except InputError as error:
        return ReadFailure(place, str(error))


def _row_result(row: object, place: str, source: str) -> Result:
    try:
        return row_document(row, source)
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


def _rows(value: Any) -> list[tuple[str, Any]]:
    """Each row and where it stands, in whichever layout the file has."""
    if isinstance(value, list):
        return [(f"[{index}]", row) for index, row in enumerate(value)]
    if not isinstance(value, dict):
        return [("", value)]
    if isinstance(value.get("docs"), list):
        return [(f".docs[{index}]", _openie_row(row)) for index, row in enumerate(value["docs"])]
    if all(isinstance(sentences, list) for sentences in value.values()):
        return [(f"[{_quoted(title)}]", {"title": title, "text": _joined(texts)}) for title, texts in value.items()]
    return [("", value)]


def _openie_row(row: Any) -> Any:
    """HippoRAG writes title and text into one `passage`, the title as its first line; some files have both apart."""
    passage = row.get("passage") if isinstance(row, dict) and "text" not in row else None
    if not isinstance(passage, str):
        return row
    title, line_end, text = passage.partition("\n")
    if not line_end or row.get("title", title) != title:
        return {**row, "text": passage}
    return {**row, "title": title, "text": text}


def _joined(sentences: list[Any]) -> Any:
    """One text; HotpotQA's sentences begin with their space, others' do not. What is not sentences is left as it is."""
    if not all(isinstance(sentence, str) for sentence in sentences):
        return sentences
    text = ""
    for sentence in sentences:
        bare = text and not sentence[:1].isspace() and not _NO_SPACE_AFTER.search(text[-1:])
        text += f" {sentence}" if bare else sentence
    return text


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _text(row: Mapping[str, Any]) -> str:
    if "text" not in row:
        keys = ", ".join(map(_quoted, list(row)[:10]))
        raise InputError(f'has no "text"; it has {keys or "nothing"}')
    text = row["text"]
    if not isinstance(text, str):
        raise InputError(f'"text" is {_kind(text)}, not a text')
    if not text.strip():
        raise InputError('"text" is empty')
    return text


def _name(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f'"{key}" is {_kind(value)}, not a text or a number')
    return str(value)


def _metadata(row: Mapping[str, Any]) -> dict[str, Any]:
    value = row.get("metadata")
    if value is not None and not isinstance(value, dict):
        raise InputError(f'"metadata" is {_kind(value)}, not an object')
    return value or {}


def _triplets(row: Mapping[str, Any]) -> list[Any] | None:
    """As they came. What is no list becomes a list of one, for the extractor to refuse by name."""
    value = next((row[key] for key in _TRIPLETS if row.get(key) is not None), None)
    return value if value is None or isinstance(value, list) else [value]


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return json.dumps(value)
    kinds = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), type(value).__name__)


# --- one file -----------------------------------------------------------------------------------------------------

_SURROGATE = re.compile("[\ud800-\udfff]")
_SPECIAL = ((stat.S_ISSOCK, "a socket"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISDIR, "a folder"))


def _read_file(path: Path) -> Iterator[Result]:
    source = source_of(path)
    try:
        _check_regular(path)
        for item in _reader_of(path)(path):
            yield _storable(item, source)
    except (UsageError, OSError, UnicodeError) as error:
        yield ReadFailure(source, _reason(error))


def _check_regular(path: Path) -> None:
    """Opening a pipe would wait for somebody to write."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise InputError("is a link to nothing" if path.is_symlink() else "does not exist") from None
    except ValueError as error:  # a NUL in it
        raise InputError(f"is no path ({error})") from None
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _SPECIAL if is_kind(mode)), "a device")
        raise InputError(f"is {kind}, not a file")


def _reader_of(path: Path) -> Reader:
    suffix = suffix_of(path, _READERS)
    if not suffix:
        raise InputError(f"no reader for {path.suffix or 'a name without a suffix'}; {known(_READERS)}")
    return _READERS[suffix]


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return _undecodable(error)
    return system_says(error) if isinstance(error, OSError) else str(error)


def _storable(item: Result, source: str) -> Result:
    """What a reader gave, with a source and without lone surrogates."""
    if isinstance(item, ReadFailure):
        return ReadFailure(_valid(item.source), _valid(item.reason))
    try:
        parts = {name: _valid(getattr(item, name)) for name in ("text", "id", "title", "metadata", "triplets")}
    except RecursionError:
        return ReadFailure(source, f"lists in lists, too deep, in the metadata or triplets of {item.title[:80]!r}")
    return replace(item, source=_valid(item.source or source), **parts)


def _valid(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {_valid(key): _valid(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_valid, value)) if type(value) in (list, tuple) else [_valid(item) for item in value]
    return value
