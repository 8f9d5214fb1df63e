"""A text that is being split: how far a piece may reach, where it must not end, and what goes with it."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, TypeAlias

from graphrag_milvus.builder.splitters.marks import Marks, Table
from graphrag_milvus.builder.splitters.sizes import Ruler

__all__ = ["Piece", "Sheet", "Span"]

Span: TypeAlias = "tuple[int, int]"
Piece: TypeAlias = "tuple[str, Mapping[str, Any]]"
"""The text of a passage, and what is said of it beyond what its document says."""

_SIGN = re.compile(r"\S")


class Sheet:
    """One text with its ruler and marks.

    Args:
        text: the whole text; all positions are in it.
        ruler: what bounds a piece.
        marks: the headings and tables that count. A heading keeps to what it stands over, and so does a table's
            header, which moreover is repeated in every piece that begins further down in the table, unless it
            would take more than half of the piece.
    """

    def __init__(self, text: str, ruler: Ruler, marks: Marks | None = None) -> None:
        self.text = text
        self.ruler = ruler
        self.marks = marks or Marks()

    # Where a piece may end

    def reach(self, start: int) -> int:
        """The end of the longest piece that may begin at `start`."""
        table = self._table_at(start)
        return self.ruler.reach(start, self._header(table) if table else 0)

    def fits(self, start: int, end: int) -> bool:
        """Whether one piece may hold all from `start` to `end`."""
        return end <= self.reach(start)

    def allowed(self, border: int) -> bool:
        """Whether a piece may end here: not between a heading or a table's header and what they stand over."""
        starts, ends = self._kept_together
        place = bisect_left(starts, border) - 1
        return place < 0 or border > ends[place]

    def inside(self) -> Span:
        """The text without white space at its borders; empty where it is nothing else."""
        return self.bare(0, len(self.text))

    def bare(self, start: int, end: int) -> Span:
        """A span without white space at its borders."""
        first = _SIGN.search(self.text, start, end)
        if first is None:
            return start, start
        return first.start(), start + len(self.text[start:end].rstrip())

    # What becomes of the pieces

    def pieces(self, spans: Iterable[Span]) -> list[Piece]:
        """The texts of spans, with their table's header and their page; blank ones are left out."""
        bare = (self.bare(*span) for span in spans)
        return [(self._headed(s, e), self._described(s, e)) for s, e in bare if s < e]

    def _headed(self, start: int, end: int) -> str:
        table = self._table_at(start)
        header = self.text[table.start : table.body] if table else ""
        return (header + self.text[start:end]).strip()

    def _described(self, start: int, end: int) -> dict[str, Any]:
        path = self._path(start, end)
        page = {"page": bisect_right(self._page_breaks, start) + 1} if self._page_breaks else {}
        return {**({"headings": path} if path else {}), **page}

    @cached_property
    def _page_breaks(self) -> array[int]:
        return array("q", (match.start() for match in re.finditer("\f", self.text)))

    # Tables

    @cached_property
    def _tables(self) -> list[Table]:
        """Those whose header is repeated."""
        return [table for table in self.marks.tables if 2 * self._header(table) <= self.ruler.size]

    @cached_property
    def _table_starts(self) -> list[int]:
        return [table.start for table in self._tables]

    def _header(self, table: Table) -> int:
        return self.ruler.measure(table.start, table.body)

    def _table_at(self, place: int) -> Table | None:
        """The table in which `place` is, below the header."""
        found = bisect_right(self._table_starts, place) - 1
        table = self._tables[found] if found >= 0 else None
        return table if table and table.body <= place < table.end else None

    # Headings

    @cached_property
    def _heading_starts(self) -> list[int]:
        return [heading.start for heading in self.marks.headings]

    @cached_property
    def _contents(self) -> list[int]:
        """Where what follows each heading begins; the end of the text where nothing does."""
        signs = (_SIGN.search(self.text, heading.end) for heading in self.marks.headings)
        return [sign.start() if sign else len(self.text) for sign in signs]

    def _filled(self, place: int) -> bool:
        """Whether a heading has a text of its own, and not another heading, below it."""
        starts = self._heading_starts
        following = starts[place + 1] if place + 1 < len(starts) else len(self.text)
        return self._contents[place] < following

    @cached_property
    def _kept_together(self) -> tuple[list[int], list[int]]:
        """Starts and ends of what is not to be parted: a piece may not end after a start up to its end."""
        glued = sorted([*self._glued_headings(), *((table.start, table.body) for table in self._tables)])
        return [start for start, _ in glued], [end for _, end in glued]

    def _glued_headings(self) -> list[Span]:
        """Each heading with the first sign below it.

        Headings in a row all go with the text below the last, as far as they take no more than half of a piece;
        those before have no text, and the last of them ends a piece all the same.
        """
        glued: list[Span] = []
        end = 0
        for place in range(len(self.marks.headings) - 1, -1, -1):
            start, content = self._heading_starts[place], self._contents[place]
            end = max(content, end) if not self._filled(place) and content < len(self.text) else content
            if 2 * self.ruler.measure(start, end) <= self.ruler.size:
                glued.append((start, content))
            else:
                end = start
        return glued

    @cached_property
    def _paths(self) -> list[tuple[int, ...]]:
        """For each heading the headings above it, and itself."""
        paths: list[tuple[int, ...]] = []
        above: tuple[int, ...] = ()
        for place, heading in enumerate(self.marks.headings):
            while above and self.marks.headings[above[-1]].level >= heading.level:
                above = above[:-1]
            above = (*above, place)
            paths.append(above)
        return paths

    def _path(self, start: int, end: int) -> list[str]:
        """The headings that all sections of a span have in common; those without a text count where all are so."""
        first = bisect_right(self._heading_starts, start) - 1
        last = bisect_left(self._heading_starts, end) - 1
        sections = range(first, last + 1)
        filled = [s for s in sections if s < 0 or (self._filled(s) and self._contents[s] < end)]
        paths = [self._paths[s] if s >= 0 else () for s in filled or sections]
        return [self.marks.headings[place].title for place in _common(paths)]


def _common(paths: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The longest beginning of all; paths in order of the text need only their least and greatest compared."""
    if not paths:
        return ()
    low, high = min(paths), max(paths)
    same = next(
        (n for n, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]), min(len(low), len(high))
    )
    return low[:same]
