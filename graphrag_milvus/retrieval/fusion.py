"""Rankings brought together."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["min_max", "weighted_sum"]


def min_max(scores: Mapping[int, float]) -> dict[int, float]:
    """Scores moved to 0..1 within the list; all 1 where they are equal [Lee, 1997, SIGIR]."""
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    if high == low:
        return dict.fromkeys(scores, 1.0)
    return {key: (score - low) / (high - low) for key, score in scores.items()}


def weighted_sum(*rankings: tuple[float, Mapping[int, float]]) -> dict[int, float]:
    """CombSUM with weights [Fox & Shaw, 1994, TREC-2]: what a ranking does not have counts 0 there.

    Returns:
        Fused scores, best first; equal scores in the order of their keys.
    """
    total: dict[int, float] = {}
    for weight, scores in rankings:
        for key, score in scores.items():
            total[key] = total.get(key, 0.0) + weight * score
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
