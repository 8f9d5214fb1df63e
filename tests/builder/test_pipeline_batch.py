"""Indexing in bulk: lazily, in bounded memory, in any order and grouping, around vectors and texts that are refused."""

from __future__ import annotations

import gc
import math
import random
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from indexing import DIMENSION, Sentences, Workspaces, index, pipeline, rows
from langchain_core.embeddings import Embeddings

from graphrag_milvus.builder import pipeline as module
from graphrag_milvus.builder.writer import Writer
from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.errors import EmbeddingError
from graphrag_milvus.retrieval.snapshot import Snapshot, derive
from graphrag_milvus.store import MilvusStore
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Document, IndexReport

TOWNS = ("Arles", "Basel", "Chur", "Davos", "Elba", "Fulda")


def document(n: int) -> Document:
    """Each names the title of the next, which no sentence of it introduces."""
    town, other = TOWNS[n % 6], TOWNS[(n + 1) % 6]
    return Document(f"The road from {town} is long. It ends in {other}.", id=f"d{n:02}", title=f"{town} {n}")


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspaces]:
    shared = Workspaces(tmp_path_factory.mktemp("batch"))
    yield shared
    shared.close()


@pytest.fixture
def make(workspaces: Workspaces) -> Iterator[Callable[[], MilvusStore]]:
    yield workspaces.empty
    workspaces.give_back()


# --- order and grouping -------------------------------------------------------------------------------------------


def _graph(snapshot: Snapshot) -> list[tuple[int, list[int]]]:
    incidence = snapshot.incidence
    held = [sorted(int(incidence.entity_ids[c]) for c in row.indices) for row in incidence.matrix]
    return list(zip(incidence.relation_ids.tolist(), held, strict=True))


def _everything(store: MilvusStore) -> Any:
    return rows(store), _graph(derive(store))


@pytest.mark.parametrize("seed", range(4))
def test_one_by_one_in_any_order_or_all_at_once_gives_the_same(make: Callable[[], MilvusStore], seed: int) -> None:
    documents = [document(n) for n in range(12)]
    whole = make()
    index(whole, documents)
    shuffled, choose, store = list(documents), random.Random(seed), make()
    choose.shuffle(shuffled)
    while shuffled:
        part = choose.choice([1, 1, 2, 5])
        index(store, shuffled[:part], window=choose.choice([1, 3, 256]))
        del shuffled[:part]
    assert _everything(store) == _everything(whole)


def test_two_runs_over_the_same_input_give_identical_collections(make: Callable[[], MilvusStore]) -> None:
    one, two = make(), make()
    for store in (one, two):
        index(store, (document(n) for n in range(12)), window=5)
    assert _everything(one) == _everything(two)


def test_what_is_deleted_and_added_again_leaves_the_same(make: Callable[[], MilvusStore]) -> None:
    store = make()
    index(store, [document(n) for n in range(6)])
    before = _everything(store)
    Writer(store).remove(["d01", "d04"])
    index(store, [document(4), document(1)])
    assert _everything(store) == before


# --- memory -------------------------------------------------------------------------------------------------------


def test_a_generator_is_consumed_as_it_is_needed(make: Callable[[], MilvusStore]) -> None:
    given, done = [0], [0]
    ahead: list[int] = []

    def documents() -> Iterator[Document]:
        for n in range(60):
            given[0] += 1
            ahead.append(given[0] - done[0])
            yield document(n)

    def progress(count: int) -> None:
        done[0] += count

    report = index(make(), documents(), window=8, on_progress=progress)
    assert (report.added, done[0]) == (60, 60)
    assert max(ahead) <= 8 + 1  # a window, and the document that shows that it is full


def test_documents_are_let_go_of(make: Callable[[], MilvusStore]) -> None:
    class Heavy(list):  # type: ignore[type-arg]
        """Triples that can be watched."""

        __hash__ = object.__hash__  # type: ignore[assignment]

    alive: weakref.WeakSet[Heavy] = weakref.WeakSet()
    most = 0

    def documents() -> Iterator[Document]:
        nonlocal most
        for n in range(60):
            triplets = Heavy([["a", "b", "c"]])
            alive.add(triplets)
            if n % 12 == 11:
                gc.collect()
                most = max(most, len(alive))
            yield Document(document(n).text, id=f"h{n}", triplets=triplets)

    assert index(make(), documents(), window=4).added == 60
    assert most <= 2 * 4 + 2


