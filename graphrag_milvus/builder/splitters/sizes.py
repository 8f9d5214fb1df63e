"""How long a passage may be: a ruler over one text, in characters or in tokens."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from graphrag_milvus.embeddings import Embedder, LocalEmbeddings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["MOST_CHARACTERS", "Characters", "EstimatedTokens", "ModelTokens", "Ruler", "Unit", "tokens_of"]

MOST_CHARACTERS = 65_535 // 4
"""A VARCHAR of Milvus holds 65,535 bytes, and a character of UTF-8 takes four at the most."""

# WordPiece makes one unknown sign of a whole word of more than 100 characters, and white space is no token.
_LONGEST_TOKEN = 16
_BLOCK = 8_192  # characters that a tokenizer has in work at once: its result takes a hundred times their memory
_BLOCKS = 64

# A model's vocabulary has most short words of English whole, and little of other alphabets.
_PART = re.compile("[A-Za-z]{1,5}|\\d{1,3}|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\\W\\d_]{1,2}|[^\\w\\s]|_")


@dataclass(frozen=True)
class Ruler:
    """Measures pieces of one text.

    Args:
        size: characters or tokens in one passage at the most; whatever it says, a passage never has more than
            16,383 characters, which is what Milvus stores for certain.
        starts: where the tokens begin, in order; None counts characters.
    """

    size: int
    starts: Sequence[int] | None = None

    def measure(self, start: int, end: int) -> int:
        """Characters, or tokens that begin, from `start` up to `end`."""
        if self.starts is None:
            return end - start
        return bisect_left(self.starts, end) - bisect_left(self.starts, start)

    def reach(self, start: int, spared: int = 0) -> int:
        """The end of the longest piece that begins at `start`, `spared` left free; beyond the text where all fits."""
        room = max(1, self.size - spared)
        if self.starts is None:
            return start + min(room, MOST_CHARACTERS)
        place = bisect_left(self.starts, start) + room
        end = self.starts[place] if place < len(self.starts) else start + MOST_CHARACTERS
        return max(start + 1, min(end, start + MOST_CHARACTERS))


class Unit(Protocol):
    """What sizes are counted in."""

    @property
    def name(self) -> str:
        """A text that changes whenever a size could."""

    def ruler(self, text: str, size: int) -> Ruler:
        """A ruler over `text` for passages of `size`."""


@dataclass(frozen=True)
class Characters:
    """Unicode code points."""

    name: str = "characters"

    def ruler(self, text: str, size: int) -> Ruler:
        """A ruler that does not look at the text."""
        return Ruler(size)


@dataclass(frozen=True)
class EstimatedTokens:
    """Tokens as most models count them, more or less: for a model whose tokenizer is not on this machine.

    One for five letters of English, three digits, two letters of another alphabet, and each sign of Chinese,
    Japanese or Korean or of punctuation.
    """

    name: str = "estimated tokens"

    def ruler(self, text: str, size: int) -> Ruler:
        """A ruler over guessed tokens."""
        return Ruler(size, array("q", (match.start() for match in _PART.finditer(text))))


@dataclass(frozen=True)
class ModelTokens:
    """Tokens as the tokenizer of a local embedding model counts them, without its own marks at both ends.

    A token of more than 16 characters counts as one for each 16 of them. Where a word is cut because it alone
    is too long, its second half may have some tokens more than were counted for it.
    """

    embeddings: LocalEmbeddings

    @property
    def name(self) -> str:
        """The model's identity."""
        return f"tokens of {self.embeddings.name}"

    def ruler(self, text: str, size: int) -> Ruler:
        """A ruler over the tokens of `text`."""
        return Ruler(size, array("q", _starts(self.embeddings.tokenizer(), text)))


def tokens_of(embedder: Embedder) -> Unit:
    """The tokens of the model behind `embedder`, or an estimate of them where its tokenizer is not here."""
    local = embedder.embeddings
    return ModelTokens(local) if isinstance(local, LocalEmbeddings) else EstimatedTokens()


def _starts(tokenizer: Tokenizer, text: str) -> Iterator[int]:
    text = text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate becomes one question mark
    for blocks in _grouped(_blocks(text)):
        encodings = tokenizer.encode_batch([text[start:end] for start, end in blocks], add_special_tokens=False)
        for (at, _), encoding in zip(blocks, encodings, strict=True):
            for start, end in encoding.offsets:
                first = (
                    at + start + (end > start and text[at + start].isspace())
                )  # a space before a word is its token's
                yield from range(first, max(at + end, first + 1), _LONGEST_TOKEN)


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Pieces of about the same length, cut at white space where there is any."""
    start = 0
    while len(text) - start > _BLOCK:
        space = max(text.rfind(" ", start, start + _BLOCK), text.rfind("\n", start, start + _BLOCK))
        end = space if space > start else start + _BLOCK
        yield start, end
        start = end
    yield start, len(text)


def _grouped(blocks: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    group: list[tuple[int, int]] = []
    for block in blocks:
        group.append(block)
        if len(group) == _BLOCKS:
            yield group
            group = []
    if group:
        yield group
