"""MilvusStore: the four collections of one workspace, on an embedded database or on a server.

Keys and joins are 63-bit integers everywhere, because engines disagree on how a quoted text is unescaped
in a filter, and a number has no quotes. The workspace's own record (embedding model, dimension, revision)
is the row with id 0 of the `documents` collection, since embedded engines keep no collection properties.
"""

from __future__ import annotations

import contextvars
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pymilvus import DataType, Function, FunctionType, MilvusClient, MilvusException

from graphrag_milvus.errors import (
    IdCollisionError,
    InputError,
    SettingsError,
    StoreError,
    StoreUnavailableError,
    WorkspaceMismatchError,
)
from graphrag_milvus.settings import MilvusSettings
from graphrag_milvus.types import content_hash

__all__ = ["COLLECTIONS", "MAX_BYTES", "MAX_ID_BYTES", "WINDOW", "Collection", "Hit", "MilvusStore", "RoundTrips"]

Collection = Literal["documents", "passages", "entities", "relations"]
COLLECTIONS: tuple[Collection, ...] = ("documents", "passages", "entities", "relations")

MAX_BYTES = 65_535
"""Milvus counts the length of a VARCHAR in UTF-8 bytes and takes no more than this."""
MAX_ID_BYTES = 1_024
WINDOW = 16_384
"""Rows that one query or search gives at the most; beyond that a collection is iterated."""

_UPSERT_BYTES = 8 << 20
_META_ID = 0
_FORMAT = 1
_INT, _TEXT, _JSON = DataType.INT64, DataType.VARCHAR, DataType.JSON

_FIELDS: dict[Collection, tuple[tuple[str, DataType, int], ...]] = {
    "documents": (
        ("doc_id", _TEXT, MAX_ID_BYTES),
        ("title", _TEXT, MAX_BYTES),
        ("source", _TEXT, MAX_BYTES),
        ("hash", _TEXT, 64),
        ("passages", _INT, 0),
        ("relations", _INT, 0),
        ("indexed_at", _INT, 0),
        ("metadata", _JSON, 0),
    ),
    "passages": (
        ("doc", _INT, 0),
        ("doc_id", _TEXT, MAX_ID_BYTES),
        ("title", _TEXT, MAX_BYTES),
        ("text", _TEXT, MAX_BYTES),
        ("position", _INT, 0),
        ("recipe", _TEXT, 64),
        ("relations", _INT, 0),
        ("metadata", _JSON, 0),
    ),
    "entities": (("name", _TEXT, MAX_BYTES), ("type", _TEXT, 1_024)),
    "relations": (
        ("doc", _INT, 0),
        ("doc_id", _TEXT, MAX_ID_BYTES),
        ("passage_id", _INT, 0),
        ("title", _TEXT, MAX_BYTES),
        ("text", _TEXT, MAX_BYTES),
        ("predicate", _TEXT, MAX_BYTES),
        ("entity_ids", _JSON, 0),
        ("names", _JSON, 0),
        ("metadata", _JSON, 0),
    ),
}
_SCALAR_INDEXES: dict[Collection, tuple[str, ...]] = {
    "documents": (),
    "passages": ("doc",),
    "entities": (),
    "relations": ("doc", "passage_id"),
}
_OWNER: dict[Collection, str] = {"documents": "doc_id", "passages": "doc", "entities": "name", "relations": "doc"}


@dataclass(frozen=True, slots=True)
class Hit:
    """One row that a search found; `score` is larger for the better hit, on every engine."""

    id: int
    score: float
    row: Mapping[str, Any]


@dataclass(slots=True)
class RoundTrips:
    """How many requests went to Milvus while this was counting."""

    count: int = 0


