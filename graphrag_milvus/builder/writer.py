"""Rows: how documents, passages, relations and entities stand in Milvus, and the order in which they get there.

A document row goes first, without a hash: what was begun can be listed, finished and deleted. Then come
entities, relations, passages, and the document row with its hash. A passage row with a recipe says that its
relations are complete, a document row with a hash that its passages are; before either changes, it is taken back.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphrag_milvus.layout import FIELDS
from graphrag_milvus.store import Collection, MilvusStore
from graphrag_milvus.types import Document, Enrichment, Entity, Passage, Relation, content_id

__all__ = ["StoredDocument", "StoredPassage", "Writer", "document_key"]

Vectors = npt.NDArray[np.float32]

_OWNED: tuple[Collection, ...] = ("enrichments", "relations", "passages")
"""What belongs to one document, in the order in which it is deleted."""


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """What the row of a document says; `hash` is empty while it is not finished, `indexed_at` is 0 if it never was."""

    hash: str = ""
    indexed_at: int = 0


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

    def stored(self, doc_ids: Sequence[str]) -> dict[str, StoredDocument]:
        """What is known of each document that has a row."""
        rows = self.store.get("documents", [document_key(d) for d in doc_ids], ["doc_id", "hash", "indexed_at"])
        return {row["doc_id"]: StoredDocument(row["hash"], int(row["indexed_at"])) for row in rows.values()}

    def passages_of(self, keys: Sequence[int]) -> dict[int, StoredPassage]:
        """Passage rows of some documents, by id."""
        fields = ["doc", "recipe", "position", "relations", "metadata"]
        rows = self.store.query("passages", f"doc in {list(keys)}", fields) if keys else []
        return {int(row["id"]): StoredPassage(**{**row, "id": int(row["id"])}) for row in rows}

    def owners(self, collection: Collection, keys: Sequence[int]) -> dict[int, int]:
        """The passage of each relation, or enrichment, of some documents, by the row's id."""
        rows = self.store.query(collection, f"doc in {list(keys)}", ["passage_id"]) if keys else []
        return {int(row["id"]): int(row["passage_id"]) for row in rows}

    def counts(self, collection: Collection, keys: Sequence[int]) -> Counter[int]:
        """How many rows each document has: one request where the total is right, one each where it is not."""
        return Counter({key: self.store.count(collection, f"doc == {key}") for key in keys})

    # Writing

    def open(self, documents: Sequence[Document], dimension: int) -> None:
        """Write that documents are not finished, before any of their rows changes."""
        keys = {document_key(d.id): d for d in documents}
        here = self.store.refuse_collisions("documents", {key: d.id for key, d in keys.items()})
        self._rewrite("documents", {key: {"hash": ""} for key in here})
        new = [d for key, d in keys.items() if key not in here]
        self.store.upsert("documents", (_document_row(d, vector=_mean([np.zeros(dimension)])) for d in new))

    def reopen_passages(self, ids: Sequence[int]) -> None:
        """Write that passages are not finished, before their relations change."""
        self._rewrite("passages", {i: {"recipe": ""} for i in ids})

    def entities(self, entities: Sequence[Entity], vectors: Vectors) -> set[int]:
        """Write entities that were not there; the ids of those that Milvus took and does not keep."""
        self.store.upsert(
            "entities",
            ({"id": e.id, "name": e.name, "type": e.type, "vector": v} for e, v in zip(entities, vectors, strict=True)),
        )
        ids = [e.id for e in entities]
        return set(ids) - set(self.store.get("entities", ids, []))

    def relations(self, relations: Sequence[Relation], vectors: Vectors, passages: Mapping[int, Passage]) -> None:
        """Write relations; each takes the title and metadata of its passage, so that filters hold for it too."""
        self.store.refuse_collisions("relations", {r.id: document_key(r.doc_id) for r in relations})
        self.store.upsert(
            "relations",
            (_relation_row(r, v, passages[r.passage_id]) for r, v in zip(relations, vectors, strict=True)),
        )

    def enrichments(self, enrichments: Sequence[Enrichment], vectors: Vectors, passages: Mapping[int, Passage]) -> None:
        """Write enrichments; as with relations, a filter that holds for the passage holds for them."""
        self.store.refuse_collisions("enrichments", {e.id: document_key(e.doc_id) for e in enrichments})
        self.store.upsert(
            "enrichments",
            (_enrichment_row(e, v, passages[e.passage_id]) for e, v in zip(enrichments, vectors, strict=True)),
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

    def move(self, passages: Sequence[Passage]) -> None:
        """Give stored passages the position and metadata that these have, their vectors kept."""
        self._rewrite("passages", {p.id: {"position": p.position, "metadata": dict(p.metadata)} for p in passages})

    def describe(self, collection: Collection, owners: Mapping[int, Passage]) -> None:
        """Give stored relations, or enrichments, by id, the metadata of their passages, their vectors kept."""
        self._rewrite(collection, {i: {"metadata": dict(passage.metadata)} for i, passage in owners.items()})

    def documents(
        self,
        documents: Sequence[Document],
        passages: Sequence[int],
        hashes: Mapping[str, str],
        counts: Mapping[str, tuple[int, ...]],
    ) -> None:
        """Write the rows that say that documents are there; an empty hash says that they are not finished.

        Args:
            passages: the ids of their passages.
            counts: passages and relations of each document, in this order.
        """
        now = int(time.time() * 1000)
        means = self._means(passages)
        self.store.upsert(
            "documents",
            (_document_row(d, means[document_key(d.id)], hashes[d.id], counts[d.id], now) for d in documents),
        )

    def _rewrite(self, collection: Collection, changes: Mapping[int, Mapping[str, Any]]) -> None:
        """Give rows, by id, some new values; the others, the vector too, stay."""
        rows = self.store.get(collection, list(changes), [*(name for name, _, _ in FIELDS[collection]), "vector"])
        self.store.upsert(collection, ({**_plain(row), **changes[i]} for i, row in rows.items()))

    def _means(self, passages: Sequence[int]) -> dict[int, npt.NDArray[np.float32]]:
        """The mean of each document's passage vectors, of length one."""
        vectors: defaultdict[int, list[Any]] = defaultdict(list)
        for _, row in sorted(self.store.get("passages", passages, ["doc", "vector"]).items()):
            vectors[int(row["doc"])].append(row["vector"])
        return {key: _mean(found) for key, found in vectors.items()}

    # Removing

    def remove(self, doc_ids: Sequence[str]) -> list[str]:
        """Delete documents with all their rows; the ids of those that had any.

        The document row goes last and is unfinished meanwhile, so that what is interrupted can be done again.
        """
        ids = list(dict.fromkeys(doc_ids))
        return [d for start in range(0, len(ids), 500) for d in self._remove(ids[start : start + 500])]

    def _remove(self, doc_ids: Sequence[str]) -> list[str]:
        keys = {document_key(d): d for d in doc_ids}
        here = self.store.refuse_collisions("documents", keys)
        self._rewrite("documents", {key: {"hash": ""} for key in here})
        found = here | self._owners([key for key in keys if key not in here])
        filter = f"doc in {sorted(found)}"
        for collection in _OWNED if found else ():
            self.store.delete(collection, filter=filter)
        if found:
            self.store.touch()
            self.store.delete("documents", ids=sorted(here))
        return [d for key, d in keys.items() if key in found]

    def _owners(self, keys: Sequence[int]) -> set[int]:
        """Documents without a row of their own that have others, because Milvus lost theirs."""
        filter = f"doc in {list(keys)}"
        return {int(row["doc"]) for c in _OWNED if keys for row in self.store.iterate(c, ["doc"], filter=filter)}

    def collect_garbage(self) -> int:
        """Delete the entities that no relation holds; how many there were.

        Not while documents are being indexed: the entities of a passage are written before its relations.
        """
        held = {int(e) for row in self.store.iterate("relations", ["entity_ids"]) for e in row["entity_ids"]}
        left = [int(row["id"]) for row in self.store.iterate("entities", []) if int(row["id"]) not in held]
        self.store.delete("entities", ids=left)
        return len(left)


def _document_row(
    document: Document, vector: Any, hash: str = "", counts: tuple[int, ...] = (0, 0), indexed_at: int = 0
) -> dict[str, Any]:
    return {
        "id": document_key(document.id),
        "doc_id": document.id,
        "title": document.title,
        "source": document.source,
        "hash": hash,
        "passages": counts[0],
        "relations": counts[1],
        "indexed_at": indexed_at,
        "metadata": dict(document.metadata),
        "vector": vector,
    }


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


def _enrichment_row(enrichment: Enrichment, vector: Any, passage: Passage) -> dict[str, Any]:
    return {
        "id": enrichment.id,
        "doc": document_key(enrichment.doc_id),
        "doc_id": enrichment.doc_id,
        "passage_id": enrichment.passage_id,
        "kind": enrichment.kind,
        "title": passage.title,
        "text": enrichment.text,
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
    """A row as it can be written again."""
    return {**row, "vector": np.asarray(row["vector"], dtype=np.float32)}


def _mean(vectors: Sequence[Any]) -> npt.NDArray[np.float32]:
    mean = np.mean(np.asarray(vectors, dtype=np.float64), axis=0)
    length = float(np.linalg.norm(mean))
    unit: npt.NDArray[np.float32] = (mean / length if length else mean + 1.0 / np.sqrt(len(mean))).astype(np.float32)
    return unit
