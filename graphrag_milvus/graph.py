"""The incidence of entities and relations: who touches whom, and what is near. Knows no Milvus and no text.

Entities and relations are addressed by their position, an int in the order of their sorted 63-bit ids, so
that the same rows give the same matrix wherever and in whatever order they arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, hstack
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

__all__ = ["Incidence", "Masses", "PassageGraph", "edge_components", "entity_edges", "spanning_forest"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Incidence:
    """A sparse matrix of relations (rows) by entities (columns); 1 where the relation holds the entity.

    Attributes:
        relation_ids: int64, shape (relations,), ascending.
        entity_ids: int64, shape (entities,), ascending; only entities that a relation holds.
        passage_ids: int64, shape (relations,): the passage that each relation belongs to.
        matrix: float32 CSR, shape (relations, entities).
    """

    relation_ids: Ints
    entity_ids: Ints
    passage_ids: Ints
    matrix: csr_matrix

    @classmethod
    def from_rows(
        cls, relation_ids: Sequence[int], passage_ids: Sequence[int], entities: Sequence[Sequence[int]]
    ) -> Incidence:
        """Build from one entry a relation; the order of rows, and of ids in a row, does not matter.

        Args:
            relation_ids: distinct ids.
            passage_ids: the passage of each relation.
            entities: the entity ids of each relation; repeated ids count once.

        Raises:
            ValueError: the three do not have the same length.
        """
        if not len(relation_ids) == len(passage_ids) == len(entities):
            raise ValueError(f"{len(relation_ids)} relations, {len(passage_ids)} passages, {len(entities)} rows")
        ids = np.asarray(relation_ids, dtype=np.int64)
        order = np.argsort(ids, kind="stable")
        lengths = np.fromiter((len(row) for row in entities), dtype=np.int64, count=len(entities))
        flat = np.fromiter((e for row in entities for e in row), dtype=np.int64, count=int(lengths.sum()))
        entity_ids, columns = np.unique(flat, return_inverse=True)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(ids))
        rows = np.repeat(rank, lengths)
        matrix = csr_matrix((np.ones(len(flat), dtype=np.float32), (rows, columns)), shape=(len(ids), len(entity_ids)))
        matrix.data[:] = 1.0  # an entity that a row repeats was summed
        return cls(ids[order], entity_ids, np.asarray(passage_ids, dtype=np.int64)[order], matrix)

    @cached_property
    def transpose(self) -> csr_matrix:
        """Entities by relations, CSR: the relations of an entity are one contiguous row."""
        return self.matrix.T.tocsr()

    @cached_property
    def entity_degrees(self) -> Ints:
        """How many relations hold each entity, shape (entities,)."""
        degrees: Ints = np.diff(self.transpose.indptr).astype(np.int64)
        return degrees

    def entity_positions(self, ids: Sequence[int] | Ints) -> Ints:
        """The position of each entity id, and -1 for one that no relation holds."""
        return _positions(self.entity_ids, ids)

    def relation_positions(self, ids: Sequence[int] | Ints) -> Ints:
        """The position of each relation id, and -1 for one that is not there."""
        return _positions(self.relation_ids, ids)

    def entities_of(self, relation: int) -> npt.NDArray[np.int32]:
        """Positions of the entities that the relation at a position holds."""
        start, end = self.matrix.indptr[relation : relation + 2]
        held: npt.NDArray[np.int32] = self.matrix.indices[start:end]
        return held

    def within(self, keep: npt.NDArray[np.bool_]) -> Incidence:
        """The incidence of some relations alone; entities that only the others held are gone.

        Args:
            keep: shape (relations,), True for the relations that stay.
        """
        rows = self.matrix[np.flatnonzero(keep)]
        held = np.unique(rows.indices)
        return Incidence(self.relation_ids[keep], self.entity_ids[held], self.passage_ids[keep], rows[:, held].tocsr())

    def expand(self, entities: Ints, relations: Ints, degree: int) -> Ints:
        """The relations that the seeds reach in `degree` steps, as ascending positions.

        At degree 0 these are the seed relations and the relations of the seed entities. Each further
        degree adds the relations of every entity that was reached. It equals the non-zero pattern of
        `A^k B` for seed entities (`A` entity by entity, `B` the incidence) and of `(B' B)^k` for seed
        relations, but walks the frontier only and never forms a power of a matrix.

        Args:
            entities: positions of seed entities.
            relations: positions of seed relations.
            degree: how many steps, from 0.
        """
        reached = np.zeros(len(self.relation_ids), dtype=bool)
        known = np.zeros(len(self.entity_ids), dtype=bool)
        known[entities] = True
        frontier = np.union1d(relations, _neighbours(self.transpose, entities)).astype(np.int64)
        reached[frontier] = True
        for _ in range(degree):
            touched = _neighbours(self.matrix, frontier)
            fresh = touched[~known[touched]]
            known[fresh] = True
            found = _neighbours(self.transpose, fresh)
            frontier = found[~reached[found]]
            reached[frontier] = True
            if not len(frontier):
                break
        return np.flatnonzero(reached)

    def walk(self, reached: Ints, entities: Floats, relations: Floats, degree: int, damping: float = 0.5) -> Floats:
        """How much of the seeds' weight arrives at each reached relation in a walk as long as the expansion.

        A walker starts at a seed, in proportion to its weight. At each half step it goes on with probability
        `damping`, from an entity to one of its relations or from a relation to one of its entities, each
        equally likely, and else begins anew: PageRank with restart [Haveliwala, 2002, WWW] cut off after
        `2 * degree + 1` half steps, the last that can reach a relation of the expansion. A hub shares its
        mass among all its relations, inside the expansion or not, so that it weighs little.

        Args:
            reached: ascending positions, as `expand` gives them.
            entities: weight of each entity, shape (entities,), not negative.
            relations: weight of each relation, shape (relations,), not negative.

        Returns:
            Mass of each of `reached`, same order; all zero where the seeds have no weight.
        """
        total = float(entities.sum() + relations.sum())
        if total <= 0.0 or not len(reached):
            return np.zeros(len(reached))
        part = self.matrix[reached]
        columns, local = np.unique(part.indices, return_inverse=True)
        part = csr_matrix((part.data, local, part.indptr), shape=(len(reached), len(columns)))
        to_relations = part @ _inverse_diagonal(self.entity_degrees[columns])
        to_entities = part.T.tocsr() @ _inverse_diagonal(np.diff(part.indptr))
        start_entities, start_relations = entities[columns] / total, relations[reached] / total
        at_entities, at_relations = start_entities, start_relations
        for _ in range(2 * degree + 1):
            at_relations, at_entities = (
                damping * (to_relations @ at_entities) + (1 - damping) * start_relations,
                damping * (to_entities @ at_relations) + (1 - damping) * start_entities,
            )
        return np.asarray(at_relations, dtype=np.float64)


def _positions(sorted_ids: Ints, ids: Sequence[int] | Ints) -> Ints:
    wanted = np.asarray(ids, dtype=np.int64)
    if not len(sorted_ids):
        return np.full(len(wanted), -1, dtype=np.int64)
    found = np.minimum(np.searchsorted(sorted_ids, wanted), len(sorted_ids) - 1)
    return np.where(sorted_ids[found] == wanted, found, -1)


def _neighbours(matrix: csr_matrix, rows: Ints) -> Ints:
    """The distinct columns of some rows, ascending."""
    starts, ends = matrix.indptr[rows], matrix.indptr[rows + 1]
    counts = (ends - starts).astype(np.int64)
    offsets = np.repeat(starts - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) if len(rows) else starts
    return _distinct(matrix.indices[offsets + np.arange(int(counts.sum()))], matrix.shape[1])


def _distinct(positions: npt.NDArray[np.integer], size: int) -> Ints:
    """The distinct positions below `size`, ascending; where there are many, without sorting them."""
    if 64 * len(positions) < size:
        return np.unique(positions).astype(np.int64)
    there = np.zeros(size, dtype=bool)
    there[positions] = True
    return np.flatnonzero(there)


def _inverse_diagonal(degrees: npt.NDArray[np.integer]) -> csr_matrix:
    size = len(degrees)
    inverse = np.divide(1.0, degrees, out=np.zeros(size), where=degrees > 0)
    return csr_matrix((inverse, np.arange(size), np.arange(size + 1)), shape=(size, size))


# --- the walk over entities, relations and passages -----------------------------------------------------------------

TITLE_WEIGHT = 2.0
"""The edge between a passage and the entity that it is about weighs as much as two relations; 1 to 4 differ little."""
PASSAGE_SHARE = 0.3
"""What a relation sends to its passage, the rest to its entities; 0.2 to 0.5 differ little."""


@dataclass(frozen=True)
class Masses:
    """A distribution over the nodes of a `PassageGraph`; all of it sums to 1, or to less in a part of a graph.

    Attributes:
        entities: float64, shape (entities,).
        relations: float64, shape (relations,).
        passages: float64, shape (passages,).
        steps: iterations that it took.
    """

    entities: Floats
    relations: Floats
    passages: Floats
    steps: int


@dataclass(frozen=True)
class PassageGraph:
    """Entities, relations and passages as the nodes of one graph.

    Edges lead both ways between a relation and each entity that it holds, between a relation and its passage, and
    between a passage and the entity that it is about.

    Attributes:
        incidence: relations by entities.
        passage_ids: int64, shape (passages,), ascending; those without relations, too.
        about: int64, shape (passages,): position of the entity that names each passage's subject, -1 for none.
        outside: float64, shape (entities + passages,): the weight of edges that lead out of a part of a graph.
    """

    incidence: Incidence
    passage_ids: Ints
    about: Ints
    outside: Floats | None = None

    def passage_positions(self, ids: Sequence[int] | Ints) -> Ints:
        """The position of each passage id, and -1 for one that is not there."""
        return _positions(self.passage_ids, ids)

    def within(self, passages: Ints) -> PassageGraph:
        """The graph of some passages alone, given by id, with their relations; entities that none of these holds go."""
        kept = np.isin(self.passage_ids, passages)
        part = self.incidence.within(np.isin(self.incidence.passage_ids, self.passage_ids[kept]))
        about = np.full(int(kept.sum()), -1, dtype=np.int64)
        named = self.about[kept] >= 0
        about[named] = part.entity_positions(self.incidence.entity_ids[self.about[kept][named]])
        return PassageGraph(part, self.passage_ids[kept], about)

    def part(self, relations: Ints, passages: Ints) -> PassageGraph:
        """The graph of some relations with their entities and passages, and of some more passages.

        What a walker takes out of the part does not come back: a hub of which the part has two relations in a
        thousand gives those two a thousandth each, as it does in the whole. A relation outside weighs 1.

        Args:
            relations: ascending positions.
            passages: positions.
        """
        rows = self.incidence.matrix[relations]
        held = _distinct(rows.indices, self.incidence.matrix.shape[1])
        local = np.searchsorted(held, rows.indices)
        matrix = csr_matrix((rows.data, local, rows.indptr), shape=(len(relations), len(held)))
        kept = np.union1d(self.passage_of[relations], passages)
        about = np.searchsorted(held, self.about[kept])
        known = np.isin(self.about[kept], held)
        ids = self.incidence
        inside = Incidence(ids.relation_ids[relations], ids.entity_ids[held], ids.passage_ids[relations], matrix)
        part = PassageGraph(inside, self.passage_ids[kept], np.where(known, about, -1))
        nodes = np.concatenate((held, kept + len(ids.entity_ids)))
        return replace(part, outside=np.maximum(self._plain_sums[nodes] - part._plain_sums, 0.0))

    @cached_property
    def passage_of(self) -> Ints:
        """The position of each relation's passage, shape (relations,)."""
        return self.passage_positions(self.incidence.passage_ids)

    def pagerank(
        self,
        entities: Floats,
        passages: Floats,
        *,
        weights: Floats | None = None,
        damping: float = 0.85,
        tolerance: float = 1e-9,
        most_steps: int = 500,
    ) -> Masses:
        """Personalised PageRank [Haveliwala, 2002, WWW]: where a walker is who now and then begins anew.

        With probability `damping` it goes on: from an entity or a passage along an edge, in proportion to the
        edge's weight, which is that of its relation, or 2 between a passage and what it is about; from a relation
        with probability 0.3 to its passage, and else to one of its entities, each equally likely. A relation
        without entities leads to its passage alone. Else, and from where no edge leads on, it begins anew at an
        entity or a passage in proportion to the reset masses.

        A power iteration in CSR that takes the relations' new masses at once, as Gauss and Seidel do: half the steps.

        Args:
            entities: reset mass of each entity, shape (entities,), not negative.
            passages: reset mass of each passage, shape (passages,), not negative.
            weights: positive weight of each relation, shape (relations,); 1 where it is left out.
            damping: from 0 up to, but not including 1.
            tolerance: the iteration ends when the masses of entities and passages change by less in total; they are
                then at most `tolerance * damping / (1 - damping)` away from the stationary ones.
            most_steps: where it ends at the latest.

        Raises:
            ValueError: the reset masses are all zero, negative or not finite, or damping is out of range.
        """
        reset = np.concatenate((entities, passages)).astype(np.float64)
        total = reset.sum()
        if not (total > 0 and np.isfinite(total) and reset.min() >= 0):
            raise ValueError("the reset masses must be finite, not negative, and one of them positive")
        if not 0 <= damping < 1:
            raise ValueError(f"damping is {damping}; it must be from 0 up to, but not including 1")
        reset /= total
        weights = np.ones(len(self.incidence.relation_ids)) if weights is None else weights
        step = _Step(self, np.asarray(weights, dtype=np.float64))
        nodes, relations = reset, np.zeros(len(weights))
        steps, change = 0, np.inf
        while steps < most_steps and change > tolerance:
            relations = damping * step.to_relations(nodes)
            on, lost = step.to_nodes(nodes, relations)
            on *= damping
            on += (1 - damping + damping * lost) * reset
            change = float(np.abs(on - nodes).sum())
            nodes, steps = on, steps + 1
        return Masses(nodes[: len(entities)], relations, nodes[len(entities) :], steps)

    @cached_property
    def _ties(self) -> csr_matrix:
        """Relations by entities and passages, CSR: 1 for each entity of a relation and for its passage."""
        matrix, count = self.incidence.matrix, len(self.incidence.entity_ids)
        rows = np.arange(len(self.passage_of))
        shape = (len(rows), len(self.passage_ids))
        own = csr_matrix((np.ones(len(rows)), (rows, self.passage_of)), shape=shape)
        tied = hstack((matrix.astype(np.float64), own), format="csr")
        assert tied.shape == (len(rows), count + len(self.passage_ids))
        return tied

    @cached_property
    def _shares(self) -> csr_matrix:
        """Entities and passages by relations, CSR: the part of a relation's mass that each gets."""
        lengths = np.diff(self.incidence.matrix.indptr)
        to_entities = np.divide(1 - PASSAGE_SHARE, lengths, out=np.zeros(len(lengths)), where=lengths > 0)
        shares = self._ties.copy()
        rows = np.repeat(np.arange(len(lengths)), np.diff(shares.indptr))
        own = shares.indices >= len(self.incidence.entity_ids)
        shares.data = np.where(own, np.where(lengths > 0, PASSAGE_SHARE, 1.0)[rows], to_entities[rows])
        return shares.T.tocsr()

    @cached_property
    def _tied(self) -> csr_matrix:
        return self._ties.T.tocsr()

    @cached_property
    def _plain_sums(self) -> Floats:
        """The weight of the edges of each entity and passage, where each relation weighs 1."""
        return self._sums(np.ones(len(self.passage_of)))

    def _sums(self, weights: Floats) -> Floats:
        """The weight of the edges of each entity and passage."""
        passages, subjects = self._titled
        sums: Floats = self._tied @ weights
        sums += TITLE_WEIGHT * np.bincount(subjects, minlength=len(sums))
        sums[passages] += TITLE_WEIGHT
        return sums if self.outside is None else sums + self.outside

    @cached_property
    def _titled(self) -> tuple[Ints, Ints]:
        """Nodes of passages and of what they are about."""
        passages = np.flatnonzero(self.about >= 0)
        return passages + len(self.incidence.entity_ids), self.about[passages]


