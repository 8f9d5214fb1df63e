"""The batch script and the options of `index` that it passes on: shards, estimates, reports, progress."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from graphrag_milvus import GraphRAG
from graphrag_milvus.builder.estimate import Prices, expected_documents
from graphrag_milvus.settings import EmbeddingSettings, IndexSettings, LLMSettings, MilvusSettings, Settings
from graphrag_milvus.testing import HashingEmbeddings, ScriptedServer
from graphrag_milvus.types import Document

SCRIPT = Path(__file__).parent.parent / "scripts" / "index_corpus.py"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("index_corpus", SCRIPT)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rows = [
        {"id": f"d{n}", "text": f"Ann{n} knew Bob{n} well.", "triplets": [[f"Ann{n}", "knew", f"Bob{n}"]]}
        for n in range(20)
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def run(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the script in this process: its status, and what it wrote."""
    monkeypatch.setenv("GRAPHRAG_EMBEDDING__PROVIDER", "graphrag_milvus.testing:HashingEmbeddings")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            script.main([*arguments, "--uri", str(tmp_path / "i.db")])
        written = capsys.readouterr()
        return int(ended.value.code or 0), written.out, written.err

    return run


def last_line(output: str) -> dict[str, Any]:
    data = json.loads(output.splitlines()[-1])
    assert isinstance(data, dict)
    return data


def test_shards_together_are_the_corpus(run: Run, corpus: Path) -> None:
    parts = []
    for n in (1, 2, 3):
        status, output, _ = run(str(corpus), "--shard", f"{n}/3", "--json", "--workspace", "shared")
        assert status == 0
        parts.append(last_line(output)["added"])
    assert sum(parts) == 20 and all(parts)
    status, output, _ = run("--workspace", "shared", str(corpus), "--json")
    assert last_line(output)["unchanged"] == 20


@pytest.mark.parametrize("shard", ["0/3", "4/3", "a/b", "1"])
def test_a_shard_that_does_not_exist_is_wrong_usage(run: Run, corpus: Path, shard: str) -> None:
    status, _, errors = run(str(corpus), "--shard", shard)
    assert status == 2 and shard in errors and "Traceback" not in errors


def test_failures_are_listed_at_the_end_and_in_the_report(run: Run, corpus: Path, tmp_path: Path) -> None:
    with corpus.open("a") as file:
        file.write('not JSON\n{"id": "blank", "text": " "}\n')
    status, output, errors = run(str(corpus), str(tmp_path / "gone.txt"), "--json")
    report = last_line(output)
    assert status == 1 and report["added"] == 20 and len(report["failed"]) == 3
    failed = [line for line in errors.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 3 and failed == errors.splitlines()[-3:]
    assert any("corpus.jsonl:21" in line for line in failed)


def test_it_runs_as_a_program_and_helps(corpus: Path) -> None:
    shown = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True, check=False)
    assert shown.returncode == 0 and "--dry-run" in shown.stdout and "--shard" in shown.stdout


def test_progress_has_rate_and_time_left_also_without_a_terminal(run: Run, corpus: Path) -> None:
    _, output, errors = run(str(corpus), "--progress", "--json")
    assert last_line(output)["added"] == 20
    assert "/20 [" in errors and "documents/s" in errors
    _, _, silent = run(str(corpus), "--no-progress")
    assert silent == ""


# --- before anything is spent -------------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing(run: Run, corpus: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    status, output, _ = run(str(corpus), "--dry-run", "--json", "--extractor", "given")
    found = last_line(output)
    assert status == 0 and found["dry_run"] is True
    assert (found["documents"], found["added"], found["passages"]) == (20, 20, 20)
    assert (found["llm_calls"], found["tokens"], found["cost"]) == (0, 0, None)
    assert found["embedding_tokens"] > 20 * 5
    assert sorted(tmp_path.rglob("*")) == before
    assert "nothing was done" in run(str(corpus), "--dry-run")[1]


def test_a_dry_run_counts_what_is_left_and_respects_the_shard(run: Run, corpus: Path) -> None:
    run(str(corpus), "--shard", "1/2")
    rest = last_line(run(str(corpus), "--dry-run", "--json")[1])
    other = last_line(run(str(corpus), "--dry-run", "--json", "--shard", "2/2")[1])
    assert 0 < rest["unchanged"] < 20 and rest["added"] == rest["passages"] == 20 - rest["unchanged"]
    assert (other["unchanged"], other["added"]) == (0, rest["added"])
    assert last_line(run(str(corpus), "--shard", "2/2", "--json")[1])["added"] == rest["added"]


def test_a_dry_run_tells_what_would_fail(run: Run, corpus: Path) -> None:
    with corpus.open("a") as file:
        file.write("not JSON\n")
    status, output, errors = run(str(corpus), "--dry-run", "--json")
    assert status == 1 and len(last_line(output)["failed"]) == 1 and "would fail: " in errors


