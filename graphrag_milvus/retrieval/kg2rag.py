"""KG2RAG [Zhu et al., 2025, arXiv 2502.06864]: seeds by vector, expansion along the graph, passages in tree order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_milvus.graph import Incidence, entity_edges, spanning_forest
from graphrag_milvus.hits import Hit
from graphrag_milvus.retrieval.base import PASSAGE_FIELDS, Method, Resources, Run, answered, dense, scored
from graphrag_milvus.retrieval.path import explain
from graphrag_milvus.retrieval.scorers import LocalScorer, Scores
from graphrag_milvus.retrieval.seeds import Seeds
from graphrag_milvus.retrieval.snapshot import Snapshot
from graphrag_milvus.types import Retrieval, ScoredPassage

__all__ = ["ABLATIONS", "KG2RAG"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float32]

SEEDS = 5
"""Passages that the expansion starts from, and as many join. Of 10 passages on MuSiQue's tuning set, 5 + 5 and
7 + 3 do best by Recall@5 and @10; with 10 + 10 Recall@10 is 7 to 9 points lower, since a tree tells what is near in it
before what is near the question."""
SHARPNESS = 4.0
"""A relation of a seed sends `exp(4 * cosine)` parts of its passage's mass; 0 to 12 move Recall@10 by 1.8 points."""
SIMILARITY_WEIGHT = 10.0
"""How much a cosine of 1 weighs against a factor e of mass; from 5 to 20 Recall@10 stays within 1.2 points, and is
up to 2.4 lower at 0, where similarity does not count."""
HEAVIEST = 300
"""Passages whose mass lets them be compared with the question; from 100 on no figure moves."""
MOST_NAMED = 20_000
"""Passages that weigh as much as the last of those and are compared, too: a hub's all weigh the same."""
MOST_COMPARED = 500
"""Of those, the most like the question whose mass counts, too: the 500 largest of 5,000 take 25 ms, all of them 70."""

_RELATION_FIELDS = ("text", "entity_ids", "names")


@dataclass
class _Run(Run):
    """A question on its way, with text, entities and cosine of relations by id."""

    texts: dict[int, Hit] = field(default_factory=dict)


@dataclass(frozen=True)
class _Grown:
    """The subgraph after the expansion.

    Attributes:
        seeds: positions and weights of the seeds' relations.
        relations: positions of what was reached in the passages that joined, heaviest first.
        weights: the cosine of each passage that joined, by id; the seeds' come first.
    """

    seeds: Seeds
    relations: Ints
    weights: dict[int, float]


@dataclass(frozen=True)
class _Tree:
    """A spanning tree: relation ids and passage ids in depth-first order, and the weight of its strongest edge."""

    relations: tuple[int, ...]
    passages: tuple[int, ...]
    text: str
    weight: float