_counter: contextvars.ContextVar[RoundTrips | None] = contextvars.ContextVar("round_trips", default=None)
_open_files: Counter[str] = Counter()


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
        return _connect(self.settings)

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

    def check(self, *, model: str, dimension: int) -> None:
        """Raise `WorkspaceMismatchError` where the workspace was built with another model."""
        meta = self.meta()
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

    def revision(self) -> str:
        """A text that is another one after each change that `touch` marked; empty without a workspace."""
        meta = self.meta()
        return "" if meta is None else str(meta.get("revision", "0"))

    def touch(self) -> None:
        """Mark that rows changed, so that what was derived from them elsewhere is derived anew."""
        meta = self.meta()
        if meta is not None:
            self._write_meta({**meta, "revision": f"{time.time_ns()}"})

    def drop(self) -> None:
        """Delete the four collections with everything in them."""
        for collection in COLLECTIONS:
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
            _release_file(self.settings.uri)

    # Rows

    def upsert(self, collection: Collection, rows: Iterable[Mapping[str, Any]]) -> int:
        """Write rows, replacing those with the same ids, in batches; how many there were.

        Args:
            rows: one mapping a row with every field of the collection; `vector` is a float32 array.

        Raises:
            InputError: a text is longer than its field.
            StoreError: Milvus refused a batch.
        """
        written = 0
        for batch in self._batches(collection, rows):
            self._request("upsert", collection, lambda name, data=batch: self.client.upsert(name, data=data))
            written += len(batch)
        return written

    def refuse_collisions(self, collection: Collection, owners: Mapping[int, Any]) -> set[int]:
        """Which of the ids are stored already; raise where one of them is stored for other content.

        Args:
            owners: for each id about to be written, its owner's value (the name of an entity, the
                document of a passage or relation, the id of a document as text).
        """
        key = _OWNER[collection]
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
            self._request("delete", collection, lambda name: self.client.delete(name, filter=filter))
            return
        for chunk in _chunks(list(ids), 1_000):
            self._request("delete", collection, lambda name, part=chunk: self.client.delete(name, ids=part))

    def get(self, collection: Collection, ids: Sequence[int], fields: Sequence[str]) -> dict[int, dict[str, Any]]:
        """Rows by id; ids that are not there are left out."""
        if not ids or not self._has(collection):
            return {}
        found: dict[int, dict[str, Any]] = {}
        for chunk in _chunks(list(ids), 1_000):
            rows = self._request(
                "get",
                collection,
                lambda name, part=chunk: self.client.query(name, ids=part, output_fields=["id", *fields]),
            )
            found.update((int(row["id"]), dict(row)) for row in rows)
        return found

    def query(self, collection: Collection, filter: str, fields: Sequence[str]) -> list[dict[str, Any]]:
        """All rows that a filter selects, however many, in the order of their ids."""
        rows = list(self.iterate(collection, fields, filter=filter))
        return sorted(rows, key=lambda row: int(row["id"]))

    def iterate(
        self, collection: Collection, fields: Sequence[str], *, filter: str = "", batch_size: int = 5_000
    ) -> Iterator[dict[str, Any]]:
        """Every row, past Milvus's window for one query, in no particular order."""
        if not self._has(collection):
            return
        iterator = self._request(
            "iterate",
            collection,
            lambda name: self.client.query_iterator(
                name, batch_size=batch_size, filter=filter, output_fields=["id", *fields]
            ),
        )
        try:
            while rows := self._request("iterate", collection, lambda _: iterator.next()):
                yield from (row for row in rows if collection != "documents" or int(row["id"]) != _META_ID)
        finally:
            iterator.close()

    def count(self, collection: Collection, filter: str = "") -> int:
        """How many rows there are, or how many a filter selects."""
        if not self._has(collection):
            return 0
        if collection == "documents":
            filter = f"({filter}) and id != {_META_ID}" if filter else f"id != {_META_ID}"
        rows = self._request(
            "count", collection, lambda name: self.client.query(name, filter=filter, output_fields=["count(*)"])
        )
        return int(rows[0]["count(*)"])

    def flush(self) -> None:
        """Seal what was written, so that it is indexed; worth its time after bulk work only."""
        for collection in COLLECTIONS:
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
            vectors: float32, shape (queries, dimension).
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
            ),
        )
        return [_hits(hits) for hits in found]

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
                name, data=[text], anns_field="sparse", limit=limit, filter=filter, output_fields=list(fields)
            ),
        )
        return _hits(found[0], score=abs)  # one embedded engine gives BM25 scores below zero

    @contextmanager
    def counting(self) -> Iterator[RoundTrips]:
        """Count the requests that this thread of work sends inside the `with` block."""
        counter = RoundTrips()
        token = _counter.set(counter)
        try:
            yield counter
        finally:
            _counter.reset(token)

    # Inside

    def collection_name(self, collection: Collection) -> str:
        """The name of a collection in Milvus, which takes ASCII letters, digits and `_` only."""
        return f"graphrag_{_slug(self.workspace)}_{collection}"

    @cached_property
    def _present(self) -> set[str]:
        return set()

    @cached_property
    def _field_names(self) -> set[str]:
        described = self._request("describe", "passages", self.client.describe_collection)
        return {str(f["name"]) for f in described["fields"]}

    def _forget(self) -> None:
        for name in ("_present", "_field_names"):
            self.__dict__.pop(name, None)

    def _has(self, collection: Collection) -> bool:
        """True where the collection exists; what was seen once is not asked for again."""
        if collection in self._present:
            return True
        if not self._request("look for", collection, self.client.has_collection):
            return False
        # An embedded engine may give collections back unloaded when its file is opened again.
        self._request("load", collection, self.client.load_collection)
        self._present.add(collection)
        return True

    def _create_all(self, dimension: int) -> None:
        for collection in COLLECTIONS:
            if not self._has(collection):
                self._create(collection, dimension)

    def _create(self, collection: Collection, dimension: int) -> None:
        """Make a collection with its indexes; one whose indexes are refused is not left behind."""
        bm25 = collection == "passages" and self._engine_may_have_bm25()
        try:
            self._create_as(collection, dimension, bm25=bm25)
        except StoreError:
            self._request("drop", collection, self.client.drop_collection)
            if not bm25:
                raise
            self._create_as(collection, dimension, bm25=False)
        self._has(collection)

    def _create_as(self, collection: Collection, dimension: int, *, bm25: bool) -> None:
        schema = _schema(collection, dimension, bm25=bm25)
        self._request(
            "create",
            collection,
            lambda name: self.client.create_collection(name, schema=schema, consistency_level="Session"),
        )
        self._index(collection, "vector", index_type="AUTOINDEX", metric_type="COSINE")
        if bm25:
            self._index(collection, "sparse", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
        for field_name in _SCALAR_INDEXES[collection]:
            self._index_number(collection, field_name)

    def _index_number(self, collection: Collection, field_name: str) -> None:
        """Index a number with what the engine has: INVERTED since 2.4, a sorted list before."""
        try:
            self._index(collection, field_name, index_type="INVERTED")
        except StoreError:
            self._index(collection, field_name, index_type="STL_SORT")

    def _index(self, collection: Collection, field_name: str, **options: str) -> None:
        """Index a field that holds nothing yet, without the client's half second of waiting for it."""
        index = self.client.prepare_index_params()
        index.add_index(field_name, **options)
        self._request("index", collection, lambda name: self.client.create_index(name, index, sync=False))

    def _engine_may_have_bm25(self) -> bool:
        if self.settings.embedded:
            return True
        version = str(self._request("ask the version of", None, lambda _: self.client.get_server_version()))
        numbers = [int(part) for part in version.lstrip("v").split("-")[0].split(".")[:2] if part.isdigit()]
        return len(numbers) < 2 or numbers >= [2, 5]

    def _write_meta(self, meta: Mapping[str, Any]) -> None:
        vector = np.zeros(int(meta["dimension"]), dtype=np.float32)
        vector[0] = 1.0
        row: dict[str, Any] = {name: "" if kind == _TEXT else 0 for name, kind, _ in _FIELDS["documents"]}
        self.upsert("documents", [{**row, "id": _META_ID, "metadata": dict(meta), "vector": vector}])

    def _batches(self, collection: Collection, rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
        batch: list[Mapping[str, Any]] = []
        size = 0
        for row in rows:
            row_bytes = _check_row(collection, row)
            if batch and (len(batch) >= self.settings.batch_size or size + row_bytes > _UPSERT_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(row)
            size += row_bytes
        if batch:
            yield batch

    def _request(self, verb: str, collection: Collection | None, call: Any) -> Any:
        """Send one request, count it, and turn what Milvus raises into our errors."""
        counter = _counter.get()
        if counter is not None:
            counter.count += 1
        name = "" if collection is None else self.collection_name(collection)
        try:
            return call(name)
        except MilvusException as error:
            if _about_a_filter(error):
                raise InputError(f"Milvus does not understand the filter ({_first_line(error)})") from None
            raise StoreError(
                f"could not {verb} {collection or 'Milvus'} at {self.uri}: {_first_line(error)}"
            ) from error


def _connect(settings: MilvusSettings) -> MilvusClient:
    if not settings.embedded:
        return _connect_server(settings)
    path = Path(settings.uri)
    if path.suffix != ".db":
        raise SettingsError(
            f"Milvus URI {settings.uri!r} is neither http(s)://host:port nor a file; name the file NAME.db"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + settings.connect_timeout
    while True:
        try:
            client = MilvusClient(str(path), timeout=settings.timeout)
        except MilvusException as error:
            # The engine of a process that was killed a moment ago may still hold the file.
            if time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            raise StoreUnavailableError(
                f"cannot open {settings.uri!r}: another process has it open, or another generation of milvus-lite "
                f"or no Milvus at all wrote it ({_first_line(error)}); close the other one, or choose another file"
            ) from error
        _open_files[str(path.resolve())] += 1
        return client


def _connect_server(settings: MilvusSettings) -> MilvusClient:
    token = settings.token.get_secret_value() if settings.token else ""
    try:
        client = MilvusClient(settings.uri, token=token, db_name=settings.database, timeout=settings.connect_timeout)
        client.list_collections(timeout=settings.connect_timeout)
    except MilvusException as error:
        raise StoreUnavailableError(
            f"nobody answers as Milvus at {settings.uri} within {settings.connect_timeout:g} s "
            f"({_first_line(error)}); start the server, or set GRAPHRAG_MILVUS__URI to a file such as ./graphrag.db"
        ) from error
    return client


def _release_file(uri: str) -> None:
    """Stop the embedded engine of a file that nobody in this process has open any more."""
    path = str(Path(uri).resolve())
    _open_files[path] -= 1
    if _open_files[path] > 0:
        return
    from milvus_lite.server_manager import server_manager_instance

    server_manager_instance.release_server(uri)


def _schema(collection: Collection, dimension: int, *, bm25: bool) -> Any:
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    for name, kind, length in _FIELDS[collection]:
        options: dict[str, Any] = {"max_length": length} if kind == _TEXT else {}
        if bm25 and name == "text":
            options["enable_analyzer"] = True
        schema.add_field(name, kind, **options)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
    if bm25:
        schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
        schema.add_function(
            Function(
                name="bm25",
                function_type=FunctionType.BM25,
                input_field_names=["text"],
                output_field_names=["sparse"],
            )
        )
    return schema


def _slug(workspace: str) -> str:
    """`workspace` where Milvus takes it as it is, else its ASCII part with a hash that tells it apart."""
    if not workspace.strip():
        raise SettingsError("the workspace has no name; set GRAPHRAG_WORKSPACE or --workspace to a text")
    if re.fullmatch(r"[A-Za-z0-9_]{1,64}", workspace):
        return workspace
    plain = re.sub(r"[^A-Za-z0-9]+", "_", workspace)[:40].strip("_")
    return f"{plain}_{content_hash('workspace', workspace)[:12]}"


def _check_limit(limit: int) -> None:
    if not 0 <= limit <= WINDOW:
        raise InputError(f"{limit} rows were asked for; a search gives from 0 to {WINDOW:,} (Milvus's window)")


def _check_row(collection: Collection, row: Mapping[str, Any]) -> int:
    """The size of a row in bytes; raise where Milvus would refuse or cut a value."""
    size = 4 * len(row["vector"])
    for name, kind, length in _FIELDS[collection]:
        if kind == _INT:
            continue
        text = row[name] if kind == _TEXT else json.dumps(row[name], ensure_ascii=False)
        used = len(text.encode("utf-8"))
        if used > (length or MAX_BYTES):
            raise InputError(
                f"{name} of a row in {collection} has {used:,} bytes, and Milvus keeps {length or MAX_BYTES:,}: "
                f"{text[:60]!r}...; shorten it"
            )
        size += used
    return size


def _hits(found: Iterable[Mapping[str, Any]], score: Callable[[float], float] = float) -> list[Hit]:
    """Hits in a fixed order: equal scores are ordered by id, so that every run gives the same."""
    hits = [Hit(int(h["id"]), score(h["distance"]), h.get("entity", {})) for h in found]
    return sorted(hits, key=lambda hit: (-hit.score, hit.id))


def _chunks(items: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _about_a_filter(error: MilvusException) -> bool:
    """True where a filter could not be understood: servers speak of an expr, one embedded engine of a column."""
    return re.search(r"\bexpr|expression|at column \d+", str(error), re.IGNORECASE) is not None


def _first_line(error: Exception) -> str:
    message = getattr(error, "message", "") or str(error)
    return message.strip().splitlines()[0][:300] if message.strip() else type(error).__name__
