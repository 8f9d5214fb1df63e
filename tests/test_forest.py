"""Components and maximum spanning trees against networkx, on random graphs."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphrag_milvus.graph import Incidence, entity_edges, spanning_forest

WEIGHTS = st.sampled_from([-1.0, -0.25, 0.0, 0.0, 0.25, 0.5, 1.0])
"""With zeros, which csgraph takes for no edge, negative ones, which a cosine may be, and ties."""
EDGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), WEIGHTS), max_size=30)
ROWS = st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=20)


def arrays(edges: list[tuple[int, int, float]]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.array([edge[:2] for edge in edges], dtype=np.int64).reshape(-1, 2)
    return ends, np.array([edge[2] for edge in edges], dtype=np.float64)


def multigraph(edges: list[tuple[int, int, float]]) -> nx.MultiGraph:
    graph = nx.MultiGraph()
    graph.add_nodes_from(node for edge in edges for node in edge[:2])
    graph.add_edges_from((head, tail, n, {"weight": weight}) for n, (head, tail, weight) in enumerate(edges))
    return graph


def without_loops(tree: np.ndarray, ends: np.ndarray) -> list[int]:
    return [int(edge) for edge in tree if ends[edge, 0] != ends[edge, 1]]


def nodes_of(tree: np.ndarray, ends: np.ndarray) -> set[int]:
    return set(ends[tree].ravel().tolist())


@settings(max_examples=300)
@given(EDGES)
def test_trees_are_the_components_and_as_heavy_as_those_of_networkx(edges: list[tuple[int, int, float]]) -> None:
    ends, weights = arrays(edges)
    graph, forest = multigraph(edges), spanning_forest(ends, weights)
    components = {frozenset(nodes) for nodes in nx.connected_components(graph)}
    assert len(forest) == len(components)
    assert {frozenset(nodes_of(tree, ends)) for tree in forest} == components
    for tree in forest:
        links = without_loops(tree, ends)
        nodes = nodes_of(tree, ends)
        assert len(links) == len(nodes) - 1
        heaviest = nx.maximum_spanning_tree(graph.subgraph(nodes)).size("weight")
        assert weights[links].sum() == pytest.approx(heaviest)


@given(EDGES)
def test_an_edge_that_is_told_touches_one_that_was_told_before(edges: list[tuple[int, int, float]]) -> None:
    ends, weights = arrays(edges)
    for tree in spanning_forest(ends, weights):
        known = {int(ends[tree[0], 0])}
        for edge in tree:
            head, tail = ends[edge].tolist()
            assert known & {head, tail}
            known |= {head, tail}
        assert weights[tree[0]] == weights[tree].max()


@given(EDGES)
def test_no_loop_is_lost_and_no_edge_told_twice(edges: list[tuple[int, int, float]]) -> None:
    ends, weights = arrays(edges)
    told = [int(edge) for tree in spanning_forest(ends, weights) for edge in tree]
    assert len(told) == len(set(told))
    assert {n for n, edge in enumerate(edges) if edge[0] == edge[1]} <= set(told)


@given(ROWS)
def test_relations_as_edges_tie_what_they_hold_and_nothing_else(rows: list[list[int]]) -> None:
    incidence = Incidence.from_rows(list(range(len(rows))), [r // 3 for r in range(len(rows))], rows)
    ends, where = entity_edges(incidence, np.arange(len(rows)))
    assert where.tolist() == sorted(where.tolist())
    for place, row in enumerate(rows):
        mine = ends[where == place]
        held = {e for end in mine.tolist() for e in end if e < len(incidence.entity_ids)}
        assert {int(incidence.entity_ids[e]) for e in held} == set(row)
        assert len(mine) == max(1, len(set(row)) - 1)
    whole = nx.Graph()
    for place, row in enumerate(rows):
        whole.add_node(("relation", place))
        whole.add_edges_from((("relation", place), entity) for entity in row)
    assert len(spanning_forest(ends, np.zeros(len(ends)))) == nx.number_connected_components(whole)


def test_depth_first_follows_the_stronger_branch_to_its_end() -> None:
    #        0 -.9- 1 -.5- 2 -.4- 3
    #        |      `-.6- 4 -.1- 5
    #        `-.8- 6                    and 7 -.95- 8 apart
    edges = [(0, 1, 0.9), (1, 2, 0.5), (2, 3, 0.4), (1, 4, 0.6), (4, 5, 0.1), (0, 6, 0.8), (7, 8, 0.95)]
    assert [tree.tolist() for tree in spanning_forest(*arrays(edges))] == [[6], [0, 3, 4, 1, 2, 5]]


def test_the_strongest_of_parallel_edges_stays_and_the_weakest_of_a_circle_goes() -> None:
    edges = [(1, 2, 0.2), (2, 1, 0.7), (1, 2, 0.7), (2, 3, 0.6), (3, 1, 0.5)]
    assert [tree.tolist() for tree in spanning_forest(*arrays(edges))] == [[1, 3]]


def test_three_hundred_parallel_edges_are_one_and_still_connect() -> None:
    ends, weights = arrays([(0, 1, 0.0)] * 300 + [(1, 2, 0.0)])
    assert [tree.tolist() for tree in spanning_forest(ends, weights)] == [[0, 300]]


def test_one_entity_is_a_loop_and_none_a_node_of_its_own() -> None:
    incidence = Incidence.from_rows([10, 11, 12, 13], [1, 2, 3, 4], [[5, 6], [6], [], []])
    ends, where = entity_edges(incidence, np.arange(4))
    assert ends.tolist() == [[0, 1], [1, 1], [4, 4], [5, 5]]
    assert where.tolist() == [0, 1, 2, 3]
    trees = spanning_forest(ends, np.array([0.0, 0.0, 0.5, 0.0]))
    assert [tree.tolist() for tree in trees] == [[2], [0, 1], [3]]


def test_the_star_stands_on_what_the_passage_speaks_of_most() -> None:
    title, other = 9, (1, 2, 3, 4)
    rows = [[1, 2, title], [3, title], [4, title, 1], [1, 2]]
    incidence = Incidence.from_rows([0, 1, 2, 3], [7, 7, 7, 8], rows)
    ends, where = entity_edges(incidence, np.arange(4))
    named = incidence.entity_ids[ends].tolist()
    assert [named[n] for n in np.flatnonzero(where < 3)] == [[title, 1], [title, 2], [title, 3], [title, 1], [title, 4]]
    assert len(other) == len(set(ends.ravel().tolist())) - 1


def test_a_chain_of_twenty_thousand_is_not_too_deep() -> None:
    edges = [(a, b, 0.5) for a, b in pairwise(range(20_001))]
    [tree] = spanning_forest(*arrays(edges))
    assert tree.tolist() == list(range(20_000))


def test_nothing_gives_nothing() -> None:
    ends, weights = arrays([])
    assert spanning_forest(ends, weights) == []
    empty = Incidence.from_rows([], [], [])
    assert [part.tolist() for part in entity_edges(empty, np.zeros(0, dtype=np.int64))] == [[], []]


@pytest.mark.parametrize("weights", [[0.5, float("nan")], [0.5]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        spanning_forest(np.array([[0, 1], [1, 2]]), np.array(weights))
