"""Incidence against dense numpy and networkx-free definitions, on random graphs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphrag_milvus.graph import Incidence

ROWS = st.lists(st.lists(st.integers(0, 12), max_size=5), min_size=1, max_size=25)


def dense(rows: list[list[int]]) -> tuple[np.ndarray, list[int]]:
    """Entities by relations, with a column a relation, and the entities in order."""
    entities = sorted({e for row in rows for e in row})
    matrix = np.zeros((len(entities), len(rows)))
    for r, row in enumerate(rows):
        for e in row:
            matrix[entities.index(e), r] = 1.0
    return matrix, entities


def build(rows: list[list[int]]) -> Incidence:
    return Incidence.from_rows(list(range(len(rows))), [r // 2 for r in range(len(rows))], rows)


def positions(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@settings(max_examples=200)
@given(ROWS, st.integers(0, 4), st.data())
def test_expansion_is_the_pattern_of_matrix_powers(rows: list[list[int]], degree: int, data: st.DataObject) -> None:
    matrix, entities = dense(rows)
    seeds_r = data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=3))
    seeds_e = data.draw(st.sets(st.integers(0, len(entities) - 1), max_size=3)) if entities else set()
    by_entity = np.linalg.matrix_power(matrix @ matrix.T, degree) @ matrix
    by_relation = np.linalg.matrix_power(matrix.T @ matrix, degree)
    expected = set(seeds_r)
    for e in seeds_e:
        for k in range(degree + 1):
            expected |= set(np.flatnonzero(np.linalg.matrix_power(matrix @ matrix.T, k)[e] @ matrix))
        assert set(np.flatnonzero(by_entity[e])) <= expected
    for r in seeds_r:
        expected |= set(np.flatnonzero(by_relation[r]))
    found = build(rows).expand(positions(*sorted(seeds_e)), positions(*sorted(seeds_r)), degree)
    assert found.tolist() == sorted(expected)


@settings(max_examples=100)
@given(ROWS, st.integers(0, 3), st.data())
def test_walk_agrees_with_dense_steps_over_the_whole_graph(
    rows: list[list[int]], degree: int, data: st.DataObject
) -> None:
    matrix, entities = dense(rows)
    weights_r = np.zeros(len(rows))
    weights_e = np.zeros(len(entities))
    weights_r[data.draw(st.integers(0, len(rows) - 1))] = 0.7
    if entities:
        weights_e[data.draw(st.integers(0, len(entities) - 1))] = 1.3
    incidence = build(rows)
    reached = incidence.expand(np.flatnonzero(weights_e), np.flatnonzero(weights_r), degree)
    found = incidence.walk(reached, weights_e, weights_r, degree, damping=0.5)
    to_relations = matrix.T / np.maximum(matrix.sum(1), 1)
    to_entities = matrix / np.maximum(matrix.sum(0), 1)
    total = weights_e.sum() + weights_r.sum()
    e, r = weights_e / total, weights_r / total
    for _ in range(2 * degree + 1):
        r, e = 0.5 * to_relations @ e + 0.5 * weights_r / total, 0.5 * to_entities @ r + 0.5 * weights_e / total
    np.testing.assert_allclose(found, r[reached], atol=1e-12)
    outside = np.setdiff1d(np.arange(len(rows)), reached)
    np.testing.assert_allclose(r[outside], 0.0, atol=1e-12)


@given(ROWS, st.randoms())
def test_order_of_arrival_does_not_matter(rows: list[list[int]], random: object) -> None:
    ids = [7 * r + 3 for r in range(len(rows))]
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    one = Incidence.from_rows(ids, ids, rows)
    other = Incidence.from_rows([ids[i] for i in order], [ids[i] for i in order], [rows[i][::-1] for i in order])
    assert (one.matrix != other.matrix).nnz == 0
    assert one.relation_ids.tolist() == other.relation_ids.tolist() == other.passage_ids.tolist()


@given(ROWS, st.data())
def test_within_equals_building_from_what_is_kept(rows: list[list[int]], data: st.DataObject) -> None:
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), dtype=bool)
    part = build(rows).within(keep)
    kept = [r for r in range(len(rows)) if keep[r]]
    whole = Incidence.from_rows(kept, [r // 2 for r in kept], [rows[r] for r in kept])
    assert part.relation_ids.tolist() == whole.relation_ids.tolist()
    assert part.entity_ids.tolist() == whole.entity_ids.tolist()
    assert part.passage_ids.tolist() == whole.passage_ids.tolist()
    assert (part.matrix != whole.matrix).nnz == 0


def test_empty_graph() -> None:
    empty = Incidence.from_rows([], [], [])
    assert empty.expand(positions(), positions(), 3).tolist() == []
    assert empty.entity_positions([1, 2]).tolist() == [-1, -1]
    assert empty.walk(positions(), np.zeros(0), np.zeros(0), 1).tolist() == []


def test_positions_of_63_bit_ids() -> None:
    big = 2**63 - 1
    incidence = Incidence.from_rows([big, 5], [1, 1], [[big, big - 1], [big, 2]])
    assert incidence.relation_ids.tolist() == [5, big]
    assert incidence.entity_positions([big, 3, 2]).tolist() == [2, -1, 0]
    assert incidence.entity_degrees.tolist() == [1, 1, 2]


def test_a_hub_weighs_little_and_all_of_it_counts() -> None:
    rows = [[0, r] for r in range(1, 20_001)] + [[20_001, 20_002]]
    incidence = Incidence.from_rows(list(range(len(rows))), list(range(len(rows))), rows)
    hub = incidence.expand(positions(0), positions(), 0)
    assert len(hub) == 20_000
    weights = np.zeros(len(incidence.entity_ids))
    weights[[0, 20_001]] = 1.0
    reached = incidence.expand(positions(0, 20_001), positions(), 0)
    mass = incidence.walk(reached, weights, np.zeros(len(rows)), 0)
    assert mass[-1] == pytest.approx(20_000 * mass[0])


def test_rows_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 relations"):
        Incidence.from_rows([1, 2], [1], [[1]])