@dataclass(frozen=True)
class KG2RAG:
    """Seeds by vector, expanded through the incidence; passages of maximum spanning trees in depth-first order.

    The relations of the passages nearest to the question reach others in `hops` steps over shared entities, and
    their passages join. Between two entities an edge weighs as much as its passage is like the question; the
    strongest of parallel edges stays, and each connected component keeps its maximum spanning tree. The trees come
    in the order of a cross-encoder's scores for the question and a tree's joined relations, where one is
    configured, and else by shared words and the strongest edge; each gives its passages depth-first. What the trees
    leave of k is filled up by the dense ranking. A seed without relations is a tree of its own, with its text.

    Two things differ from the paper, which takes whole neighbourhoods. All that is reached counts in a walk with
    restart, but of the new passages only the best join, by `log(mass) + 10 * cosine`: on MuSiQue's tuning set whole
    neighbourhoods have 140 to 540 passages in one tree, and Recall@10 falls below plain dense retrieval, from 69.5
    to 53 and 50. And the number of seeds does not follow k, so that a larger k keeps what a smaller one gave.

    Args:
        seeds: passages that the expansion starts from; as many new ones join.
        hops: how far it goes, in place of the setting `degree`; 0 is the ablation without expansion.
        organize: False is the ablation without organization: passages that joined come by similarity.
    """

    resources: Resources
    name: str = "kg2rag"
    seeds: int = SEEDS
    hops: int | None = None
    organize: bool = True

    def retrieve(self, question: str, k: int, filter: str = "") -> Retrieval:
        """At most `k` passages; a score is the least cosine so far, and less than half of it after the trees."""
        return answered(self.resources, _Run(self.name, question, k, filter), self._run)

    def _run(self, run: _Run) -> list[ScoredPassage]:
        with run.watch.stage("graph"):
            snapshot = self.resources.snapshots.get(run.filter)
        with run.watch.stage("embed"):
            vector = self.resources.embedder.embed_one(run.question)
        with run.watch.stage("seeds"):
            near = dense(self.resources, run, vector, max(run.k, self.seeds))
        with run.watch.stage("expand"):
            grown = self._grow(run, snapshot, vector, near[: self.seeds])
        with run.watch.stage("organize"):
            trees = self._organized(run, snapshot, vector, grown, near)
        with run.watch.stage("passages"):
            passages = self._passages(run, trees, grown.weights, near)
        with run.watch.stage("explain"):
            self._tell(run, snapshot, grown, near[: self.seeds], trees, passages=passages)
        return passages

    # Expansion

    def _grow(self, run: _Run, snapshot: Snapshot, vector: Vector, seeds: Sequence[Hit]) -> _Grown:
        """The relations that the seeds reach, in the passages that join."""
        incidence, settings = snapshot.incidence, self.resources.settings
        weights = {hit.id: hit.score for hit in seeds}
        passages = snapshot.graph.passage_positions(list(weights))
        own = snapshot.graph.relations_of(passages[passages >= 0])
        self._read(run, vector, incidence.relation_ids[own], settings.candidates)
        start = _start(incidence, own, weights, run.texts)
        hops = settings.degree if self.hops is None else self.hops
        reached = incidence.expand(np.zeros(0, dtype=np.int64), own, hops)
        mass = incidence.walk(reached, np.zeros(len(incidence.entity_ids)), start, hops)
        run.trace.expanded = len(reached)
        weights |= self._expansions(run, vector, *_passage_mass(incidence, reached, mass, weights))
        here = np.isin(incidence.passage_ids[reached], list(weights))
        places = _spread(incidence.passage_ids[reached[here]], mass[here], max(settings.candidates, len(weights)))
        if len(places) < np.count_nonzero(here):
            run.trace.notes.append(
                f"{np.count_nonzero(here):,} relations stand in the passages that joined; the {len(places):,} "
                "heaviest, some of each passage, are candidates"
            )
        return _Grown(Seeds(np.zeros(len(incidence.entity_ids)), start), reached[here][places], weights)

    def _read(self, run: _Run, vector: Vector, relation_ids: Ints, limit: int | None = None) -> None:
        """Texts and cosines of relations that are not known yet: of all, or of the `limit` most like the question."""
        ids = [i for i in relation_ids.tolist() if i not in run.texts]
        store = self.resources.store
        hits = store.score("relations", ids, vector, _RELATION_FIELDS, filter=run.filter, limit=limit)
        run.texts.update((hit.id, hit) for hit in hits)

    def _expansions(self, run: _Run, vector: Vector, passages: Ints, mass: Floats) -> dict[int, float]:
        """The cosines of the new passages that join, best first: as many as there are seeds."""
        named = _heaviest(passages, mass)
        if not len(named):
            return {}
        store = self.resources.store
        hits = store.score("passages", named.tolist(), vector, filter=run.filter, limit=MOST_COMPARED)
        at = np.searchsorted(passages, [hit.id for hit in hits])
        weight = np.log(np.maximum(mass[at], 1e-12)) + SIMILARITY_WEIGHT * np.array([hit.score for hit in hits])
        best = {hits[n].id: hits[n].score for n in np.lexsort((passages[at], -weight))[: self.seeds]}
        if len(best) < len(passages):
            run.trace.notes.append(
                f"{len(passages):,} passages were reached besides the seeds; of the {len(named):,} heaviest the "
                f"{len(hits):,} most like the question were compared, and {len(best)} joined"
            )
        return best

    # Organization

    def _organized(
        self, run: _Run, snapshot: Snapshot, vector: Vector, grown: _Grown, near: Sequence[Hit]
    ) -> list[_Tree]:
        """The trees, best first."""
        incidence = snapshot.incidence
        self._read(run, vector, incidence.relation_ids[grown.relations])
        known = [p for p in grown.relations.tolist() if int(incidence.relation_ids[p]) in run.texts]
        alike = [run.texts[int(incidence.relation_ids[p])].score for p in known]
        positions = np.array(known, dtype=np.int64)[np.lexsort((known, -np.array(alike)))]
        run.trace.candidates = len(positions)
        run.trace.candidate_ids = [str(i) for i in incidence.relation_ids[positions].tolist()]
        if not len(positions):
            return []
        trees = (_forest if self.organize else _one_by_one)(incidence, positions, grown.weights, run.texts)
        trees += _bare(near[: self.seeds], set(incidence.passage_ids[positions].tolist()))
        return [trees[n] for n in np.argsort(-self._scores(run.question, trees), kind="stable")]

    def _scores(self, question: str, trees: Sequence[_Tree]) -> Scores:
        """What the cross-encoder says; without one, shared words, with the strongest edge in place of a vector."""
        weights = np.array([tree.weight for tree in trees])
        if not self.organize:
            return weights
        texts = [tree.text for tree in trees]
        if self.resources.scorer is not None:
            return self.resources.scorer.score(question, texts)
        local = LocalScorer()
        return local.score(question, texts) + local.weight * weights

    # Passages

    def _passages(
        self, run: _Run, trees: Sequence[_Tree], weights: Mapping[int, float], near: Sequence[Hit]
    ) -> list[ScoredPassage]:
        """Passages in the order of the trees, then by vector up to k; what was deleted meanwhile is passed over."""
        order = list(dict.fromkeys(passage for tree in trees for passage in tree.passages))
        rows: dict[int, Mapping[str, Any]] = {hit.id: hit.row for hit in near}
        rows.update(self.resources.store.get("passages", [i for i in order if i not in rows], PASSAGE_FIELDS))
        order = [i for i in order if i in rows][: run.k]
        least = np.minimum.accumulate([max(weights[i], 0.0) for i in order]) if order else np.zeros(0)
        passages = [scored(i, rows[i], float(score)) for i, score in zip(order, least, strict=True)]
        rest = [hit for hit in near if hit.id not in set(order)][: run.k - len(order)]
        lowest = float(least[-1]) if order else 2.0
        run.trace.scores = {str(i): {"dense": weights[i]} for i in order}
        run.trace.scores.update({str(hit.id): {"dense": hit.score} for hit in rest})
        return passages + [scored(hit.id, hit.row, lowest * max(hit.score, 0.0) / 2) for hit in rest]

    # Trace

    def _tell(
        self,
        run: _Run,
        snapshot: Snapshot,
        grown: _Grown,
        seeds: Sequence[Hit],
        trees: Sequence[_Tree],
        *,
        passages: Sequence[ScoredPassage],
    ) -> None:
        """Write seeds, selection and path into the trace."""
        incidence, trace = snapshot.incidence, run.trace
        own = {int(i) for i in incidence.relation_ids[grown.seeds.relation_positions]}
        best = sorted((hit for i, hit in run.texts.items() if i in own), key=lambda hit: (-hit.score, hit.id))
        trace.seeds = {
            "passages": [{"id": str(h.id), "title": h.row["title"], "score": round(h.score, 4)} for h in seeds],
            "relations": [
                {"id": str(h.id), "text": h.row["text"], "score": round(h.score, 4)}
                for h in best[: self.resources.settings.relation_seeds]
            ],
        }
        trace.selected = list(_selected(incidence, run.texts, trees, grown.weights, {p.id for p in passages}))
        named = {i: hit.row for i, hit in run.texts.items()}
        trace.path = explain(
            snapshot,
            grown.seeds,
            grown.relations,
            run.texts,
            named=named,
            selected=trace.selected,
            passages=passages,
        )


