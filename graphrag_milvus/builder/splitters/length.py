"""Cutting by length: at paragraphs where that is possible, then at tables, lines, sentences, words, signs.

langchain's recursive splitter gives the same cuts (a test compares them); it works on strings, so that every
level would have its tokens counted anew, and the place of a passage in the text is lost, on which headings,
pages and the headers of tables depend.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from graphrag_milvus.builder.splitters.marks import Marks, read_marks
from graphrag_milvus.builder.splitters.sheet import Piece, Sheet, Span
from graphrag_milvus.builder.splitters.sizes import Characters, Unit

__all__ = ["BY_LENGTH", "LengthSplitter", "Level", "cut"]

Level: TypeAlias = "Callable[[Sheet, int, int], Iterable[int]]"
"""Where one kind of border is in a span, in order; the ends of the span may be among them."""

_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
_LINE = re.compile(r"\n")
# An initial or a title before a name ends no sentence. A closing quotation mark belongs to what it closes.
_SENTENCE = re.compile(
    r"(?:(?<=[.!?…।؟۔።։])|(?<=[.!?…][\"'”’»)\]]))(?<!\b[A-Z]\.)(?<!\b(?:Dr|Mr|Ms|St|Jr)\.)(?<!\bMrs\.)\s+"
    r"|(?<=[。！？｡])(?![。！？｡”’」』）])|(?<=[。！？｡][”’」』）])"
)
_SPACE = re.compile(r"\s")
_LAST_WORD = re.compile(r"\s\S*\Z")
_LONGEST_CLUSTER = 16  # characters; what is longer was not meant to be one sign
_JOINER = "\u200d"


@dataclass(frozen=True)
class LengthSplitter:
    """Passages as long as `size` allows. What looks like a heading is text; the headers of tables are repeated.

    Args:
        size: characters or tokens in one passage at the most.
        unit: what `size` counts.
    """

    size: int
    unit: Unit = field(default_factory=Characters)

    @property
    def recipe(self) -> str:
        """Changes whenever a text could be split otherwise."""
        return f"length/1 {self.size} {self.unit.name}"

    def split(self, text: str) -> list[Piece]:
        """The passages; with a `page`, from 1, where there are page breaks."""
        tables = Marks(tables=read_marks(text).tables)
        sheet = Sheet(text, self.unit.ruler(text, self.size), tables)
        return sheet.pieces(cut(sheet, *sheet.inside()))


def cut(sheet: Sheet, start: int, end: int, levels: Sequence[Level] | None = None) -> Iterator[Span]:
    """Spans that cover a span, as long as they may be, with borders of the first of `levels` that is enough.

    Where a level leaves something too long, only that is cut at the next level; behind the last come words.
    """
    levels = BY_LENGTH if levels is None else levels
    if sheet.fits(start, end):
        yield start, end
    elif not levels:
        yield from _words(sheet, start, end)
    else:
        borders = [b for b in levels[0](sheet, start, end) if start < b < end and sheet.allowed(b)]
        yield from _packed(sheet, start, [*borders, end], levels[1:])


def _packed(sheet: Sheet, start: int, borders: Sequence[int], finer: Sequence[Level]) -> Iterator[Span]:
    """As many units as fit into each span; one that is too long is cut, and nothing is added to what is left of it."""
    place = 0
    while place < len(borders):
        last = bisect_right(borders, sheet.reach(start), lo=place) - 1
        if last < place:
            last = place
            yield from cut(sheet, start, borders[place], finer)
        else:
            yield start, borders[last]
        start, place = borders[last], last + 1


def _ends_of(pattern: re.Pattern[str]) -> Level:
    """Behind each match within a span: what stands outside of it does not count."""

    def borders(sheet: Sheet, start: int, end: int) -> Iterator[int]:
        return (start + match.end() for match in pattern.finditer(sheet.text[start:end]))

    return borders


def _tables(sheet: Sheet, start: int, end: int) -> Iterator[int]:
    tables = sheet.marks.tables
    for table in tables[bisect_left(tables, start, key=lambda t: t.end) :]:
        if table.start >= end:
            return
        yield from (table.start, table.end)


BY_LENGTH: tuple[Level, ...] = (_ends_of(_PARAGRAPH), _tables, _ends_of(_LINE), _ends_of(_SENTENCE))
"""The levels of a text without an outline."""


# --- words and signs ----------------------------------------------------------------------------------------------


def _words(sheet: Sheet, start: int, end: int) -> Iterator[Span]:
    start, end = sheet.bare(start, end)
    while (limit := sheet.reach(start)) < end:
        border = _border(sheet, start, limit)
        yield start, border
        start = border
    yield start, end


def _border(sheet: Sheet, start: int, limit: int) -> int:
    """Behind the last white space that makes a piece end at `limit` or before, or else between two signs."""
    space = _LAST_WORD.search(sheet.text, start, limit + 1)
    if space and sheet.allowed(space.start() + 1):
        return space.start() + 1
    for end in range(limit, max(start, limit - _LONGEST_CLUSTER), -1):
        if not _joined(sheet.text, start, end):
            return end
    return limit


def _joined(text: str, start: int, place: int) -> bool:
    """Whether the characters before and behind `place` make one sign: an accent, a vowel, a family, a flag.

    The grapheme clusters of Unicode's annex 29, but for rare scripts; `start` is where a sign certainly begins.
    """
    left, right = text[place - 1], text[place]
    if unicodedata.category(right).startswith("M") or _JOINER in (left, right):
        return True
    if "\U0001f3fb" <= right <= "\U0001f3ff" or "\U000e0020" <= right <= "\U000e007f":  # skin colours, tags
        return True
    return _one_flag(text, start, place) or _one_syllable(left, right)


def _one_flag(text: str, start: int, place: int) -> bool:
    """Flags are pairs of letters of their own; in a row of them, the number before tells pairs apart."""
    if not _is_flag_letter(text[place]):
        return False
    first = place
    while first > start and _is_flag_letter(text[first - 1]):
        first -= 1
    return (place - first) % 2 == 1


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _one_syllable(left: str, right: str) -> bool:
    """Korean written in single letters: a vowel after a first consonant, a last consonant after a vowel."""
    if "\u1160" <= right <= "\u11a7":
        return "\u1100" <= left <= "\u11a7"
    return "\u11a8" <= right <= "\u11ff" and ("\u1160" <= left <= "\u11ff" or "\uac00" <= left <= "\ud7a3")
