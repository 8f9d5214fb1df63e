"""Rows: how documents, passages, relations and entities stand in Milvus, and the order in which they get there.

Entities go first, then relations, then passages, then documents. A passage row says that its relations are
complete, a document row that its passages are; whatever is interrupted lacks the row that would say so.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_milvus.store import Collection, MilvusStore
from graphrag_milvus.types import Document, Entity, Passage, Relation, content_id

__all__ = ["StoredPassage", "Writer", "document_key"]

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StoredPassage:
    """What is known of a passage row that is in Milvus already."""

    id: int
    doc: int
    recipe: str
    position: int
    relations: int
    metadata: Mapping[str, Any]


def document_key(doc_id: str) -> int:
    """The 63-bit key under which rows of a document are stored."""
    return content_id("document", doc_id)


@dataclass(frozen=True)
class Writer:
    """Writes the rows of documents, and finds and removes what they had before."""

    store: MilvusStore

    # What is there

    def hashes(self, doc_ids: Sequence[str]) -> dict[str, str]:
        """The hash of each document that has a row; empty where it was not finished."""
        self.store.refuse_collisions("documents", {document_key(d): d for d in doc_ids})
        rows = self.store.get("documents", [document_key(d) for d in doc_ids], ["doc_id", "hash"])
        return {row["doc_id"]: row["hash"] for row in rows.values()}

    def passages_of(self, keys: Sequence[int]) -> dict[int, StoredPassage]:
        """Passage rows of some documents, by id."""
        fields = ["doc", "recipe", "position", "relations", "metadata"]
        rows = self.store.query("passages", f"doc in {list(keys)}", fields) if keys else []
        return {int(row["id"]): StoredPassage(**{**row, "id": int(row["id"])}) for row in rows}

    def relations_of(self, keys: Sequence[int]) -> dict[int, int]:
        """The passage of each relation row of some documents."""
        rows = self.store.query("relations", f"doc in {list(keys)}", ["passage_id"]) if keys else []
        return {int(row["id"]): int(row["passage_id"]) for row in rows}

    def counts(self, collection: Collection, keys: Sequence[int]) -> Counter[int]:
        """How many rows each document has: one request where the total is right, one each where it is not."""
        return Counter({key: self.store.count(collection, f"doc == {key}") for key in keys})

    # Writing

    def reopen(self, doc_ids: Sequence[str]) -> None:
        """Take back that documents are finished, before their rows change."""
        keys = [document_key(d) for d in doc_ids]
        rows = self.store.get("documents", keys, ["*"])
        self.store.upsert("documents", [{**_plain(row), "hash": ""} for row in rows.values()])

    def entities(self, entities: Sequence[Entity], vectors: Vectors) -> None:
        """Write entities that were not there."""
        self.store.upsert(
            "entities",
            (
                {"id": e.id, "name": e.name, "type": e.type, "vector": v}
                for e, v in zip(entities, vectors, strict=True)
            ),
        )

    def relations(self, relations: Sequence[Relation], vectors: Vectors, passages: Mapping[int, Passage]) -> None:
        """Write relations; each takes the title and metadata of its passage, so that filters hold for it too."""
        self.store.refuse_collisions("relations", {r.id: document_key(r.doc_id) for r in relations})
        self.store.upsert(
            "relations",
            (_relation_row(r, v, passages[r.passage_id]) for r, v in zip(relations, vectors, strict=True)),
        )

    def passages(
        self, passages: Sequence[Passage], vectors: Vectors, recipes: Sequence[str], relations: Counter[int]
    ) -> None:
        """Write passages; a recipe of "" says that extraction failed and is to be tried again."""
        self.store.refuse_collisions("passages", {p.id: document_key(p.doc_id) for p in passages})
        self.store.upsert(
            "passages",
            (
                _passage_row(p, v, recipe, relations[p.id])
                for p, v, recipe in zip(passages, vectors, recipes, strict=True)
            ),
        )

    def move(self, passages: Sequence[Passage], *, with_relations: Iterable[int]) -> None:
        """Give stored passages a new position and metadata, and their relations the metadata, vectors kept.

        Args:
            passages: as they are to be.
            with_relations: ids of those whose metadata changed.
        """
        wanted = {p.id: p for p in passages}
        rows = self.store.get("passages", list(wanted), ["*"])
        self.store.upsert(
            "passages",
            (
                {**_plain(row), "position": wanted[i].position, "metadata": dict(wanted[i].metadata)}
                for i, row in rows.items()
            ),
        )
        for passage_id in with_relations:
            ids = [row["id"] for row in self.store.query("relations", f"passage_id == {passage_id}", [])]
            found = self.store.get("relations", ids, ["*"])
            metadata = dict(wanted[passage_id].metadata)
            self.store.upsert("relations", ({**_plain(row), "metadata": metadata} for row in found.values()))

    def documents(self, documents: Sequence[Document], hashes: Mapping[str, str], counts: Mapping[str, tuple[int, int]]) -> None:
        """Write the rows that say that documents are there; an empty hash says that they are not finished.

        Args:
            counts: passages and relations of each document.
        """
        now = int(time.time() * 1000)
        means = self._means([document_key(d.id) for d in documents])
        self.store.upsert(
            "documents",
            (
                {
                    "id": document_key(d.id),
                    "doc_id": d.id,
                    "title": d.title,
                    "source": d.source,
                    "hash": hashes[d.id],
                    "passages": counts[d.id][0],
                    "relations": counts[d.id][1],
                    "indexed_at": now,
                    "metadata": dict(d.metadata),
                    "vector": means[document_key(d.id)],
                }
                for d in documents
            ),
        )

    def _means(self, keys: Sequence[int]) -> dict[int, npt.NDArray[np.float32]]:
        """The mean of each document's passage vectors, of length one."""
        vectors: dict[int, list[tuple[int, Any]]] = {key: [] for key in keys}
        for row in self.store.iterate("passages", ["doc", "vector"], filter=f"doc in {list(keys)}", batch_size=1_000):
            vectors[int(row["doc"])].append((int(row["id"]), row["vector"]))
        return {key: _mean([v for _, v in sorted(rows, key=lambda r: r[0])]) for key, rows in vectors.items()}

    # Removing

    def remove(self, doc_ids: Sequence[str]) -> list[str]:
        """Delete documents with all their rows; the ids of those that had any.

        The document row goes last and is unfinished meanwhile, so that what is interrupted can be done again.
        """
        found = []
        for doc_id in doc_ids:
            key = document_key(doc_id)
            here = bool(self.hashes([doc_id]))
            if not here and not self.store.count("passages", f"doc == {key}"):
                continue
            if here:
                self.reopen([doc_id])
            for collection in ("relations", "passages"):
                self.store.delete(collection, filter=f"doc == {key}")
            self.store.delete("documents", ids=[key])
            found.append(doc_id)
        return found

    def collect_garbage(self) -> int:
        """Delete the entities that no relation holds; how many there were.

        Not while documents are being indexed: the entities of a passage are written before its relations.
        """
        held = {int(e) for row in self.store.iterate("relations", ["entity_ids"]) for e in row["entity_ids"]}
        left = [int(row["id"]) for row in self.store.iterate("entities", []) if int(row["id"]) not in held]
        self.store.delete("entities", ids=left)
        return len(left)


