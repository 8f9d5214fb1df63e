"""Graph retrieval: seeds, expansion in the incidence, a budget, a selection of relations, their passages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_milvus.retrieval.base import (
    PASSAGE_FIELDS,
    Resources,
    Stopwatch,
    check_question,
    dense,
    finish,
    joined,
    scored,
)
from graphrag_milvus.retrieval.path import explain
from graphrag_milvus.retrieval.reranker import Candidate, LocalSelector, ModelSelector, Selection
from graphrag_milvus.retrieval.seeds import Seeds, find_seeds, named_entities, names_to_look_up
from graphrag_milvus.retrieval.snapshot import Snapshot
from graphrag_milvus.store import Hit
from graphrag_milvus.types import Retrieval, ScoredPassage, Trace, normalize_name

__all__ = ["Subgraph"]

Ints = npt.NDArray[np.int64]


@dataclass
class _Run:
    """One question on its way."""

    question: str
    k: int
    filter: str
    trace: Trace
    watch: Stopwatch = field(default_factory=Stopwatch)


@dataclass(frozen=True)
class Subgraph:
    """Multi-way retrieval with expansion and a one-shot reranker, after "Graph RAG with Milvus" (Milvus docs).

    Entities named in the question and relations like the question expand `degree` steps through the
    incidence. A walk over what was reached weighs each relation, and the heaviest, up to a budget, are the
    candidates. The model, or the local score where there is none, selects; the passages of the selected
    relations come in that order, and the dense ranking fills up to k.
    """

    resources: Resources
    name: str = "subgraph"

    def retrieve(self, question: str, k: int, filter: str = "") -> Retrieval:
        """At most `k` passages; their scores fall from 1 at the best."""
        check_question(question, k, filter)
        run = _Run(question, k, filter, Trace(method=self.name))
        with self.resources.store.counting() as trips:
            passages = self._run(run) if k else []
            run.trace.round_trips = trips.count
        return finish(run.trace, run.watch, question, passages)

    def _run(self, run: _Run) -> list[ScoredPassage]:
        with run.watch.stage("graph"):
            snapshot = self.resources.snapshots.get(run.filter)
        with run.watch.stage("embed"):
            names = names_to_look_up(run.question, named_entities(run.question, snapshot))
            vectors = self._vectors(run.question, names)
        with run.watch.stage("seeds"):
            seeds = find_seeds(run.question, vectors, names, snapshot, self.resources, filter=run.filter)
        with run.watch.stage("expand"):
            positions, mass = self._expand(snapshot, seeds, run.trace)
        with run.watch.stage("describe"):
            hits = self._describe(vectors[0], snapshot.incidence.relation_ids[positions], run.filter)
        candidates = _candidates(hits, snapshot, dict(zip(positions.tolist(), mass.tolist(), strict=True)))
        with run.watch.stage("select"):
            selection = self._select(run, seeds, candidates)
        with run.watch.stage("passages"):
            passages = self._passages(run, vectors[0], candidates, selection)
        with run.watch.stage("explain"):
            chosen = [candidates[place].relation_ids[0] for place in selection.places]
            named = self.resources.store.get("relations", chosen, ["entity_ids", "names"])
            _tell(run.trace, seeds, candidates, selection, hits, named=named)
            run.trace.path = explain(
                snapshot, seeds, positions, hits, named=named, selected=run.trace.selected, passages=passages
            )
        return passages

    def _vectors(self, question: str, names: Sequence[str]) -> npt.NDArray[np.float32]:
        """The question's vector in row 0, then those of names as entities are embedded."""
        embedder = self.resources.embedder
        return np.stack([embedder.embed_one(question), *(embedder.embed_one(normalize_name(n)) for n in names)])

    def _expand(self, snapshot: Snapshot, seeds: Seeds, trace: Trace) -> tuple[Ints, npt.NDArray[np.float64]]:
        """Positions of the candidates, heaviest first, and their mass."""
        incidence, settings = snapshot.incidence, self.resources.settings
        reached = incidence.expand(seeds.entity_positions, seeds.relation_positions, settings.degree)
        mass = incidence.walk(reached, seeds.entity_weights, seeds.relation_weights, settings.degree)
        best = np.lexsort((reached, -mass))[: settings.candidates]
        trace.expanded = len(reached)
        if len(reached) > len(best):
            trace.notes.append(f"{len(reached):,} relations were reached; the {len(best)} heaviest are candidates")
        return reached[best], mass[best]

    def _describe(self, vector: npt.NDArray[np.float32], ids: Ints, filter: str) -> dict[int, Hit]:
        """Text and cosine of the candidates, by id."""
        if not len(ids):
            return {}
        [hits] = self.resources.store.search(
            "relations",
            vector[None],
            len(ids),
            filter=joined(f"id in {ids.tolist()}", filter),
            fields=["text"],
        )
        return {hit.id: hit for hit in hits}

    def _select(self, run: _Run, seeds: Seeds, candidates: Sequence[Candidate]) -> Selection:
        local = LocalSelector(frozenset(seeds.entity_positions.tolist()))
        llm, limit = self.resources.llm, self.resources.settings.selected
        if llm is None:
            return local.select(run.question, candidates, run.k)
        with llm.meter() as meter:
            selection = ModelSelector(llm, local).select(run.question, candidates, limit)
        run.trace.usage += meter.usage
        return selection

    def _passages(
        self, run: _Run, vector: npt.NDArray[np.float32], candidates: Sequence[Candidate], selection: Selection
    ) -> list[ScoredPassage]:
        """Passages of the selected relations in their order, then by vector up to k."""
        order: dict[int, float] = {}
        for place, score in zip(selection.places, selection.scores, strict=True):
            for passage_id in candidates[place].passage_ids:
                order.setdefault(passage_id, score)
        rows = self.resources.store.get("passages", list(order)[: run.k], PASSAGE_FIELDS)
        passages = [scored(i, rows[i], order[i]) for i in list(order)[: run.k] if i in rows]
        if len(passages) < run.k:
            passages += self._fill(run, vector, passages)
        return passages

    def _fill(
        self, run: _Run, vector: npt.NDArray[np.float32], passages: Sequence[ScoredPassage]
    ) -> list[ScoredPassage]:
        """The nearest passages that are not there yet; they score below those that the graph gave."""
        have = {p.id for p in passages}
        lowest = min((p.score for p in passages), default=1.0)
        hits = dense(self.resources, vector, run.k, run.filter)
        new = [h for h in hits if str(h.id) not in have][: run.k - len(passages)]
        return [scored(h.id, h.row, lowest * max(h.score, 0.0) / 2) for h in new]


