"""What the tests of indexing share: an extractor that counts, the rows of a workspace, stores that fail.

Run as a program, it indexes the long corpus into the workspace that the environment names, slowly:

    python indexing.py LOG SECONDS_PER_PASSAGE
"""

from __future__ import annotations

import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphrag_milvus import GraphRAG
from graphrag_milvus.builder.pipeline import Pipeline
from graphrag_milvus.builder.vectorizer import Vectorizer
from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.layout import FIELDS
from graphrag_milvus.settings import MilvusSettings
from graphrag_milvus.store import COLLECTIONS, Collection, MilvusStore
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Document, ExtractedRelation, Extraction, IndexReport, Passage

DIMENSION = 16
SERVER = os.environ.get("GRAPHRAG_TEST_URI", "")

_NAME = re.compile(r"[A-Z][a-z]+(?: [A-Z][a-z]+)*")
_SENTENCE = re.compile(r"(?<=\.)\s+")


@dataclass
class Sentences:
    """Sentences with the capitalised words in them; `seen` has every passage that it was asked about."""

    recipe: str = "sentences/1"
    failing: Sequence[str] = ()
    seconds: float = 0.0
    seen: list[Passage] = field(default_factory=list)
    log: Path | None = None
    name: str = "sentences"

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        self.seen.extend(passages)
        return [self._one(passage) for passage in passages]

    def _one(self, passage: Passage) -> Extraction:
        time.sleep(self.seconds)
        if self.log is not None:
            with self.log.open("a") as log:
                log.write(f"{passage.id}\n")
        for word in self.failing:
            if word in passage.text:
                return Extraction(failure=f"the model does not like {word}")
        return Extraction(tuple(self._relation(passage.title, s) for s in _SENTENCE.split(passage.text)))

    def _relation(self, title: str, sentence: str) -> ExtractedRelation:
        names = dict.fromkeys([*([title] if title else []), *_NAME.findall(sentence)])
        # Another recipe finds other relations, some of them the same.
        text = sentence if self.recipe.endswith("1") or len(sentence) % 2 else f"{sentence} Indeed."
        return ExtractedRelation(text, "", tuple(names))

    @property
    def texts(self) -> list[str]:
        return [passage.text for passage in self.seen]


def pipeline(store: MilvusStore, extractor: Any = None, **options: Any) -> Pipeline:
    """A pipeline into an open store; passages are short."""
    options = {"passage_size": 120, **options}
    embedder = options.pop("embedder", None) or Embedder(HashingEmbeddings(DIMENSION))
    return Pipeline(store, extractor or Sentences(), Vectorizer(embedder), **options)


def index(store: MilvusStore, documents: Iterable[Any], extractor: Any = None, **options: Any) -> IndexReport:
    return pipeline(store, extractor, **options).run(documents)


# --- workspaces ---------------------------------------------------------------------------------------------------


class _Unflushed(MilvusStore):
    """A server takes seconds for a flush, and no row is another one after it."""

    def flush(self) -> None:
        if self.settings.embedded:
            super().flush()


class Workspaces:
    """Empty, open workspaces on one engine; to start an engine and make collections is what takes time in a test.

    Args:
        folder: of the embedded database, where `GRAPHRAG_TEST_URI` names no server.
    """

    def __init__(self, folder: Path) -> None:
        self.settings = MilvusSettings(uri=SERVER or str(folder / "shared.db"))
        self._name = f"w{uuid.uuid4().hex[:8]}_"
        self._made: list[MilvusStore] = []
        self._free: list[MilvusStore] = []

    def empty(self) -> MilvusStore:
        """A workspace without rows, for vectors of `DIMENSION` numbers."""
        if not self._free:
            self._made.append(_Unflushed(self.settings, f"{self._name}{len(self._made)}"))
            self._free.append(self._made[-1])
        store = self._free.pop()
        for collection in COLLECTIONS:
            store.delete(collection, filter="id >= 0")
        store.open(model="HashingEmbeddings", dimension=DIMENSION)
        return store

    def give_back(self) -> None:
        """Let every workspace be used again."""
        self._free = list(self._made)

    def close(self) -> None:
        """Leave nothing behind on a server, and stop an embedded engine."""
        for store in self._made:
            if not store.settings.embedded:
                store.drop()
            store.close()


# --- rows ---------------------------------------------------------------------------------------------------------


def rows(store: MilvusStore) -> dict[str, list[dict[str, Any]]]:
    """Every row of the four collections in the order of ids, vectors included; without `indexed_at`."""
    return {c: [_comparable(row) for row in store.query(c, "id >= 0", _fields(c))] for c in COLLECTIONS}


def _fields(collection: Collection) -> list[str]:
    return [*(name for name, _, _ in FIELDS[collection] if name != "indexed_at"), "vector"]


def _comparable(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "vector": [float(x) for x in row["vector"]]}


def ids(store: MilvusStore, collection: Collection) -> set[int]:
    return {int(row["id"]) for row in store.iterate(collection, [])}


# --- what goes wrong ----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Nothing in the package may catch this."""


class LosingStore(MilvusStore):
    """Acknowledges an upsert and drops one row of it, once for each collection in `losing`."""

    losing: list[str]

    def upsert(self, collection: Collection, rows: Iterable[Mapping[str, Any]]) -> int:
        given = list(rows)
        if collection in self.losing and self._counts(collection, given):
            self.losing.remove(collection)
            super().upsert(collection, given[:-1])
            return len(given)
        return super().upsert(collection, given)

    def _counts(self, collection: Collection, given: Sequence[Mapping[str, Any]]) -> bool:
        """The last row of a document is its finished one."""
        return bool(given) and (collection != "documents" or bool(given[-1]["hash"]))


def killed_at(store: MilvusStore, n: int, action: Callable[[], Any]) -> bool:
    """Run `action` up to its n-th request that changes rows, counted from 0; True where it came that far."""
    client, left = store.client, [n]
    originals = {name: getattr(client, name) for name in ("insert", "upsert", "delete")}

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return original(*args, **kwargs)

        return call

    for name, original in originals.items():
        setattr(client, name, wrap(original))
    try:
        action()
    except Killed:
        return True
    finally:
        for name in originals:
            delattr(client, name)
    return False


# --- corpora ------------------------------------------------------------------------------------------------------


def long_corpus(count: int = 300) -> list[Document]:
    """Documents of two passages that name one another's towns and people."""
    return [_long_document(n) for n in range(count)]


_LETTERS = "abcdefghijklmnopqrst"


def _word(prefix: str, n: int) -> str:
    return prefix + "".join(_LETTERS[int(digit)] for digit in str(n))


def _long_document(n: int) -> Document:
    town, person = _word("Town", n % 40), _word("Person", n)
    text = (
        f"{person} was born in {town}. The river of {town} flows to {_word('Town', n * 7 % 40)} and on to the sea.\n\n"
        f"{person} met {_word('Person', n * 3 % 300)} at a fair. Both of them lived in {_word('Town', n % 11)} then."
    )
    return Document(text, id=f"doc-{n:03}", title=person, metadata={"n": n})


def main(log: str, seconds: str) -> Iterator[str]:
    """Index the long corpus; gives a line when it begins and when it ends."""
    with GraphRAG(extractor=Sentences(seconds=float(seconds), log=Path(log))) as rag:
        rag.store.open(model=rag.embedder.name, dimension=rag.embedder.dimension)
        yield "begun"
        report = rag.add(long_corpus(), progress=False)
        yield f"done {report.failed}"


if __name__ == "__main__":
    for line in main(*sys.argv[1:]):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
