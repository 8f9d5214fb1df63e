"""Model and embedder over real HTTP in bad weather: the corpus ends complete, and nothing paid for is repeated."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import indexing
import pytest
from indexing import long_corpus, rows

from graphrag_milvus import GraphRAG
from graphrag_milvus.cache import Cache
from graphrag_milvus.errors import EmbeddingError
from graphrag_milvus.settings import CacheSettings, EmbeddingSettings, IndexSettings, LLMSettings, load_settings
from graphrag_milvus.testing import HashingEmbeddings, Reply, ScriptedServer
from graphrag_milvus.types import Document

OpenRag = Callable[..., GraphRAG]

pytestmark = pytest.mark.skipif(
    "GRAPHRAG_TEST_URI" in os.environ, reason="the weather is the model's; which engine stores what it said is the same"
)

QUICK = {"retry-after": "0.02"}
DOCUMENTS = [
    Document(f"Person{n} wrote Book{n % 7}. It is read in Town{n % 5}.", id=f"d{n:03}", title=f"Person{n}")
    for n in range(40)
]


def extracting(asked: dict[str, Any]) -> str:
    """A model that finds the names of a text, and the first two of them in a triple; both in each answer."""
    text = json.loads(asked["messages"][-1]["content"])["text"]
    names = [word.strip(".") for word in text.split() if word[0].isupper() and word != "It"]
    return json.dumps({"entities": names, "triples": [[names[0], "wrote", names[1]]]})


def is_second(asked: dict[str, Any]) -> bool:
    """True where it is asked for triples, with the entities of the first answer."""
    return "entities" in json.loads(asked["messages"][-1]["content"])


class Weather:
    """Answers like `extracting`, or as `trouble` says; `answered` counts the answers by what was asked."""

    def __init__(self, trouble: Callable[[int, dict[str, Any]], Reply | str | None] = lambda *_: None) -> None:
        self.trouble = trouble
        self.answered: Counter[str] = Counter()
        self._turns = itertools.count()
        self._lock = threading.Lock()

    def __call__(self, asked: dict[str, Any]) -> Reply | str:
        with self._lock:
            trouble = self.trouble(next(self._turns), asked)
            if trouble is None:
                self.answered[json.dumps(asked["messages"])] += 1
        return extracting(asked) if trouble is None else trouble


@pytest.fixture
def make(open_rag: OpenRag, tmp_path: Path) -> Callable[..., GraphRAG]:
    """A `GraphRAG` whose cache is the test's own; workspaces are new ones unless they are named."""

    def make(server: ScriptedServer, workspace: str = "", **options: Any) -> GraphRAG:
        chat = {"max_retries": 1, "timeout": 20.0, "concurrency": 8, **options.pop("chat", {})}
        return open_rag(
            workspace or uuid.uuid4().hex,
            embedding=options.pop("embedding", EmbeddingSettings()),
            embeddings=options.pop("embeddings", HashingEmbeddings(16)),
            llm=LLMSettings(model="m", base_url=server.base_url, **chat),
            cache=options.pop("cache", CacheSettings(folder=str(tmp_path / "cache"))),
            **options,
        )

    return make


def add(rag: GraphRAG, documents: Any = DOCUMENTS) -> Any:
    return rag.add(documents, extractor="llm", progress=False)