class _Step:
    """One step of the walk, with the weights of one question."""

    def __init__(self, graph: PassageGraph, weights: Floats) -> None:
        self._graph = graph
        self._weights = weights
        self._passages, self._subjects = graph._titled
        sums = graph._sums(weights)
        self._ends = np.flatnonzero(sums == 0)
        self._inverse = np.divide(1.0, sums, out=np.zeros(len(sums)), where=sums > 0)

    def to_relations(self, nodes: Floats) -> Floats:
        """What relations get from entities and passages."""
        got: Floats = self._graph._ties @ (nodes * self._inverse)
        got *= self._weights
        return got

    def to_nodes(self, nodes: Floats, relations: Floats) -> tuple[Floats, float]:
        """What entities and passages get from relations and from one another; and what led nowhere."""
        on: Floats = self._graph._shares @ relations
        passages, subjects = self._passages, self._subjects
        on[passages] += TITLE_WEIGHT * nodes[subjects] * self._inverse[subjects]
        sent = TITLE_WEIGHT * nodes[passages] * self._inverse[passages]
        np.add.at(on, subjects, sent)
        return on, float(nodes[self._ends].sum())


# --- the spanning forest of the entities ----------------------------------------------------------------------------


def entity_edges(incidence: Incidence, relations: Ints) -> tuple[Ints, Ints]:
    """Relations as edges between the entities that they hold: a star for each.

    A relation with n entities becomes n - 1 edges from the one that most of these relations of its passage hold
    (the title, in a passage of sentences) to the others: the same components as all n (n - 1) / 2 would give,
    and no more edges than a tree can keep. With one entity it becomes a loop on it, with none a loop on a node
    of its own, so that no relation is lost.

    Args:
        relations: distinct positions.

    Returns:
        Nodes, int64, shape (edges, 2): positions of entities, and numbers above them for relations that hold none;
        and for each edge the place of its relation in `relations`, ascending.
    """
    counts = (incidence.matrix.indptr[relations + 1] - incidence.matrix.indptr[relations]).astype(np.int64)
    places = np.repeat(np.arange(len(relations)), counts)
    columns = incidence.matrix[relations].indices.astype(np.int64)
    width = len(incidence.entity_ids)
    _, passages = np.unique(incidence.passage_ids[relations], return_inverse=True)
    _, pair, held = np.unique(passages[places] * max(width, 1) + columns, return_inverse=True, return_counts=True)
    order = np.lexsort((columns, -held[pair], places))
    places, columns = places[order], columns[order]
    first = np.flatnonzero(np.diff(places, prepend=-1))
    center = np.repeat(columns[first], counts[counts > 0])
    linked = np.ones(len(places), dtype=bool)
    linked[first] = counts[counts > 0] == 1
    bare = np.flatnonzero(counts == 0)
    ends = np.concatenate(
        (np.column_stack((center, columns))[linked], np.repeat((width + bare)[:, None], 2, axis=1))
    ).astype(np.int64)
    where = np.concatenate((places[linked], bare))
    order = np.argsort(where, kind="stable")
    return ends[order], where[order].astype(np.int64)


