"""Retrieval without the graph: nearest vectors, alone or together with matching words."""

from __future__ import annotations

from dataclasses import dataclass

from graphrag_milvus.hits import Hit
from graphrag_milvus.retrieval.base import PASSAGE_FIELDS, Resources, Run, answered, dense, scored
from graphrag_milvus.retrieval.fusion import min_max, weighted_sum
from graphrag_milvus.types import Retrieval, ScoredPassage

__all__ = ["Hybrid", "Naive"]

_POOL = 100
"""Hits of each ranking that are fused: deep enough that a passage far down in one can be far up in the sum."""


@dataclass(frozen=True)
class Naive:
    """The passages whose vectors are nearest to the question's: what plain RAG does."""

    resources: Resources
    name: str = "naive"

    def retrieve(self, question: str, k: int, filter: str = "") -> Retrieval:
        """At most `k` passages by cosine."""
        return answered(self.resources, Run(self.name, question, k, filter), self._run)

    def _run(self, run: Run) -> list[ScoredPassage]:
        with run.watch.stage("embed"):
            vector = self.resources.embedder.embed_one(run.question)
        with run.watch.stage("search"):
            hits = dense(self.resources, run, vector, run.k)
        run.trace.scores = {str(h.id): {"dense": h.score} for h in hits}
        return [scored(h.id, h.row, h.score) for h in hits]


@dataclass(frozen=True)
class Hybrid:
    """Nearest vectors and BM25, min-max-normalised and added with equal weights.

    Where the engine has no BM25 it is the dense ranking, and the trace says so.
    """

    resources: Resources
    name: str = "hybrid"

    def retrieve(self, question: str, k: int, filter: str = "") -> Retrieval:
        """At most `k` passages by the fused score, from 0 to 1."""
        return answered(self.resources, Run(self.name, question, k, filter), self._run)

    def _run(self, run: Run) -> list[ScoredPassage]:
        pool = max(run.k, _POOL)
        with run.watch.stage("embed"):
            vector = self.resources.embedder.embed_one(run.question)
        with run.watch.stage("search"):
            near = dense(self.resources, run, vector, pool)
        with run.watch.stage("words"):
            words = self._words(run, pool)
        rows = {h.id: h.row for h in [*words, *near]}
        given = {"dense": {h.id: h.score for h in near}, "words": {h.id: h.score for h in words}}
        fused = weighted_sum(*((0.5, min_max(scores)) for scores in given.values())) if words else given["dense"]
        passages = [scored(i, rows[i], score) for i, score in list(fused.items())[: run.k]]
        for passage in passages:
            row_id = int(passage.id)
            by_source = {source: scores[row_id] for source, scores in given.items() if row_id in scores}
            run.trace.scores[passage.id] = by_source
        return passages

    def _words(self, run: Run, pool: int) -> list[Hit]:
        """Passages by BM25; none, and a note, where the engine has it not."""
        store = self.resources.store
        if store.has_bm25:
            return store.search_words(run.question, pool, filter=run.filter, fields=PASSAGE_FIELDS)
        if store.exists():
            run.trace.notes.append(f"the engine at {store.uri} has no BM25, so only vectors were searched")
        return []
