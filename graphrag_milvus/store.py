"""MilvusStore: the collections of one workspace, on an embedded database or on a server.

Keys and joins are 63-bit integers everywhere, because engines disagree on how a quoted text is unescaped
in a filter, and a number has no quotes. The workspace's own record (embedding model, dimension, revision)
is the row with id 0 of the `documents` collection, since embedded engines keep no collection properties.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from pymilvus import MilvusClient, MilvusException

from graphrag_milvus.connection import about_a_filter, connect, first_line, lite_line, release
from graphrag_milvus.creation import Creation
from graphrag_milvus.errors import IdCollisionError, InputError, StoreError, WorkspaceMismatchError
from graphrag_milvus.hits import Hit, best_first, count_request, hits
from graphrag_milvus.layout import (
    COLLECTIONS,
    MAX_BYTES,
    MAX_ID_BYTES,
    OPTIONAL,
    OWNERS,
    WINDOW,
    Collection,
    blank_row,
    check_row,
    loaded,
    slug,
    stored,
)
from graphrag_milvus.settings import MilvusSettings

__all__ = ["COLLECTIONS", "MAX_BYTES", "MAX_ID_BYTES", "WINDOW", "Collection", "MilvusStore"]

_UPSERT_BYTES = 8 << 20
_BATCH = 5_000
"""Rows that are read at once."""
_IDS = 5_000
"""Ids that one filter names, where many are asked for."""
_READ_BYTES = 16 << 20
"""Vectors that are read at once."""
_META_ID = 0
_UNSEEN = 5.0  # seconds; a server's clock ticks five times in one
_FORMAT = 1


_writing = threading.Lock()


@dataclass
class MilvusStore:
    """The collections `documents`, `passages`, `entities` and `relations` of one workspace.

    Nothing happens until the first request. `open` makes what is missing and checks that the workspace
    was built with the same embedding model; the methods that read give nothing where there is no workspace.
    One process owns an embedded database at a time; a server takes any number of clients.

    Args:
        settings: where Milvus is.
        workspace: any text; its collections are kept apart from those of every other workspace.

    Raises:
        SettingsError: the URI or the workspace cannot be used.
        StoreUnavailableError: nobody answers at the URI, or the file is in use.
    """

    settings: MilvusSettings = field(default_factory=MilvusSettings)
    workspace: str = "default"

    @cached_property
    def client(self) -> MilvusClient:
        """The connection, made at first use."""
        for name in ("pymilvus", "grpc._server"):  # they log a traceback for each error, foreseen or not
            logging.getLogger(name).setLevel(logging.CRITICAL)
        return connect(self.settings)

    @property
    def uri(self) -> str:
        """Where the collections live."""
        return self.settings.uri

    # Workspace

    def exists(self) -> bool:
        """True where this workspace was made before."""
        return self._has("documents") and self.meta() is not None

    def open(self, *, model: str, dimension: int) -> None:
        """Make the collections that are missing and check what the workspace was built with.

        Args:
            model: the name of the embedding model, as the embedder tells it.
            dimension: the length of its vectors.

        Raises:
            WorkspaceMismatchError: the workspace holds vectors of another model or dimension.
        """
        meta = self.meta()
        if meta is None:
            self._create_all(dimension)
            self._write_meta({"workspace": self.workspace, "model": model, "dimension": dimension, "format": _FORMAT})
        else:
            self.check(model=model, dimension=dimension)
            self._create_all(dimension)

    def keep_enrichments(self) -> None:
        """Make the collection of enrichments in an open workspace, and note that it has one."""
        meta = self.meta() or {}
        self._create_all(self._dimension, OPTIONAL)
        if not self.is_enriched(meta):
            self._write_meta({**meta, "enriched": True})

    def is_enriched(self, meta: Mapping[str, Any] | None = None) -> bool:
        """True where the workspace has a collection of enrichments.

        Args:
            meta: the workspace's record, where it was read already.
        """
        meta = self.meta() if meta is None else meta
        return meta is not None and bool(meta.get("enriched"))

    def check(self, *, model: str, dimension: int, meta: Mapping[str, Any] | None = None) -> None:
        """Raise `WorkspaceMismatchError` where the workspace was built with another model.

        Args:
            meta: the workspace's record, where it was read already.
        """
        meta = self.meta() if meta is None else meta
        if meta is None or (meta.get("model"), meta.get("dimension")) == (model, dimension):
            return
        raise WorkspaceMismatchError(
            f"workspace {self.workspace!r} at {self.uri} was built with embedding model {meta.get('model')!r} "
            f"({meta.get('dimension')} dimensions) and is opened with {model!r} ({dimension} dimensions); "
            f"set GRAPHRAG_EMBEDDING__PROVIDER and GRAPHRAG_EMBEDDING__MODEL to the first, or use another workspace"
        )

    def meta(self) -> dict[str, Any] | None:
        """The workspace's own record, or None where there is no workspace."""
        if not self._has("documents"):
            return None
        rows = self.get("documents", [_META_ID], ["metadata"])
        return dict(rows[_META_ID]["metadata"]) if _META_ID in rows else None

    def revision(self, meta: Mapping[str, Any] | None = None) -> str:
        """A text that is another one after each change that `touch` marked; empty without a workspace.

        Args:
            meta: the workspace's record, where it was read already.
        """
        meta = self.meta() if meta is None else meta
        return "" if meta is None else str(meta.get("revision", "0"))

    def touch(self) -> None:
        """Mark that rows changed, so that what was derived from them elsewhere is derived anew."""
        meta = self.meta()
        if meta is not None:
            self._write_meta({**meta, "revision": f"{time.time_ns()}"})

    def drop(self) -> None:
        """Delete the collections of the workspace with everything in them."""
        for collection in (*COLLECTIONS, *(c for c in OPTIONAL if self._exists(c))):
            self._request("drop", collection, self.client.drop_collection)
        self._forget()

    def close(self) -> None:
        """Let go of the connection, and of the embedded database when nobody else in this process uses it."""
        if "client" not in self.__dict__:
            return
        self.client.close()
        del self.__dict__["client"]
        self._forget()
        if self.settings.embedded:
            release(self.settings.uri)

    # Rows

    def upsert(self, collection: Collection, rows: Iterable[Mapping[str, Any]]) -> int:
        """Write rows, replacing those with the same ids, in batches; how many there were.

        Args:
            rows: one mapping a row with every field of the collection; `vector` is a float32 array of length one.

        Raises:
            InputError: a text is longer than its field.
            StoreError: Milvus refused a batch.
        """
        written = 0
        for batch in self._batches(collection, rows):
            self._put(collection, batch)
            written += len(batch)
        return written

    def _put(self, collection: Collection, batch: Sequence[Mapping[str, Any]]) -> None:
        """Write one batch. Embedded, an upsert takes the longer the more is stored, and an insert does not."""
        if not self.settings.embedded:
            self._request("upsert", collection, lambda name: self.client.upsert(name, data=batch))
            return
        rows = {int(row["id"]): row for row in batch}
        with _writing:  # the file is this process's own, so that nobody else writes between the look and the insert
            here = self.get(collection, list(rows), [])
            new = [row for row_id, row in rows.items() if row_id not in here]
            old = [row for row_id, row in rows.items() if row_id in here]
            if new:
                self._request("insert", collection, lambda name: self.client.insert(name, data=new))
            if old:
                self._request("upsert", collection, lambda name: self.client.upsert(name, data=old))

    def refuse_collisions(self, collection: Collection, owners: Mapping[int, Any]) -> set[int]:
        """Which of the ids are stored already; raise where one of them is stored for other content.

        Args:
            owners: for each id about to be written, its owner's value (the name of an entity, the
                document of a passage or relation, the id of a document as text).
        """
        key = OWNERS[collection]
        stored = self.get(collection, list(owners), [key])
        for row_id, row in stored.items():
            if row[key] != owners[row_id]:
                raise IdCollisionError(
                    f"id {row_id} in {collection} belongs to {key}={row[key]!r} and was to be written for "
                    f"{owners[row_id]!r}; change that text by a character and index again"
                )
        return set(stored)

    def delete(self, collection: Collection, *, ids: Sequence[int] | None = None, filter: str = "") -> None:
        """Delete rows by id, or all that a filter selects; deleting nothing is no error."""
        if not self._has(collection):
            return
        if ids is None:
            self._delete(collection, filter=filter)
            return
        for chunk in _chunks(list(ids), 1_000):
            self._delete(collection, ids=chunk)

    def get(self, collection: Collection, ids: Sequence[int], fields: Sequence[str]) -> dict[int, dict[str, Any]]:
        """Rows by id; ids that are not there are left out."""
        if not ids or not self._has(collection):
            return {}
        # Milvus Lite 2.5 goes through a large collection for rows by id; under a filter, its search does not.
        if self.settings.embedded and lite_line() < 3 and collection in ("entities", "relations"):
            anything = np.eye(1, self._dimension, dtype=np.float32)[0]
            return {hit.id: {"id": hit.id, **hit.row} for hit in self.score(collection, ids, anything, fields)}
        rows = (row for chunk in _chunks(list(ids), 1_000) for row in self._query_ids(collection, chunk, fields))
        return {int(row["id"]): loaded(row) for row in rows}

    def _query_ids(self, collection: Collection, ids: list[int], fields: Sequence[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._request(
            "get",
            collection,
            lambda name: self.client.query(
                name, ids=ids, output_fields=["id", *fields], **self._consistency(collection)
            ),
        )
        return found

    def query(self, collection: Collection, filter: str, fields: Sequence[str]) -> list[dict[str, Any]]:
        """All rows that a filter selects, however many, in the order of their ids."""
        return sorted(self.iterate(collection, fields, filter=filter), key=lambda row: int(row["id"]))

    def iterate(
        self, collection: Collection, fields: Sequence[str], *, filter: str = "", batch_size: int = _BATCH
    ) -> Iterator[dict[str, Any]]:
        """Every row, past Milvus's window for one query, in no particular order."""
        for rows in self._pages(collection, filter, fields, batch_size):
            yield from (loaded(row) for row in rows if collection != "documents" or int(row["id"]) != _META_ID)

    def _pages(
        self, collection: Collection, filter: str, fields: Sequence[str], batch_size: int
    ) -> Iterator[list[dict[str, Any]]]:
        """All rows in pages. What fits one request is had by one: a server takes a second to start an iterator."""
        if not self._has(collection):
            return
        options: dict[str, Any] = {"filter": filter, "output_fields": ["id", *fields], **self._consistency(collection)}
        rows = self._request("query", collection, lambda name: self.client.query(name, limit=batch_size, **options))
        if len(rows) < batch_size:
            yield rows
            return
        iterator = self._request(
            "iterate", collection, lambda name: self.client.query_iterator(name, batch_size=batch_size, **options)
        )
        try:
            while rows := self._request("iterate", collection, lambda _: iterator.next()):
                yield rows
        finally:
            iterator.close()

    def count(self, collection: Collection, filter: str = "") -> int:
        """How many rows there are, or how many a filter selects."""
        if not self._has(collection):
            return 0
        if collection == "documents":
            filter = f"({filter}) and id != {_META_ID}" if filter else f"id != {_META_ID}"
        rows = self._request(
            "count",
            collection,
            lambda name: self.client.query(
                name, filter=filter, output_fields=["count(*)"], **self._consistency(collection)
            ),
        )
        return int(rows[0]["count(*)"])

    def flush(self) -> None:
        """Seal what was written, so that it is indexed; worth its time after bulk work only."""
        for collection in (*COLLECTIONS, *OPTIONAL):
            if self._has(collection):
                self._request("flush", collection, self.client.flush)

    # Search

    def search(
        self,
        collection: Collection,
        vectors: np.ndarray,
        limit: int,
        *,
        filter: str = "",
        fields: Sequence[str] = (),
    ) -> list[list[Hit]]:
        """The rows with the largest cosine, best first, for each vector.

        Args:
            vectors: float32, shape (queries, dimension), of length one, as all that is stored.
            limit: rows for each query; at most `WINDOW`.
            filter: a Milvus expression, applied inside the search.
        """
        _check_limit(limit)
        if limit == 0 or not len(vectors) or not self._has(collection):
            return [[] for _ in range(len(vectors))]
        found = self._request(
            "search",
            collection,
            lambda name: self.client.search(
                name,
                data=list(vectors),
                anns_field="vector",
                limit=limit,
                filter=filter,
                output_fields=list(fields),
                **self._consistency(collection),
            ),
        )
        return [hits(one) for one in found]

    def score(
        self,
        collection: Collection,
        ids: Sequence[int],
        vector: np.ndarray,
        fields: Sequence[str] = (),
        *,
        filter: str = "",
        limit: int | None = None,
    ) -> list[Hit]:
        """The rows of some ids with their cosine, best first: all that are there, or the best `limit` of them.

        Exact on every engine. A server's index is approximate, and under a filter that leaves few rows a search in it
        passes over some that are there: from a server rows come with their vectors and are compared here.

        Args:
            vector: float32, shape (dimension,).
            filter: a Milvus expression that the rows have to meet, too.
        """
        if not ids or not self._has(collection):
            return []
        scored = self._searched if self.settings.embedded else self._compared
        size = _IDS if self.settings.embedded else max(1, min(_IDS, _READ_BYTES // (4 * len(vector))))
        found: list[Hit] = []
        for chunk in _chunks(list(ids), size):
            where = f"id in {chunk}" + (f" and ({filter})" if filter else "")
            found += scored(collection, vector, len(chunk) if limit is None else min(limit, len(chunk)), where, fields)
        return best_first(found)[:limit]

    def _searched(
        self, collection: Collection, vector: np.ndarray, limit: int, filter: str, fields: Sequence[str]
    ) -> list[Hit]:
        return self.search(collection, vector[None], limit, filter=filter, fields=fields)[0]

    def _compared(
        self, collection: Collection, vector: np.ndarray, limit: int, filter: str, fields: Sequence[str]
    ) -> list[Hit]:
        rows = self._request(
            "get",
            collection,
            lambda name: self.client.query(
                name, filter=filter, output_fields=["id", "vector", *fields], **self._consistency(collection)
            ),
        )
        scored = (Hit(int(row.pop("id")), float(np.dot(row.pop("vector"), vector)), loaded(row)) for row in rows)
        return best_first(scored)[:limit]

    @property
    def has_bm25(self) -> bool:
        """True where the engine ranks words (BM25) in this workspace's passages."""
        return self._has("passages") and "sparse" in self._field_names

    def search_words(self, text: str, limit: int, *, filter: str = "", fields: Sequence[str] = ()) -> list[Hit]:
        """Passages by BM25, best first, with positive scores.

        Raises:
            StoreError: the engine has no BM25; see `has_bm25`.
        """
        _check_limit(limit)
        if limit == 0 or not text.strip() or not self._has("passages"):
            return []
        if not self.has_bm25:
            raise StoreError(f"the engine at {self.uri} has no BM25 (Milvus 2.5 and later have); use dense search")
        found = self._request(
            "search",
            "passages",
            lambda name: self.client.search(
                name,
                data=[text],
                anns_field="sparse",
                limit=limit,
                filter=filter,
                output_fields=list(fields),
                **self._consistency("passages"),
            ),
        )
        return hits(found[0], score=abs)  # one embedded engine gives BM25 scores below zero

    # Inside

    def collection_name(self, collection: Collection) -> str:
        """The name of a collection in Milvus, which takes ASCII letters, digits and `_` only."""
        return f"graphrag_{slug(self.workspace)}_{collection}"

    @cached_property
    def _present(self) -> set[str]:
        return set()

    @cached_property
    def _deleted_at(self) -> dict[str, float]:
        return {}

    def _delete(self, collection: Collection, **which: Any) -> None:
        self._deleted_at[collection] = time.monotonic()
        self._request("delete", collection, lambda name: self.client.delete(name, **which))

    def _consistency(self, collection: Collection) -> dict[str, str]:
        """Strong for a while after a deletion: servers tell no time for it, so that Session would not wait for it."""
        since = time.monotonic() - self._deleted_at.get(collection, -_UNSEEN)
        return {"consistency_level": "Strong"} if since < _UNSEEN and not self.settings.embedded else {}

    @cached_property
    def _field_names(self) -> set[str]:
        described = self._request("describe", "passages", self.client.describe_collection)
        return {str(f["name"]) for f in described["fields"]}

    @cached_property
    def _dimension(self) -> int:
        return int((self.meta() or {})["dimension"])

    def _forget(self) -> None:
        for name in ("_present", "_field_names", "_dimension"):
            self.__dict__.pop(name, None)

    def _has(self, collection: Collection) -> bool:
        """True where the collection exists; what was seen once is not asked for again."""
        if collection in self._present:
            return True
        if not self._exists(collection):
            return False
        # An embedded engine may give collections back unloaded when its file is opened again.
        self._request("load", collection, self.client.load_collection)
        self._present.add(collection)
        return True

    def _exists(self, collection: Collection) -> bool:
        return bool(self._request("look for", collection, self.client.has_collection))

    def _create_all(self, dimension: int, collections: Sequence[Collection] = COLLECTIONS) -> None:
        creation = Creation(self.client, self.settings.embedded, self._request)
        for collection in collections:
            if collection not in self._present and not self._exists(collection):
                creation.create(collection, dimension)
        with ThreadPoolExecutor(len(collections)) as pool:  # a server takes two seconds to load each
            list(pool.map(self._has, collections))

    def _write_meta(self, meta: Mapping[str, Any]) -> None:
        vector = np.zeros(int(meta["dimension"]), dtype=np.float32)
        vector[0] = 1.0
        self.upsert("documents", [{**blank_row("documents"), "id": _META_ID, "metadata": dict(meta), "vector": vector}])

    def _batches(self, collection: Collection, rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
        batch: list[Mapping[str, Any]] = []
        size = 0
        for row in rows:
            row_bytes = check_row(collection, row)
            if batch and (len(batch) >= self.settings.batch_size or size + row_bytes > _UPSERT_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(stored(collection, row))
            size += row_bytes
        if batch:
            yield batch

    def _request(self, verb: str, collection: Collection | None, call: Any) -> Any:
        """Send one request, count it, and turn what Milvus raises into our errors."""
        count_request()
        name = "" if collection is None else self.collection_name(collection)
        try:
            return call(name)
        except MilvusException as error:
            if about_a_filter(error):
                raise InputError(f"Milvus does not understand the filter ({first_line(error)})") from None
            raise StoreError(f"could not {verb} {collection or 'Milvus'} at {self.uri}: {first_line(error)}") from error


def _check_limit(limit: int) -> None:
    if not 0 <= limit <= WINDOW:
        raise InputError(f"{limit} rows were asked for; a search gives from 0 to {WINDOW:,} (Milvus's window)")


def _chunks(items: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
