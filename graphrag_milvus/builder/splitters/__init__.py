"""Splitters: texts into passages, by length, by outline, by pattern, by meaning, or by a function of yours.

What all of them keep: no character is lost but white space at the borders of passages, no passage is longer than
it may be, the same text gives the same passages, and time is linear in the length of the text.

One of your own is a function from a text to texts, or to pairs of a text and its metadata:

    def by_speaker(text: str) -> list[tuple[str, dict[str, str]]]:
        return [(line, {"speaker": line.partition(":")[0]}) for line in text.splitlines()]

    rag = GraphRAG(splitter=by_speaker)
"""

from graphrag_milvus.builder.splitters.choice import make_splitter
from graphrag_milvus.builder.splitters.custom import AnySplitter, CustomSplitter, SplitFunction, Splitter, as_splitter
from graphrag_milvus.builder.splitters.length import LengthSplitter
from graphrag_milvus.builder.splitters.meaning import MeaningSplitter
from graphrag_milvus.builder.splitters.outline import OutlineSplitter
from graphrag_milvus.builder.splitters.passages import split
from graphrag_milvus.builder.splitters.pattern import PatternSplitter
from graphrag_milvus.builder.splitters.sheet import Piece

__all__ = [
    "AnySplitter",
    "CustomSplitter",
    "LengthSplitter",
    "MeaningSplitter",
    "OutlineSplitter",
    "PatternSplitter",
    "Piece",
    "SplitFunction",
    "Splitter",
    "as_splitter",
    "make_splitter",
    "split",
]
