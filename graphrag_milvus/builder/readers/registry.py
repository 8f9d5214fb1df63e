"""Which function reads which kind of file, and what such a function yields."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from graphrag_milvus.builder.paths import ReadFailure, known, suffix_of
from graphrag_milvus.errors import InputError, MissingDependencyError, UsageError
from graphrag_milvus.types import Document

__all__ = ["READERS", "Reader", "Result", "Row", "missing", "reader", "reader_of", "with_gzip"]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, or an object of JSON, before its columns are given a meaning.

    Attributes:
        values: what was there; of use is a mapping of column names to values.
        place: where it stands, as a `ReadFailure` names it.
        table: all rows of the file have the same columns, so that a column that is missing is missing in all.
        typed: False where all values are texts, and a number can only be told by how it is written.
    """

    values: object
    place: str
    table: bool = False
    typed: bool = True


Result: TypeAlias = "Document | Row | ReadFailure"
Reader: TypeAlias = "Callable[[Path], Iterable[Document | Row | ReadFailure]]"
R = TypeVar("R", bound=Reader)

READERS: dict[str, Reader] = {}
"""The readers by the ends of names, in small letters."""


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
        READERS.update(dict.fromkeys(map(str.lower, suffixes), function))
        return function

    return register


def with_gzip(*suffixes: str) -> list[str]:
    """The suffixes, and each with `.gz` behind it; for readers that open their files with `opened`."""
    return [suffix + end for suffix in suffixes for end in ("", ".gz")]


def reader_of(path: Path) -> Reader:
    """The function that reads this file.

    Raises:
        InputError: there is none.
    """
    suffix = suffix_of(path, READERS)
    if not suffix:
        raise InputError(f"no reader for {path.suffix or 'a name without a suffix'}; {known(READERS)}")
    return READERS[suffix]


def missing(package: str, what: str) -> MissingDependencyError:
    """The error of a reader whose library is not installed."""
    return MissingDependencyError(
        f'{what} takes {package}, which is not installed; pip install "graphrag-milvus[readers]"'
    )
