"""How sure a mean, or the difference of two methods on the same questions, is: the bootstrap and randomisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["ROUNDS", "Difference", "holm", "interval", "paired"]

ROUNDS = 10_000
"""Resamples: the standard error of a p-value near 0.05 is then 0.002."""
_CELLS = 4_000_000  # numbers in memory at once
_TIE = 1e-12  # sums of the same numbers in another order differ in the last digits

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """The mean of `a - b`, its 95 % interval, and the probability of one as large between equal methods."""

    mean: float
    low: float
    high: float
    p: float


def paired(a: npt.ArrayLike, b: npt.ArrayLike, *, seed: int = 0, rounds: int = ROUNDS) -> Difference:
    """Compare two methods by their values for the same questions, in the same order.

    The interval is the percentile bootstrap [Efron, 1979, Annals of Statistics 7]. The p-value is that of
    Fisher's two-sided randomisation test as for rankings in [Smucker, Allan & Carterette, 2007, CIKM]: under
    the null hypothesis the two labels of each question may be swapped,

        p = (1 + #{rounds with |mean of ±(a - b)| >= |mean of a - b|}) / (1 + rounds)

    Args:
        a: values, shape (questions,).
        b: values, shape (questions,).
    """
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    if not len(difference):
        return Difference(0.0, 0.0, 0.0, 1.0)
    low, high = interval(difference, seed=seed, rounds=rounds)
    return Difference(float(difference.mean()), low, high, _randomised(difference, seed, rounds))


def interval(values: npt.ArrayLike, *, seed: int = 0, rounds: int = ROUNDS) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the mean of `values`, shape (questions,)."""
    sample = np.asarray(values, dtype=np.float64)
    if not len(sample):
        return 0.0, 0.0
    rng = np.random.default_rng(seed)

    def means(count: int) -> Floats:
        resampled: Floats = sample[rng.integers(0, len(sample), size=(count, len(sample)))].mean(axis=1)
        return resampled

    low, high = np.percentile(np.concatenate(list(_chunked(means, rounds, len(sample)))), [2.5, 97.5])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests at once, adjusted so that one false alarm among all stays as rare [Holm, 1979]."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda n: p_values[n])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def _randomised(difference: Floats, seed: int, rounds: int) -> float:
    """Questions without a difference change no sum, so that only the others are flipped."""
    decided = difference[difference != 0]
    if not len(decided):
        return 1.0
    rng = np.random.default_rng(seed)
    observed = abs(decided.sum())

    def sums(count: int) -> Floats:
        signs = 1.0 - 2.0 * rng.integers(0, 2, size=(count, len(decided)), dtype=np.int8)
        flipped: Floats = signs @ decided
        return flipped

    as_large = sum(int((np.abs(s) >= observed - _TIE).sum()) for s in _chunked(sums, rounds, len(decided)))
    return (1 + as_large) / (1 + rounds)


def _chunked(make: Callable[[int], Floats], rounds: int, width: int) -> Iterator[Floats]:
    step = max(1, _CELLS // width)
    for start in range(0, rounds, step):
        yield make(min(step, rounds - start))
