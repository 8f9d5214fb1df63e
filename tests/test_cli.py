"""The command line as users and scripts meet it: exit status, JSON on stdout alone, one line for an error."""

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

Run = Callable[..., Result]

ROWS = [
    {
        "id": "euler",
        "title": "Leonhard Euler",
        "text": "Leonhard Euler was a student of Johann Bernoulli.",
        "triplets": [["Leonhard Euler", "was a student of", "Johann Bernoulli"]],
        "metadata": {"year": 1707},
    },
    {
        "id": "daniel",
        "title": "Daniel Bernoulli",
        "text": "Daniel Bernoulli, a son of Johann Bernoulli, studied fluids.",
        "triplets": [
            ["Daniel Bernoulli", "was a son of", "Johann Bernoulli"],
            ["Daniel Bernoulli", "studied", "fluids"],
        ],
        "metadata": {"year": 1700},
    },
]


@pytest.fixture(autouse=True)
def _hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHRAG_EMBEDDING__PROVIDER", "graphrag_milvus.testing:HashingEmbeddings")
    monkeypatch.setenv("GRAPHRAG_MILVUS__CONNECT_TIMEOUT", "2")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command against one database; `json_output` is what stdout holds, whole."""

    def run(*arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(app, ["--uri", str(tmp_path / "cli.db"), *arguments])
        assert result.exit_code == status, (result.stdout, result.stderr, result.exception)
        assert "Traceback" not in result.output
        return result

    return run


def loads(result: Result) -> dict[str, Any]:
    """The one JSON object that stdout holds and nothing beside it."""
    data = json.loads(result.stdout)
    assert isinstance(data, dict)
    return data


def test_the_life_of_a_workspace(run: Run, corpus: Path) -> None:
    report = loads(run("index", str(corpus), "--json"))
    assert (report["documents"], report["added"], report["passages"], report["relations"]) == (2, 2, 2, 3)
    assert report["entities"] == 4
    assert report["failed"] == []
    assert set(report) >= {"updated", "unchanged", "llm_calls", "tokens", "seconds"}
    assert loads(run("index", str(corpus), "--json"))["unchanged"] == 2

    found = loads(run("retrieve", "Who was a son of Johann Bernoulli?", "--top-k", "1", "--json"))
    assert found["method"] == "ppr"
    assert [p["doc_id"] for p in found["passages"]] == ["daniel"]
    assert set(found["passages"][0]) >= {"id", "doc_id", "title", "text", "score"}
    assert isinstance(found["passages"][0]["id"], str)
    assert found["trace"]["timings_ms"]["total"] > 0

    answer = loads(run("ask", "Who was a son of Johann Bernoulli?", "--json"))
    assert answer["extractive"] is True
    assert set(answer["citations"]) <= {p["id"] for p in answer["passages"]}
    assert set(answer) >= {"answer", "confidence", "trace", "usage"}

    listed = loads(run("documents", "--json"))["documents"]
    assert [(d["id"], d["complete"]) for d in listed] == [("daniel", True), ("euler", True)]

    assert loads(run("delete", "daniel", "--json")) == {"deleted": ["daniel"], "missing": []}
    assert loads(run("delete", "daniel", "--json", status=1)) == {"deleted": [], "missing": ["daniel"]}
    assert loads(run("gc", "--json")) == {"entities_removed": 2}
    counts = loads(run("stats", "--json"))
    assert (counts["documents"], counts["passages"], counts["relations"], counts["entities"]) == (1, 1, 1, 2)


def test_text_output_names_passages_paths_and_sources(run: Run, corpus: Path) -> None:
    assert "added: 2" in run("index", str(corpus)).stdout
    shown = run("retrieve", "Who was a son of Johann Bernoulli?", "--method", "subgraph").stdout
    assert "[1] Daniel Bernoulli" in shown
    assert "Paths:" in shown
    assert "->" in shown
    assert "Sources (no model" in run("ask", "Who was a son of Johann Bernoulli?", "--stream").stdout
    assert "euler\tLeonhard Euler\t1 passages\t1 relations\tcomplete" in run("documents").stdout
    assert "documents: 2" in run("stats").stdout


def test_show_leads_from_a_name_to_passages_and_back(run: Run, corpus: Path) -> None:
    run("index", str(corpus))
    [view] = loads(run("show", "johann bernoulli", "--json"))["entities"]
    assert (view["entity"]["relations"], view["documents"]) == (2, ["daniel", "euler"])
    passage = loads(run("show", view["passages"][0]["id"], "--json"))["passage"]
    assert {e["name"] for e in passage["entities"]} == {"daniel bernoulli", "johann bernoulli", "fluids"}
    assert "Daniel Bernoulli studied fluids <Daniel Bernoulli | fluids>" in run("show", passage["passage"]["id"]).stdout
    assert "and 1 more relations" in run("show", "Johann Bernoulli", "--limit", "1").stdout
    assert "close to it: johann bernoulli" in run("show", "Johan Bernoulli", status=1).stdout
    assert loads(run("show", "Qqq", "--json", status=1))["found"] is False


def test_filter_and_workspace_hold(run: Run, corpus: Path) -> None:
    run("--workspace", "知识库", "index", str(corpus))
    found = run("--workspace", "知识库", "retrieve", "Bernoulli", "--filter", 'metadata["year"] > 1705', "--json")
    assert [p["doc_id"] for p in loads(found)["passages"]] == ["euler"]
    assert loads(run("stats", "--json"))["documents"] == 0


def test_what_cannot_be_indexed_is_said_and_the_rest_is_done(run: Run, corpus: Path, tmp_path: Path) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Привет".encode("cp1251"))
    result = run(
        "index", str(corpus), str(latin), str(tmp_path / "missing"), "--json", "--extractor", "given", status=1
    )
    report = loads(result)
    assert report["added"] == 2
    assert {"latin.txt" in f["source"] or "missing" in f["source"] for f in report["failed"]} == {True}
    assert any("UTF-8" in f["reason"] for f in report["failed"])
    assert "does not exist" in result.stderr


def test_shards_share_a_corpus(run: Run, corpus: Path) -> None:
    parts = [loads(run("index", str(corpus), "--shard", f"{n}/2", "--json"))["added"] for n in (1, 2)]
    assert sum(parts) == 2
    assert loads(run("stats", "--json"))["documents"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("retrieve", "question", "--method", "magic"), "no method 'magic'; known are auto, naive"),
        (("retrieve", "  "), "question is empty"),
        (("retrieve", "question", "--top-k", "-1"), "top-k is -1"),
        (("retrieve", "question", "--top-k", "20000"), "16,384"),
        (("retrieve", "question", "--filter", "1==1) or (1==1"), "filter"),
        (("retrieve", "question", "--filter", "metadata["), "filter"),
        (("index", "corpus.jsonl", "--shard", "3/2"), "shard 3/2"),
        (("index", "corpus.jsonl", "--shard", "x"), "not I/N"),
        (("index", "corpus.jsonl", "--extractor", "magic"), "magic"),
        (("index", "corpus.jsonl", "--extractor", "llm"), "GRAPHRAG_LLM__"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(run: Run, corpus: Path, arguments: tuple[str, ...], message: str) -> None:
    run("index", str(corpus))
    result = run(*arguments, "--json", status=2)
    assert message in result.stderr
    assert message in loads(result)["error"]["message"]


def test_an_unknown_option_is_wrong_usage(run: Run) -> None:
    run("retrieve", "question", "--nonsense", status=2)


def test_nothing_indexed_is_said(run: Run) -> None:
    result = run("retrieve", "anything", "--json", status=1)
    assert loads(result)["passages"] == []
    assert "nothing is indexed" in result.stderr
    assert loads(run("ask", "anything", "--json", status=1))["citations"] == []
    assert loads(run("documents", "--json")) == {"documents": []}
    assert loads(run("stats", "--json"))["passages"] == 0
    assert loads(run("gc", "--json")) == {"entities_removed": 0}
    run("delete", "nobody", "--json", status=1)


@pytest.mark.usefixtures("local_extra")
def test_another_embedding_model_is_refused(run: Run, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("index", str(corpus))
    monkeypatch.setenv("GRAPHRAG_EMBEDDING__PROVIDER", "local")
    for arguments in (("index", str(corpus)), ("retrieve", "question")):
        result = run(*arguments, "--json", status=1)
        message = loads(result)["error"]["message"]
        assert "384 dimensions" in message
        assert "64 dimensions" in message


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "/dev/null/x.db", "folder", "http//typo", "a b.db", "é.db"])
def test_a_uri_that_cannot_be_used_is_one_line_soon(uri: str) -> None:
    started = time.monotonic()
    result = CliRunner().invoke(app, ["--uri", uri, "stats"])
    assert time.monotonic() - started < 15
    assert result.exit_code in (1, 2)
    assert len(result.stderr.strip().splitlines()) == 1
    assert uri in result.stderr


def test_a_file_that_another_process_has_open(run: Run, corpus: Path, tmp_path: Path) -> None:
    run("index", str(corpus))
    code = (
        "import sys, time; from graphrag_milvus.store import MilvusStore; "
        "from graphrag_milvus.settings import MilvusSettings; "
        "s = MilvusStore(MilvusSettings(uri=sys.argv[1])); s.exists(); print('open', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "cli.db")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "open"
        result = run("stats", status=1)
        assert "another process has it open" in result.stderr
    finally:
        holder.kill()
        holder.wait()
    assert "documents: 2" in run("stats").stdout


def test_a_real_process_keeps_stdout_clean(tmp_path: Path) -> None:
    row = {"text": "Ada Lovelace worked with Charles Babbage.", "triplets": [["Ada", "worked with", "Babbage"]]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row), "utf-8")
    command = [sys.executable, "-m", "graphrag_milvus", "index", "rows.jsonl", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["added"] == 1
    assert (tmp_path / "graphrag_milvus.db").exists()


@pytest.mark.usefixtures("local_extra")
def test_demo_tells_the_story(run: Run) -> None:
    story = loads(run("demo", "--json"))
    naive, graph = ([p["doc_id"] for p in story[side]["passages"]] for side in ("naive", "graph"))
    assert "daniel-bernoulli" not in naive
    assert graph == ["leonhard-euler", "daniel-bernoulli"]
    assert "fluid dynamics" in story["answer"]["text"]
    assert any("Johann Bernoulli" in line for line in story["graph"]["trace"]["path"])
    text = run("demo").stdout
    assert "NAIVE RETRIEVAL" in text
    assert "GRAPH RETRIEVAL" in text
    assert "Citations:" in text
