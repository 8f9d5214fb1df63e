"""What retrieval holds in memory of a workspace: the incidence and the names, derived from relation rows alone.

Entities that no relation holds are not in it, so what is left behind by a deleted document is invisible.
A sentence is also tied to every name that it mentions and that another document introduced; a triple is
not, since its ends are known exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from graphrag_milvus.graph import Incidence, PassageGraph
from graphrag_milvus.names import title_name
from graphrag_milvus.retrieval.lexicon import Lexicon
from graphrag_milvus.store import MilvusStore
from graphrag_milvus.types import entity_id

__all__ = ["Snapshot", "SnapshotSource", "Snapshots", "derive"]


@dataclass(frozen=True)
class Snapshot:
    """The graph of a workspace at one revision.

    Attributes:
        graph: the incidence with the passages, those without relations among them.
        lexicon: the names of those entities.
        passages_of_entity: int64, shape (entities,): how many passages mention each entity.
        sentences: how many relations of the workspace are sentences, and not triples.
    """

    graph: PassageGraph
    lexicon: Lexicon
    passages_of_entity: npt.NDArray[np.int64]
    sentences: int

    @property
    def incidence(self) -> Incidence:
        """Relations by entities."""
        return self.graph.incidence


@dataclass
class SnapshotSource:
    """The newest snapshot of a workspace, derived again when the workspace's revision has changed.

    With a filter it is the part that the filter leaves; the last few parts are kept.
    """

    store: MilvusStore
    kept_filters: int = 8
    _revision: str | None = None
    _snapshots: dict[str, Snapshot] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, filter: str = "", revision: str | None = None) -> Snapshot:
        """The snapshot of what `filter` (a Milvus expression on passages) leaves; all where it is empty.

        Args:
            revision: the workspace's, where it was read already.
        """
        with self._lock:
            if revision is None or revision != self._revision:  # another question may have seen a newer one
                revision = self.store.revision()
            if revision != self._revision:
                self._snapshots.clear()
                self._revision = revision
            if "" not in self._snapshots:
                self._snapshots[""] = derive(self.store)
            if filter not in self._snapshots:
                self._keep(filter, _restrict(self._snapshots[""], self.store, filter))
            return self._snapshots[filter]

    def _keep(self, filter: str, snapshot: Snapshot) -> None:
        parts = [name for name in self._snapshots if name]
        for oldest in parts[: max(0, len(parts) + 1 - self.kept_filters)]:
            del self._snapshots[oldest]
        self._snapshots[filter] = snapshot


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of one question, which saw the workspace at one revision."""

    source: SnapshotSource
    revision: str

    def get(self, filter: str = "") -> Snapshot:
        """As `SnapshotSource.get`, without asking Milvus for the revision."""
        return self.source.get(filter, self.revision)


def derive(store: MilvusStore) -> Snapshot:
    """Read all relation rows and tie sentences to the names that they mention."""
    relation_ids: list[int] = []
    passage_ids: list[int] = []
    entities: list[list[int]] = []
    lexicon = Lexicon()
    for row in store.iterate("relations", ["passage_id", "entity_ids", "names"]):
        relation_ids.append(int(row["id"]))
        passage_ids.append(int(row["passage_id"]))
        entities.append([int(e) for e in row["entity_ids"]])
        for key, name in zip(row["entity_ids"], row["names"], strict=False):
            lexicon.add(str(name), int(key))
    place = {relation_id: n for n, relation_id in enumerate(relation_ids)}
    sentences = 0
    for relation_id, mentioned in _mentions(store, lexicon):
        sentences += 1
        if relation_id in place:
            entities[place[relation_id]].extend(mentioned)
    graph = _with_passages(Incidence.from_rows(relation_ids, passage_ids, entities), store)
    return Snapshot(graph, lexicon, _passages_of_entity(graph.incidence), sentences)


def _with_passages(incidence: Incidence, store: MilvusStore) -> PassageGraph:
    """The incidence with all passages; the subject of one is the entity that its title names, if there is one."""
    titles = {int(row["id"]): str(row["title"]) for row in store.iterate("passages", ["title"])}
    for orphan in set(incidence.passage_ids.tolist()) - set(titles):
        titles[orphan] = ""  # its relations are about to be deleted, or it about to be written
    ids = np.array(sorted(titles), dtype=np.int64)
    names = [title_name(titles[passage]) for passage in ids.tolist()]
    about = incidence.entity_positions([entity_id(name) if name else -1 for name in names])
    return PassageGraph(incidence, ids, about)


def _mentions(store: MilvusStore, lexicon: Lexicon) -> Iterator[tuple[int, list[int]]]:
    """Each sentence with the names that stand in it."""
    for row in store.iterate("relations", ["text"], filter='predicate == ""'):
        yield int(row["id"]), [mention.entity_id for mention in lexicon.match(row["text"], respect_case=True)]


def _passages_of_entity(incidence: Incidence) -> npt.NDArray[np.int64]:
    """How many distinct passages hold each entity."""
    rows, columns = incidence.matrix.nonzero()
    _, passages = np.unique(incidence.passage_ids, return_inverse=True)
    width = int(passages.max(initial=0)) + 1
    pairs = np.unique(columns.astype(np.int64) * width + passages[rows])
    return np.bincount(pairs // width, minlength=len(incidence.entity_ids)).astype(np.int64)


def _restrict(snapshot: Snapshot, store: MilvusStore, filter: str) -> Snapshot:
    allowed = np.fromiter((int(row["id"]) for row in store.iterate("passages", [], filter=filter)), dtype=np.int64)
    graph = snapshot.graph.within(allowed)
    return replace(snapshot, graph=graph, passages_of_entity=_passages_of_entity(graph.incidence))
