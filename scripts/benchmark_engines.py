"""Measures one embedded engine on this package's own access pattern; `benchmark.py --engines` runs it for each.

It knows Milvus only through `MilvusStore`, so it runs in every environment that has the package, with the
engine that is installed there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from benchmark_data import DIMENSION, memory_mb

from graphrag_milvus.settings import MilvusSettings
from graphrag_milvus.store import Collection, MilvusStore

WINDOW = 64  # documents in work at once, as the pipeline has them
PER_DOCUMENT, PER_ENTITY = 8, 2  # relations
REPEATS = 20
Row = dict[str, Any]


class Rows:
    """Rows of `n` synthetic relations with their passages and entities; the same in every run."""

    def __init__(self, n: int) -> None:
        self.rng = np.random.default_rng(0)
        self.ids = [int(i) >> 1 for i in self.rng.integers(1, 2**63 - 1, size=n)]
        self.entities = [i ^ 1 for i in self.ids[: max(n // PER_ENTITY, 1)]]
        self.passages = [i ^ 2 for i in self.ids[: max(n // PER_DOCUMENT, 1)]]
        self.words = [f"word{i}" for i in range(2_000)]

    def vectors(self, n: int) -> np.ndarray:
        """Float32, [n, d], of length one."""
        found = self.rng.standard_normal((n, DIMENSION), dtype=np.float32)
        return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))

    def text(self, words: int) -> str:
        return " ".join(self.rng.choice(self.words, size=words).tolist())

    def windows(self) -> Iterator[dict[Collection, list[Row]]]:
        """The rows of 64 documents at a time, as an indexing run writes them."""
        for start in range(0, len(self.passages), WINDOW):
            documents = range(start, min(start + WINDOW, len(self.passages)))
            first, last = documents.start * PER_DOCUMENT, documents.stop * PER_DOCUMENT
            entities = range(first // PER_ENTITY, min(last // PER_ENTITY, len(self.entities)))
            relations = range(first, min(last, len(self.ids)))
            yield {
                "entities": [self._entity(n, v) for n, v in self._with_vectors(entities)],
                "relations": [self._relation(n, v) for n, v in self._with_vectors(relations)],
                "passages": [self._passage(n, v) for n, v in self._with_vectors(documents)],
            }

    def _with_vectors(self, places: range) -> Iterator[tuple[int, np.ndarray]]:
        return zip(places, self.vectors(len(places)), strict=True)

    def _entity(self, n: int, vector: np.ndarray) -> Row:
        return {"id": self.entities[n], "name": f"{self.text(2)} {n}", "type": "", "vector": vector}

    def _relation(self, n: int, vector: np.ndarray) -> Row:
        owner = min(n // PER_DOCUMENT, len(self.passages) - 1)
        ends = [self.entities[int(e)] for e in self.rng.integers(0, len(self.entities), size=2)]
        own = {"passage_id": self.passages[owner], "predicate": "links", "entity_ids": ends, "names": ["One", "Two"]}
        shared = {"doc": owner + 1, "doc_id": str(owner), "title": f"Title {owner}", "metadata": {"part": owner % 10}}
        return {"id": self.ids[n], "text": self.text(8), "vector": vector, **own, **shared}

    def _passage(self, n: int, vector: np.ndarray) -> Row:
        own = {"doc": n + 1, "doc_id": str(n), "title": f"Title {n}", "text": self.text(80), "position": 0}
        kept = {"recipe": "benchmark", "relations": PER_DOCUMENT, "metadata": {"part": n % 10}}
        return {"id": self.passages[n], "vector": vector, **own, **kept}


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median_ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Of some calls after a first one, which may load what the others find loaded."""
    work()
    return 1000 * float(np.median([seconds_of(work) for _ in range(repeats)]))


def write(store: MilvusStore, rows: Rows) -> dict[str, float]:
    """Seconds to write everything, window by window; the rows themselves are made outside the clock."""
    spent: dict[str, float] = {}
    for window in rows.windows():
        for collection, part in window.items():
            took = seconds_of(lambda collection=collection, part=part: store.upsert(collection, part))  # type: ignore[misc]
            spent[collection] = spent.get(collection, 0.0) + took
    report = {f"upsert {collection} (s)": seconds for collection, seconds in spent.items()}
    return report | {"flush (s)": seconds_of(store.flush)}


def read(store: MilvusStore, rows: Rows) -> dict[str, float]:
    """Medians of what one question asks for, and of reading the whole graph."""
    one, three = rows.vectors(1), rows.vectors(3)
    some = rows.ids[:: max(1, len(rows.ids) // 300)][:300]
    among, told = f"id in {some}", ["text", "entity_ids", "names"]
    graph = ["passage_id", "entity_ids", "names"]
    report = {
        "search entities, 3 names (ms)": median_ms(lambda: store.search("entities", three, 3, fields=["name"])),
        "search relations, top 10 (ms)": median_ms(lambda: store.search("relations", one, 10)),
        "search relations among 300 ids (ms)": median_ms(
            lambda: store.search("relations", one, len(some), filter=among, fields=told)
        ),
        "get 100 relation vectors (ms)": median_ms(lambda: store.get("relations", some[:100], ["vector"])),
        "search passages, top 10 (ms)": median_ms(lambda: store.search("passages", one, 10, fields=["title", "text"])),
        "get 10 passages (ms)": median_ms(lambda: store.get("passages", rows.passages[:10], ["title", "text"])),
        "relations of 64 documents (ms)": median_ms(
            lambda: store.query("relations", f"doc in {list(range(1, WINDOW + 1))}", ["passage_id"])
        ),
        "count relations (ms)": median_ms(lambda: store.count("relations")),
        "read all relations (s)": seconds_of(lambda: list(store.iterate("relations", graph))),
    }
    if store.has_bm25:
        report["search words, top 100 (ms)"] = median_ms(lambda: store.search_words("word1 word2 word3", 100))
    return report


def reopen(settings: MilvusSettings) -> float:
    """Seconds from a closed file to the first hit."""
    store = MilvusStore(settings)
    vector = np.eye(1, DIMENSION, dtype=np.float32)
    seconds = seconds_of(lambda: store.search("relations", vector, 1))
    store.close()
    return seconds


def disk_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def run(n: int, folder: Path) -> dict[str, Any]:
    settings, rows = MilvusSettings(uri=str(folder / "engine.db")), Rows(n)
    store = MilvusStore(settings)
    report: dict[str, Any] = {"engine": f"milvus-lite {version('milvus-lite')}", "pymilvus": version("pymilvus")}
    report["create (s)"] = seconds_of(lambda: store.open(model="benchmark", dimension=DIMENSION))
    report |= write(store, rows) | read(store, rows)
    counted = store.count("relations")
    own_mb, engine_mb = memory_mb()
    store.close()
    report |= {"reopen to the first hit (s)": reopen(settings), "peak (MiB)": own_mb + engine_mb}
    return report | {"disk (MiB)": disk_mb(folder), "relations": n, "relations found": counted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--relations", type=int, default=20_000, help="rows; entities and passages in proportion")
    parser.add_argument("--out", type=Path, required=True, help="write the JSON here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options.out.write_text(json.dumps(run(options.relations, Path(folder))), "utf-8")


if __name__ == "__main__":
    main()