ABLATIONS: dict[str, Callable[[Resources], Method]] = {
    "kg2rag-no-expansion": partial(KG2RAG, name="kg2rag-no-expansion", hops=0),
    "kg2rag-no-organization": partial(KG2RAG, name="kg2rag-no-organization", organize=False),
}
"""The paper's two ablations by name, for measurements beside the method itself."""


def _start(incidence: Incidence, own: Ints, weights: Mapping[int, float], texts: Mapping[int, Hit]) -> Floats:
    """Where the walk begins: a seed's cosine, shared by its relations in proportion to `exp(4 * their cosine)`.

    A relation whose cosine was not asked for counts as the least that was.
    """
    start = np.zeros(len(incidence.relation_ids))
    if not len(own):
        return start
    least = min((hit.score for hit in texts.values()), default=0.0)
    ids = incidence.relation_ids[own].tolist()
    alike = np.array([texts[i].score if i in texts else least for i in ids])
    passages, which = np.unique(incidence.passage_ids[own], return_inverse=True)
    parts = np.exp(SHARPNESS * alike)
    of_passage = np.array([max(weights[i], 0.0) for i in passages.tolist()])
    start[own] = of_passage[which] * parts / np.bincount(which, weights=parts)[which]
    return start


def _passage_mass(incidence: Incidence, reached: Ints, mass: Floats, without: Iterable[int]) -> tuple[Ints, Floats]:
    """The passages of the relations that were reached, but for some, and the mass of each."""
    passages, which = np.unique(incidence.passage_ids[reached], return_inverse=True)
    total: Floats = np.bincount(which, weights=mass, minlength=len(passages)).astype(np.float64)
    new = ~np.isin(passages, list(without))
    return passages[new], total[new]


