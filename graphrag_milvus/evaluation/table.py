"""A report as text: methods beside one another, differences that are sure, groups of questions, notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphrag_milvus.evaluation.harness import Evaluation

__all__ = ["lines"]

LEVEL = 0.05
_ABSENT = "-"


def lines(evaluation: Evaluation) -> list[str]:
    """The report, a text for each line of a terminal."""
    index = evaluation.index
    counts = ", ".join(f"{index[name]:,} {name}" for name in ("passages", "relations", "entities"))
    return [
        f"{evaluation.dataset}: {evaluation.questions:,} questions, top {evaluation.top_k}; {counts} "
        f"({index['extractor']}, {index['embedding']})",
        "",
        *_methods(evaluation),
        *_pairs(evaluation),
        *_groups(evaluation, "per_type", "type"),
        *_groups(evaluation, "per_hop", "hops"),
        *_compared(evaluation),
        *_notes(evaluation),
    ]


def _methods(evaluation: Evaluation) -> list[str]:
    first = next(iter(evaluation.results.values()))
    measures = [name for name in first if _is_quality(name)]
    header = ["method", *map(_short, measures), "95 %", "", *_COSTS]
    marks = _marks(evaluation)
    rows = [
        [method, *(_percent(r[m]) for m in measures), _interval(r, evaluation), marks[method], *_costs(r)]
        for method, r in evaluation.results.items()
    ]
    return [*_aligned([header, *rows]), *_legend(evaluation)]


def _is_quality(name: str) -> bool:
    return name in ("mrr", "em", "f1") or (name.startswith(("recall@", "full@", "ndcg@")) and not name.endswith("_ci"))


def _short(name: str) -> str:
    return {"mrr": "MRR", "em": "EM", "f1": "F1"}.get(name) or name.replace("recall", "R").replace("ndcg", "nDCG")


_COSTS = ("p50 ms", "p95 ms", "+embed", "candidates", "oracle", "prompt")


def _costs(result: Mapping[str, Any]) -> list[str]:
    oracle, prompt, candidates = (result[n] for n in ("oracle_recall", "prompt_tokens_mean", "candidates_mean"))
    return [
        f"{result['ms_p50']:.1f}",
        f"{result['ms_p95']:.1f}",
        f"{result['ms_p50_with_embedding']:.1f}",
        _ABSENT if candidates is None else f"{candidates:.0f}",
        _ABSENT if oracle is None else _percent(oracle),
        _ABSENT if prompt is None else f"{prompt:,.0f}",
    ]


def _interval(result: Mapping[str, Any], evaluation: Evaluation) -> str:
    low, high = result[f"recall@{evaluation.headline}_ci"]
    return f"{_percent(low)}-{_percent(high)}"


def _marks(evaluation: Evaluation) -> dict[str, str]:
    """`*` at the best method, `=` at those that it does not surely beat."""
    measure = f"recall@{evaluation.headline}"
    best = max(evaluation.results, key=lambda m: float(evaluation.results[m][measure]))
    unsure = {one["a"] if one["b"] == best else one["b"] for one in evaluation.significance if _open(one, best)}
    return {m: "*" if m == best else "=" if m in unsure else "" for m in evaluation.results}


def _open(pair: Mapping[str, Any], best: str) -> bool:
    return best in (pair["a"], pair["b"]) and float(pair["p_holm"]) >= LEVEL


def _legend(evaluation: Evaluation) -> list[str]:
    k = evaluation.headline
    text = [f"R@k, full@{k} (all gold passages in the first {k}) and the like in %; 95 %: interval of R@{k}"]
    if len(evaluation.results) > 1:
        text.append(f"* best R@{k}; = not surely worse (randomisation test, p >= {LEVEL} after Holm)")
    text.append("p50, p95: without the embedding of the question; +embed: p50 with it")
    if any(r["prompt_tokens_mean"] is not None for r in evaluation.results.values()):
        text.append(
            "oracle: gold passages that the candidates lead to; prompt: tokens to show them to a model "
            f"({evaluation.prompt_tokens_by})"
        )
    return ["", *text]


def _pairs(evaluation: Evaluation) -> list[str]:
    if not evaluation.significance:
        return []
    rows = [
        [f"{one['a']} - {one['b']}", f"{100 * one['mean']:+.1f}", _range(one), _p(one["p"]), _p(one["p_holm"])]
        for one in evaluation.significance
    ]
    return ["", *_aligned([[f"R@{evaluation.headline}", "points", "95 %", "p", "p (Holm)"], *rows])]


def _range(one: Mapping[str, Any]) -> str:
    return f"{100 * one['low']:+.1f} to {100 * one['high']:+.1f}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _groups(evaluation: Evaluation, key: str, title: str) -> list[str]:
    """Recall by groups of questions, where there is more than one group."""
    results = evaluation.results
    groups: dict[str, Any] = next(iter(results.values()))[key]
    if len(groups) < 2:
        return []
    measure = f"recall@{evaluation.headline}"
    rows = [
        [name, f"{group['questions']:,}", *(_percent(r[key][name][measure]) for r in results.values())]
        for name, group in groups.items()
    ]
    return ["", *_aligned([[f"R@{evaluation.headline} by {title}", "questions", *results], *rows])]


def _compared(evaluation: Evaluation) -> list[str]:
    if evaluation.compare is None or not evaluation.compare["methods"]:
        return []
    header = [f"R@{evaluation.headline}", "questions", "here", "there", "points", "95 %", "p", "p50 here", "p50 there"]
    rows = [
        [
            method,
            f"{one['questions']:,}",
            _percent(one["here"]),
            _percent(one["there"]),
            f"{100 * one['mean']:+.1f}",
            _range(one),
            _p(one["p"]),
            f"{one['ms_p50_here']:.1f}",
            f"{one['ms_p50_there']:.1f}",
        ]
        for method, one in evaluation.compare["methods"].items()
    ]
    return ["", f"compared with {evaluation.compare['folder']}:", *_aligned([header, *rows])]


def _notes(evaluation: Evaluation) -> list[str]:
    found = [f"note: {note}" for note in evaluation.notes]
    for method, result in evaluation.results.items():
        found += [f"note: {method}, {one['questions']:,} questions: {one['note']}" for one in result["notes"]]
    return ["", *found] if found else []


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns under one another, the first to the left, figures to the right; empty columns take no room."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            text.ljust(w) if n == 0 else text.rjust(w) for n, (text, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cell for cell, w in zip(cells, widths, strict=True) if w).rstrip()
