"""Measures against the same by hand, on rankings of every kind."""

from __future__ import annotations

import math

import numpy as np
import pytest

from graphrag_milvus.evaluation import Question
from graphrag_milvus.evaluation.metrics import (
    cutoffs,
    exact_match,
    latencies,
    normalize_answer,
    oracle_recall,
    quality,
    summary,
    token_f1,
)
from graphrag_milvus.evaluation.rankings import Ranking


def ranking(documents: list[str], *, ms: float = 1.0, embed: float = 0.0, reached: list[str] | None = None) -> Ranking:
    scores = [1.0] * len(documents)  # all equal: the order alone counts
    return Ranking("q", "q?", "m", documents, scores, ms, {"embed": embed, "search": 0.5}, reached=reached or [])


def by_hand(gold: set[str], documents: list[str], top_k: int) -> dict[str, float]:
    hits = [d in gold for d in documents]
    found = {f"recall@{k}": len(gold & set(documents[:k])) / len(gold) for k in cutoffs(top_k)}
    gain = sum(hit / math.log2(rank + 1) for rank, hit in enumerate(hits[:10], start=1))
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(gold), 10) + 1))
    precision = sum(hits) / len(documents) if documents else 0.0
    recall = sum(hits) / len(gold)
    return {
        **found,
        "full@5": float(gold <= set(documents[:5])),
        "mrr": next((1 / rank for rank, hit in enumerate(hits, start=1) if hit), 0.0),
        "ndcg@10": gain / ideal,
        f"precision@{top_k}": precision,
        f"f1@{top_k}": 2 * precision * recall / (precision + recall) if precision else 0.0,
    }


def test_every_measure_is_what_it_is_by_hand() -> None:
    rng = np.random.default_rng(0)
    pool = [str(n) for n in range(25)]
    questions, rankings = [], []
    for n in range(200):
        gold = tuple(rng.permutation(pool)[: rng.integers(1, 5)]) + (("missing: x",) if n % 7 == 0 else ())
        questions.append(Question(f"{n} é", "?", tuple(map(str, gold))))
        rankings.append(ranking(list(map(str, rng.permutation(pool)[: rng.integers(0, 11)]))))
    found = quality(questions, rankings, 10)
    expected = [by_hand(set(q.gold), r.documents, 10) for q, r in zip(questions, rankings, strict=True)]
    assert set(found) == set(expected[0])
    for name, values in found.items():
        np.testing.assert_allclose(values, [one[name] for one in expected], atol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    ("top_k", "ranks"), [(1, (1,)), (2, (2,)), (7, (2, 5, 7)), (10, (2, 5, 10)), (20, (2, 5, 10, 20))]
)
def test_ranks_beyond_what_was_asked_for_are_not_measured(top_k: int, ranks: tuple[int, ...]) -> None:
    assert cutoffs(top_k) == ranks
    found = quality([Question("q", "?", ("a",))], [ranking(["a"])], top_k)
    assert {name for name in found if name.startswith("recall")} == {f"recall@{k}" for k in ranks}
    assert found[f"full@{min(5, top_k)}"] == 1.0


def test_means_by_type_and_by_hops() -> None:
    asked = [Question(str(n), "?", ("a",), type="odd" if n % 2 else "even", hops=2 + n // 3) for n in range(4)]
    found = summary(asked, {"recall@5": np.array([1.0, 0.0, 0.5, 0.25])})
    assert found["recall@5"] == 0.4375
    assert found["per_type"] == {
        "even": {"questions": 2, "recall@5": 0.75},
        "odd": {"questions": 2, "recall@5": 0.125},
    }
    assert found["per_hop"] == {"2": {"questions": 3, "recall@5": 0.5}, "3": {"questions": 1, "recall@5": 0.25}}


def test_the_embedding_of_the_question_is_apart() -> None:
    found = latencies([ranking([], ms=float(n), embed=n / 2) for n in range(1, 102)])
    assert (found["ms_p50"], found["ms_p50_with_embedding"]) == (25.5, 51.0)
    assert (found["ms_p95"], found["ms_p95_with_embedding"]) == (48.0, 96.0)
    assert found["stages_ms"] == {"embed": 25.5, "search": 0.5}


def test_oracle_recall_counts_what_candidates_lead_to() -> None:
    asked = [Question("a", "?", ("1", "2")), Question("b", "?", ("3", "missing: x")), Question("c", "?", ("4",))]
    found = oracle_recall(asked, [ranking([], reached=["2", "1", "9"]), ranking([], reached=["3"]), ranking(["4"])])
    assert found.tolist() == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles!", "beatles"),
        ("a U.S. state, an isle", "us state isle"),
        ("theatre", "theatre"),
        ("20 March 851.", "20 march 851"),
        ("…", "…"),
        ("爱因斯坦", "爱因斯坦"),
    ],
)
def test_answers_are_compared_as_squad_does(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("answer", "expected", "em", "f1"),
    [
        ("the Stanley Hall", ["G. Stanley Hall", "Stanley Hall"], 1.0, 1.0),
        ("G. S. Hall", ["G. Stanley Hall"], 0.0, 2 / 3),
        ("Hall Hall", ["Hall"], 0.0, 2 / 3),
        ("yes", ["Yes."], 1.0, 1.0),
        ("yes it is", ["yes"], 0.0, 0.0),
        ("no", ["yes"], 0.0, 0.0),
        ("", ["Hall"], 0.0, 0.0),
        ("the", ["a"], 1.0, 1.0),
        ("Hall", [], 0.0, 0.0),
    ],
)
def test_exact_match_and_f1(answer: str, expected: list[str], em: float, f1: float) -> None:
    assert exact_match(answer, expected) == em
    assert token_f1(answer, expected) == pytest.approx(f1)
