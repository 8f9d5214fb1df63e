"""The figures of a report: what a method is worth, how sure that is, and how it compares."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from graphrag_milvus.evaluation import metrics
from graphrag_milvus.evaluation.datasets import Question
from graphrag_milvus.evaluation.metrics import Floats
from graphrag_milvus.evaluation.rankings import Ranking
from graphrag_milvus.evaluation.significance import holm, interval, paired

__all__ = ["comparison", "result", "significance"]

_DIGITS = 5
_NOTES = 5  # kinds of notes told for a method


def result(
    questions: Sequence[Question], rankings: Sequence[Ranking], quality: Mapping[str, Floats], measure: str, seed: int
) -> dict[str, Any]:
    """All figures of one method: fractions from 0 to 1, milliseconds, and means for each question.

    Args:
        rankings: one for each question, in the same order.
        quality: arrays of shape (questions,) by measure.
        measure: the one that gets an interval.
        seed: of the resampling.
    """
    return {
        **metrics.summary(questions, quality),
        f"{measure}_ci": [round(end, _DIGITS) for end in interval(quality[measure], seed=seed)],
        **metrics.latencies(rankings),
        **_candidates(questions, rankings),
        "round_trips_mean": _mean([r.round_trips for r in rankings]),
        "llm_calls": sum(r.calls for r in rankings),
        "tokens": sum(r.tokens for r in rankings),
        "ran": dict(Counter(r.method for r in rankings)),
        "notes": _common_notes(rankings),
    }


def significance(values: Mapping[str, Floats], measure: str, seed: int) -> list[dict[str, Any]]:
    """Every pair of methods by one measure, which `values` hold by method; p-values also adjusted for all pairs."""
    pairs = list(combinations(values, 2))
    found = [paired(values[a], values[b], seed=seed) for a, b in pairs]
    adjusted = holm([one.p for one in found])
    return [
        {"a": a, "b": b, "measure": measure, **_rounded(asdict(one)), "p_holm": round(p, _DIGITS)}
        for (a, b), one, p in zip(pairs, found, adjusted, strict=True)
    ]


def comparison(
    questions: Sequence[Question], here: Sequence[Ranking], there: Sequence[Ranking], top_k: int, seed: int
) -> dict[str, Any]:
    """One method in two runs: `mean` is that of this one less the other."""
    measure = f"recall@{metrics.headline(top_k)}"
    a, b = (metrics.quality(questions, rankings, top_k)[measure] for rankings in (here, there))
    return {
        "questions": len(questions),
        "measure": measure,
        "here": _mean(a.tolist()),
        "there": _mean(b.tolist()),
        **_rounded(asdict(paired(a, b, seed=seed))),
        "ms_p50_here": metrics.latencies(here)["ms_p50"],
        "ms_p50_there": metrics.latencies(there)["ms_p50"],
    }


def _candidates(questions: Sequence[Question], rankings: Sequence[Ranking]) -> dict[str, Any]:
    """Figures of the candidates, or None where the method has none."""
    if all(r.candidates is None for r in rankings):
        return dict.fromkeys(["candidates_mean", "oracle_recall", "prompt_tokens_mean"])
    tokens = [r.prompt_tokens for r in rankings if r.prompt_tokens is not None]
    return {
        "candidates_mean": _mean([r.candidates or 0 for r in rankings]),
        "oracle_recall": _mean(metrics.oracle_recall(questions, rankings).tolist()),
        "prompt_tokens_mean": _mean(tokens) if tokens else None,
    }


def _common_notes(rankings: Sequence[Ranking]) -> list[dict[str, Any]]:
    """The notes of the traces without their figures, the most frequent ones first."""
    kinds = Counter(kind for r in rankings for kind in {re.sub(r"\d[\d.,]*", "N", note) for note in r.notes})
    return [{"note": note, "questions": count} for note, count in kinds.most_common(_NOTES)]


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), _DIGITS) if values else 0.0


def _rounded(fields: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, _DIGITS) for name, value in fields.items()}
