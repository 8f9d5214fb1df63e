"""Rankings brought together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_milvus.retrieval.fusion import min_max, weighted_sum

SCORES = st.dictionaries(st.integers(0, 20), st.floats(-1e6, 1e6), max_size=12)


def test_scores_move_to_between_0_and_1() -> None:
    assert min_max({1: -3.0, 2: 1.0, 3: -1.0}) == {1: 0.0, 2: 1.0, 3: 0.5}


def test_equal_scores_are_all_1() -> None:
    assert min_max({1: 0.2, 2: 0.2}) == {1: 1.0, 2: 1.0}
    assert min_max({1: 0.0}) == {1: 1.0}
    assert min_max({}) == {}


@given(SCORES)
def test_the_order_stays(scores: dict[int, float]) -> None:
    moved = min_max(scores)
    assert moved.keys() == scores.keys()
    assert all(0.0 <= score <= 1.0 for score in moved.values())
    assert all(moved[a] <= moved[b] for a in scores for b in scores if scores[a] <= scores[b])


def test_what_a_ranking_does_not_have_counts_nothing() -> None:
    fused = weighted_sum((0.5, {1: 1.0, 2: 0.5}), (0.5, {2: 1.0, 3: 0.2}))
    assert list(fused) == [2, 1, 3]
    assert fused == pytest.approx({2: 0.75, 1: 0.5, 3: 0.1})


def test_ties_go_by_key_and_nothing_gives_nothing() -> None:
    assert list(weighted_sum((1.0, {9: 1.0, 4: 1.0}), (1.0, {5: 1.0}))) == [4, 5, 9]
    assert weighted_sum() == weighted_sum((1.0, {})) == {}


@given(SCORES, SCORES)
def test_the_best_comes_first(one: dict[int, float], other: dict[int, float]) -> None:
    fused = list(weighted_sum((0.3, one), (0.7, other)).values())
    assert fused == sorted(fused, reverse=True)
    assert len(fused) == len(one.keys() | other.keys())
