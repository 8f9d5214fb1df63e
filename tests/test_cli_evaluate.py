"""`evaluate` as people and scripts meet it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from graphrag_milvus.cli import app
from graphrag_milvus.rag import METHODS

Run = Callable[..., Result]
FACTS = [("Ada Ferro", "was born in", "Pontalto"), ("Pontalto", "lies in", "Italy"), ("Bruno Kost", "met", "Ada Ferro")]


@pytest.fixture(autouse=True)
def _hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHRAG_EMBEDDING__PROVIDER", "graphrag_milvus.testing:HashingEmbeddings")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "facts"
    folder.mkdir()
    docs = [{"passage": f"{s}\n{s} {p} {o}.", "extracted_triples": [[s, p, o]]} for s, p, o in FACTS]
    facts = [["Ada Ferro", 0], ["Pontalto", 0]]
    asked = [{"_id": "one", "question": "Where was Ada Ferro born?", "supporting_facts": facts, "answer": "Italy"}]
    asked.append({**asked[0], "_id": "two", "question": "Who met Ada Ferro?", "supporting_facts": [["Bruno Kost", 0]]})
    (folder / "openie_facts.json").write_text(json.dumps({"docs": docs}), "utf-8")
    (folder / "facts.json").write_text(json.dumps(asked), "utf-8")
    return folder


@pytest.fixture
def run(data: Path) -> Run:
    def run(*arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(app, ["evaluate", str(data), "--extractor", "given", *arguments])
        assert result.exit_code == status, (result.stdout, result.stderr, result.exception)
        assert "Traceback" not in result.output
        return result

    return run


def loads(result: Result) -> dict[str, Any]:
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_json_table_and_plot(run: Run, tmp_path: Path) -> None:
    out, png = str(tmp_path / "out"), str(tmp_path / "plot.png")
    found = loads(run("--out", out, "--json"))
    assert set(found) >= {"dataset", "questions", "passages", "index", "results", "significance", "notes"}
    assert (found["dataset"], found["questions"], found["passages"]) == ("facts", 2, 3)
    assert list(found["results"]) == list(METHODS)
    wanted = {"recall@2", "recall@5", "recall@10", "full@5", "ms_p50", "ms_p95"}
    wanted |= {"candidates_mean", "oracle_recall", "prompt_tokens_mean"}
    assert all(wanted <= set(result) for result in found["results"].values())

    shown = run(
        "--out", out, "--method", "hybrid,naive", "--limit", "1", "--seed", "3", "--compare", out, "--plot", png
    )
    assert shown.stdout.startswith("facts: 1 questions, top 10; 3 passages, 3 relations, 4 entities (given,")
    assert f"compared with {out}:" in shown.stdout
    assert Path(png).read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "magic"), "no method 'magic'; known are all, auto, naive"),
        (("--limit", "0"), "limit is 0"),
        (("--top-k", "0"), "top-k is 0"),
        (("--answers",), "GRAPHRAG_LLM__MODEL"),
        (("--extractor", "magic"), "magic"),
        (("--plot", "plot.pdf"), "NAME.png"),
        (("--compare", "nowhere"), "no run.json"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(run: Run, arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments, "--json", status=2)
    assert message in loads(result)["error"]["message"]
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_folder_without_data_is_wrong_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path)])
    assert result.exit_code == 2
    assert "HippoRAG's layout" in result.stderr


def test_what_is_not_done_is_status_1(run: Run, data: Path) -> None:
    file = data / "openie_facts.json"
    docs = json.loads(file.read_text("utf-8"))
    docs["docs"].append({"title": "x" * 70_000, "text": "Too long a title.", "extracted_triples": []})
    file.write_text(json.dumps(docs), "utf-8")
    result = run("--method", "naive", "--json", status=1)
    assert "not done: 1 passages are not indexed" in result.stderr
    assert loads(result)["undone"]


def test_a_process_that_is_killed_goes_on_and_stdout_stays_clean(data: Path, tmp_path: Path) -> None:
    asked = json.loads((data / "facts.json").read_text("utf-8"))
    many = [{**asked[n % 2], "_id": f"q{n}"} for n in range(120)]
    (data / "facts.json").write_text(json.dumps(many), "utf-8")
    command = [sys.executable, "-m", "graphrag_milvus", "evaluate", str(data), "--extractor", "given"]
    command += ["--method", "subgraph", "--out", "out", "--json"]
    rankings = tmp_path / "out" / "rankings" / "subgraph.jsonl"
    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (rankings.exists() and rankings.stat().st_size > 2_000) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        first.kill()
        first.wait()
    before = rankings.read_bytes()
    assert 0 < before.count(b"\n") < 120
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["questions"] == 120
    whole = rankings.read_bytes()
    assert whole.count(b"\n") == 120
    assert whole.startswith(before[: before.rindex(b"\n") + 1])
    assert any("rankings of subgraph were there already" in note for note in found["notes"])
