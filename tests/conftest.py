"""Fixtures that every test may use: a store on an embedded database, or on the server that a variable names."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphrag_milvus.settings import MilvusSettings
from graphrag_milvus.store import MilvusStore

SERVER = os.environ.get("GRAPHRAG_TEST_URI", "")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, model or setting of the machine reaches a test."""
    for name in list(os.environ):
        if name.startswith(("OPENAI_", "GRAPHRAG_")) and name != "GRAPHRAG_TEST_URI":
            monkeypatch.delenv(name)
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
