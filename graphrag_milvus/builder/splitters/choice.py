"""Which splitter the settings mean."""

from __future__ import annotations

from collections.abc import Callable

from graphrag_milvus.builder.splitters.custom import Splitter
from graphrag_milvus.builder.splitters.length import LengthSplitter
from graphrag_milvus.builder.splitters.meaning import MeaningSplitter
from graphrag_milvus.builder.splitters.outline import OutlineSplitter
from graphrag_milvus.builder.splitters.pattern import PatternSplitter, check_pattern
from graphrag_milvus.builder.splitters.sizes import Characters, Unit, tokens_of
from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.errors import SettingsError
from graphrag_milvus.settings import IndexSettings

__all__ = ["make_splitter"]


def make_splitter(settings: IndexSettings, embedder: Embedder) -> Splitter:
    """The splitter that `settings` name; `auto` goes by the outline, which is by length where there is none.

    Args:
        embedder: its model counts tokens and, for `meaning`, compares sentences.

    Raises:
        SettingsError: the pattern is missing, malformed or too slow.
    """
    size = settings.passage_size
    unit: Unit = tokens_of(embedder) if settings.size_unit == "tokens" else Characters()
    makers: dict[str, Callable[[], Splitter]] = {
        "length": lambda: LengthSplitter(size, unit),
        "outline": lambda: OutlineSplitter(size, unit, settings.numbered_headings),
        "pattern": lambda: PatternSplitter(_checked(settings.split_pattern), size, unit),
        "meaning": lambda: MeaningSplitter(embedder, size, unit),
    }
    return makers["outline" if settings.splitter == "auto" else settings.splitter]()


def _checked(pattern: str) -> str:
    if not pattern:
        raise SettingsError(
            "index.splitter='pattern' has no pattern; set index.split_pattern (GRAPHRAG_INDEX__SPLIT_PATTERN) "
            "to a regular expression that matches where a passage begins"
        )
    check_pattern(pattern)
    return pattern
