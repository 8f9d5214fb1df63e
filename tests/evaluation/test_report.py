"""What people look at: the table and the plot."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from graphrag_milvus.errors import InputError, MissingDependencyError
from graphrag_milvus.evaluation import Evaluation, plot, table


def result(recall: float, ms: float, **more: Any) -> dict[str, Any]:
    quality = {"recall@2": recall / 2, "recall@5": recall, "recall@10": recall, "mrr": recall, "ndcg@10": recall}
    group = {"questions": 500, **quality}
    return {
        **quality,
        "precision@10": 0.1,
        "f1@10": 0.2,
        "full@5": recall / 3,
        "recall@5_ci": [max(recall - 0.02, 0.0), min(recall + 0.02, 1.0)],
        "ms_p50": ms,
        "ms_p95": 3 * ms,
        "ms_p50_with_embedding": ms + 5,
        "candidates_mean": None,
        "oracle_recall": None,
        "prompt_tokens_mean": None,
        "per_type": {"bridge": group, "comparison": group},
        "per_hop": {"2": group},
        "notes": [],
        **more,
    }


def pair(a: str, b: str, mean: float, p: float) -> dict[str, Any]:
    return {
        "a": a,
        "b": b,
        "measure": "recall@5",
        "mean": mean,
        "low": mean - 0.1,
        "high": mean + 0.1,
        "p": p,
        "p_holm": p,
    }


@pytest.fixture
def evaluation() -> Evaluation:
    candidates = {"candidates_mean": 243.4, "oracle_recall": 0.9554, "prompt_tokens_mean": 3061.2}
    notes = [{"note": "the engine has no BM25", "questions": 1_000}]
    index = {"passages": 6_119, "relations": 51_294, "entities": 40_000, "extractor": "given", "embedding": "local:x"}
    results = {
        "naive": result(0.6, 4.0),
        "hybrid": result(0.93, 7.0, notes=notes),
        "subgraph": result(0.94, 25.0, **candidates),
    }
    pairs = [pair("naive", "hybrid", -0.33, 0.0001), pair("naive", "subgraph", -0.34, 0.0001)]
    pairs.append(pair("hybrid", "subgraph", -0.01, 0.3))
    return Evaluation("wiki", 1_000, 6_119, 10, index, results, pairs, notes=["2 passages have no triples"])


def test_columns_stand_under_one_another(evaluation: Evaluation) -> None:
    lines = table.lines(evaluation)
    assert (
        lines[0] == "wiki: 1,000 questions, top 10; 6,119 passages, 51,294 relations, 40,000 entities (given, local:x)"
    )
    header, *rows = lines[2:6]
    assert header.split()[:5] == ["method", "R@2", "R@5", "R@10", "MRR"]
    end = header.index("R@5") + len("R@5")
    assert [row[:end].split()[-1] for row in rows] == ["60.0", "93.0", "94.0"]
    assert rows[0].split()[-3:] == ["-", "-", "-"]
    assert rows[2].split()[-3:] == ["243", "95.5", "3,061"]
    assert all(line == line.rstrip() for line in lines)


def test_what_is_sure_is_marked(evaluation: Evaluation) -> None:
    lines = table.lines(evaluation)
    marks = {line.split()[0]: line.split()[8] for line in lines[3:6]}
    assert (marks["hybrid"], marks["subgraph"]) == ("=", "*")
    assert marks["naive"] == "4.0"  # no mark: the next column
    assert "hybrid - subgraph    -1.0   -11.0 to +9.0    0.300     0.300" in lines
    assert any("naive - hybrid" in line and "< 0.001" in line for line in lines)
    assert "note: hybrid, 1,000 questions: the engine has no BM25" in lines
    assert "note: 2 passages have no triples" in lines


def test_groups_are_told_where_there_are_several(evaluation: Evaluation) -> None:
    text = "\n".join(table.lines(evaluation))
    assert "R@5 by type" in text
    assert "R@5 by hops" not in text


def test_one_method_needs_no_marks(evaluation: Evaluation) -> None:
    evaluation.results = {"naive": evaluation.results["naive"]}
    evaluation.significance, evaluation.notes = [], []
    text = "\n".join(table.lines(evaluation))
    assert "Holm" not in text and "oracle:" not in text


def test_a_comparison_is_told(evaluation: Evaluation) -> None:
    one = {"questions": 90, "here": 0.5, "there": 0.4, "mean": 0.1, "low": 0.0, "high": 0.2, "p": 0.04}
    times = {"ms_p50_here": 4.0, "ms_p50_there": 5.0}
    evaluation.compare = {"folder": "before", "methods": {"naive": {**one, **times}}}
    lines = table.lines(evaluation)
    place = lines.index("compared with before:")
    assert lines[place + 2].split() == [
        "naive",
        "90",
        "50.0",
        "40.0",
        "+10.0",
        "+0.0",
        "to",
        "+20.0",
        "0.040",
        "4.0",
        "5.0",
    ]


# --- the plot -----------------------------------------------------------------------------------------------------


def test_the_plot_is_a_picture(evaluation: Evaluation, tmp_path: Path) -> None:
    plot.plot(evaluation, tmp_path / "plot.png")
    data = (tmp_path / "plot.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1152, 736)


@pytest.mark.parametrize(
    "points",
    [
        {
            "naive": (4.2, 0.618),
            "hybrid": (7.1, 0.679),
            "ppr": (19.5, 0.948),
            "auto": (20.5, 0.946),
            "kg2rag": (21, 0.945),
        },
        {"naive": (2.0, 1.0)},
        {"naive": (2.0, 0.0), "hybrid": (2.0, 0.0)},
        {"naive": (0.0, 0.5), "hybrid": (1.0, 0.5)},
    ],
)
def test_names_cover_no_other_name_and_no_point(evaluation: Evaluation, points: dict[str, tuple[float, float]]) -> None:
    evaluation.results = {method: result(recall, ms) for method, (ms, recall) in points.items()}
    figure = plot._figure(evaluation)
    [axes] = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert sorted(text.get_text().split()[0] for text in axes.texts) == sorted(points)
    places = [axes.transData.transform((ms, 100 * recall)) for ms, recall in points.values()]
    for n, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[n + 1 :])
        assert not any(box.contains(x, y) for x, y in places)
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1


def test_a_plot_that_cannot_be_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"NAME\.png"):
        plot.check(tmp_path / "plot.pdf")
    with pytest.raises(InputError, match="folder"):
        plot.check(tmp_path / "nowhere" / "plot.png")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"graphrag-milvus\[evaluation\]"):
        plot.check(tmp_path / "plot.png")


def test_a_plot_where_a_folder_stands(evaluation: Evaluation, tmp_path: Path) -> None:
    (tmp_path / "plot.png").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        plot.plot(evaluation, tmp_path / "plot.png")
