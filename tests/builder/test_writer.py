"""Rows: what is written, changed and removed for documents, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from indexing import DIMENSION, LosingStore, Workspaces, index, rows

from graphrag_milvus.builder.writer import StoredDocument, Writer, document_key
from graphrag_milvus.errors import IdCollisionError
from graphrag_milvus.store import MilvusStore
from graphrag_milvus.types import Document, Entity, Passage, entity_id

A = Document("Arles lies on the Rhone.", id="a", title="Towns", metadata={"n": 1})
B = Document("Basel lies on the Rhine. Upstream is Chur.", id="b", title="Towns", metadata={"n": 2})


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspaces]:
    shared = Workspaces(tmp_path_factory.mktemp("writer"))
    yield shared
    shared.close()


@pytest.fixture
def make(workspaces: Workspaces) -> Iterator[Callable[[], MilvusStore]]:
    yield workspaces.empty
    workspaces.give_back()


@pytest.fixture
def store(make: Callable[[], MilvusStore]) -> MilvusStore:
    """Two documents, three relations."""
    store = make()
    index(store, [A, B])
    return store


def test_a_document_that_was_opened_is_listed_as_not_finished(store: MilvusStore) -> None:
    writer, new = Writer(store), Document("Chur.", id="c", title="T", source="c.txt", metadata={"n": 3})
    assert writer.stored(["c"]) == {}
    writer.open([new], DIMENSION)
    assert writer.stored(["c", "nothing"]) == {"c": StoredDocument("", 0)}
    [row] = store.query("documents", 'hash == ""', ["doc_id", "title", "source", "passages", "relations", "metadata"])
    assert (row["doc_id"], row["title"], row["source"], row["metadata"]) == ("c", "T", "c.txt", {"n": 3})
    assert (row["passages"], row["relations"]) == (0, 0)


def test_opening_takes_back_the_hash_and_nothing_else(store: MilvusStore) -> None:
    writer = Writer(store)
    before, indexed_at = rows(store), writer.stored(["a"])["a"].indexed_at
    writer.open([replace(A, title="Other", text="Other", metadata={})], DIMENSION)
    assert writer.stored(["a"]) == {"a": StoredDocument("", indexed_at)} and indexed_at > 0
    for row in before["documents"]:
        row["hash"] = "" if row["doc_id"] == "a" else row["hash"]
    assert rows(store) == before


def test_moving_and_describing_keep_vectors_and_all_other_values(store: MilvusStore) -> None:
    writer, before = Writer(store), rows(store)
    [passage] = writer.passages_of([document_key("b")])
    relations = list(writer.owners("relations", [document_key("b")]))
    changed = Document("", id="b", metadata={"n": 9, "new": [1]})
    piece = _passage(passage, changed, position=4)
    writer.describe("relations", dict.fromkeys(relations, piece))
    writer.move([piece])
    writer.move([])
    for row in before["passages"]:
        row.update({"position": 4, "metadata": changed.metadata} if row["doc_id"] == "b" else {})
    for row in before["relations"]:
        row.update({"metadata": changed.metadata} if row["doc_id"] == "b" else {})
    assert len(relations) == 2 and rows(store) == before


def _passage(passage_id: int, document: Document, position: int) -> Passage:
    return Passage(passage_id, document.id, document.title, document.text, position, document.metadata)


def test_entities_that_milvus_does_not_keep_are_named(make: Callable[[], MilvusStore]) -> None:
    honest = make()
    store = LosingStore(honest.settings, honest.workspace)
    store.losing = ["entities"]
    names = ["arles", "basel", "chur"]
    entities = [Entity(entity_id(name), name) for name in names]
    vectors = np.eye(3, DIMENSION, dtype=np.float32)
    try:
        assert Writer(store).entities(entities, vectors) == {entity_id("chur")}
        assert Writer(store).entities(entities, vectors) == set()
        assert Writer(store).entities([], vectors[:0]) == set()
    finally:
        store.close()


def test_one_key_for_two_documents_is_refused_before_anything_changes(store: MilvusStore) -> None:
    [row] = store.get("documents", [document_key("a")], ["title", "source", "metadata"]).values()
    other = {"doc_id": "other", "hash": "h", "passages": 1, "relations": 1, "indexed_at": 1}
    vector = np.eye(1, DIMENSION, dtype=np.float32)[0]
    store.upsert("documents", [{**row, **other, "vector": vector}])
    before = rows(store)
    with pytest.raises(IdCollisionError, match="'other'"):
        Writer(store).remove(["a"])
    report = index(store, [A, replace(B, id="c")])
    assert report.added == 1 and [failure["source"] for failure in report.failed] == ["a"]
    Writer(store).remove(["c"])
    Writer(store).collect_garbage()
    assert rows(store) == before


def test_many_documents_are_removed_at_once_and_the_missing_ones_left_out(store: MilvusStore) -> None:
    names = [f"missing {n}" for n in range(1_100)]
    assert Writer(store).remove([*names[:700], "b", *names[700:], "a"]) == ["b", "a"]
    assert [store.count(collection) for collection in ("documents", "passages", "relations")] == [0, 0, 0]
    assert Writer(store).remove([]) == []


def test_garbage_is_what_no_relation_holds(store: MilvusStore) -> None:
    writer = Writer(store)
    assert writer.collect_garbage() == 0
    writer.remove(["b"])
    assert writer.collect_garbage() == 4
    names = {row["name"] for row in store.query("entities", "", ["name"])}
    assert names == {"towns", "arles", "rhone"}


def test_counts_are_by_document(store: MilvusStore) -> None:
    keys = [document_key(name) for name in ("a", "b", "nothing")]
    assert [Writer(store).counts("relations", keys)[key] for key in keys] == [1, 2, 0]
