"""Retrieval without the graph: nearest vectors, alone or together with matching words."""

from __future__ import annotations

from dataclasses import dataclass

from graphrag_milvus.retrieval.base import (
    PASSAGE_FIELDS,
    Resources,
    Stopwatch,
    check_question,
    dense,
    finish,
    scored,
)
from graphrag_milvus.retrieval.fusion import min_max, weighted_sum
from graphrag_milvus.types import Retrieval, Trace

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
        check_question(question, k, filter)
        watch, trace = Stopwatch(), Trace(method=self.name)
        with self.resources.store.counting() as trips:
            with watch.stage("embed"):
                vector = self.resources.embedder.embed_one(question)
            with watch.stage("search"):
                hits = dense(self.resources, vector, k, filter)
            trace.round_trips = trips.count
        trace.scores = {str(h.id): {"dense": h.score} for h in hits}
        return finish(trace, watch, question, [scored(h.id, h.row, h.score) for h in hits])


@dataclass(frozen=True)
class Hybrid:
    """Nearest vectors and BM25, min-max-normalised and added with equal weights.

    Where the engine has no BM25 it is the dense ranking, and the trace says so.
    """

    resources: Resources
    name: str = "hybrid"

    def retrieve(self, question: str, k: int, filter: str = "") -> Retrieval:
        """At most `k` passages by the fused score, from 0 to 1."""
        check_question(question, k, filter)
        store = self.resources.store
        watch, trace = Stopwatch(), Trace(method=self.name)
        pool = max(k, _POOL) if k else 0
        with store.counting() as trips:
            with watch.stage("embed"):
                vector = self.resources.embedder.embed_one(question)
            with watch.stage("search"):
                near = dense(self.resources, vector, pool, filter)
            with watch.stage("words"):
                words = []
                if store.has_bm25:
                    words = store.search_words(question, pool, filter=filter, fields=PASSAGE_FIELDS)
                elif store.exists():
                    trace.notes.append(f"the engine at {store.uri} has no BM25, so only vectors were searched")
            trace.round_trips = trips.count
        rows = {h.id: h.row for h in [*words, *near]}
        given = {"dense": {h.id: h.score for h in near}, "words": {h.id: h.score for h in words}}
        fused = weighted_sum(*((0.5, min_max(scores)) for scores in given.values())) if words else given["dense"]
        passages = [scored(i, rows[i], score) for i, score in list(fused.items())[:k]]
        for passage in passages:
            row_id = int(passage.id)
            trace.scores[passage.id] = {source: scores[row_id] for source, scores in given.items() if row_id in scores}
        return finish(trace, watch, question, passages)