def _relation_row(relation: Relation, vector: Any, passage: Passage) -> dict[str, Any]:
    return {
        "id": relation.id,
        "doc": document_key(relation.doc_id),
        "doc_id": relation.doc_id,
        "passage_id": relation.passage_id,
        "title": passage.title,
        "text": relation.text,
        "predicate": relation.predicate,
        "entity_ids": list(relation.entity_ids),
        "names": list(relation.names),
        "metadata": dict(passage.metadata),
        "vector": vector,
    }


def _passage_row(passage: Passage, vector: Any, recipe: str, relations: int) -> dict[str, Any]:
    return {
        "id": passage.id,
        "doc": document_key(passage.doc_id),
        "doc_id": passage.doc_id,
        "title": passage.title,
        "text": passage.text,
        "position": passage.position,
        "recipe": recipe,
        "relations": relations,
        "metadata": dict(passage.metadata),
        "vector": vector,
    }


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it can be written again: without the words' vector, which the engine makes itself."""
    return {
        name: np.asarray(value, dtype=np.float32) if name == "vector" else value
        for name, value in row.items()
        if name != "sparse"
    }


def _mean(vectors: Sequence[Any]) -> npt.NDArray[np.float32]:
    mean = np.mean(np.asarray(vectors, dtype=np.float64), axis=0)
    length = float(np.linalg.norm(mean))
    return (mean / length if length else mean + 1.0 / np.sqrt(len(mean))).astype(np.float32)
