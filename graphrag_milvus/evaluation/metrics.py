"""Measures of rankings and answers: one number for each question first, then means, by type and by hops."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_milvus.errors import MissingDependencyError
from graphrag_milvus.evaluation.datasets import Question
from graphrag_milvus.evaluation.rankings import Ranking

__all__ = [
    "CUTOFFS",
    "cutoffs",
    "exact_match",
    "headline",
    "ir_measures",
    "latencies",
    "normalize_answer",
    "oracle_recall",
    "quality",
    "summary",
    "token_f1",
]

CUTOFFS = (2, 5, 10)
Floats = npt.NDArray[np.float64]


# --- rankings -----------------------------------------------------------------------------------------------------


def ir_measures() -> Any:
    """The library that measures rankings.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import ir_measures
    except ImportError:
        raise MissingDependencyError(
            'to measure rankings needs ir-measures; pip install "graphrag-milvus[evaluation]"'
        ) from None
    return ir_measures


def cutoffs(top_k: int) -> tuple[int, ...]:
    """Ranks at which `top_k` passages can be measured: 2, 5, 10 and the last."""
    return tuple(sorted({*(k for k in CUTOFFS if k <= top_k), top_k}))


def headline(top_k: int) -> int:
    """The rank at which methods are compared."""
    return min(5, top_k)


def quality(questions: Sequence[Question], rankings: Sequence[Ranking], top_k: int) -> dict[str, Floats]:
    """What each ranking is worth, by measure: arrays of shape (questions,), all from 0 to 1.

    Recall, precision, F1, the reciprocal rank (MRR is its mean) and nDCG are those of ir-measures, with every
    gold passage as relevant as another; `full@k` is 1 where all gold passages are among the first k.

    Args:
        rankings: one for each question, in the same order.
        top_k: passages that were asked for.
    """
    named = _measures(top_k)
    values = {name: np.zeros(len(questions)) for name in named}
    names = {measure: name for name, measure in named.items()}
    # Numbers in place of ids: the engine behind it reads text, and data sets have ids of every kind.
    gold = {str(n): dict.fromkeys(q.gold, 1) for n, q in enumerate(questions)}
    ranked = {str(n): _falling(r.documents) for n, r in enumerate(rankings)}
    for found in ir_measures().iter_calc(list(names), gold, ranked):
        values[names[found.measure]][int(found.query_id)] = found.value
    values[f"full@{headline(top_k)}"] = (values[f"recall@{headline(top_k)}"] > 1 - 1e-9).astype(np.float64)
    return values


def _measures(top_k: int) -> dict[str, Any]:
    ir = ir_measures()
    return {
        **{f"recall@{k}": ir.R @ k for k in cutoffs(top_k)},
        "mrr": ir.RR,
        f"ndcg@{min(10, top_k)}": ir.nDCG @ min(10, top_k),
        f"precision@{top_k}": ir.SetP,
        f"f1@{top_k}": ir.SetF,
    }


def _falling(documents: Sequence[str]) -> dict[str, float]:
    """Scores that keep the order, equal scores included."""
    return {document: -float(rank) for rank, document in enumerate(documents)}


def oracle_recall(questions: Sequence[Question], rankings: Sequence[Ranking]) -> Floats:
    """The share of gold passages that the candidates lead to: what a perfect reranker would find."""
    shares = [len(set(q.gold) & set(r.reached)) / len(q.gold) for q, r in zip(questions, rankings, strict=True)]
    return np.array(shares, dtype=np.float64)


# --- time and cost ------------------------------------------------------------------------------------------------


def latencies(rankings: Sequence[Ranking]) -> dict[str, Any]:
    """Percentiles in milliseconds of the whole call, with and without the embedding of the question, and stages."""
    whole = np.array([r.ms for r in rankings])
    apart = np.maximum(whole - [r.timings_ms.get("embed", 0.0) for r in rankings], 0.0)
    stages = dict.fromkeys(name for r in rankings for name in r.timings_ms if name != "total")
    return {
        "ms_p50": _percentile(apart, 50),
        "ms_p95": _percentile(apart, 95),
        "ms_p50_with_embedding": _percentile(whole, 50),
        "ms_p95_with_embedding": _percentile(whole, 95),
        "stages_ms": {name: _mean([r.timings_ms.get(name, 0.0) for r in rankings], 3) for name in stages},
    }


def _percentile(values: Floats, percent: float) -> float:
    return round(float(np.percentile(values, percent)), 3) if len(values) else 0.0


def _mean(values: npt.ArrayLike, digits: int = 5) -> float:
    array = np.asarray(values, dtype=np.float64)
    return round(float(array.mean()), digits) if len(array) else 0.0


# --- means --------------------------------------------------------------------------------------------------------


def summary(questions: Sequence[Question], values: Mapping[str, Floats]) -> dict[str, Any]:
    """The mean of each measure, over all questions and within each type and number of hops."""
    return {
        **_means(values, np.ones(len(questions), dtype=bool)),
        "per_type": _groups(questions, values, lambda q: q.type),
        "per_hop": _groups(questions, values, lambda q: str(q.hops)),
    }


def _groups(
    questions: Sequence[Question], values: Mapping[str, Floats], key: Callable[[Question], str]
) -> dict[str, dict[str, Any]]:
    keys = np.array([key(q) for q in questions], dtype=object)
    found = sorted({key(q) for q in questions} - {""})
    return {k: {"questions": int((keys == k).sum()), **_means(values, keys == k)} for k in found}


def _means(values: Mapping[str, Floats], chosen: npt.NDArray[np.bool_]) -> dict[str, float]:
    return {name: _mean(numbers[chosen]) for name, numbers in values.items()}


# --- answers ------------------------------------------------------------------------------------------------------

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CHOICES = frozenset(["yes", "no", "noanswer"])


def normalize_answer(text: str) -> str:
    """An answer as SQuAD compares it, and HotpotQA, 2Wiki and MuSiQue after it: lower case, without punctuation
    and English articles, single spaces [Rajpurkar et al., 2016, EMNLP].
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, expected: Iterable[str]) -> float:
    """1 where the normalised answer is one of those expected."""
    normal = normalize_answer(answer)
    return float(any(normal == normalize_answer(one) for one in expected))


def token_f1(answer: str, expected: Iterable[str]) -> float:
    """The best F1 of the words shared with an expected answer; yes and no share nothing with anything else."""
    return max((_f1(normalize_answer(answer), normalize_answer(one)) for one in expected), default=0.0)


def _f1(one: str, other: str) -> float:
    words, others = one.split(), other.split()
    if one == other or not words or not others:
        return float(one == other)
    shared = sum((Counter(words) & Counter(others)).values())
    if not shared or not _CHOICES.isdisjoint({one, other}):
        return 0.0
    precision, recall = shared / len(words), shared / len(others)
    return 2 * precision * recall / (precision + recall)
