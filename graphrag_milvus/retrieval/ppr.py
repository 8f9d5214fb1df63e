"""Personalised PageRank over entities, relations and passages, from the question's entities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_milvus.graph import Masses, PassageGraph
from graphrag_milvus.retrieval.base import PASSAGE_FIELDS, Resources, Run, answered, scored
from graphrag_milvus.retrieval.path import chains, line, spelled
from graphrag_milvus.retrieval.seeds import Seeds
from graphrag_milvus.retrieval.snapshot import Snapshot
from graphrag_milvus.retrieval.walk import POOL, RELEVANT, Start, begin, largest, walk
from graphrag_milvus.types import Retrieval, ScoredPassage

__all__ = ["PPR"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SIMILARITY_WEIGHT = 3.0
"""How much a passage's cosine of 1 weighs against a factor e of mass."""
_LEAST_MASS = 1e-12
_SHOWN = 5
"""Passages whose way is told."""


@dataclass(frozen=True)
class _Found:
    """What the walk and the searches gave: passages by position, best first, with their scores by source."""

    masses: Masses
    order: Ints
    scores: Floats
    similarity: Floats


@dataclass(frozen=True)
class PPR:
    """Passages by a walk with restart over the graph, after HippoRAG 2 and LinearRAG.

    The walker begins at the entities that the question names, each with 1 over the number of passages that mention
    it (HippoRAG's node specificity [Gutiérrez et al., 2024, NeurIPS]), and now and then at a passage like the
    question; relations like the question draw more of it. What it leaves on a passage, together with how like the
    question the passage is, makes the order:

        log(mass) + 3 * similarity

    Similarities are the mean of two: with the question, and with the question without the names that are linked.
    The second is for what lies further along: the passage on a film's director says nothing of the film
    (`Who is the spouse of the director of ...`). A search with the mean of the two vectors gives it at once.

    Sentences and triples are both relations of the one incidence matrix, so that this needs no chat model; that
    names and sentences are enough is LinearRAG's finding [arXiv 2510.10114].
    """

    resources: Resources
    name: str = "ppr"

    def retrieve(self, question: str, k: int, filter: str = "") -> Retrieval:
        """At most `k` passages; their scores fall from 1 at the best."""
        return answered(self.resources, Run(self.name, question, k, filter), self._run)

    def _run(self, run: Run) -> list[ScoredPassage]:
        with run.watch.stage("graph"):
            snapshot = self.resources.snapshots.get(run.filter)
        start = begin(run, snapshot, self.resources, passages=max(POOL, run.k), relations=RELEVANT)
        with run.watch.stage("walk"):
            found = _rank(snapshot.graph, start, run.k)
        with run.watch.stage("passages"):
            passages = self._passages(run, snapshot.graph, found)
        with run.watch.stage("explain"):
            self._explain(run, snapshot, start.seeds, found, passages)
        return passages

    def _passages(self, run: Run, graph: PassageGraph, found: _Found) -> list[ScoredPassage]:
        """The best passages that are still there: one may have been deleted since the snapshot."""
        passages: list[ScoredPassage] = []
        start = 0
        while len(passages) < run.k and start < len(found.order):
            part = found.order[start : start + run.k]
            rows = self.resources.store.get("passages", graph.passage_ids[part].tolist(), PASSAGE_FIELDS)
            for place, position in enumerate(part.tolist(), start=start):
                passage_id = int(graph.passage_ids[position])
                if passage_id in rows and len(passages) < run.k:
                    passages.append(scored(passage_id, rows[passage_id], float(found.scores[place])))
                    run.trace.scores[str(passage_id)] = {
                        "walk": float(found.masses.passages[position]),
                        "dense": float(found.similarity[position]),
                    }
            start += run.k
        return passages

    def _explain(
        self, run: Run, snapshot: Snapshot, seeds: Seeds, found: _Found, passages: Sequence[ScoredPassage]
    ) -> None:
        """Write into the trace what was reached, the heaviest relation of each passage, and the way to it."""
        incidence, trace = snapshot.incidence, run.trace
        mass = found.masses.relations
        trace.seeds = {"entities": seeds.entities, "relations": []}
        trace.expanded = int(np.count_nonzero(mass))
        best = largest(mass, min(trace.expanded, self.resources.settings.candidates))
        trace.candidates = len(best)
        trace.candidate_ids = [str(i) for i in incidence.relation_ids[best].tolist()]
        if not len(seeds.entity_positions):
            trace.notes.append("no entity of the graph is named in the question; the walk began at passages like it")
        top = _best_relations(snapshot.graph, mass, [int(p.id) for p in passages])
        ways = chains(snapshot, seeds, best, list(top.values())[:_SHOWN])
        wanted = {*top.values(), *(relation for way in ways.values() for _, relation in way)}
        ids = incidence.relation_ids[sorted(wanted)].tolist()
        named = self.resources.store.get("relations", ids, ["text", "entity_ids", "names"])
        texts = {i: str(row["text"]) for i, row in named.items()}
        names = spelled(named)
        for passage in passages:
            relation = top.get(int(passage.id), -1)
            relation_id = int(incidence.relation_ids[relation]) if relation >= 0 else -1
            if relation_id not in named:
                continue
            trace.selected.append(
                {
                    "id": str(relation_id),
                    "text": texts[relation_id],
                    "entities": list(named[relation_id]["names"]),
                    "passage_ids": [passage.id],
                    "score": passage.score,
                }
            )
            if relation in ways and len(trace.path) < _SHOWN:
                trace.path.append(line(ways[relation], snapshot, texts, names, passage=passage))


def _rank(graph: PassageGraph, start: Start, k: int) -> _Found:
    """The masses, and the first passages in the order of their scores: more than `k`, should some be gone."""
    similarity = np.full(len(graph.passage_ids), start.similarity.min(initial=1.0))
    similarity[start.passages] = start.similarity
    masses = walk(graph, start.seeds.entity_weights, start.passages, start.similarity, start.weights(graph.incidence))
    if masses is None:
        nothing = Masses(np.zeros(0), np.zeros(len(graph.passage_of)), np.zeros(len(similarity)), 0)
        return _Found(nothing, np.zeros(0, dtype=np.int64), np.zeros(0), similarity)
    rank = np.log(np.maximum(masses.passages, _LEAST_MASS)) + SIMILARITY_WEIGHT * similarity
    order = largest(rank, 2 * k + POOL)
    return _Found(masses, order, np.exp(rank[order] - rank[order[0]]), similarity)


def _best_relations(graph: PassageGraph, mass: Floats, passage_ids: Sequence[int]) -> dict[int, int]:
    """The heaviest relation of each passage that has one with mass, by passage id."""
    of = graph.relations_of(graph.passage_positions(passage_ids))
    best: dict[int, int] = {}
    for relation in of[np.lexsort((of, -mass[of]))].tolist():
        if mass[relation] > 0:
            best.setdefault(int(graph.passage_ids[graph.passage_of[relation]]), relation)
    return {passage: best[passage] for passage in passage_ids if passage in best}
