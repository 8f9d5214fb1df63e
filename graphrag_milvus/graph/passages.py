"""Entities, relations and passages as one graph, and where a walker on it is to be found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, hstack

from graphrag_milvus.graph.incidence import Incidence
from graphrag_milvus.graph.sparse import distinct, neighbours, positions

__all__ = ["PASSAGE_SHARE", "TITLE_WEIGHT", "Masses", "PassageGraph"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

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
        return positions(self.passage_ids, ids)

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
        held = distinct(rows.indices, self.incidence.matrix.shape[1])
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

    def relations_of(self, passages: Ints) -> Ints:
        """The relations of some passages, as ascending positions; passages are given by position."""
        return neighbours(self._tied, passages + len(self.incidence.entity_ids))

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
