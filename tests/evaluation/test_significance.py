"""Resampling against exact enumeration and known cases."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from graphrag_milvus.evaluation.significance import holm, interval, paired


@pytest.mark.parametrize("seed", range(5))
def test_the_p_value_is_that_of_all_swaps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.choice([0.0, 0.5, 1.0], size=(2, 10))
    difference = a - b
    signs = np.array(list(product([-1.0, 1.0], repeat=10)))
    exact = (np.abs(signs @ difference) >= abs(difference.sum()) - 1e-9).mean()
    assert paired(a, b, seed=seed).p == pytest.approx(exact, abs=0.02)


def test_equal_methods_do_not_differ() -> None:
    values = np.random.default_rng(0).random(50)
    same = paired(values, values)
    assert (same.mean, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)
    assert paired([], []).p == 1.0
    assert paired([1.0], [0.0]).p == 1.0  # one question proves nothing: its two signs are equally far from 0


def test_a_sure_difference_is_sure_and_signed() -> None:
    better, worse = np.ones(200), np.tile([0.0, 1.0], 100)
    found = paired(better, worse)
    assert found.mean == 0.5
    assert 0.42 < found.low < 0.5 < found.high < 0.58
    assert found.p == pytest.approx(1 / 10_001)
    turned = paired(worse, better)
    assert (turned.mean, turned.p) == (-0.5, found.p)


def test_false_alarms_are_as_rare_as_they_should_be() -> None:
    rng = np.random.default_rng(1)
    p = [paired(*rng.choice([0.0, 0.5, 1.0], size=(2, 60)), seed=n, rounds=500).p for n in range(200)]
    assert np.mean(np.array(p) < 0.05) < 0.1


def test_the_interval_is_near_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(2).normal(0.3, 0.2, size=400)
    low, high = interval(values)
    error = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - error, values.mean() + error), abs=0.003)
    assert interval([]) == (0.0, 0.0)
    assert interval([0.5]) == (0.5, 0.5)


def test_the_same_seed_gives_the_same_whatever_the_size() -> None:
    a, b = np.random.default_rng(3).random((2, 1_000))
    assert paired(a, b, seed=7) == paired(a, b, seed=7)
    assert paired(a, b, seed=7) != paired(a, b, seed=8)


def test_holm_adjusts_step_by_step() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
