"""Files, folders and patterns into documents, one at a time.

A kind of file is one function; another kind is three lines:

    @reader(".tex")
    def read_tex(path: Path) -> Iterator[Document]:
        yield file_document(path, whole_text(path))

A reader yields `Document`s, or `Row`s of a table, whose columns are then looked for like those of a CSV; and a
`ReadFailure` for each part that it could not use. What it raises is a failure of that file: `read` goes on with the
next one. It also replaces what Milvus cannot store. The reader of a suffix that has one already takes its place.
"""

from __future__ import annotations

import gzip
import re
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphrag_milvus.builder.paths import ReadFailure, find, identity, source_of, system_says
from graphrag_milvus.builder.readers import delimited, html, json_rows, parquet, pdf, text, word
from graphrag_milvus.builder.readers.charset import decode, undecodable
from graphrag_milvus.builder.readers.files import file_document, opened, whole_text
from graphrag_milvus.builder.readers.registry import READERS, Result, Row, reader, reader_of
from graphrag_milvus.builder.readers.rows import Columns, NoTextError, row_document
from graphrag_milvus.errors import InputError, UsageError
from graphrag_milvus.types import Document, content_id

__all__ = [
    "Columns",
    "ReadFailure",
    "Row",
    "decode",
    "file_document",
    "opened",
    "read",
    "read_rows",
    "reader",
    "row_document",
    "shard_of",
    "source_of",
    "whole_text",
]

BUILT_IN = (text, json_rows, delimited, parquet, html, pdf, word)
"""The modules whose readers are there from the start."""


def read(
    paths: Sequence[str | Path] | str | Path,
    *,
    text_column: str = "",
    title_column: str = "",
    id_column: str = "",
    seen: set[object] | None = None,
) -> Iterator[Document | ReadFailure]:
    """The documents behind `paths`, in order, each file as it is asked for and none twice.

    Args:
        paths: files; folders, which are read with all below them, sorted, without hidden files and files of an
            unknown kind; patterns with `*`, `?`, `[...]` and `**`, sorted, likewise. A folder or file that links
            lead to once more is read once, under its first name.
        text_column: what the text is called in CSV, TSV, Parquet, JSON and JSON Lines, where that is not one of
            the usual names; see `Columns`.
        title_column: likewise the title.
        id_column: likewise the id.
        seen: files that are not to be read again, in calls that belong together; those of this call are added.

    Yields:
        Documents, and a `ReadFailure` for what was named and gave none. The id of a whole file is its path below
        the current directory, or else its absolute path; a row without an id has "", for it to be derived from
        title and text. Lone surrogates, which no UTF-8 can hold, become U+FFFD.
    """
    columns = Columns(text_column, title_column, id_column)
    for path in _files(paths, set() if seen is None else seen):
        if isinstance(path, ReadFailure):
            yield path
        else:
            yield from _documents(path, columns)


def read_rows(paths: Sequence[str | Path] | str | Path) -> Iterator[Row | ReadFailure]:
    """The rows behind `paths` as they are, for those who give the columns a meaning of their own.

    A file of texts has no rows, and is a failure.
    """
    for path in _files(paths, set()):
        for item in [path] if isinstance(path, ReadFailure) else _results(path):
            if isinstance(item, Document):
                yield ReadFailure(source_of(path), "is a text and has no rows") if isinstance(path, Path) else path
            else:
                yield item


def shard_of(doc_id: str, count: int) -> int:
    """Which of `count` shards a document belongs to, from 0: the same on every machine.

    Raises:
        InputError: `count` is below 1.
    """
    if count < 1:
        raise InputError(f"{count} shards cannot be; there is at least 1")
    return content_id("shard", doc_id) % count


def _files(paths: Sequence[str | Path] | str | Path, seen: set[object]) -> Iterator[Path | ReadFailure]:
    for path in [paths] if isinstance(paths, (str, Path)) else paths:
        for found in find(str(path), READERS):
            if isinstance(found, ReadFailure):
                yield found
            elif (key := identity(found)) not in seen:
                seen.add(key)
                yield found


# --- one file -----------------------------------------------------------------------------------------------------

_SURROGATE = re.compile("[\ud800-\udfff]")
_SPECIAL = ((stat.S_ISSOCK, "a socket"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISDIR, "a folder"))


def _documents(path: Path, columns: Columns) -> Iterator[Document | ReadFailure]:
    source = source_of(path)
    for item in _results(path):
        try:
            document = _document(item, source, columns)
        except NoTextError as error:  # the same in every row
            yield ReadFailure(_valid(source), _valid(str(error)))
            return
        yield _storable(document, source)


def _results(path: Path) -> Iterator[Result]:
    try:
        _check_regular(path)
        yield from reader_of(path)(path)
    except Exception as error:  # noqa: BLE001  a reader is anybody's code, and the other files are to be read
        yield ReadFailure(_valid(source_of(path)), _valid(_reason(error)))


def _document(item: Result, source: str, columns: Columns) -> Document | ReadFailure:
    if not isinstance(item, Row):
        return item
    try:
        return row_document(item.values, source, columns, typed=item.typed)
    except InputError as error:
        if item.table and isinstance(error, NoTextError):
            raise
        return ReadFailure(item.place, str(error))


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


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return undecodable(error)
    if isinstance(error, (gzip.BadGzipFile, EOFError, zlib.error)):
        return f"is no whole gzip file ({error})"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, OSError):
        return system_says(error)
    return str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"


def _storable(item: Document | ReadFailure, source: str) -> Document | ReadFailure:
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
