"""CSV and TSV into rows, record by record.

The delimiter is the one that the header has most of: the guess of Python's `csv.Sniffer` changes with the texts.
A record that is broken is a failure of its own, and what follows on its first line is read again as records: a
quotation mark that nobody closed does not swallow the rest of the file.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from graphrag_milvus.builder.paths import ReadFailure, source_of
from graphrag_milvus.builder.readers.charset import Encoding, encoding_of
from graphrag_milvus.builder.readers.files import opened
from graphrag_milvus.builder.readers.registry import Row, reader, with_gzip
from graphrag_milvus.errors import InputError

__all__ = ["delimiter_of", "read_csv"]

_DELIMITERS = ",;\t|"
_NONE = "\x1f"  # a header of one column has no delimiter, and then neither have the rows
_CHUNK = 1 << 20
_LONGEST = 1 << 24  # characters of one record
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_SEP = re.compile(r"sep=(.)\s*", re.IGNORECASE)  # how Excel says which delimiter it wrote


@reader(*with_gzip(".csv", ".tsv"))
def read_csv(path: Path) -> Iterator[Row | ReadFailure]:
    """One row a record below the header; a record with too few or too many columns is a failure with its line."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST))
    source = source_of(path)
    with opened(path) as file:
        encoding = encoding_of(iter(lambda: file.read(_CHUNK), b""))
    empty = True
    with opened(path) as file:
        for item in _rows(_Records(_Lines(file, encoding)), source):
            empty = False
            yield item
    if empty:
        raise InputError("has a header and no rows")


def delimiter_of(header: str) -> str:
    r"""The delimiter of a header: of `,`, `;`, tab and `|` the one that is most often outside of quotation marks.

    Among equals the first in this order. `\x1f`, which is in no text, for a header of one column.
    """
    counts = Counter(_QUOTED.sub("", header))
    best = max(_DELIMITERS, key=lambda sign: counts[sign])
    return best if counts[best] else _NONE


def _rows(records: _Records, source: str) -> Iterator[Row | ReadFailure]:
    header = records.header()
    for number, cells in records:
        place = f"{source}:{number}"
        if isinstance(cells, str):
            yield ReadFailure(place, cells)
        elif any(cells):
            filled = len(cells) - next((n for n, cell in enumerate(reversed(cells)) if cell), 0)
            if len(cells) < len(header) or filled > len(header):
                yield ReadFailure(place, f"has {len(cells)} columns, and the header {len(header)}")
            else:
                yield Row(dict(zip(header, cells, strict=False)), place, table=True, typed=False)


class _Lines:
    """The lines of a file with their ends, in any of the three ways to end one; the rest of one too long is left out.

    `number` is that of the line that came last, from 1.
    """

    def __init__(self, file: BinaryIO, encoding: Encoding) -> None:
        self.encoding = encoding
        self.text = TextIOWrapper(file, encoding.codec, encoding.errors, newline="")
        self.waiting: deque[str] = deque()  # lines that are to come again
        self.number = 0

    def next(self) -> str:
        """The next line; "" at the end."""
        line = self.waiting.popleft() if self.waiting else self._read()
        self.number += bool(line)
        return line

    def again(self, lines: Sequence[str]) -> None:
        """Let `lines`, the last ones that came, come once more."""
        self.waiting.extendleft(reversed(lines))
        self.number -= len(lines)

    def _read(self) -> str:
        line = self.text.readline(_LONGEST + 1)
        rest = line
        while len(rest) > _LONGEST and not rest.endswith(("\r", "\n")):
            rest = self.text.readline(_LONGEST + 1)  # for the next line to begin where it does
        line = self.encoding.mend(line)
        # Some Pythons end a text at a NUL, some refuse it, and Milvus keeps none.
        return line.replace("\0", "\ufffd")


class _Records:
    """The records of a file, each with the number of its first line: cells, or a text that says what is wrong."""

    def __init__(self, lines: _Lines) -> None:
        self.lines = lines
        self.delimiter = ","
        self.width = 0
        self._record: list[str] = []

    def header(self) -> list[str]:
        """The names of the columns; those without one are called by their number."""
        first = self._first_line()
        self.delimiter = self.delimiter or delimiter_of(first)
        self.lines.again([first])
        cells = self._next()
        if isinstance(cells, str):
            raise InputError(f"the header {cells}")
        names = [cell.strip().removeprefix("\ufeff") or f"column_{n}" for n, cell in enumerate(cells, 1)]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise InputError(f"has two columns called {twice[0]!r}; rename one")
        self.width = len(names)
        return names

    def __iter__(self) -> Iterator[tuple[int, list[str] | str]]:
        while line := self.lines.next():
            if line.strip():
                self.lines.again([line])
                yield self.lines.number + 1, self._next()

    def _first_line(self) -> str:
        """The first line that is not blank, with Excel's `sep=;` taken to heart and passed over."""
        self.delimiter = ""
        while line := self.lines.next():
            if sep := _SEP.fullmatch(line.removeprefix("\ufeff")):
                self.delimiter = sep[1]
            elif line.strip("\ufeff \t\r\n"):
                return line.removeprefix("\ufeff")
        raise InputError("is empty")

    def _next(self) -> list[str] | str:
        self._record = []
        try:
            cells = next(csv.reader(self._lines_of_record(), delimiter=self.delimiter, strict=True))
            if self.delimiter != "\t" or not self._swallowed():
                return [_unified(cell) for cell in cells]
            reason = "has a quotation mark that is not closed"
        except csv.Error as error:
            reason = f"is no CSV ({error})"
        self.lines.again(self._record[1:])
        return self._literal() or reason

    def _lines_of_record(self) -> Iterator[str]:
        size = 0
        while line := self.lines.next():
            self._record.append(line)
            size += len(line)
            if size > _LONGEST:
                raise csv.Error(f"more than {_LONGEST >> 20} million characters; is a quotation mark not closed?")
            yield line

    def _swallowed(self) -> bool:
        """Whether a quotation mark in a TSV took whole rows in: many a TSV means nothing by quotation marks."""
        return any(line.count("\t") == self.width - 1 for line in self._record[1:]) and self.width > 1

    def _literal(self) -> list[str]:
        """The cells of a TSV's line in which quotation marks mean nothing; empty where that does not fit either."""
        line = self._record[0]
        cells = line.rstrip("\r\n").split("\t") if self.delimiter == "\t" and len(line) <= _LONGEST else []
        return cells if len(cells) == self.width else []


def _unified(cell: str) -> str:
    return cell.replace("\r\n", "\n").replace("\r", "\n") if "\r" in cell else cell