def extracting(asked: dict[str, Any]) -> str:
    data = json.loads(asked["messages"][-1]["content"])
    words = data["text"].strip(".").split()
    return json.dumps({"entities": [words[0], words[2]], "triples": [[words[0], words[1], words[2]]]})


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., GraphRAG]:
    def make(server: ScriptedServer, **options: Any) -> GraphRAG:
        settings = Settings(
            milvus=MilvusSettings(uri=str(tmp_path / "e.db")),
            llm=LLMSettings(model="m", base_url=server.base_url, **options.pop("llm", {})),
            embedding=EmbeddingSettings(provider="openai", base_url=server.base_url, model="e"),
            **options,
        )
        return GraphRAG(settings)

    return make


DOCUMENTS = [Document(f"Ann{n} knew Bob{n} well, and both of them lived by the sea.", id=f"d{n}") for n in range(25)]


def test_an_estimate_asks_nobody_and_comes_near_what_a_run_takes(make: Callable[..., GraphRAG]) -> None:
    with ScriptedServer(respond=extracting, embeddings=HashingEmbeddings(8)) as server:
        with make(server) as rag:
            found = rag.estimate(DOCUMENTS, extractor="llm", prices=Prices(2.0, 8.0, 0.1), progress=False)
            assert server.requests == []
            report = rag.add(DOCUMENTS, extractor="llm", progress=False)
            after = rag.estimate(DOCUMENTS, extractor="llm", progress=False)
        assert (found.llm_calls, found.passages, found.added) == (report.llm_calls, report.passages, report.added)
        assert (after.llm_calls, after.passages, after.unchanged, after.cost) == (0, 0, 25, None)
        # The stand-in counts words; a model's tokens are up to three for each with the punctuation of JSON.
        assert 0.5 * report.tokens < found.tokens < 3 * report.tokens
        assert found.cost == pytest.approx(
            (2 * found.prompt_tokens + 8 * found.completion_tokens + 0.1 * found.embedding_tokens) / 1e6
        )


def test_what_has_triples_needs_no_model_with_auto(make: Callable[..., GraphRAG]) -> None:
    documents = [*DOCUMENTS, Document("Ann knew Bob.", triplets=[["Ann", "knew", "Bob"]])]
    with ScriptedServer() as server, make(server, llm={"price_in": 1.0}) as rag:
        calls = {name: rag.estimate(documents, extractor=name, progress=False) for name in ("auto", "llm", "given+llm")}
        assert calls["auto"].llm_calls == 50
        assert calls["llm"].llm_calls == calls["given+llm"].llm_calls == 52
        assert calls["auto"].cost == pytest.approx(calls["auto"].prompt_tokens / 1e6)
        assert server.requests == []


def test_a_splitter_that_would_cost_something_is_replaced(make: Callable[..., GraphRAG]) -> None:
    with ScriptedServer() as server, make(server, index=IndexSettings(splitter="meaning")) as rag:
        found = rag.estimate(DOCUMENTS, extractor="given", progress=False)
        assert found.passages == 25 and any("by meaning" in note for note in found.notes)
        assert server.requests == []


# --- how many there are -------------------------------------------------------------------------------------------


def test_documents_are_counted_beforehand(tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "a.csv").write_text("text,title\nx,1\ny,2\n")
    (tmp_path / "b.json").write_text(json.dumps([{"text": "x"}, {"text": "y"}, {"text": "z"}]))
    (tmp_path / "c.txt").write_text("one")
    (tmp_path / "d.md").write_text("two")
    assert expected_documents([corpus]) == 20
    assert expected_documents([tmp_path]) == 20 + 2 + 3 + 1 + 1
    assert expected_documents([tmp_path / "gone.txt", corpus]) == 21
    (tmp_path / "e.jsonl.gz").write_bytes(b"")
    assert expected_documents([tmp_path]) is None


def test_rows_of_parquet_are_counted(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["a", "b", "c"]}), tmp_path / "t.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing")
    assert expected_documents([tmp_path / "t.parquet", tmp_path / "broken.parquet"]) == 4


def test_an_iterable_that_is_no_list_is_not_made_one() -> None:
    class Lazy:
        """As data sets of other libraries are: iterable again and again, and large."""

        most = 0

        def __iter__(self) -> Any:
            for n in range(1_000_000):
                self.most = n
                yield Document(f"Text {n}.", id=f"l{n}")

    from graphrag_milvus.rag import _counted, _documents

    lazy = Lazy()
    items, total = _counted(lazy, None)  # type: ignore[arg-type]
    assert next(_documents(items, "")) == Document("Text 0.", id="l0")
    assert lazy.most == 0 and total() is None