def edge_components(ends: Ints) -> Ints:
    """The number of the connected component that each edge is in, from 0, in the order of their first edges.

    Args:
        ends: shape (edges, 2), any numbers as nodes; both ends alike make a loop.
    """
    nodes, places = np.unique(ends.ravel(), return_inverse=True)
    heads, tails = places.reshape(-1, 2).T
    links = csr_matrix((np.ones(len(heads)), (heads, tails)), shape=(len(nodes), len(nodes)))
    _, labels = connected_components(links, directed=False)
    _, first, component = np.unique(labels[heads], return_index=True, return_inverse=True)
    number = np.empty_like(first)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    return number[component].astype(np.int64)


def spanning_forest(ends: Ints, weights: Floats) -> list[Ints]:
    """A maximum spanning tree for each connected component, its edges in depth-first order from the strongest.

    Of parallel edges the strongest stays [Zhu et al., 2025, arXiv 2502.06864]. Only the order of the weights
    counts, and of equal ones the earlier edge goes first, so that the forest is the only one, zero and negative
    weights included. From each node the stronger edge is followed first. Loops are no part of a spanning tree;
    all of them are told where their node is reached, since no other edge stands in for them.

    Args:
        ends: shape (edges, 2), any numbers as nodes; both ends alike make a loop.
        weights: shape (edges,).

    Returns:
        Places of edges for each tree; the tree with the strongest edge comes first.

    Raises:
        ValueError: a weight is not a number, or there are not as many of them as edges.
    """
    if len(ends) != len(weights) or np.isnan(weights).any():
        raise ValueError(f"{len(weights)} weights, {int(np.isnan(weights).sum())} of them NaN, for {len(ends)} edges")
    order = np.lexsort((np.arange(len(weights)), -weights))
    _, nodes = np.unique(ends[order].ravel(), return_inverse=True)
    pairs = np.sort(nodes.reshape(-1, 2), axis=1)
    kept = np.sort(np.concatenate((_spanning(pairs), np.flatnonzero(pairs[:, 0] == pairs[:, 1]))))
    return [order[tree] for tree in _depth_first(nodes.reshape(-1, 2)[kept], kept)]


