"""Relations as edges between entities, and the maximum spanning trees that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import minimum_spanning_tree

from graphrag_milvus.graph.incidence import Incidence

__all__ = ["entity_edges", "spanning_forest"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


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