def _candidates(hits: Mapping[int, Hit], snapshot: Snapshot, mass: Mapping[int, float]) -> list[Candidate]:
    """Relations with equal texts as one candidate, heaviest first; what Milvus no longer has is left out."""
    merged: dict[str, list[int]] = {}
    for position in mass:
        relation_id = int(snapshot.incidence.relation_ids[position])
        if relation_id in hits:
            merged.setdefault(str(hits[relation_id].row["text"]), []).append(position)
    return [_candidate(text, positions, hits, snapshot, mass) for text, positions in merged.items()]


def _candidate(
    text: str, positions: Sequence[int], hits: Mapping[int, Hit], snapshot: Snapshot, mass: Mapping[int, float]
) -> Candidate:
    ids = tuple(int(snapshot.incidence.relation_ids[p]) for p in positions)
    passages = dict.fromkeys(int(snapshot.incidence.passage_ids[p]) for p in positions)
    return Candidate(
        text=text,
        relation_ids=ids,
        passage_ids=tuple(passages),
        mass=sum(mass[p] for p in positions),
        similarity=max(hits[i].score for i in ids),
        entities=frozenset(e for p in positions for e in snapshot.incidence.entities_of(p).tolist()),
    )


def _tell(
    trace: Trace,
    seeds: Seeds,
    candidates: Sequence[Candidate],
    selection: Selection,
    hits: Mapping[int, Hit],
    *,
    named: Mapping[int, Mapping[str, Any]],
) -> None:
    """Write seeds, candidates and selection into the trace."""
    texts: dict[str, Any] = {str(i): hit.row["text"] for i, hit in hits.items()}
    relations = [{**seed, "text": texts[seed["id"]]} for seed in seeds.relations if seed["id"] in texts]
    trace.seeds = {"entities": seeds.entities, "relations": relations}
    trace.candidates = len(candidates)
    trace.candidate_ids = [str(i) for c in candidates for i in c.relation_ids]
    trace.reasons = selection.reasons
    trace.notes.extend(selection.notes)
    for place, score in zip(selection.places, selection.scores, strict=True):
        chosen = candidates[place]
        trace.selected.append(
            {
                "id": str(chosen.relation_ids[0]),
                "text": chosen.text,
                "entities": list(named.get(chosen.relation_ids[0], {}).get("names", ())),
                "passage_ids": [str(p) for p in chosen.passage_ids],
                "score": round(score, 6),
            }
        )
