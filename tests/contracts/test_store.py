"""What every engine must do: run on both embedded generations and on a server (`GRAPHRAG_TEST_URI`)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from graphrag_milvus.errors import (
    GraphRAGError,
    IdCollisionError,
    InputError,
    SettingsError,
    StoreError,
    WorkspaceMismatchError,
)
from graphrag_milvus.hits import counting
from graphrag_milvus.settings import MilvusSettings
from graphrag_milvus.store import COLLECTIONS, MilvusStore
from graphrag_milvus.types import content_id

MakeStore = Callable[..., MilvusStore]
DIM = 8


def unit(seed: int) -> np.ndarray:
    vector = np.random.default_rng(seed).normal(size=DIM)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def passage(n: int, doc: int = 1, text: str | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "id": n,
        "doc": doc,
        "doc_id": f"doc-{doc}",
        "title": f"Title {doc}",
        "text": f"passage number {n}" if text is None else text,
        "position": n,
        "recipe": "r",
        "relations": 0,
        "metadata": metadata,
        "vector": unit(n),
    }


def relation(n: int, doc: int = 1, entity_ids: tuple[int, ...] = (1, 2), **metadata: Any) -> dict[str, Any]:
    return {
        "id": n,
        "doc": doc,
        "doc_id": f"doc-{doc}",
        "passage_id": n // 2,
        "title": "",
        "text": f"relation {n}",
        "predicate": "p",
        "entity_ids": list(entity_ids),
        "names": [f"n{e}" for e in entity_ids],
        "metadata": metadata,
        "vector": unit(n),
    }


@pytest.fixture(scope="module")
def shared(engine: MilvusSettings) -> Iterator[MilvusStore]:
    """One workspace for the module: a server takes seconds to make another."""
    store = MilvusStore(engine, f"contract {uuid.uuid4().hex}")
    store.open(model="test", dimension=DIM)
    yield store
    store.drop()
    store.close()


@pytest.fixture
def store(shared: MilvusStore) -> MilvusStore:
    """An open workspace without rows."""
    for collection in COLLECTIONS:
        shared.delete(collection, filter="id > 0")
    return shared


@pytest.fixture
def fresh(make_store: MakeStore) -> MilvusStore:
    """A workspace of this test alone."""
    store = make_store()
    store.open(model="test", dimension=DIM)
    return store


def test_a_workspace_that_was_never_made_is_empty_and_not_created(make_store: MakeStore) -> None:
    store = make_store("nothing")
    assert not store.exists()
    assert store.count("passages") == 0
    assert store.get("passages", [1], ["text"]) == {}
    assert store.search("passages", unit(1)[None], 3) == [[]]
    assert list(store.iterate("relations", ["text"])) == []
    assert store.search_words("word", 3) == []
    store.delete("passages", ids=[1])
    assert not store.exists()


def test_open_twice_is_the_same_workspace(make_store: MakeStore) -> None:
    make_store().open(model="test", dimension=DIM)
    again = make_store()
    again.open(model="test", dimension=DIM)
    assert again.exists()
    assert again.count("documents") == 0
    assert (again.meta() or {})["dimension"] == DIM


@pytest.mark.parametrize(("model", "dimension"), [("other", DIM), ("test", DIM + 1)])
def test_another_embedding_is_refused_and_both_are_named(store: MilvusStore, model: str, dimension: int) -> None:
    with pytest.raises(WorkspaceMismatchError) as error:
        store.open(model=model, dimension=dimension)
    assert "'test'" in str(error.value)
    assert f"'{model}'" in str(error.value)
    assert str(dimension) in str(error.value)


def test_half_made_workspace_is_completed(fresh: MilvusStore, make_store: MakeStore) -> None:
    fresh.client.drop_collection(fresh.collection_name("relations"))
    again = make_store()
    again.open(model="test", dimension=DIM)
    again.upsert("relations", [relation(1)])
    assert again.count("relations") == 1


def test_upsert_is_idempotent_and_batches(store: MilvusStore) -> None:
    rows = [passage(n) for n in range(1, 1_202)]
    assert store.upsert("passages", rows) == 1_201
    store.upsert("passages", rows)
    store.flush()
    assert store.count("passages") == 1_201
    assert store.get("passages", [7, 5_000], ["text", "metadata"]) == {
        7: {"id": 7, "text": "passage number 7", "metadata": {}}
    }


def test_upsert_replaces_the_whole_row(store: MilvusStore) -> None:
    store.upsert("passages", [passage(1, year=1)])
    store.upsert("passages", [passage(1, text="new")])
    row = store.get("passages", [1], ["text", "metadata"])[1]
    assert (row["text"], row["metadata"]) == ("new", {})
    assert store.count("passages") == 1


def test_rows_are_read_at_once_after_they_were_written(store: MilvusStore) -> None:
    for n in range(1, 6):
        store.upsert("passages", [passage(n)])
        assert store.count("passages") == n
        store.delete("passages", ids=[n + 100])


def test_values_come_back_as_they_went_in(store: MilvusStore) -> None:
    big = 2**63 - 2  # Milvus 2.3 does not find the very last one by its id
    text = "quote \" apostrophe ' back\\slash\nnew line\ttab 爱因斯坦 🎈 {}%"
    store.upsert("relations", [{**relation(big, entity_ids=(big, 2**53 + 1)), "text": text, "names": [text, ""]}])
    row = store.get("relations", [big], ["text", "entity_ids", "names", "doc_id"])[big]
    assert row["text"] == text
    assert list(row["entity_ids"]) == [big, 2**53 + 1]
    assert list(row["names"]) == [text, ""]


@pytest.mark.parametrize("doc_id", ['a"b', "a'b", "a\\b", "a\nb", "知识", "a b", '"; drop', "x" * 1_024, "%_"])
def test_any_document_id_is_written_found_and_deleted(store: MilvusStore, doc_id: str) -> None:
    key = content_id("document", doc_id)
    store.upsert("passages", [{**passage(1, doc=key), "doc_id": doc_id}, passage(2)])
    assert [row["doc_id"] for row in store.query("passages", f"doc == {key}", ["doc_id"])] == [doc_id]
    store.delete("passages", filter=f"doc == {key}")
    assert [row["id"] for row in store.query("passages", "", ["doc_id"])] == [2]


def test_search_gives_cosine_best_first(store: MilvusStore) -> None:
    store.upsert("passages", [passage(n) for n in range(1, 101)])
    store.flush()
    query = unit(1_000)
    [hits] = store.search("passages", query[None], 10, fields=["text"])
    cosine = {n: float(unit(n) @ query) for n in range(1, 101)}
    expected = sorted(cosine, key=lambda n: -cosine[n])[:10]
    assert [hit.id for hit in hits] == expected
    assert [hit.score for hit in hits] == pytest.approx([cosine[n] for n in expected], abs=1e-5)
    assert hits[0].row["text"] == f"passage number {expected[0]}"


def test_several_queries_in_one_search(store: MilvusStore) -> None:
    store.upsert("entities", [{"id": n, "name": str(n), "type": "", "vector": unit(n)} for n in range(1, 20)])
    found = store.search("entities", np.stack([unit(3), unit(9)]), 1)
    assert [hits[0].id for hits in found] == [3, 9]


def test_filter_holds_inside_the_search(store: MilvusStore) -> None:
    store.upsert("passages", [passage(n, doc=n % 50, year=1_900 + n, t='x"y') for n in range(1, 301)])
    [hits] = store.search("passages", unit(5)[None], 100, filter='metadata["year"] > 2190', fields=["metadata"])
    assert sorted(hit.id for hit in hits) == list(range(291, 301))
    [hits] = store.search("passages", unit(5)[None], 100, filter="doc in [7, 8]")
    assert sorted(hit.id for hit in hits) == sorted(n for n in range(1, 301) if n % 50 in (7, 8))
    [hits] = store.search("passages", unit(5)[None], 5, filter='doc_id == "doc-7" and metadata["year"] < 1950')
    assert [hit.id for hit in hits] == [7]


def test_rows_of_some_ids_come_with_their_exact_cosines(store: MilvusStore) -> None:
    ids = [2**62 + n for n in range(400)]
    store.upsert("relations", [relation(n, group=n % 2) for n in ids])
    query, cosine = unit(1), {n: float(unit(n) @ unit(1)) for n in ids}
    hits = store.score("relations", [*ids[:300], 5], query, ["text"])
    assert [hit.id for hit in hits] == sorted(ids[:300], key=lambda n: -cosine[n])
    assert [hit.score for hit in hits] == pytest.approx([cosine[hit.id] for hit in hits], abs=1e-5)
    assert all(set(hit.row) == {"text"} for hit in hits)
    assert [hit.id for hit in store.score("relations", ids, query, limit=7)] == sorted(ids, key=lambda n: -cosine[n])[
        :7
    ]
    odd = store.score("relations", ids[:100], query, filter='metadata["group"] == 1')
    assert {hit.id for hit in odd} == {n for n in ids[:100] if n % 2}
    assert store.score("relations", [], query) == []


def test_many_ids_are_scored_in_several_requests(store: MilvusStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphrag_milvus.store._IDS", 16)
    store.upsert("passages", [passage(n) for n in range(1, 101)])
    with counting() as trips:
        hits = store.score("passages", list(range(1, 101)), unit(1_000), limit=20)
    cosine = {n: float(unit(n) @ unit(1_000)) for n in range(1, 101)}
    assert [hit.id for hit in hits] == sorted(cosine, key=lambda n: -cosine[n])[:20]
    assert trips.count == 7


@pytest.mark.parametrize("expression", ["metadata[", "nope == 1 and", "text = 'x'", 'year > "'])
def test_a_filter_that_is_not_one_is_an_input_error(store: MilvusStore, expression: str) -> None:
    store.upsert("passages", [passage(1)])
    with pytest.raises(InputError, match="filter"):
        store.search("passages", unit(1)[None], 3, filter=expression)


def test_limits(store: MilvusStore) -> None:
    store.upsert("passages", [passage(n) for n in range(1, 4)])
    assert store.search("passages", unit(1)[None], 0) == [[]]
    assert len(store.search("passages", unit(1)[None], 10_000)[0]) == 3
    with pytest.raises(InputError, match="16,384"):
        store.search("passages", unit(1)[None], 20_000)


def test_iteration_passes_the_window_of_a_query(store: MilvusStore) -> None:
    store.upsert("entities", ({"id": n, "name": f"n{n}", "type": "", "vector": unit(n % 50)} for n in range(1, 17_002)))
    seen = [row["id"] for row in store.iterate("entities", ["name"])]
    assert len(seen) == 17_001
    assert set(seen) == set(range(1, 17_002))
    assert store.count("entities") == 17_001


def test_iterate_with_a_filter(store: MilvusStore) -> None:
    store.upsert("relations", [{**relation(n), "predicate": "" if n % 3 else "p"} for n in range(1, 31)])
    found = [row["id"] for row in store.iterate("relations", ["text"], filter='predicate == ""')]
    assert sorted(found) == [n for n in range(1, 31) if n % 3]


def test_delete_by_filter_and_by_id(store: MilvusStore) -> None:
    store.upsert("relations", [relation(n, doc=n % 4) for n in range(1, 41)])
    store.delete("relations", filter="doc == 2")
    store.delete("relations", ids=[1, 5, 999])
    left = {row["id"] for row in store.iterate("relations", [])}
    assert left == {n for n in range(1, 41) if n % 4 != 2} - {1, 5}
    assert store.count("relations", "doc == 3") == 10
    [hits] = store.search("relations", unit(1)[None], 100)
    assert {hit.id for hit in hits} == left


def test_a_text_of_the_largest_size_is_kept_and_a_larger_one_refused(store: MilvusStore) -> None:
    text = "知" * 21_845
    store.upsert("passages", [passage(1, text=text)])
    assert store.get("passages", [1], ["text"])[1]["text"] == text
    with pytest.raises(InputError, match=r"65,538 bytes.*65,535"):
        store.upsert("passages", [passage(2, text="知" * 21_846)])
    with pytest.raises(InputError, match="doc_id"):
        store.upsert("passages", [{**passage(2), "doc_id": "x" * 1_025}])


def test_a_collision_is_detected(store: MilvusStore) -> None:
    store.upsert("entities", [{"id": 5, "name": "basel", "type": "", "vector": unit(1)}])
    assert store.refuse_collisions("entities", {5: "basel", 6: "bern"}) == {5}
    with pytest.raises(IdCollisionError, match=r"'basel'.*'bern'"):
        store.refuse_collisions("entities", {5: "bern"})


def test_words_are_ranked_where_the_engine_can(store: MilvusStore) -> None:
    store.upsert("passages", [passage(1, text="the rhine flows through basel"), passage(2, text="euler met bernoulli")])
    store.upsert("passages", [passage(n, text=f"filler number {n}", year=n) for n in range(3, 30)])
    store.flush()
    if not store.has_bm25:
        with pytest.raises(StoreError, match="BM25"):
            store.search_words("euler", 3)
        return
    hits = store.search_words("Who was Euler?", 3, fields=["text"])
    assert hits[0].id == 2
    assert hits[0].score > 0
    hits = store.search_words("filler", 10, filter='metadata["year"] == 7')
    assert [hit.id for hit in hits] == [7]


@pytest.mark.parametrize("workspace", ["my-kb", "知识库", "1st", "x" * 300])
def test_workspaces_of_any_name_stay_apart(milvus: MilvusSettings, make_store: MakeStore, workspace: str) -> None:
    names = ["my-kb", "my_kb", "知识库", "识知库", "1st", "x" * 300, "x" * 301, "a b/c", "-", "MY-KB"]
    collections = [MilvusStore(milvus, name).collection_name("passages") for name in names]
    assert len(set(collections)) == len(names)
    store = make_store(workspace)
    store.open(model="test", dimension=DIM)
    store.upsert("passages", [passage(1)])
    assert store.count("passages") == 1
    other = make_store(workspace + "!")
    assert other.count("passages") == 0


def test_a_workspace_needs_a_name(make_store: MakeStore) -> None:
    with pytest.raises(SettingsError, match="workspace"):
        MilvusStore(make_store().settings, "  ").collection_name("passages")


def test_revision_changes_with_touch(store: MilvusStore) -> None:
    before = store.revision()
    store.touch()
    assert store.revision() != before
    assert store.count("documents") == 0
    assert list(store.iterate("documents", ["doc_id"])) == []


def test_drop_leaves_nothing(fresh: MilvusStore, make_store: MakeStore) -> None:
    fresh.upsert("passages", [passage(1)])
    fresh.drop()
    assert not fresh.exists()
    assert not any(make_store().count(collection) for collection in COLLECTIONS)
    fresh.open(model="other", dimension=DIM)
    assert fresh.count("passages") == 0


def test_round_trips_are_counted(store: MilvusStore) -> None:
    store.upsert("passages", [passage(1)])
    with counting() as trips:
        store.search("passages", unit(1)[None], 1)
        store.get("passages", [1], ["text"])
    assert trips.count == 2


def test_every_error_is_ours(store: MilvusStore) -> None:
    with pytest.raises(GraphRAGError):
        store.upsert("passages", [{**passage(1), "vector": np.zeros(DIM + 1, dtype=np.float32)}])
