"""The mutual index: from a passage to what it names and says, and from an entity to where that is said.

From a passage one request gives its relations; from an entity the incidence in memory tells its relations, ties
that were derived across documents among them, and one request gives their rows. No scan of a collection is needed
for either, whatever its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rapidfuzz import fuzz, process

from graphrag_milvus.errors import InputError
from graphrag_milvus.retrieval.base import PASSAGE_FIELDS, check_question, joined
from graphrag_milvus.retrieval.snapshot import Snapshot, SnapshotSource
from graphrag_milvus.store import WINDOW, MilvusStore
from graphrag_milvus.types import normalize_name

__all__ = ["EntityView", "MutualIndex", "PassageView", "Shown", "ShownEntity", "ShownPassage", "ShownRelation"]

_RELATION_FIELDS = ("text", "predicate", "entity_ids", "names", "passage_id", "doc_id", "title")
_LARGEST_ID = 2**63
_ALIKE = 70.0  # of 100; below, a spelling has little to do with what was asked for
_MOST_ALIKE = 5


@dataclass(frozen=True, slots=True)
class ShownEntity:
    """An entity; `relations` is its degree, `passages` how many passages these stand in. `name` is normalised."""

    id: str
    name: str
    type: str
    relations: int
    passages: int


@dataclass(frozen=True, slots=True)
class ShownRelation:
    """A relation with the passage that it stands in; a sentence has no predicate."""

    id: str
    text: str
    predicate: str
    entities: tuple[str, ...]
    passage_id: str
    doc_id: str
    title: str


@dataclass(frozen=True, slots=True)
class ShownPassage:
    """A passage of a document."""

    id: str
    doc_id: str
    title: str
    text: str
    position: int
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PassageView:
    """A passage with all entities that it is tied to, and all its relations in the order of the text.

    `enrichments` are what a model wrote about it, as pairs of kind and text.
    """

    passage: ShownPassage
    entities: tuple[ShownEntity, ...]
    relations: tuple[ShownRelation, ...]
    enrichments: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class EntityView:
    """An entity with relations that hold it, their passages and the ids of their documents.

    `entity.relations` says how many relations there are, of which no more than was asked for are here.
    """

    entity: ShownEntity
    relations: tuple[ShownRelation, ...]
    passages: tuple[ShownPassage, ...]
    documents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """What is known under a passage's id or an entity's name: one of the two, or spellings that are close to it."""

    asked: str
    passage: PassageView | None = None
    entities: tuple[EntityView, ...] = ()
    close: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """True where something is known under what was asked for."""
        return self.passage is not None or bool(self.entities)


@dataclass(frozen=True)
class MutualIndex:
    """Looks things up in one workspace.

    Args:
        snapshots: of the same workspace as `store`.
        filter: a Milvus expression on passages; what it excludes is not there.
        limit: relations that are shown of one entity at the most.
        enriched: True where the workspace may have enrichments.
    """

    store: MilvusStore
    snapshots: SnapshotSource
    filter: str = ""
    limit: int = 20
    enriched: bool = False

    def look_up(self, what: str) -> Shown:
        """The passage with that id, else the entities of that name, else the entity with that id.

        Raises:
            InputError: `what` is empty, or the filter or the limit cannot be used.
        """
        if not what.strip():
            raise InputError("nothing to show; give the id of a passage, or the name of an entity")
        if not 1 <= self.limit <= WINDOW:
            raise InputError(f"the limit is {self.limit}; it must be from 1 to {WINDOW:,}")
        check_question(what, self.limit, self.filter)
        number = _number(what)
        row = self._passage_row(number)
        snapshot = self.snapshots.get(self.filter)
        if row is not None:
            return Shown(what, passage=self._passage(number, row, snapshot))
        ids = _held(snapshot, snapshot.lexicon.bearers(what)) or _held(snapshot, [number])
        if ids:
            return Shown(what, entities=self._entities(ids, snapshot))
        return Shown(what, close=_close(what, snapshot))

    # From a passage

    def _passage_row(self, passage_id: int) -> dict[str, Any] | None:
        if passage_id < 0:
            return None
        where = joined(f"id == {passage_id}", self.filter)
        rows = self.store.query("passages", where, [*PASSAGE_FIELDS, "position"])
        return rows[0] if rows else None

    def _passage(self, passage_id: int, row: Mapping[str, Any], snapshot: Snapshot) -> PassageView:
        text = " ".join(str(row["text"]).split())
        rows = self.store.query("relations", f"passage_id == {passage_id}", _RELATION_FIELDS)
        relations = [_relation(one) for one in sorted(rows, key=lambda one: _place(text, str(one["text"])))]
        own = [int(key) for one in rows for key in one["entity_ids"]]
        tied = _tied(snapshot, [int(one["id"]) for one in rows])
        entities = self._described(list(dict.fromkeys([*own, *tied])), snapshot)
        written = self._enrichments(passage_id) if self.enriched else ()
        return PassageView(_passage(passage_id, row), tuple(entities), tuple(relations), written)

    def _enrichments(self, passage_id: int) -> tuple[tuple[str, str], ...]:
        rows = self.store.query("enrichments", f"passage_id == {passage_id}", ["kind", "text"])
        return tuple(sorted((str(row["kind"]), str(row["text"])) for row in rows))

    # From an entity

    def _entities(self, ids: Sequence[int], snapshot: Snapshot) -> tuple[EntityView, ...]:
        """One view for each: homonyms of different types stay apart, the one with the most relations first."""
        described = sorted(self._described(ids, snapshot), key=lambda one: (-one.relations, one.type, one.id))
        return tuple(self._view(one, snapshot) for one in described)

    def _view(self, entity: ShownEntity, snapshot: Snapshot) -> EntityView:
        incidence = snapshot.incidence
        [position] = incidence.entity_positions([int(entity.id)]).tolist()
        start = incidence.transpose.indptr[position]
        places = incidence.transpose.indices[start : start + min(self.limit, entity.relations)]
        rows = self.store.get("relations", incidence.relation_ids[places].tolist(), _RELATION_FIELDS)
        relations = sorted(map(_relation, rows.values()), key=lambda one: (one.doc_id, one.passage_id, one.id))
        ids = list(dict.fromkeys(int(one.passage_id) for one in relations))
        found = self.store.get("passages", ids, [*PASSAGE_FIELDS, "position"])
        passages = sorted((_passage(i, row) for i, row in found.items()), key=lambda one: (one.doc_id, one.position))
        documents = tuple(dict.fromkeys(one.doc_id for one in relations))
        return EntityView(entity, tuple(relations), tuple(passages), documents)

    def _described(self, ids: Sequence[int], snapshot: Snapshot) -> list[ShownEntity]:
        """Entities with their types, which their rows have, and degrees, which the incidence has."""
        rows = self.store.get("entities", ids, ["name", "type"])
        positions = snapshot.incidence.entity_positions(ids).tolist()
        degrees, passages = snapshot.incidence.entity_degrees, snapshot.passages_of_entity
        return [
            ShownEntity(
                str(key),
                str(rows[key]["name"]) if key in rows else snapshot.lexicon.name(key),
                str(rows[key]["type"]) if key in rows else "",
                int(degrees[at]) if at >= 0 else 0,
                int(passages[at]) if at >= 0 else 0,
            )
            for key, at in zip(ids, positions, strict=True)
        ]


def _number(what: str) -> int:
    """An id that fits Milvus, or -1."""
    text = what.strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    return number if number < _LARGEST_ID else -1


def _held(snapshot: Snapshot, ids: Sequence[int]) -> list[int]:
    """Those of the entities that a relation holds: others are left over from deleted documents, or filtered out."""
    positions = snapshot.incidence.entity_positions(ids)
    return [key for key, at in zip(ids, positions.tolist(), strict=True) if at >= 0]


def _tied(snapshot: Snapshot, relation_ids: Sequence[int]) -> list[int]:
    """The entities of some relations, those among them that another document introduced."""
    positions = snapshot.incidence.relation_positions(relation_ids)
    held = snapshot.incidence.matrix[positions[positions >= 0]].indices
    found: list[int] = snapshot.incidence.entity_ids[np.unique(held)].tolist()
    return found


def _close(what: str, snapshot: Snapshot) -> tuple[str, ...]:
    """Names that are spelled nearly so, or that it is a part of, the closest first."""
    names = {snapshot.lexicon.name(key) for key in snapshot.incidence.entity_ids.tolist()}
    found = process.extract(
        normalize_name(what), sorted(names), scorer=fuzz.WRatio, limit=_MOST_ALIKE, score_cutoff=_ALIKE
    )
    return tuple(name for name, _, _ in found)


def _place(text: str, relation: str) -> tuple[int, str]:
    """Where in its passage a sentence stands; triples, which need not stand there, come after."""
    at = text.find(relation)
    return (at if at >= 0 else len(text), relation)


def _relation(row: Mapping[str, Any]) -> ShownRelation:
    return ShownRelation(
        str(row["id"]),
        str(row["text"]),
        str(row["predicate"]),
        tuple(map(str, row["names"])),
        str(row["passage_id"]),
        str(row["doc_id"]),
        str(row["title"]),
    )


def _passage(passage_id: int, row: Mapping[str, Any]) -> ShownPassage:
    return ShownPassage(
        str(passage_id),
        str(row["doc_id"]),
        str(row["title"]),
        str(row["text"]),
        int(row["position"]),
        dict(row["metadata"] or {}),
    )