def _heaviest(passages: Ints, mass: Floats) -> Ints:
    """The heaviest 300, and all that weigh as much as the last of them, as far as `MOST_NAMED` goes."""
    order = np.lexsort((passages, -mass))
    if len(order) > HEAVIEST:
        order = order[mass[order] >= mass[order[HEAVIEST - 1]] * (1 - 1e-9)]
    return passages[order[:MOST_NAMED]]


def _spread(passages: Ints, mass: Floats, most: int) -> Ints:
    """Places of at most `most` relations, the heaviest of each passage first, then the second of each, and so on."""
    order = np.lexsort((np.arange(len(mass)), -mass, passages))
    first = np.flatnonzero(np.diff(passages[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    kept = order[np.lexsort((order, -mass[order], rank))][:most]
    return kept[np.lexsort((kept, -mass[kept]))]


def _forest(
    incidence: Incidence, positions: Ints, weights: Mapping[int, float], texts: Mapping[int, Hit]
) -> list[_Tree]:
    """Maximum spanning trees over the entities; of the edges of one passage that most like the question is first."""
    ends, which = entity_edges(incidence, positions)
    of_edge = np.array([weights[i] for i in incidence.passage_ids[positions[which]].tolist()])
    return [_tree(incidence, positions[which[edges]], weights, texts) for edges in spanning_forest(ends, of_edge)]


def _one_by_one(
    incidence: Incidence, positions: Ints, weights: Mapping[int, float], texts: Mapping[int, Hit]
) -> list[_Tree]:
    """Each passage by itself."""
    passages = incidence.passage_ids[positions]
    return [_tree(incidence, positions[passages == i], weights, texts) for i in weights if i in passages]


def _tree(incidence: Incidence, positions: Ints, weights: Mapping[int, float], texts: Mapping[int, Hit]) -> _Tree:
    relations = tuple(dict.fromkeys(incidence.relation_ids[positions].tolist()))
    passages = tuple(dict.fromkeys(incidence.passage_ids[positions].tolist()))
    text = "\n".join(dict.fromkeys(str(texts[i].row["text"]) for i in relations))
    return _Tree(relations, passages, text, max(weights[i] for i in passages))


def _bare(seeds: Sequence[Hit], known: set[int]) -> list[_Tree]:
    """Seeds without relations; their own text stands in for what relations would say."""
    return [
        _Tree((), (hit.id,), f"{hit.row['title']}\n{hit.row['text']}", hit.score)
        for hit in seeds
        if hit.id not in known
    ]


def _selected(
    incidence: Incidence,
    texts: Mapping[int, Hit],
    trees: Sequence[_Tree],
    weights: Mapping[int, float],
    passages: set[str],
) -> Iterable[dict[str, Any]]:
    """The relations of the trees whose passages are among the results, in the order in which they were told."""
    ids = [i for tree in trees for i in tree.relations]
    for i, position in zip(ids, incidence.relation_positions(ids).tolist(), strict=True):
        passage = int(incidence.passage_ids[position])
        if str(passage) in passages:
            yield {
                "id": str(i),
                "text": texts[i].row["text"],
                "entities": list(texts[i].row["names"]),
                "passage_ids": [str(passage)],
                "score": round(weights[passage], 6),
            }
