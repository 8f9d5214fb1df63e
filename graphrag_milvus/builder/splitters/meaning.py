"""Cutting by meaning: where sentences beside each other are least alike."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphrag_milvus.builder.splitters.length import BY_LENGTH, cut
from graphrag_milvus.builder.splitters.marks import read_marks
from graphrag_milvus.builder.splitters.sheet import Piece, Sheet, Span
from graphrag_milvus.builder.splitters.sizes import Characters, Unit
from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.sentences import sentence_spans

__all__ = ["MeaningSplitter"]

_BLOCK = 2_048  # sentences whose vectors are in memory at once
_STEPS = 10_000  # similarities are rounded to this part: noise of the model does not move a border
_FORBIDDEN = 1_000 * _STEPS  # the price of a border that is taken only where there is no other


@dataclass(frozen=True)
class MeaningSplitter:
    """Passages of whole sentences whose borders have the least similarity in sum.

    A border costs 1 + the cosine of the sentences before and behind it; of all ways to cut that keep to the
    size, the cheapest is taken, by dynamic programming in linear time. So there are few passages, and they end
    where the subject changes. A text that is no longer than `size` is one passage and is not embedded.

    Args:
        embedder: makes the vectors of sentences, thousands at once.
        size: characters or tokens in one passage at the most.
        unit: what `size` counts.

    Raises, when it splits:
        EmbeddingError: the embedder failed.
    """

    embedder: Embedder
    size: int
    unit: Unit = field(default_factory=Characters)

    @property
    def recipe(self) -> str:
        """Changes whenever a text could be split otherwise."""
        return f"meaning/1 {self.embedder.name} {self.size} {self.unit.name}"

    def split(self, text: str) -> list[Piece]:
        """The passages, with `headings` and `page` as the outline gives them."""
        sheet = Sheet(text, self.unit.ruler(text, self.size), read_marks(text))
        span = sheet.inside()
        return sheet.pieces([span] if sheet.fits(*span) else self._spans(sheet, span))

    def _spans(self, sheet: Sheet, span: Span) -> list[Span]:
        units = list(_units(sheet, *span))
        prices = [_STEPS + alike for alike in self._similarities([sheet.text[s:e].strip() for s, e in units])]
        return _cheapest(sheet, units, [0, *(_price(sheet, s, p) for (s, _), p in zip(units[1:], prices, strict=True))])

    def _similarities(self, sentences: Sequence[str]) -> list[int]:
        """The cosine of each sentence and the next, in ten thousandths."""
        found: list[int] = []
        for start in range(0, len(sentences) - 1, _BLOCK):
            vectors = self.embedder.embed(sentences[start : start + _BLOCK + 1]).astype(np.float64)
            cosines = np.einsum("ij,ij->i", vectors[:-1], vectors[1:])
            found.extend(np.rint(cosines * _STEPS).astype(int).tolist())
        return found


def _units(sheet: Sheet, start: int, end: int) -> Iterator[Span]:
    """Sentences, and pieces of those that are too long for a passage; white space alone is none."""
    for first, last in sentence_spans(sheet.text[start:end]):
        for unit in cut(sheet, start + first, start + last, BY_LENGTH):
            bare = sheet.bare(*unit)
            if bare[0] < bare[1]:
                yield bare


def _price(sheet: Sheet, border: int, price: int) -> int:
    return max(0, price) if sheet.allowed(border) else _FORBIDDEN


def _cheapest(sheet: Sheet, units: Sequence[Span], prices: Sequence[int]) -> list[Span]:
    """The spans of units in a row that keep to the size and whose borders cost least.

    `prices[n]` is that of a border before unit n. cost[n] = min over m of cost[m] + prices[m], where the units
    from m to n - 1 fit into one span. `waiting` has the m that can still win, cheapest first.
    """
    costs, origins = [0], [0]
    waiting: deque[tuple[int, int]] = deque()
    for n, (_, end) in enumerate(units):
        paid = costs[n] + prices[n]
        while waiting and waiting[-1][0] > paid:
            waiting.pop()
        waiting.append((paid, n))
        while not sheet.fits(units[waiting[0][1]][0], end):
            waiting.popleft()
        costs.append(waiting[0][0])
        origins.append(waiting[0][1])
    return _traced(units, origins)


def _traced(units: Sequence[Span], origins: Sequence[int]) -> list[Span]:
    spans: list[Span] = []
    n = len(units)
    while n:
        spans.append((units[origins[n]][0], units[n - 1][1]))
        n = origins[n]
    return spans[::-1]