def _spanning(pairs: Ints) -> Ints:
    """Which edges make the spanning forest, where an earlier edge is preferred to a later one."""
    size = int(pairs.max(initial=-1)) + 1
    _, first = np.unique(pairs[:, 0] * size + pairs[:, 1], return_index=True)
    first = first[pairs[first, 0] != pairs[first, 1]]
    # csgraph takes a weight of zero for no edge: places count from 1.
    costs = csr_matrix((first + 1.0, (pairs[first, 0], pairs[first, 1])), shape=(size, size))
    spanning: Ints = minimum_spanning_tree(costs).data.astype(np.int64) - 1
    return spanning


def _depth_first(ends: Ints, names: Ints) -> list[Ints]:
    """The edges of each tree of a forest, by name, earlier edges first; loops may be among them."""
    around: dict[int, list[tuple[int, int]]] = {}
    for edge, (head, tail) in enumerate(ends.tolist()):
        around.setdefault(head, []).append((edge, tail))
        if head != tail:
            around.setdefault(tail, []).append((edge, head))
    seen: set[int] = set()
    trees = []
    for head, _ in ends.tolist():
        if head not in seen:
            trees.append(names[_reached(head, around, seen)])
    return trees


def _reached(start: int, around: Mapping[int, Sequence[tuple[int, int]]], seen: set[int]) -> list[int]:
    """Edges in depth-first order from a node of a tree."""
    found: list[int] = []
    seen.add(start)
    waiting = list(reversed(around[start]))
    while waiting:
        edge, node = waiting.pop()
        found.append(edge)
        if node not in seen:
            seen.add(node)
            waiting.extend((e, n) for e, n in reversed(around[node]) if e != edge)
    return found
