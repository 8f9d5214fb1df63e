"""Indexing: the same rows whatever the order, the history and the input."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from indexing import DIMENSION, LosingStore, Sentences, Workspaces, ids, index, pipeline, rows
from langchain_core.embeddings import Embeddings

from graphrag_milvus.builder.extractors import GivenExtractor
from graphrag_milvus.builder.readers import ReadFailure
from graphrag_milvus.builder.writer import Writer, document_key
from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.errors import StoreError
from graphrag_milvus.retrieval.snapshot import Snapshot, derive
from graphrag_milvus.store import MilvusStore
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Document, entity_id, normalize_name

ONE, TWO, THREE, FOUR = (
    f"The {word} paragraph tells of {name} and of the long road that leads from {name} to the coast in the south."
    for word, name in (("first", "Arles"), ("second", "Basel"), ("third", "Chur"), ("fourth", "Davos"))
)
DOCUMENT = Document(
    "\n\n".join((ONE, TWO, THREE)), id="roads", title="Roads", source="roads.txt", metadata={"year": 1900}
)

CROSSING = [
    Document("A letter from Odessa came late. Nobody in the office had heard of Pavel Orlov.", id="a", title="Letters"),
    Document("Pavel Orlov was a captain. He sailed with the Meridian for years.", id="b", title="Captains"),
    Document("The ship Meridian sank near Odessa. It was a calm night.", id="c", title="Ships"),
]


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspaces]:
    shared = Workspaces(tmp_path_factory.mktemp("pipeline"))
    yield shared
    shared.close()


@pytest.fixture
def make(workspaces: Workspaces) -> Iterator[Callable[[], MilvusStore]]:
    yield workspaces.empty
    workspaces.give_back()


def fresh_rows(make: Callable[[], MilvusStore], documents: list[Document], extractor: Any = None) -> dict[str, Any]:
    """The rows of a workspace that never had anything else."""
    store = make()
    report = index(store, documents, extractor or Sentences())
    assert report.added == len(documents) and report.failed == []
    return rows(store)


# --- the same again -----------------------------------------------------------------------------------------------


def test_a_second_run_finds_everything_unchanged_and_extracts_nothing(make: Callable[[], MilvusStore]) -> None:
    store, extractor = make(), Sentences()
    first = index(store, CROSSING, extractor)
    assert (first.documents, first.added, first.passages) == (3, 3, 3)
    assert first.relations == 6 and first.entities == store.count("entities")
    before, seen = rows(store), len(extractor.seen)
    second = index(store, CROSSING, extractor)
    assert (second.documents, second.unchanged, second.passages, second.relations) == (3, 3, 0, 0)
    assert len(extractor.seen) == seen
    assert rows(store) == before


@pytest.mark.parametrize(
    ("change", "redone"),
    [
        pytest.param({"text": "\n\n".join((ONE, FOUR, THREE))}, [FOUR], id="text in the middle"),
        pytest.param({"text": "\n\n".join((FOUR, ONE, TWO, THREE))}, [FOUR], id="paragraph before"),
        pytest.param({"text": "\n\n".join((ONE, THREE))}, [], id="paragraph gone"),
        pytest.param({"text": "\n\n".join((THREE, TWO, ONE))}, [], id="paragraphs in another order"),
        pytest.param({"text": "\n\n".join((ONE, ONE, TWO, THREE))}, [ONE], id="paragraph twice"),
        pytest.param({"metadata": {"year": 1901, "by": ["ann", None]}}, [], id="metadata"),
        pytest.param({"metadata": {}}, [], id="metadata gone"),
        pytest.param({"source": "moved/roads.txt"}, [], id="source"),
        pytest.param({"title": "Ways"}, [ONE, TWO, THREE], id="title"),
        pytest.param({"title": "Ways", "text": FOUR, "metadata": {"x": 1}, "source": ""}, [FOUR], id="everything"),
        pytest.param(
            {"text": "\n\n".join((FOUR, ONE, THREE)), "metadata": {"year": 2}}, [FOUR], id="text and metadata"
        ),
    ],
)
def test_an_updated_document_has_the_rows_of_a_new_one(
    make: Callable[[], MilvusStore], change: dict[str, Any], redone: list[str]
) -> None:
    store, extractor = make(), Sentences()
    index(store, [DOCUMENT, *CROSSING], extractor)
    extractor.seen.clear()
    changed = replace(DOCUMENT, **change)
    report = index(store, [changed, *CROSSING], extractor)
    assert (report.updated, report.unchanged, report.added, report.failed) == (1, 3, 0, [])
    assert extractor.texts == redone and report.passages == len(redone)
    Writer(store).collect_garbage()
    assert rows(store) == fresh_rows(make, [changed, *CROSSING])


def test_another_extractor_redoes_every_passage_and_leaves_nothing_of_the_first(
    make: Callable[[], MilvusStore],
) -> None:
    store, second = make(), Sentences(recipe="sentences/2")
    index(store, [DOCUMENT, *CROSSING], Sentences())
    report = index(store, [DOCUMENT, *CROSSING], second)
    assert report.updated == 4 and len(second.seen) == 6
    assert rows(store) == fresh_rows(make, [DOCUMENT, *CROSSING], Sentences(recipe="sentences/2"))


# --- order --------------------------------------------------------------------------------------------------------


def graph(snapshot: Snapshot) -> list[tuple[int, int, list[int]]]:
    """Each relation with its passage and the entities that it holds, derived ones too."""
    incidence = snapshot.incidence
    held = [
        [int(incidence.entity_ids[c]) for c in incidence.matrix[n].indices] for n in range(len(incidence.relation_ids))
    ]
    keys = zip(incidence.relation_ids.tolist(), incidence.passage_ids.tolist(), map(sorted, held), strict=True)
    return list(keys)


def test_any_order_gives_the_same_rows_and_the_same_graph(make: Callable[[], MilvusStore]) -> None:
    results = []
    for order in itertools.permutations(CROSSING):
        store = make()
        for document in order:
            index(store, [document])
        results.append((rows(store), graph(derive(store))))
    at_once = make()
    index(at_once, CROSSING)
    results.append((rows(at_once), graph(derive(at_once))))
    for result in results[1:]:
        assert result == results[0]


def entities_of(store: MilvusStore, text: str) -> set[int]:
    """The entities to which the sentence that contains `text` is tied in the derived graph."""
    (row,) = [row for row in store.query("relations", "", ["text"]) if text in row["text"]]
    return next(set(held) for relation, _, held in graph(derive(store)) if relation == row["id"])


class Titles(Sentences):
    """Ties sentences to the title alone, so that every other name is known from another document."""

    def _relation(self, title: str, sentence: str) -> Any:
        return replace(super()._relation(title, sentence), names=(title,))


@pytest.mark.parametrize("names_first", [False, True])
def test_a_name_from_another_document_is_tied_in_and_goes_with_it(
    make: Callable[[], MilvusStore], names_first: bool
) -> None:
    a = Document("Nobody in the office had heard of Pavel Orlov.", id="a", title="Letters")
    b = Document("He was a captain.", id="b", title="Pavel Orlov")
    store = make()
    for document in (b, a) if names_first else (a, b):
        index(store, [document], Titles())
    (stored,) = [row for row in store.query("relations", "", ["text", "entity_ids"]) if "Nobody" in row["text"]]
    assert stored["entity_ids"] == [entity_id("Letters")]  # no row of a knows of b
    assert entities_of(store, "Nobody") == {entity_id("Letters"), entity_id("Pavel Orlov")}
    Writer(store).remove(["b"])
    assert entities_of(store, "Nobody") == {entity_id("Letters")}


# --- deleting -----------------------------------------------------------------------------------------------------


def test_what_is_deleted_leaves_no_row(make: Callable[[], MilvusStore]) -> None:
    store = make()
    index(store, [DOCUMENT, *CROSSING])
    assert Writer(store).remove(["roads", "roads", "nothing"]) == ["roads"]
    assert Writer(store).collect_garbage() > 0
    assert rows(store) == fresh_rows(make, CROSSING)


def test_rows_without_their_document_can_be_deleted(make: Callable[[], MilvusStore]) -> None:
    store = make()
    index(store, CROSSING)
    store.delete("documents", ids=[document_key("a")])
    assert Writer(store).remove(["a"]) == ["a"]
    assert store.count("relations", f"doc == {document_key('a')}") == 0
    assert store.count("passages", f"doc == {document_key('a')}") == 0


def test_deleting_marks_the_workspace_as_changed(make: Callable[[], MilvusStore]) -> None:
    store = make()
    index(store, CROSSING)
    before = store.revision()
    Writer(store).remove(["nothing"])
    assert store.revision() == before
    Writer(store).remove(["a"])
    assert store.revision() != before


# --- an engine that loses rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("collection", ["passages", "relations", "entities", "documents"])
def test_a_row_that_milvus_loses_is_noticed_and_repaired(make: Callable[[], MilvusStore], collection: str) -> None:
    honest = make()
    store = LosingStore(honest.settings, honest.workspace)
    store.losing = [collection]
    try:
        report = index(store, CROSSING)
        assert len(report.failed) == 1, report.failed
        lost = report.failed[0]
        assert "keep" in lost["reason"] and report.added == 2
        if collection in ("passages", "relations"):
            assert "Milvus keeps" in lost["reason"] and "of (" in lost["reason"]
        stored = Writer(store).stored([d.id for d in CROSSING])
        assert {name for name, row in stored.items() if not row.hash} == {lost["source"]}
        again = index(store, CROSSING)
        assert (again.unchanged, again.failed) == (2, [])
        assert again.added + again.updated == 1
        assert rows(store) == fresh_rows(make, CROSSING)
    finally:
        store.close()


# --- a model that fails -------------------------------------------------------------------------------------------


def test_a_passage_whose_extraction_fails_is_kept_and_tried_again(make: Callable[[], MilvusStore]) -> None:
    store = make()
    report = index(store, [DOCUMENT, *CROSSING], Sentences(failing=["Basel"]))
    assert report.added == 3
    assert report.failed == [{"source": "roads", "reason": "passage 1: the model does not like Basel"}]
    assert store.count("documents", 'hash == ""') == 1
    vector = Embedder(HashingEmbeddings(DIMENSION)).embed([f"Roads\n{TWO}"])
    (hits,) = store.search("passages", vector, 1, fields=["text"])
    assert hits[0].row["text"] == TWO
    second = Sentences()
    again = index(store, [DOCUMENT, *CROSSING], second)
    assert second.texts == [TWO]
    assert (again.updated, again.unchanged, again.failed) == (1, 3, [])
    assert rows(store) == fresh_rows(make, [DOCUMENT, *CROSSING])


def test_a_failure_that_stays_is_reported_each_time(make: Callable[[], MilvusStore]) -> None:
    store, extractor = make(), Sentences(failing=["Basel"])
    for asked in (3, 1, 1):
        extractor.seen.clear()
        report = index(store, [DOCUMENT], extractor)
        assert len(report.failed) == 1 and len(extractor.seen) == asked


class Picky(Embeddings):
    """Refuses one word."""

    def __init__(self, word: str) -> None:
        self.word = word

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if any(self.word in text for text in texts):
            raise ValueError(f"no {self.word} here")
        return HashingEmbeddings(DIMENSION).embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


@pytest.mark.parametrize("word", ["calm night", "meridian"])  # in a passage; in an entity's name, which is folded
def test_a_document_that_cannot_be_embedded_stops_no_other_and_asks_no_model_twice(
    make: Callable[[], MilvusStore], word: str
) -> None:
    store, extractor = make(), Sentences()
    documents = [CROSSING[0], CROSSING[2], DOCUMENT]
    report = index(store, documents, extractor, embedder=Embedder(Picky(word)))
    assert [failure["source"] for failure in report.failed] == ["c"] and word in report.failed[0]["reason"]
    assert report.added == 2
    assert len(extractor.texts) == len(set(extractor.texts))
    again = index(store, documents, Sentences())
    assert again.unchanged == 2 and again.added == 1
    assert rows(store) == fresh_rows(make, documents)


def test_nothing_is_asked_of_a_model_while_the_embedder_is_down(make: Callable[[], MilvusStore]) -> None:
    extractor = Sentences()
    report = index(make(), CROSSING, extractor, embedder=Embedder(Picky(""), dimension=DIMENSION))
    assert len(report.failed) == 3 and extractor.seen == []


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Document(""), "the text is empty"),
        (Document(" \n\t\u3000 "), "the text is empty"),
        (Document(None), "the text is empty"),  # type: ignore[arg-type]
        (Document("t", id="x" * 1_025), "id has 1,025 bytes; the most is 1,024"),
        (Document("t", id="知" * 342), "id has 1,026 bytes"),
        (Document("t", id=7), "id is 7; it must be a text"),  # type: ignore[arg-type]
        (Document("t", title="x" * 65_536), "title has 65,536 bytes"),
        (Document("t", metadata={"when": object()}), "metadata is not JSON"),
        (Document("t", metadata={"x": math.nan}), "metadata is not JSON"),
        (Document("t", metadata={"x": [math.inf]}), "metadata is not JSON"),
        (Document("t", metadata={"x": 2**63}), "metadata is not JSON (9223372036854775808 has more than 64 bits)"),
        (Document("t", metadata={(1, 2): 3}), "metadata is not JSON"),  # type: ignore[dict-item]
        (Document("t", metadata=None), "metadata is not JSON"),  # type: ignore[arg-type]
        (Document("t", metadata={"x": "y" * 65_536}), "metadata has 65,545 bytes as JSON; the most is 65,535"),
        (ReadFailure("gone.txt", "does not exist"), "does not exist"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name_and_the_rest_is_done(
    make: Callable[[], MilvusStore], bad: Any, reason: str
) -> None:
    report = index(make(), [CROSSING[0], bad, CROSSING[1]])
    assert report.documents == 3 and report.added == 2
    assert len(report.failed) == 1 and report.failed[0]["reason"].startswith(reason)


def test_metadata_is_kept_as_json_keeps_it(make: Callable[[], MilvusStore]) -> None:
    store, extractor = make(), Sentences()
    metadata = {1: "whole", "b": (1, 2), "lone \ud800": "x\0y", "deep": {"z": None, "n": -(2**63), "f": 1.5}}
    document = replace(DOCUMENT, metadata=metadata)
    assert index(store, [document], extractor).added == 1
    kept = store.get("passages", sorted(ids(store, "passages")), ["metadata"])
    expected = {"1": "whole", "b": [1, 2], "lone ?": "x\0y", "deep": {"z": None, "n": -(2**63), "f": 1.5}}
    assert [row["metadata"] for row in kept.values()] == [expected] * 3
    assert index(store, [document], extractor).unchanged == 1


@pytest.mark.parametrize(
    "name",
    [
        'say "hi"',
        "it's",
        "back\\slash",
        "line\nbreak",
        "tab\tand\r",
        "x" * 1_024,
        "知识/库",
        "50% _ *",
        "a' or 1 == 1 or '",
    ],
)
def test_any_id_is_added_updated_and_deleted(make: Callable[[], MilvusStore], name: str) -> None:
    store = make()
    index(store, CROSSING)
    before = rows(store)
    assert index(store, [replace(DOCUMENT, id=name)]).added == 1
    assert index(store, [replace(DOCUMENT, id=name)]).unchanged == 1
    assert index(store, [replace(DOCUMENT, id=name, text=ONE)]).updated == 1
    assert list(Writer(store).stored([name])) == [name]
    assert Writer(store).remove([name]) == [name]
    Writer(store).collect_garbage()
    assert rows(store) == before


def test_lone_surrogates_and_nul_are_replaced_in_texts_and_tell_ids_apart(make: Callable[[], MilvusStore]) -> None:
    store = make()
    names = ["a\ud800", "a\ud801", "a\0", "a?"]
    documents = [Document("Lone \udfff and \0 in Basel.", id=name, title="T\ud800\0") for name in names]
    report = index(store, documents)
    assert (report.added, report.failed) == (4, [])
    assert index(store, documents).unchanged == 4
    stored = store.query("passages", "", ["doc_id", "title", "text"])
    assert {row["doc_id"] for row in stored} == {"a\\ud800", "a\\ud801", "a\\x00", "a?"}
    assert {(row["title"], row["text"]) for row in stored} == {("T?\ufffd", "Lone ? and \ufffd in Basel.")}


def test_one_id_twice_in_one_call_keeps_the_last_and_says_so(make: Callable[[], MilvusStore]) -> None:
    store = make()
    report = index(store, [replace(DOCUMENT, text=FOUR), CROSSING[0], DOCUMENT])
    assert (report.documents, report.added, report.updated, report.failed) == (3, 2, 1, [])
    assert report.warnings == ["roads: came before with other content; the last one counts"]
    Writer(store).collect_garbage()
    assert rows(store) == fresh_rows(make, [CROSSING[0], DOCUMENT])


def test_equal_documents_are_one(make: Callable[[], MilvusStore]) -> None:
    store, extractor = make(), Sentences()
    report = index(store, [Document(ONE, title="Roads")] * 3, extractor)
    assert (report.documents, report.added, report.unchanged, report.warnings) == (3, 1, 2, [])
    assert extractor.texts == [ONE] and store.count("documents") == 1


def test_equal_texts_of_two_documents_are_two_passages(make: Callable[[], MilvusStore]) -> None:
    store = make()
    index(store, [replace(DOCUMENT, id="x"), replace(DOCUMENT, id="y")])
    assert store.count("passages") == 6
    Writer(store).remove(["x"])
    Writer(store).collect_garbage()
    assert rows(store) == fresh_rows(make, [replace(DOCUMENT, id="y")])


def test_two_megabytes_in_one_line(make: Callable[[], MilvusStore]) -> None:
    store, text = make(), "word " * 400_000
    started = time.monotonic()
    report = index(store, [Document(text, id="long"), CROSSING[0]], Titles(), passage_size=1_200)
    assert (report.added, report.failed) == (2, [])
    assert time.monotonic() - started < 30
    stored = store.query("passages", f"doc == {document_key('long')}", ["text", "position"])
    joined = " ".join(row["text"] for row in sorted(stored, key=lambda row: int(row["position"])))
    assert joined == text.strip()
    assert index(store, [Document(text, id="long")], Titles(), passage_size=1_200).unchanged == 1
    assert Writer(store).remove(["long"]) == ["long"]
    assert store.count("passages") == 1


def test_a_text_of_more_bytes_than_one_row_holds_is_kept_whole(make: Callable[[], MilvusStore]) -> None:
    store, text = make(), "知识图谱检索" * 3_667  # 22,002 characters, 66,006 bytes
    assert index(store, [Document(text, id="zh")], passage_size=16_000).failed == []
    stored = store.query("passages", "", ["text", "position"])
    assert len(stored) == 2 and all(len(row["text"].encode()) <= 65_535 for row in stored)
    assert "".join(row["text"] for row in sorted(stored, key=lambda row: int(row["position"]))) == text


BAD_TRIPLES = [
    ["a", "b"],
    [["a"], "b", "c"],
    ["a", None, "c"],
    ["a", "b", math.nan],
    [True, "b", "c"],
    "abc",
    7,
    None,
    {"x": 1, 2: "y"},
    [],
    ["", "b", "c"],
    ["a", "b", 10**5_000],
]


def test_malformed_triples_are_named_and_the_good_ones_kept(make: Callable[[], MilvusStore]) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    bad = [*BAD_TRIPLES, deep]
    good = [["Euler", "taught by", "Johann"], ["Basel", "founded", 374], ["Euler", "measured", -40.5]]
    store = make()
    document = Document("Euler of Basel.", id="e", triplets=[*bad, *good])
    report = index(store, [document, *CROSSING], GivenExtractor())
    assert (report.added, report.failed) == (4, [])
    (warning,) = report.warnings
    assert warning.startswith("e, passage 0: 13 of 16 triples skipped, the first of them [")
    texts = {row["text"] for row in store.query("relations", "", ["text"])}
    assert texts == {"Euler taught by Johann", "Basel founded 374", "Euler measured -40.5"}
    assert index(store, [document], GivenExtractor()).unchanged == 1
    while deep:  # one after the other: the interpreter would go as deep as they are
        (deep,) = deep


@pytest.mark.parametrize("triplets", ["not a list", 7, {"a": 1}, [], None])
def test_triplets_that_are_no_list_stop_nothing(make: Callable[[], MilvusStore], triplets: Any) -> None:
    store = make()
    report = index(store, [Document("Euler of Basel.", triplets=triplets)], GivenExtractor())
    assert report.added == 1 and store.count("relations") == 0
    assert len(report.warnings) == bool(triplets)


def test_triplets_may_come_from_a_generator(make: Callable[[], MilvusStore]) -> None:
    store = make()
    for end, updated in (("Johann", 0), ("Johann", 0), ("Daniel", 1)):
        triplets: Any = (triple for triple in [["Euler", "knew", end]])
        report = index(store, [Document("Euler of Basel.", id="e", triplets=triplets)], GivenExtractor())
        assert report.updated == updated
    assert [row["text"] for row in store.query("relations", "", ["text"])] == ["Euler knew Daniel"]


# --- names --------------------------------------------------------------------------------------------------------


def test_four_spellings_are_one_entity_and_lookalikes_are_not(make: Callable[[], MilvusStore]) -> None:
    store = make()
    one = ["ACME Corp", "Acme corp.", "ＡＣＭＥ Corp", "ACME  Corp"]
    others = ["C++", "C#", "C", "-40", "40", "爱因斯坦", "Москва", "Beyoncé", "Beyonce"]
    triplets = [[name, "is", f"thing {n}"] for n, name in enumerate([*one, *others])]
    index(store, [Document("All in one.", id="d", triplets=triplets)], GivenExtractor())
    names = sorted(row["name"] for row in store.query("entities", "", ["name"]))
    assert names == sorted(["acme corp", *map(normalize_name, others), *(f"thing {n}" for n in range(len(triplets)))])
    acme = [row for row in store.query("relations", "", ["entity_ids"]) if entity_id("ACME Corp") in row["entity_ids"]]
    assert len(acme) == 4


# --- progress and upkeep ------------------------------------------------------------------------------------------


def test_windows_are_worked_off_and_counted(make: Callable[[], MilvusStore]) -> None:
    done: list[int] = []
    documents = [replace(DOCUMENT, id=f"d{n}") for n in range(5)]
    index(make(), [*documents, Document("")], window=2, on_progress=done.append)
    assert sum(done) == 6 and max(done) == 2


def test_a_store_that_fails_ends_the_run(make: Callable[[], MilvusStore], monkeypatch: pytest.MonkeyPatch) -> None:
    store = make()

    def refuse(*_: Any, **__: Any) -> None:
        raise StoreError("disk full")

    work = pipeline(store)
    monkeypatch.setattr(store, "upsert", refuse)
    with pytest.raises(StoreError, match="disk full"):
        work.run(CROSSING)
    monkeypatch.undo()
    assert index(store, CROSSING).added == 3


def test_the_row_of_a_document_is_the_mean_of_its_passages(make: Callable[[], MilvusStore]) -> None:
    store = make()
    index(store, [DOCUMENT])
    vectors = np.asarray([row["vector"] for row in store.query("passages", "", ["vector"])])
    mean = vectors.mean(axis=0)
    (row,) = store.query("documents", "", ["vector", "passages", "relations", "indexed_at"])
    np.testing.assert_allclose(row["vector"], mean / np.linalg.norm(mean), atol=1e-6)
    assert (row["passages"], row["relations"]) == (3, 3)
    assert abs(row["indexed_at"] - time.time() * 1_000) < 60_000
