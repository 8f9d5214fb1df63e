"""How collections come to be: with the indexes that the engine has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymilvus import MilvusClient

from graphrag_milvus.errors import StoreError
from graphrag_milvus.layout import SCALAR_INDEXES, Collection, make_schema

__all__ = ["Creation"]


@dataclass(frozen=True)
class Creation:
    """Makes collections.

    Args:
        embedded: True for a Milvus Lite file, False for a server.
        request: sends one request: takes what it does in a word, the collection, and a call with its name in Milvus;
            what the engine refuses is a `StoreError`.
    """

    client: MilvusClient
    embedded: bool
    request: Callable[[str, Collection | None, Callable[[str], Any]], Any]

    def create(self, collection: Collection, dimension: int) -> None:
        """Make a collection with its indexes; one whose indexes are refused is not left behind.

        Raises:
            StoreError: the engine refuses it.
        """
        bm25 = collection == "passages" and self._may_have_bm25()
        try:
            self._create(collection, dimension, bm25=bm25)
        except StoreError:
            self.request("drop", collection, self.client.drop_collection)
            if not bm25:
                raise
            self._create(collection, dimension, bm25=False)

    def _create(self, collection: Collection, dimension: int, *, bm25: bool) -> None:
        schema = make_schema(collection, dimension, bm25=bm25)
        self.request(
            "create",
            collection,
            lambda name: self.client.create_collection(name, schema=schema, consistency_level="Session"),
        )
        # Embedded, AUTOINDEX may be HNSW, which under a filter misses rows that are there; FLAT misses none.
        kind = "FLAT" if self.embedded else "AUTOINDEX"
        # All vectors have length one: the inner product is the cosine, and takes two thirds of the time.
        self._index(collection, "vector", index_type=kind, metric_type="IP")
        if bm25:
            self._index(collection, "sparse", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
        for field_name in SCALAR_INDEXES[collection]:
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
        self.request("index", collection, lambda name: self.client.create_index(name, index, sync=False))

    def _may_have_bm25(self) -> bool:
        if self.embedded:
            return True
        version = str(self.request("ask the version of", None, lambda _: self.client.get_server_version()))
        numbers = [int(part) for part in version.lstrip("v").split("-")[0].split(".")[:2] if part.isdigit()]
        return len(numbers) < 2 or numbers >= [2, 5]