def test_long_documents_are_fewer_in_work_at_once(
    make: Callable[[], MilvusStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WINDOW_CHARACTERS", 1_000)
    windows: list[int] = []
    documents = [Document(f"Town number {n} lies by the sea. " * 12, id=f"l{n}") for n in range(9)]
    index(make(), documents, on_progress=windows.append)
    assert sum(windows) == 9 and max(windows) == 3


class _Nothing:
    """Takes rows for stored that are not: what grows is then the pipeline's own."""

    def run(self, count: int) -> int:
        work = pipeline(MilvusStore(), window=50)
        work._index = lambda window, report: None  # type: ignore[assignment,method-assign]
        tracemalloc.start()
        try:
            report = work.run(document(n) for n in range(count))
            assert report.documents == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def test_twice_as_many_documents_take_no_more_memory() -> None:
    small, large = _Nothing().run(2_000), _Nothing().run(8_000)
    assert large < small + 100_000


def test_warnings_are_counted_where_there_are_too_many(
    make: Callable[[], MilvusStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WARNINGS", 5)
    from graphrag_milvus.builder.extractors import GivenExtractor

    documents = [Document(f"Nothing {n}.", id=f"w{n}", triplets=[["a", "b"]]) for n in range(12)]
    report = index(make(), documents, GivenExtractor())
    assert len(report.warnings) == 6
    assert report.warnings[-1] == "and 7 more warnings about single documents and passages"


# --- vectors that are refused -------------------------------------------------------------------------------------


class Spoiling(Embeddings):
    """A vector with a number that none is for texts with a word in them; `asked` counts calls."""

    def __init__(self, word: str, value: float = math.nan) -> None:
        self.word, self.value, self.asked = word, value, 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.asked += 1
        vectors = HashingEmbeddings(DIMENSION).embed_documents(texts)
        return [
            [self.value, *vector[1:]] if self.word in text else vector
            for text, vector in zip(texts, vectors, strict=True)
        ]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_vector_that_is_not_finite_is_refused_and_its_passage_named(
    make: Callable[[], MilvusStore], value: float
) -> None:
    text = "\n\n".join(f"{town} is a town by the sea, and has been one for a long time, they say." for town in TOWNS)
    documents = [document(n) for n in range(20)]
    documents.insert(7, Document(text, id="towns", title="All"))
    store = make()
    report = index(store, documents, embedder=Embedder(Spoiling("Davos is a town", value)), passage_size=80)
    [failure] = report.failed
    assert failure["source"] == "towns" and report.added == 20
    assert failure["reason"].startswith("passage 3 of 'towns': ") and "not finite" in failure["reason"]
    again = index(store, documents, passage_size=80)
    assert (again.unchanged, again.added + again.updated, again.failed) == (20, 1, [])


@pytest.mark.parametrize(
    ("word", "named"),
    [("It ends in Chur", "a relation in passage "), ("basel 1", "entity 'basel 1'")],
)
def test_so_is_one_of_a_relation_or_an_entity(make: Callable[[], MilvusStore], word: str, named: str) -> None:
    class Other(Spoiling):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return super().embed_documents([text.replace("\n", " ~ ") for text in texts])

    embedder = Embedder(Other(word) if word == "basel 1" else _Only(word))
    report = index(make(), [document(n) for n in range(6)], embedder=embedder)
    [failure] = report.failed
    assert failure["source"] == "d01" and named in failure["reason"]


class _Only(Spoiling):
    """Spoils sentences that stand alone, as relations do, and no passage."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        shown = [text if "The road" not in text else "a passage" for text in texts]
        return super().embed_documents(shown)


def test_one_document_among_many_is_found_in_a_few_steps(make: Callable[[], MilvusStore]) -> None:
    spoiling = Spoiling("Davos")
    documents = [document(n) for n in (0, 1, 4, 5) * 1] + [Document("Davos.", id="bad")]
    documents += [Document(f"Elba, part {n}.", id=f"e{n}") for n in range(59)]
    report = index(make(), documents, embedder=Embedder(spoiling))
    assert [failure["source"] for failure in report.failed] == ["bad"] and report.added == 63
    assert spoiling.asked < 60  # halves of halves, not each document by itself


class Gone(Embeddings):
    """Answers a number of calls, and then as an endpoint does that is not there."""

    def __init__(self, answers: float) -> None:
        self.left, self.asked = answers, 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.asked += 1
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("refused")
        return HashingEmbeddings(DIMENSION).embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def test_without_an_embedder_there_is_no_point_in_going_on(make: Callable[[], MilvusStore]) -> None:
    store, gone, given = make(), Gone(4), [0]

    def documents() -> Iterator[Document]:
        for n in range(1_000):
            given[0] += 1
            yield document(n)

    with pytest.raises(EmbeddingError, match="refused"):
        index(store, documents(), window=4, embedder=Embedder(gone, dimension=DIMENSION))
    assert gone.asked <= 4 + 3 and given[0] < 30
    report = index(store, [document(n) for n in range(30)])
    assert report.failed == [] and report.unchanged + report.added + report.updated == 30


def test_an_embedder_that_is_gone_for_a_moment_costs_a_window(make: Callable[[], MilvusStore]) -> None:
    class Moment(Gone):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            if self.left == 0:
                self.left = math.inf
                raise ConnectionError("refused")
            return super().embed_documents(texts)

    report = index(
        make(), [document(n) for n in range(20)], window=4, embedder=Embedder(Moment(4), dimension=DIMENSION)
    )
    assert report.added == 16 and len(report.failed) == 4


# --- before anything is done --------------------------------------------------------------------------------------


def test_ahead_tells_what_a_run_would_do_and_does_nothing(make: Callable[[], MilvusStore]) -> None:
    store, extractor = make(), Sentences()
    documents = [document(n) for n in range(10)]
    index(store, documents[:4])
    before = rows(store)
    changed = Document(f"{document(1).text}\n\nAnd this is a paragraph of its own, which was not there. " * 3, id="d01")
    given = [document(0), changed, *documents[2:], Document("", id="empty")]
    report = IndexReport()
    passages = [p for window in pipeline(store, extractor).ahead(given, report) for p in window]
    assert (report.documents, report.added, report.updated, report.unchanged) == (11, 6, 1, 3)
    assert [failure["source"] for failure in report.failed] == ["empty"]
    assert extractor.seen == [] and rows(store) == before
    real = index(store, given, extractor)
    assert (real.added, real.updated, real.unchanged, real.passages) == (6, 1, 3, len(passages))
    assert {p.id for p in extractor.seen} == {p.id for p in passages}
