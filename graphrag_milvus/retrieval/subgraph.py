"""Graph retrieval: seeds, expansion in the incidence, a budget, a selection of relations, their passages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_milvus.hits import Hit
from graphrag_milvus.retrieval.base import PASSAGE_FIELDS, Resources, Run, answered, dense, scored
from graphrag_milvus.retrieval.path import explain
from graphrag_milvus.retrieval.reranker import Candidate, LocalSelector, ModelSelector, Selection, diverse
from graphrag_milvus.retrieval.seeds import Seeds, add_relations
from graphrag_milvus.retrieval.snapshot import Snapshot
from graphrag_milvus.retrieval.walk import POOL, RELEVANT, Start, begin, largest, walk
from graphrag_milvus.types import Retrieval, ScoredPassage, Trace

__all__ = ["Subgraph"]

Ints = npt.NDArray[np.int64]

_WHOLE = 8
"""Where more than one relation in 8 is reached, a walk over all of them takes less time than to cut the part out."""


@dataclass(frozen=True)
class Subgraph:
    """Multi-way retrieval with expansion and a one-shot reranker, after "Graph RAG with Milvus" (Milvus docs).

    Entities named in the question, and relations and passages like the question, expand `degree` steps through the
    incidence. A walk with restart over what was reached, in which relations like the question weigh more, gives
    each its mass, and the heaviest, up to a budget, are the candidates. The model, or the local score where there
    is none, selects; the passages of the selected relations come in that order, and the dense ranking fills up to k.
    """

    resources: Resources
    name: str = "subgraph"

    def retrieve(self, question: str, k: int, filter: str = "") -> Retrieval:
        """At most `k` passages; their scores fall from 1 at the best."""
        return answered(self.resources, Run(self.name, question, k, filter), self._run)

    def _run(self, run: Run) -> list[ScoredPassage]:
        settings = self.resources.settings
        with run.watch.stage("graph"):
            snapshot = self.resources.snapshots.get(run.filter)
        relations = RELEVANT if settings.relation_seeds else 0
        start = begin(run, snapshot, self.resources, passages=POOL, relations=relations)
        add_relations(start.seeds, start.alike, snapshot, told=settings.relation_seeds)
        vector = self.resources.embedder.embed_one(run.question)
        with run.watch.stage("expand"):
            positions, mass = self._expand(snapshot, start, run.trace)
        with run.watch.stage("describe"):
            ids = snapshot.incidence.relation_ids[positions].tolist()
            found = self.resources.store.score("relations", ids, vector, ["text"], filter=run.filter)
            hits = {hit.id: hit for hit in found}
        with run.watch.stage("select"):
            candidates = _candidates(hits, snapshot, positions, mass)
            selection = self._select(run, start.seeds, candidates)
        with run.watch.stage("passages"):
            passages = self._passages(run, vector, candidates, selection)
        with run.watch.stage("explain"):
            chosen = [candidates[place].relation_ids[0] for place in selection.places]
            named = self.resources.store.get("relations", chosen, ["entity_ids", "names"])
            _tell(run.trace, start.seeds, candidates, selection, hits, named=named)
            selected = run.trace.selected
            run.trace.path = explain(
                snapshot, start.seeds, positions, hits, named=named, selected=selected, passages=passages
            )
        return passages

    def _expand(self, snapshot: Snapshot, start: Start, trace: Trace) -> tuple[Ints, npt.NDArray[np.float64]]:
        """Positions of the candidates, heaviest first, and their mass."""
        seeds, settings = start.seeds, self.resources.settings
        relations = seeds.relation_positions
        if settings.relation_seeds:
            relations = np.union1d(relations, snapshot.graph.relations_of(start.passages))
        reached = snapshot.incidence.expand(seeds.entity_positions, relations, settings.degree)
        trace.expanded = len(reached)
        mass = _mass(snapshot, start, reached)
        best = largest(mass, settings.candidates)
        if len(reached) > len(best):
            trace.notes.append(f"{len(reached):,} relations were reached; the {len(best)} heaviest are candidates")
        return reached[best], mass[best]

    def _select(self, run: Run, seeds: Seeds, candidates: Sequence[Candidate]) -> Selection:
        local = LocalSelector(frozenset(seeds.entity_positions.tolist()))
        llm, limit = self.resources.llm, self.resources.settings.selected
        if llm is None:
            return local.select(run.question, candidates, run.k)
        budget = self.resources.settings.prompt_tokens
        selection = ModelSelector(llm, local, budget).select(run.question, candidates, limit)
        run.trace.usage += selection.usage
        return selection

    def _passages(
        self, run: Run, vector: npt.NDArray[np.float32], candidates: Sequence[Candidate], selection: Selection
    ) -> list[ScoredPassage]:
        """Passages of the selected relations in their order, then by vector up to k."""
        order: dict[int, float] = {}
        for place, score in zip(selection.places, selection.scores, strict=True):
            chosen = candidates[place]
            for passage_id in chosen.passage_ids:
                order.setdefault(passage_id, score)
                given = {"selection": score, "walk": chosen.mass, "similarity": chosen.similarity}
                run.trace.scores.setdefault(str(passage_id), given)
        rows = self.resources.store.get("passages", list(order)[: run.k], PASSAGE_FIELDS)
        passages = [scored(i, rows[i], order[i]) for i in list(order)[: run.k] if i in rows]
        run.trace.scores = {p.id: run.trace.scores[p.id] for p in passages}
        if len(passages) < run.k:
            passages += self._fill(run, vector, passages)
        return passages

    def _fill(
        self, run: Run, vector: npt.NDArray[np.float32], passages: Sequence[ScoredPassage]
    ) -> list[ScoredPassage]:
        """The nearest passages that are not there yet; they score below those that the graph gave."""
        have = {p.id for p in passages}
        lowest = min((p.score for p in passages), default=1.0)
        hits = dense(self.resources, run, vector, run.k)
        new = [h for h in hits if str(h.id) not in have][: run.k - len(passages)]
        run.trace.scores.update({str(h.id): {"dense": h.score} for h in new})
        return [scored(h.id, h.row, lowest * max(h.score, 0.0) / 2) for h in new]


def _mass(snapshot: Snapshot, start: Start, reached: Ints) -> npt.NDArray[np.float64]:
    """What a walk over the relations that were reached leaves on each of them."""
    graph, incidence, seeds = snapshot.graph, snapshot.incidence, start.seeds
    if _WHOLE * len(reached) > len(incidence.relation_ids):
        masses = walk(graph, seeds.entity_weights, start.passages, start.similarity, start.weights(incidence))
        return np.zeros(len(reached)) if masses is None else masses.relations[reached]
    part = graph.part(reached, start.passages)
    named = seeds.entity_positions  # all in the part, since their relations are
    entities = np.zeros(len(part.incidence.entity_ids))
    entities[part.incidence.entity_positions(incidence.entity_ids[named])] = seeds.entity_weights[named]
    here = part.passage_positions(graph.passage_ids[start.passages])
    masses = walk(part, entities, here, start.similarity, start.weights(part.incidence))
    return np.zeros(len(reached)) if masses is None else masses.relations


def _candidates(
    hits: Mapping[int, Hit], snapshot: Snapshot, positions: Ints, mass: npt.NDArray[np.float64]
) -> list[Candidate]:
    """Relations with equal texts as one candidate, in the order of `diverse`; what Milvus no longer has is left out."""
    incidence = snapshot.incidence
    ids, passages = incidence.relation_ids[positions].tolist(), incidence.passage_ids[positions].tolist()
    rows = incidence.matrix[positions]
    starts, held = rows.indptr.tolist(), rows.indices.tolist()
    merged: dict[str, list[int]] = {}
    for place, relation_id in enumerate(ids):
        if relation_id in hits:
            merged.setdefault(str(hits[relation_id].row["text"]), []).append(place)
    masses = mass.tolist()
    found = [
        Candidate(
            text=text,
            relation_ids=tuple(ids[n] for n in places),
            passage_ids=tuple(dict.fromkeys(passages[n] for n in places)),
            mass=sum(masses[n] for n in places),
            similarity=max(hits[ids[n]].score for n in places),
            entities=frozenset(e for n in places for e in held[starts[n] : starts[n + 1]]),
        )
        for text, places in merged.items()
    ]
    return [found[place] for place in diverse(found)]


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
