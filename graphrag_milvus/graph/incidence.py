"""The incidence of entities and relations: who touches whom, and what is near. Knows no Milvus and no text.

Entities and relations are addressed by their position, an int in the order of their sorted 63-bit ids, so
that the same rows give the same matrix wherever and in whatever order they arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from graphrag_milvus.graph.sparse import neighbours, positions

__all__ = ["Incidence"]

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
        return positions(self.entity_ids, ids)

    def relation_positions(self, ids: Sequence[int] | Ints) -> Ints:
        """The position of each relation id, and -1 for one that is not there."""
        return positions(self.relation_ids, ids)

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
        frontier = np.union1d(relations, neighbours(self.transpose, entities)).astype(np.int64)
        reached[frontier] = True
        for _ in range(degree):
            touched = neighbours(self.matrix, frontier)
            fresh = touched[~known[touched]]
            known[fresh] = True
            found = neighbours(self.transpose, fresh)
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


def _inverse_diagonal(degrees: npt.NDArray[np.integer]) -> csr_matrix:
    size = len(degrees)
    inverse = np.divide(1.0, degrees, out=np.zeros(size), where=degrees > 0)
    return csr_matrix((inverse, np.arange(size), np.arange(size + 1)), shape=(size, size))
