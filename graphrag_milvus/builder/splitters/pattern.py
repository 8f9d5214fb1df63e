"""Cutting by pattern: before every match of a regular expression."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import regex

from graphrag_milvus.builder.splitters.length import cut
from graphrag_milvus.builder.splitters.marks import Marks, read_marks
from graphrag_milvus.builder.splitters.sheet import Piece, Sheet, Span
from graphrag_milvus.builder.splitters.sizes import Characters, Unit
from graphrag_milvus.errors import SettingsError

__all__ = ["PatternSplitter", "check_pattern"]

# Seconds of processor time for one text. A pattern that is meant well reads 10 MB in a second or two.
_SECONDS = 5.0
_SECONDS_PER_CHARACTER = 2e-6
_PROBE_SECONDS = 1.0
_PROBE = "Abc 12, x.\nY"


@dataclass(frozen=True)
class PatternSplitter:
    r"""Passages that begin where a regular expression matches; what is longer than `size` is cut by length.

    The match stays, at the beginning of its passage: `^Article \d+` cuts above each article, `(?<=\n)\n` at blank
    lines. `^` and `$` are the ends of lines. A match of nothing cuts where it is.

    Args:
        pattern: in the syntax of the package `regex`, which has that of Python's `re`.
        size: characters or tokens in one passage at the most.
        unit: what `size` counts.

    Raises, when it splits:
        SettingsError: the pattern is malformed, or takes too long for a text.
    """

    pattern: str
    size: int
    unit: Unit = field(default_factory=Characters)

    @property
    def recipe(self) -> str:
        """Changes whenever a text could be split otherwise."""
        return f"pattern/1 {self.pattern!r} {self.size} {self.unit.name}"

    def split(self, text: str) -> list[Piece]:
        """The passages; with a `page`, from 1, where there are page breaks."""
        sheet = Sheet(text, self.unit.ruler(text, self.size), Marks(tables=read_marks(text).tables))
        return sheet.pieces(piece for span in self._spans(sheet) for piece in cut(sheet, *span))

    def _spans(self, sheet: Sheet) -> Iterator[Span]:
        start, end = sheet.inside()
        seconds = _SECONDS + _SECONDS_PER_CHARACTER * (end - start)
        for border in _matches(self.pattern, sheet.text, seconds):
            if start < border < end:
                yield sheet.bare(start, border)
                start = border
        yield sheet.bare(start, end)


def check_pattern(pattern: str) -> None:
    """Raise a `SettingsError` where `pattern` is malformed, matches everywhere, or takes for ever on a few letters."""
    if len(_matches(pattern, _PROBE, _PROBE_SECONDS)) > len(_PROBE):
        raise SettingsError(f"index.split_pattern={pattern!r} matches everywhere; give one that matches where to cut")
    for letter in sorted({*pattern, "a", "A", "1", " ", "\n"}):
        _matches(pattern, letter * 2_000 + "\0", _PROBE_SECONDS)


def _matches(pattern: str, text: str, seconds: float) -> list[int]:
    """Where matches begin."""
    try:
        return [match.start() for match in _compiled(pattern).finditer(text, timeout=seconds)]
    except TimeoutError:
        raise SettingsError(
            f"index.split_pattern={pattern!r} takes more than {seconds:.0f} seconds for {len(text):,} characters, "
            f"beginning with {text[:40]!r}; make it simpler: no repetition inside a repetition"
        ) from None


@lru_cache(maxsize=16)
def _compiled(pattern: str) -> Any:
    try:
        return regex.compile(pattern, regex.V0 | regex.MULTILINE)
    except regex.error as error:
        raise SettingsError(f"index.split_pattern={pattern!r} is no regular expression: {error}") from None