@pytest.fixture(scope="module")
def fair(open_rag: OpenRag, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The rows that the documents give in fair weather."""
    with ScriptedServer(respond=extracting) as server:
        llm = LLMSettings(model="m", base_url=server.base_url)
        rag = open_rag(uuid.uuid4().hex, embeddings=HashingEmbeddings(16), llm=llm)
        assert add(rag).added == len(DOCUMENTS)
        yield rows(rag.store)


# --- rate limits --------------------------------------------------------------------------------------------------


def _two_of_three(turn: int, _: Any) -> Reply | None:
    return Reply("slow down", 429, QUICK) if turn % 3 < 2 else None


def _with_a_pause(turn: int, _: Any) -> Reply | None:
    return Reply("slow down", 429, {"retry-after": "0.3"}) if 10 <= turn < 30 else None


def _without_a_time(turn: int, _: Any) -> Reply | None:
    return Reply("slow down", 429) if 10 <= turn < 40 else None


def _overloaded(turn: int, _: Any) -> Reply | None:
    return Reply("overloaded", 503, QUICK) if turn % 2 else None


@pytest.mark.parametrize("trouble", [_two_of_three, _with_a_pause, _without_a_time, _overloaded])
def test_a_storm_of_refusals_is_waited_out(make: Any, fair: dict[str, Any], trouble: Any) -> None:
    weather = Weather(trouble)
    with ScriptedServer(respond=weather) as server:
        rag = make(server)
        report = add(rag)
        assert (report.added, report.failed, report.llm_calls, report.llm_cached) == (40, [], 80, 0)
        assert max(weather.answered.values()) == 1 and len(weather.answered) == 80
        assert server.peak <= 8
        assert rows(rag.store) == fair


# --- a model that is down -----------------------------------------------------------------------------------------


def test_a_model_that_is_down_for_a_while_costs_a_second_run_and_no_call_twice(make: Any, fair: Any) -> None:
    weather = Weather(lambda turn, _: Reply("out of order", 500, QUICK) if turn >= 31 else None)
    with ScriptedServer(respond=weather) as server:
        rag = make(server, chat={"max_retries": 0})
        first = add(rag)
        assert first.added + len(first.failed) == 40 and first.failed
        assert all("status 500" in failure["reason"] for failure in first.failed)
        assert rag.stats().passages == 40  # they can be found, if not by relations
        assert len(server.requests) <= 31 + 40  # and what is down is not asked for each passage, twice
        weather.trouble = lambda *_: None
        second = add(rag)
        assert (second.unchanged, second.failed) == (first.added, [])
        assert max(weather.answered.values()) == 1 and len(weather.answered) == 80
        assert first.llm_calls + second.llm_calls == 80
        assert rows(rag.store) == fair


def test_a_model_that_is_down_is_left_alone(make: Any) -> None:
    weather = Weather(lambda *_: Reply("out of order", 500))
    documents = [Document(f"Person{n} wrote Book{n}.", id=f"x{n}") for n in range(150)]
    with ScriptedServer(respond=weather) as server:
        report = add(make(server, chat={"max_retries": 0, "concurrency": 2}), documents)
        assert len(report.failed) == 150
        assert 8 <= len(server.requests) <= 20
        assert "not asked, since" in report.failed[-1]["reason"] and "status 500" in report.failed[-1]["reason"]


def test_of_a_passage_that_takes_two_calls_only_the_one_that_failed_is_repeated(make: Any, fair: Any) -> None:
    weather = Weather(lambda turn, asked: Reply("no", 500) if is_second(asked) and turn % 2 else None)
    with ScriptedServer(respond=weather) as server:
        rag = make(server, chat={"max_retries": 0, "concurrency": 1})
        first = add(rag)
        assert first.failed
        asked = len(server.requests)
        weather.trouble = lambda *_: None
        second = add(rag)
        assert second.failed == [] and second.llm_cached == len(first.failed)
        assert len(server.requests) - asked == second.llm_calls == len(first.failed)
        assert max(weather.answered.values()) == 1
        assert rows(rag.store) == fair


def test_a_changed_paragraph_costs_its_own_calls_and_a_deleted_document_none_to_come_back(make: Any) -> None:
    def text(*names: str) -> str:
        return "\n\n".join(f"{name} wrote Book1. It is read in Town5, which lies by the sea." for name in names)

    with ScriptedServer(respond=Weather()) as server:
        rag = make(server, index=IndexSettings(passage_size=80))
        assert add(rag, [Document(text("Ann", "Bob", "Cid"), id="a"), Document(text("Dan"), id="b")]).llm_calls == 8
        before = rows(rag.store)
        report = add(rag, [Document(text("Ann", "Eve", "Cid"), id="a"), Document(text("Dan"), id="b")])
        assert (report.updated, report.unchanged, report.passages, report.llm_calls) == (1, 1, 1, 2)
        asked = server.requests[-2:]
        assert all("Eve" in json.dumps(request.json) and "Cid" not in json.dumps(request.json) for request in asked)
        assert rag.delete(["a"]).deleted == ["a"]
        assert rag.stats().passages == 1
        report = add(rag, Document(text("Ann", "Bob", "Cid"), id="a"))
        assert (report.added, report.llm_calls, report.llm_cached) == (1, 0, 6)
        rag.gc()
        assert rows(rag.store) == before


# --- what is remembered, and what is not --------------------------------------------------------------------------


def test_a_workspace_that_is_built_anew_costs_no_call(make: Any) -> None:
    texts: Counter[str] = Counter()
    with ScriptedServer(respond=Weather(), embeddings=HashingEmbeddings(16)) as server:
        embedding = EmbeddingSettings(provider="openai", base_url=server.base_url, model="e", batch_size=16)
        one, two = (make(server, embedding=embedding, embeddings=None) for _ in range(2))
        assert add(one).llm_calls == 80
        asked = len(server.requests)
        report = add(two)
        assert (report.added, report.llm_calls, report.llm_cached, report.tokens) == (40, 0, 80, 0)
        assert len(server.requests) == asked
        assert rows(one.store) == rows(two.store)
        for request in server.requests:
            texts.update(request.json["input"] if request.path == "/v1/embeddings" else ())
    assert max(texts.values()) == 1  # no text was embedded twice


@pytest.mark.parametrize(
    "changed",
    [
        {"chat": {"model": "other"}},
        {"chat": {"temperature": 0.7}},
        {"cache": CacheSettings(enabled=False)},
    ],
    ids=["model", "temperature", "switched off"],
)
def test_another_model_is_another_question(make: Any, changed: dict[str, Any], open_rag: OpenRag) -> None:
    with ScriptedServer(respond=Weather()) as server:
        add(make(server), DOCUMENTS[:3])
        llm = LLMSettings(**{"model": "m", "base_url": server.base_url, **changed.get("chat", {})})
        cache = changed.get("cache", CacheSettings(folder=make(server).settings.cache.folder))
        rag = open_rag(uuid.uuid4().hex, embeddings=HashingEmbeddings(16), llm=llm, cache=cache)
        assert add(rag, DOCUMENTS[:3]).llm_calls == 6


BAD = [
    "",
    "I am sorry, but no.",
    '{"entities": {"name": "Ann"}, "triples": {"a": "b"}}',
    '{"entities": 7, "triples": "none"}',
    Reply('{"entities": ["Ann", "Book', finish_reason="length"),
    Reply(raw="<html>gateway</html>"),
]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_reply_is_never_remembered(make: Any, bad: Any) -> None:
    weather = Weather(lambda *_: bad)
    with ScriptedServer(respond=weather) as server:
        rag = make(server, chat={"max_retries": 0})
        assert len(add(rag, DOCUMENTS[:2]).failed) == 2
        assert rag.cache is not None and rag.cache.stats().items == 0
        weather.trouble = lambda *_: None
        report = add(rag, DOCUMENTS[:2])
        assert (report.failed, report.llm_calls, report.llm_cached) == ([], 4, 0)


def test_only_indexing_remembers(make: Any) -> None:
    with ScriptedServer(respond=lambda _: '{"useful_relationships": [1]}') as server:
        rag = make(server)
        assert rag.add([Document("Ann knew Bob.", triplets=[["Ann", "knew", "Bob"]])], extractor="given").added == 1
        for _ in range(2):
            rag.retrieve("Whom did Ann know?", method="subgraph", k=1)
        assert rag.cache is not None and rag.cache.stats().items == 0


@pytest.mark.parametrize("moment", ["before", "during"])
def test_a_disk_that_is_full_costs_the_cache_and_one_warning(
    make: Any, fair: dict[str, Any], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with ScriptedServer(respond=Weather()) as server:
        rag = make(server)
        assert rag.cache is not None
        if moment == "during":
            rag.cache.put({"00": b"x"})
        connection = rag.cache._connection()
        pages = connection.execute("pragma page_count").fetchone()[0]
        connection.execute(f"pragma max_page_count = {pages + (2 if moment == 'during' else 0)}")
        report = add(rag)
        assert (report.added, report.failed, report.llm_calls) == (40, [], 80)
        [warning] = report.warnings
        assert "disk is full" in warning and "free some room" in warning
        assert rows(rag.store) == fair


# --- an embedder that is down -------------------------------------------------------------------------------------


def test_an_embedder_that_goes_down_ends_the_run_and_nothing_is_repeated(make: Any) -> None:
    texts: Counter[str] = Counter()
    up = itertools.count()

    class Embedding(HashingEmbeddings):
        def embed_documents(self, asked: list[str]) -> list[list[float]]:
            if 9 <= next(up) < 12:
                raise RuntimeError("down")  # as status 410, which no client repeats
            texts.update(asked)
            return super().embed_documents(asked)

    with ScriptedServer(respond=Weather(), embeddings=Embedding(16)) as server:
        embedding = EmbeddingSettings(provider="openai", base_url=server.base_url, model="e", batch_size=64)
        rag = make(server, embedding=embedding, embeddings=None, index=IndexSettings(window=4), chat={"max_retries": 0})
        with pytest.raises(EmbeddingError):
            add(rag)
        assert rag.stats().documents < 40
        report = add(rag)
        assert report.failed == [] and rag.stats().documents == 40 and rag.stats().incomplete == 0
    assert max(texts.values()) == 1


# --- killed by the system -----------------------------------------------------------------------------------------

KILLS = 5
CONCURRENCY = 4
CALLS = 240  # 60 documents of two passages, two calls a passage

_PROGRAM = """
import sys
from graphrag_milvus import GraphRAG
from indexing import long_corpus
with GraphRAG() as rag:
    rag.store.open(model=rag.embedder.name, dimension=rag.embedder.dimension)
    rag.llm  # to import its client takes a second or two
    print("begun", flush=True)
    report = rag.add(long_corpus(60), extractor="llm", progress=False)
    print("done", report.failed, flush=True)
"""


def _start(server: ScriptedServer, uri: str, workspace: str, cache: Path) -> subprocess.Popen[str]:
    tests = Path(indexing.__file__).parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)]),
        "GRAPHRAG_MILVUS__URI": uri,
        "GRAPHRAG_WORKSPACE": workspace,
        "GRAPHRAG_EMBEDDING__PROVIDER": "graphrag_milvus.testing:HashingEmbeddings",
        "GRAPHRAG_INDEX__PASSAGE_SIZE": "120",
        "GRAPHRAG_LLM__MODEL": "m",
        "GRAPHRAG_LLM__BASE_URL": server.base_url,
        "GRAPHRAG_LLM__CONCURRENCY": str(CONCURRENCY),
        "GRAPHRAG_CACHE__FOLDER": str(cache),
    }
    return subprocess.Popen([sys.executable, "-c", _PROGRAM], env=environment, stdout=subprocess.PIPE, text=True)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}/stat").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def test_kill_9_during_extraction_repeats_no_call_whose_reply_was_kept(tmp_path: Path) -> None:
    uri = os.environ.get("GRAPHRAG_TEST_URI") or str(tmp_path / "killed.db")
    workspace, moments, folder = f"storm_{uuid.uuid4().hex[:8]}", random.Random(3), tmp_path / "cache"
    kept, weather, lost = Cache(folder), Weather(), 0

    def slowly(asked: dict[str, Any]) -> Reply:
        said = weather(asked)
        assert isinstance(said, str)
        return Reply(said, delay=0.03)

    with ScriptedServer(respond=slowly) as server:
        for _ in range(KILLS):
            process = _start(server, uri, workspace, folder)
            assert process.stdout is not None and process.stdout.readline() == "begun\n"
            time.sleep(moments.uniform(0.1, 0.5))
            engine = _children(process.pid)
            assert process.poll() is None
            process.kill()
            process.communicate()
            _wait_until_gone(engine)
            before, lost = lost, sum(weather.answered.values()) - kept.stats().items
            assert 0 <= lost - before <= CONCURRENCY  # what was under way, and nothing that was finished
        assert 0 < kept.stats().items < CALLS
        last = _start(server, uri, workspace, folder)
        try:
            output, _ = last.communicate(timeout=120)
        finally:
            last.kill()
        assert output == "begun\ndone []\n"
        assert len(weather.answered) == kept.stats().items == CALLS
        assert sum(weather.answered.values()) == CALLS + lost
        kept.close()
        _compare(server, uri, workspace, folder)
        assert sum(weather.answered.values()) == CALLS + lost


def _compare(server: ScriptedServer, uri: str, workspace: str, folder: Path) -> None:
    """A workspace that was never interrupted has the same rows; its replies come from the cache."""
    chat = {"model": "m", "base_url": server.base_url}
    common = {"milvus": {"uri": uri}, "llm": chat, "cache": {"folder": str(folder)}, "index": {"passage_size": 120}}
    made = [GraphRAG(load_settings(workspace=name, **common), embeddings=HashingEmbeddings(64)) for name in "ab"]
    made[0].settings.workspace, made[1].settings.workspace = workspace, f"{workspace}_whole"
    try:
        assert made[1].add(long_corpus(60), extractor="llm", progress=False).llm_calls == 0
        assert rows(made[0].store) == rows(made[1].store)
    finally:
        for rag in made:
            rag.store.drop()
            rag.close()
