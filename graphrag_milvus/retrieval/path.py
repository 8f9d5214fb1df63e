"""How the walk came from the question to a passage, in words."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from graphrag_milvus.hits import Hit
from graphrag_milvus.retrieval.seeds import Seeds
from graphrag_milvus.retrieval.snapshot import Snapshot
from graphrag_milvus.types import ScoredPassage

__all__ = ["Chain", "chains", "explain", "line", "spelled"]

Ints = npt.NDArray[np.int64]
Chain: TypeAlias = "list[tuple[int, int]]"
"""Steps from the question to a relation: an entity (-1 for the question itself) and the relation that it leads to."""
Parents: TypeAlias = "dict[int, tuple[int, int]]"
"""For each relation the relation before it (-1 at a seed) and the entity between the two (-1 at a seed relation)."""

_MOST = 5
"""Lines that are told: the first passages matter, and a page of arrows explains nothing."""


def explain(
    snapshot: Snapshot,
    seeds: Seeds,
    positions: Ints,
    hits: Mapping[int, Hit],
    *,
    named: Mapping[int, Mapping[str, Any]],
    selected: Sequence[Mapping[str, Any]],
    passages: Sequence[ScoredPassage],
) -> list[str]:
    """One line a passage: seed entity, relation, shared entity, relation, and so on to the passage.

    Args:
        positions: the candidates, heaviest first, so that of two shortest ways the heavier is told.
        hits: their texts by relation id.
        named: `entity_ids` and `names` of those that were selected, by relation id.
    """
    wanted: dict[str, int] = {}
    for passage in passages[:_MOST]:
        ids = [int(s["id"]) for s in selected if passage.id in s["passage_ids"]]
        at = snapshot.incidence.relation_positions(ids[:1])
        if len(at) and at[0] >= 0:
            wanted[passage.id] = int(at[0])
    found = chains(snapshot, seeds, positions, list(wanted.values()))
    texts = {i: str(hit.row["text"]) for i, hit in hits.items()}
    names = spelled(named)
    return [
        line(found[wanted[p.id]], snapshot, texts, names, passage=p)
        for p in passages[:_MOST]
        if wanted.get(p.id) in found
    ]


def chains(snapshot: Snapshot, seeds: Seeds, positions: Ints, targets: Sequence[int]) -> dict[int, Chain]:
    """The shortest way from a seed to each of the relations that have one over shared entities.

    Args:
        positions: relations that ways may lead over, the heaviest first, so that of two shortest ways the heavier
            is told.
        targets: positions of relations; those that are not among `positions` have no way.
    """
    if not len(positions):
        return {}
    parents = _parents(snapshot, seeds, positions, set(targets))
    return {target: _chain(target, parents) for target in targets if target in parents}


def _chain(relation: int, parents: Parents) -> Chain:
    steps = []
    while relation >= 0:
        before, entity = parents[relation]
        steps.append((entity, relation))
        relation = before
    return steps[::-1]


def _parents(snapshot: Snapshot, seeds: Seeds, positions: Ints, targets: set[int]) -> Parents:
    """Breadth first over the candidates, from the seeds, until all targets are there.

    What only the question as a whole leads to comes last.
    """
    rank = {int(p): n for n, p in enumerate(positions)}
    part = snapshot.incidence.matrix[positions]
    by_relation, by_entity = _rows(part), _rows(part.T.tocsr())
    parents: Parents = {}
    queue: deque[int] = deque()
    done: set[int] = set()

    def follow(entity: int, here: int) -> None:
        """Visit the relations of an entity, once: a hub stands in many, and all are there after the first time."""
        if entity not in done:
            done.add(entity)
            for n in sorted(by_entity(entity)):
                _visit(parents, queue, int(positions[n]), here, entity)

    for entity in seeds.entity_positions.tolist():
        follow(entity, -1)
    late = deque(r for r in seeds.relation_positions.tolist() if r in rank)
    if not queue:
        while late:
            _visit(parents, queue, late.popleft(), -1, -1)
    while (queue or late) and not targets <= parents.keys():
        if not queue:
            _visit(parents, queue, late.popleft(), -1, -1)
            continue
        here = queue.popleft()
        for entity in by_relation(rank[here]):
            follow(entity, here)
    return parents


def _rows(matrix: csr_matrix) -> Callable[[int], list[int]]:
    """The columns of a row; to ask scipy for each row by itself takes most of the time of a whole answer."""
    indptr, indices = matrix.indptr, matrix.indices
    return lambda row: indices[indptr[row] : indptr[row + 1]].tolist()


def _visit(parents: Parents, queue: deque[int], relation: int, before: int, entity: int) -> None:
    if relation not in parents:
        parents[relation] = (before, entity)
        queue.append(relation)


def line(
    chain: Chain, snapshot: Snapshot, texts: Mapping[int, str], names: Mapping[int, str], *, passage: ScoredPassage
) -> str:
    """A chain in words.

    Args:
        texts: of relations, by id; one that is missing is told by its number.
        names: of entities as they are spelled, by id; else the normalised name stands.
    """
    steps = []
    for entity, relation in chain:
        entity_id = int(snapshot.incidence.entity_ids[entity]) if entity >= 0 else -1
        relation_id = int(snapshot.incidence.relation_ids[relation])
        steps.append((names.get(entity_id) or snapshot.lexicon.name(entity_id)) if entity >= 0 else "question")
        steps.append(f'"{texts[relation_id]}"' if relation_id in texts else f"relation {relation_id}")
    return " -> ".join([*steps, f"passage {passage.title or passage.id!r}"])


def spelled(named: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """Entities as relations spell them: `entity_ids` and `names` of each, by relation id."""
    return {
        int(key): str(name)
        for row in named.values()
        for key, name in zip(row["entity_ids"], row["names"], strict=False)
    }
