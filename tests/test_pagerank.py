"""PageRank over entities, relations and passages, beside networkx."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphrag_milvus.graph import PASSAGE_SHARE, TITLE_WEIGHT, Incidence, Masses, PassageGraph


def graph_of(rows: Sequence[Sequence[int]], passages: Sequence[int], about: dict[int, int], count: int) -> PassageGraph:
    """Relation n holds the entities `rows[n]` and stands in passage `passages[n]`; entity ids count from 100."""
    incidence = Incidence.from_rows(range(len(rows)), passages, [[100 + e for e in row] for row in rows])
    titles = [100 + about[p] if p in about else -1 for p in range(count)]
    return PassageGraph(incidence, np.arange(count), incidence.entity_positions(titles))


def by_networkx(graph: PassageGraph, entities: np.ndarray, passages: np.ndarray, weights: np.ndarray, d: float) -> dict:
    walk = nx.DiGraph()
    walk.add_nodes_from([("e", n) for n in range(len(entities))] + [("p", n) for n in range(len(passages))])
    for r, weight in enumerate(weights.tolist()):
        held, passage = graph.incidence.matrix[r].indices.tolist(), ("p", int(graph.passage_of[r]))
        for node in [*(("e", e) for e in held), passage]:
            walk.add_edge(node, ("r", r), weight=weight)
        for e in held:
            walk.add_edge(("r", r), ("e", e), weight=(1 - PASSAGE_SHARE) / len(held))
        walk.add_edge(("r", r), passage, weight=PASSAGE_SHARE if held else 1.0)
    for p, e in enumerate(graph.about.tolist()):
        if e >= 0:
            walk.add_edge(("p", p), ("e", e), weight=TITLE_WEIGHT)
            walk.add_edge(("e", e), ("p", p), weight=TITLE_WEIGHT)
    reset = {("e", n): m for n, m in enumerate(entities.tolist())} | {("p", n): m for n, m in enumerate(passages)}
    return nx.pagerank(walk, alpha=d, personalization=reset, dangling=reset, tol=1e-13, max_iter=2_000)


def assert_alike(found: Masses, expected: dict) -> None:
    for kind, masses in (("e", found.entities), ("r", found.relations), ("p", found.passages)):
        assert masses == pytest.approx([expected.get((kind, n), 0.0) for n in range(len(masses))], abs=1e-8)
    assert found.entities.sum() + found.relations.sum() + found.passages.sum() == pytest.approx(1.0)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[PassageGraph, np.ndarray, np.ndarray, np.ndarray]:
    count = draw(st.integers(1, 6))
    passages = draw(st.lists(st.integers(0, count - 1), max_size=12))
    rows = [draw(st.lists(st.integers(0, 7), max_size=4)) for _ in passages]
    about = draw(st.dictionaries(st.integers(0, count - 1), st.integers(0, 7)))
    graph = graph_of(rows, passages, about, count)
    some = st.floats(0, 1)
    entities = np.array([draw(some) for _ in graph.incidence.entity_ids])
    reset = np.array([draw(some) for _ in range(count)])
    reset[draw(st.integers(0, count - 1))] = 1.0
    weights = np.array([draw(st.floats(0.01, 50)) for _ in rows])
    return graph, entities, reset, weights


@settings(max_examples=60)
@given(graphs(), st.sampled_from([0.0, 0.5, 0.85]))
def test_equals_networkx(case: tuple[PassageGraph, np.ndarray, np.ndarray, np.ndarray], damping: float) -> None:
    graph, entities, passages, weights = case
    found = graph.pagerank(entities, passages, weights=weights, damping=damping, tolerance=1e-11)
    assert_alike(found, by_networkx(graph, entities, passages, weights, damping))


def test_equals_networkx_on_a_skewed_graph() -> None:
    rng = np.random.default_rng(3)
    odds = 1 / np.arange(1, 301)
    rows = [rng.choice(300, size=rng.integers(1, 5), p=odds / odds.sum()).tolist() for _ in range(900)]
    passages = rng.integers(0, 250, size=900).tolist()
    graph = graph_of(rows, passages, {p: p for p in range(0, 250, 2)}, 260)
    entities = np.zeros(len(graph.incidence.entity_ids))
    entities[[3, 40]] = 0.5
    prior = np.full(260, 0.001)
    weights = rng.uniform(0.5, 9, size=900)
    assert_alike(graph.pagerank(entities, prior, weights=weights), by_networkx(graph, entities, prior, weights, 0.85))


def test_a_passage_two_steps_away_weighs_more_than_one_that_is_not_tied() -> None:
    graph = graph_of([[0, 1], [1, 2], [3, 4]], [0, 1, 2], {0: 0, 1: 1, 2: 3}, 4)
    entities = np.zeros(5)
    entities[0] = 1
    masses = graph.pagerank(entities, np.full(4, 0.001)).passages
    assert masses[0] > masses[1] > masses[2] > 0
    assert masses[3] > 0, "a passage without relations keeps its own reset mass"


def test_without_edges_the_reset_is_the_result() -> None:
    graph = graph_of([], [], {}, 3)
    found = graph.pagerank(np.zeros(0), np.array([1.0, 0.0, 3.0]))
    assert found.passages.tolist() == [0.25, 0.0, 0.75]


def test_the_iteration_keeps_to_its_tolerance_and_limit() -> None:
    graph = graph_of([[0, 1], [1, 2]], [0, 1], {}, 2)
    reset = np.array([1.0, 0.0, 0.0])
    assert graph.pagerank(reset, np.zeros(2), most_steps=3).steps == 3
    rough, exact = (graph.pagerank(reset, np.zeros(2), tolerance=t) for t in (1e-3, 1e-12))
    assert rough.steps < exact.steps
    assert np.abs(rough.passages - exact.passages).sum() <= 1e-3 * 0.85 / 0.15


@pytest.mark.parametrize("reset", [[0.0, 0.0], [-1.0, 2.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_reset_masses_that_are_none(reset: list[float]) -> None:
    with pytest.raises(ValueError, match="reset masses"):
        graph_of([[0]], [0], {}, 2).pagerank(np.zeros(1), np.array(reset))


@pytest.mark.parametrize("damping", [1.0, -0.1, float("nan")])
def test_damping_out_of_range(damping: float) -> None:
    with pytest.raises(ValueError, match="damping"):
        graph_of([[0]], [0], {}, 1).pagerank(np.ones(1), np.ones(1), damping=damping)


# --- parts ---------------------------------------------------------------------------------------------------------


def test_the_part_that_is_the_whole_gives_the_same() -> None:
    graph = graph_of([[0, 1], [1, 2], [3], []], [0, 1, 2, 2], {0: 0, 1: 1, 2: 3}, 4)
    part = graph.part(np.arange(4), np.arange(4))
    assert part.passage_ids.tolist() == graph.passage_ids.tolist()
    assert part.about.tolist() == graph.about.tolist()
    reset = np.array([0.5, 0.0, 0.2, 0.0])
    whole, again = (g.pagerank(reset, np.full(4, 0.1)) for g in (graph, part))
    assert again.relations == pytest.approx(whole.relations)
    assert again.passages == pytest.approx(whole.passages)


def test_a_hub_gives_a_relation_of_a_part_no_more_than_it_does_in_the_whole() -> None:
    rows = [[0, n] for n in range(1, 1_001)]
    graph = graph_of(rows, list(range(1_000)), {0: 0}, 1_000)
    reset = np.zeros(1_001)
    reset[0] = 1.0
    one_step = {"damping": 0.5, "most_steps": 1}
    whole = graph.pagerank(reset, np.zeros(1_000), **one_step)  # type: ignore[arg-type]
    part = graph.part(np.array([4, 9]), np.array([0]))
    at = part.incidence.entity_positions(graph.incidence.entity_ids[:1])
    inside = np.zeros(len(part.incidence.entity_ids))
    inside[at] = 1.0
    masses = part.pagerank(inside, np.zeros(len(part.passage_ids)), **one_step)  # type: ignore[arg-type]
    assert masses.relations == pytest.approx(whole.relations[[4, 9]])
    assert part.passage_ids.tolist() == [0, 4, 9]
    assert part.about[0] == at[0], "the first passage is about the hub"


def test_a_part_of_nothing_and_passages_alone() -> None:
    graph = graph_of([[0, 1]], [1], {1: 0}, 3)
    part = graph.part(np.zeros(0, dtype=np.int64), np.array([0, 2]))
    assert part.passage_ids.tolist() == [0, 2] and part.about.tolist() == [-1, -1]
    assert part.pagerank(np.zeros(0), np.array([1.0, 1.0])).passages.tolist() == [0.5, 0.5]


def test_the_graph_of_some_passages_has_their_relations_and_entities_alone() -> None:
    graph = graph_of([[0, 1], [1, 2], [3, 4]], [0, 1, 2], {0: 0, 1: 1, 2: 3}, 4)
    within = graph.within(np.array([1, 3]))
    assert within.passage_ids.tolist() == [1, 3]
    assert within.incidence.entity_ids.tolist() == [101, 102]
    assert within.about.tolist() == [0, -1]
    assert within.incidence.relation_ids.tolist() == [1]
