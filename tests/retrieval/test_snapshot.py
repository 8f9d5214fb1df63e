"""What retrieval holds of a workspace: derived from relation rows, whole or as a filter leaves it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from graphrag_milvus import GraphRAG
from graphrag_milvus.errors import InputError
from graphrag_milvus.retrieval.snapshot import Snapshot, SnapshotSource, derive
from graphrag_milvus.store import MilvusStore
from graphrag_milvus.types import entity_id

DIMENSION = 8
FEW = [
    # id, passage, predicate, text, names, metadata
    (1, 11, "taught", "Johann taught Euler", ["Johann", "Euler"], {"year": 1}),
    (2, 11, "", "Euler was born in Basel.", ["Euler"], {"year": 1}),
    (3, 12, "", "The Rhine flows through Basel.", ["Rhine", "Basel"], {"year": 2}),
    (4, 12, "lies on", "Basel lies on Euler", ["Basel", "Rhine"], {"year": 2}),
]


@pytest.fixture
def store(open_rag: Callable[..., GraphRAG]) -> Iterator[MilvusStore]:
    """An empty open workspace."""
    store = open_rag(f"snapshot {next(_numbers)}").store
    store.open(model="test", dimension=DIMENSION)
    yield store
    store.drop()


_numbers = itertools.count()


def fill(store: MilvusStore, rows: list[Any]) -> None:
    """Write relations and their passages as the writer does."""
    vector = np.eye(DIMENSION, dtype=np.float32)[0]
    common: dict[str, Any] = {"doc": 1, "doc_id": "d", "title": "", "vector": vector}
    relations = [
        {
            **common,
            "id": i,
            "passage_id": passage,
            "predicate": predicate,
            "text": text,
            "entity_ids": [entity_id(name) for name in names],
            "names": names,
            "metadata": metadata,
        }
        for i, passage, predicate, text, names, metadata in rows
    ]
    passages = {passage: metadata for _, passage, _, _, _, metadata in rows}
    store.upsert("relations", relations)
    store.upsert("passages", (_passage(common, i, metadata) for i, metadata in passages.items()))
    store.touch()


def _passage(common: Mapping[str, Any], i: int, metadata: Any) -> dict[str, Any]:
    own = {"id": i, "text": f"p{i}", "position": 0, "recipe": "r", "relations": 0, "metadata": metadata}
    return {**common, **own}


def entities(snapshot: Snapshot, relation: int) -> set[str]:
    """Names of the entities that a relation is tied to."""
    [position] = snapshot.incidence.relation_positions([relation])
    ids = snapshot.incidence.entity_ids[snapshot.incidence.matrix[int(position)].indices]
    return {snapshot.lexicon.name(int(i)) for i in ids}


def test_a_sentence_is_tied_to_names_of_other_documents_and_a_triple_is_not(store: MilvusStore) -> None:
    fill(store, FEW)
    snapshot = derive(store)
    assert entities(snapshot, 1) == {"johann", "euler"}
    assert entities(snapshot, 2) == {"euler", "basel"}  # Basel comes from passage 12
    assert entities(snapshot, 4) == {"basel", "rhine"}  # its text names Euler, but a triple's ends are known


def test_the_order_of_rows_does_not_matter(store: MilvusStore) -> None:
    fill(store, FEW)
    one = derive(store)
    store.delete("relations", filter="id > 0")
    fill(store, FEW[::-1])
    other = derive(store)
    assert (one.incidence.matrix != other.incidence.matrix).nnz == 0
    assert one.incidence.relation_ids.tolist() == other.incidence.relation_ids.tolist() == [1, 2, 3, 4]
    assert one.passages_of_entity.tolist() == other.passages_of_entity.tolist()


def test_passages_of_an_entity_are_counted_once(store: MilvusStore) -> None:
    fill(store, FEW)
    snapshot = derive(store)
    counted = {
        snapshot.lexicon.name(int(i)): int(n)
        for i, n in zip(snapshot.incidence.entity_ids, snapshot.passages_of_entity, strict=True)
    }
    assert counted == {"johann": 1, "euler": 1, "rhine": 1, "basel": 2}


def test_nothing_is_a_snapshot_too(store: MilvusStore) -> None:
    for snapshot in (derive(store), SnapshotSource(store).get('metadata["year"] == 1')):
        assert snapshot.incidence.matrix.shape == (0, 0)
        assert len(snapshot.passages_of_entity) == len(snapshot.lexicon) == 0


def test_a_filter_leaves_the_relations_of_its_passages(store: MilvusStore) -> None:
    fill(store, FEW)
    snapshot = SnapshotSource(store).get('metadata["year"] == 1')
    assert snapshot.incidence.relation_ids.tolist() == [1, 2]
    assert entities(snapshot, 2) == {"euler", "basel"}
    assert entity_id("Rhine") not in snapshot.incidence.entity_ids
    assert snapshot.passages_of_entity.tolist() == [1, 1, 1]


def test_it_is_derived_again_only_after_a_change(store: MilvusStore) -> None:
    fill(store, FEW[:2])
    source = SnapshotSource(store)
    first, part = source.get(), source.get('metadata["year"] == 1')
    assert source.get() is first
    assert source.get('metadata["year"] == 1') is part
    fill(store, FEW[2:])
    assert source.get().incidence.relation_ids.tolist() == [1, 2, 3, 4]
    assert source.get('metadata["year"] == 1') is not part


def test_the_last_filters_are_kept(store: MilvusStore) -> None:
    fill(store, FEW)
    source = SnapshotSource(store, kept_filters=2)
    whole = source.get()
    parts = [source.get(f"id == {n}") for n in (11, 12)]
    assert [source.get(f"id == {n}") for n in (11, 12)] == parts
    source.get("id == 13")
    assert source.get("id == 12") is parts[1]
    assert source.get("id == 11") is not parts[0]
    assert source.get() is whole


def test_a_filter_that_is_none_changes_nothing(store: MilvusStore) -> None:
    fill(store, FEW)
    source = SnapshotSource(store)
    whole = source.get()
    with pytest.raises(InputError, match="filter"):
        source.get("nope ==")
    assert source.get() is whole


def test_threads_derive_it_once(store: MilvusStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, FEW)
    source, calls, found = SnapshotSource(store), [], []
    monkeypatch.setattr("graphrag_milvus.retrieval.snapshot.derive", lambda s: calls.append(1) or derive(s))
    threads = [threading.Thread(target=lambda: found.append(source.get())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert all(one is found[0] for one in found)


def test_more_relations_than_one_query_gives(store: MilvusStore) -> None:
    names = [["Hub", f"n{n}"] for n in range(17_000)]
    fill(store, [(n + 1, 11, "p", f"t{n}", pair, {}) for n, pair in enumerate(names)])
    snapshot = derive(store)
    assert snapshot.incidence.matrix.shape == (17_000, 17_001)
    [hub] = snapshot.incidence.entity_positions([entity_id("Hub")])
    assert snapshot.incidence.entity_degrees[hub] == 17_000
    assert snapshot.passages_of_entity[hub] == 1
