"""Cutting by outline: at the highest headings where that is enough, then at lower ones, then by length."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from graphrag_milvus.builder.splitters.length import BY_LENGTH, Level, cut
from graphrag_milvus.builder.splitters.marks import Heading, read_marks
from graphrag_milvus.builder.splitters.sheet import Piece, Sheet
from graphrag_milvus.builder.splitters.sizes import Characters, Unit

__all__ = ["OutlineSplitter"]


@dataclass(frozen=True)
class OutlineSplitter:
    """Passages that are sections: whole ones with all below them where they fit, small neighbours together.

    Every passage knows the headings above it. A heading is never the last of a passage that goes on with
    something else. A text without headings is split by length.

    Args:
        size: characters or tokens in one passage at the most.
        unit: what `size` counts.
        numbered: lines such as `2.1 Methods` are headings too.
    """

    size: int
    unit: Unit = field(default_factory=Characters)
    numbered: bool = False

    @property
    def recipe(self) -> str:
        """Changes whenever a text could be split otherwise."""
        return f"outline/1 {self.size} {self.unit.name}{' numbered' if self.numbered else ''}"

    def split(self, text: str) -> list[Piece]:
        """The passages, with `headings` from the highest down, and with a `page`, from 1, where there are breaks."""
        marks = read_marks(text, numbered=self.numbered)
        sheet = Sheet(text, self.unit.ruler(text, self.size), marks)
        return sheet.pieces(cut(sheet, *sheet.inside(), [*_levels(marks.headings), *BY_LENGTH]))


def _levels(headings: Sequence[Heading]) -> list[Level]:
    """One level of borders for each level of headings: before these and all that are higher."""
    depths = sorted({heading.level for heading in headings})
    return [_starts_of([h.start for h in headings if h.level <= depth]) for depth in depths]


def _starts_of(starts: Sequence[int]) -> Level:
    def borders(sheet: Sheet, start: int, end: int) -> Iterator[int]:
        return iter(starts[bisect_left(starts, start) : bisect_left(starts, end)])

    return borders
