"""The story that `graphrag-milvus demo` tells: one question, naive retrieval and graph retrieval side by side."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from graphrag_milvus.rag import GraphRAG
from graphrag_milvus.samples import load_corpus
from graphrag_milvus.types import Answer, IndexReport, Retrieval, ScoredPassage

__all__ = ["QUESTION", "Story", "tell"]

QUESTION = "What contribution did the son of Euler's teacher make?"
_TOP = 2


@dataclass(frozen=True)
class Story:
    """What came out for one question."""

    question: str
    report: IndexReport
    naive: Retrieval
    graph: Retrieval
    answer: Answer

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return dataclasses.asdict(self)

    def lines(self, width: int = 100) -> list[str]:
        """The story as text, `width` characters wide."""
        width = max(60, min(width, 140))
        column = (width - 3) // 2
        r = self.report
        head = f"Indexed {r.documents} documents: {r.passages} passages, {r.relations} relations, {r.entities} entities"
        left = [f"NAIVE RETRIEVAL, top {_TOP}", "", *_passages(self.naive.passages, column)]
        right = [f"GRAPH RETRIEVAL, top {_TOP}", "", *_passages(self.graph.passages, column)]
        return [
            f"{head} ({r.seconds:.1f} s)." if r.passages else "The sample corpus is indexed already.",
            "",
            f"Question: {self.question}",
            "",
            *(f"{a:<{column}} | {b}".rstrip() for a, b in zip_longest(left, right, fillvalue="")),
            "",
            "The path to each passage of graph retrieval:",
            *(textwrap.fill(p, width, initial_indent="  ", subsequent_indent="    ") for p in self.graph.trace.path),
            "",
            "Answer" + (" (extractive, no chat model):" if self.answer.extractive else ":"),
            textwrap.fill(self.answer.text, width, initial_indent="  ", subsequent_indent="  "),
            "Citations:",
            *(f"  [{n}] {p.title}, passage {p.id}" for n, p in _cited(self.answer)),
        ]


def tell(rag: GraphRAG, question: str = QUESTION) -> Story:
    """Index the sample corpus where it is not indexed yet, and ask."""
    report = rag.add(load_corpus(), extractor="local")
    naive = rag.retrieve(question, method="naive", k=_TOP)
    graph = rag.retrieve(question, k=_TOP)
    return Story(question, report, naive, graph, rag.ask(question, k=_TOP))


def _passages(passages: Sequence[ScoredPassage], width: int) -> list[str]:
    lines: list[str] = []
    for n, passage in enumerate(passages, start=1):
        lines += [f"[{n}] {passage.title}", *textwrap.wrap(passage.text, width), ""]
    return lines


def _cited(answer: Answer) -> list[tuple[int, ScoredPassage]]:
    return [(n, p) for n, p in enumerate(answer.passages, start=1) if p.id in answer.citations]
