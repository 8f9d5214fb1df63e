"""Retrieval without the graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graphrag_milvus import GraphRAG
from graphrag_milvus.retrieval.base import Resources, check_question, joined
from graphrag_milvus.retrieval.naive import Hybrid, Naive
from graphrag_milvus.store import MilvusStore
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Document

TEXTS = {
    "rhine": "The Rhine flows through Basel to the sea.",
    "euler": "Leonhard Euler was born in Basel.",
    "code": "Error E-4711 stops the pump.",
    "pump": "A pump lifts water, and stops when it is told to.",
}


@pytest.fixture(scope="module")
def rag(open_rag: Callable[..., GraphRAG]) -> GraphRAG:
    rag = open_rag("naive", embeddings=HashingEmbeddings(64))
    rag.add([Document(text, id=key) for key, text in TEXTS.items()], extractor="given", progress=False)
    return rag


def test_naive_ranks_by_cosine(rag: GraphRAG) -> None:
    question = "Where does the Rhine flow?"
    vectors = rag.embedder.embed([question, *TEXTS.values()])
    cosine = dict(zip(TEXTS, (vectors[1:] @ vectors[0]).tolist(), strict=True))
    found = rag.retrieve(question, method="naive", k=4).passages
    assert [p.doc_id for p in found] == sorted(cosine, key=lambda key: -cosine[key])
    assert [p.score for p in found] == pytest.approx([cosine[p.doc_id] for p in found], abs=1e-5)


def test_hybrid_adds_words_and_vectors_by_half(rag: GraphRAG) -> None:
    if not rag.store.has_bm25:
        pytest.skip("the engine has no BM25")
    found = rag.retrieve("What does E-4711 mean?", method="hybrid", k=4)
    assert found.passages[0].doc_id == "code"
    assert all(0.0 <= p.score <= 1.0 for p in found.passages)
    assert found.trace.notes == []
    assert found.trace.timings_ms.keys() == {"embed", "search", "words", "total"}


def test_hybrid_scores_are_the_formula(rag: GraphRAG) -> None:
    if not rag.store.has_bm25:
        pytest.skip("the engine has no BM25")
    question = "Where was Euler born?"
    vector = rag.embedder.embed_one(question)
    near = {h.id: h.score for h in rag.store.search("passages", vector[None], 100)[0]}
    words = {h.id: h.score for h in rag.store.search_words(question, 100)}
    expected = 0.5 * _normalised(near) + 0.5 * np.array([_by_id(words).get(i, 0.0) for i in near])
    found = {int(p.id): p.score for p in rag.retrieve(question, method="hybrid", k=4).passages}
    assert [found[i] for i in near] == pytest.approx(expected.tolist(), abs=1e-5)


def _normalised(scores: dict[int, float]) -> np.ndarray:
    values = np.array(list(scores.values()))
    spread = values.max() - values.min()
    return (values - values.min()) / spread if spread else np.ones(len(values))


def _by_id(scores: dict[int, float]) -> dict[int, float]:
    return dict(zip(scores, _normalised(scores).tolist(), strict=True)) if scores else {}


def test_without_bm25_hybrid_is_dense_and_says_so(rag: GraphRAG, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MilvusStore, "has_bm25", property(lambda _: False))
    found = rag.retrieve("Where was Euler born?", method="hybrid", k=3)
    assert found.passages == rag.retrieve("Where was Euler born?", method="naive", k=3).passages
    assert "no BM25" in found.trace.notes[0]


def test_words_that_stand_nowhere_leave_the_vectors(rag: GraphRAG) -> None:
    found = rag.retrieve("xylophone", method="hybrid", k=4).passages
    assert [p.id for p in found] == [p.id for p in rag.retrieve("xylophone", method="naive", k=4).passages]


def test_methods_can_be_used_by_themselves(rag: GraphRAG) -> None:
    resources = Resources(rag.store, rag.embedder, rag._resources.snapshots, rag.settings.retrieval)
    for method in (Naive(resources), Hybrid(resources)):
        assert len(method.retrieve("Basel", 2).passages) == 2
        assert [p.doc_id for p in method.retrieve("Basel", 2, 'doc_id == "pump"').passages] == ["pump"]


def test_filters_are_joined_in_brackets() -> None:
    assert joined("a == 1 or b == 2", "", "c == 3") == "(a == 1 or b == 2) and (c == 3)"
    assert joined() == joined("", "") == ""


@pytest.mark.parametrize("filter", ["", "a == 1", '(a in [1, (2)]) and b == ")"', r"a == '\'('", "a == '\"'"])
def test_filters_whose_brackets_close_pass(filter: str) -> None:
    check_question("q", 1, filter)
