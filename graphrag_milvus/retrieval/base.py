"""What every method of retrieval shares: its resources, its clock, and passages out of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.errors import InputError
from graphrag_milvus.hits import Hit, counting
from graphrag_milvus.llm import LLM
from graphrag_milvus.retrieval.enriched import folded
from graphrag_milvus.retrieval.scorers import Scorer
from graphrag_milvus.retrieval.snapshot import Snapshots, SnapshotSource
from graphrag_milvus.settings import RetrievalSettings
from graphrag_milvus.store import WINDOW, MilvusStore
from graphrag_milvus.types import Retrieval, ScoredPassage, Trace

__all__ = [
    "PASSAGE_FIELDS",
    "Method",
    "Resources",
    "Run",
    "Stopwatch",
    "answered",
    "check_question",
    "dense",
    "joined",
    "scored",
]

PASSAGE_FIELDS = ("doc_id", "title", "text", "metadata")
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Resources:
    """What a method works with.

    `scorer` is the cross-encoder, where one is configured; `enriched` says that there may be enrichments of passages.
    """

    store: MilvusStore
    embedder: Embedder
    snapshots: SnapshotSource | Snapshots
    settings: RetrievalSettings
    llm: LLM | None = None
    scorer: Scorer | None = None
    enriched: bool = False


class Method(Protocol):
    """One way from a question to passages."""

    @property
    def name(self) -> str:
        """What the setting and the trace call it."""
        ...

    def retrieve(self, question: str, k: int, filter: str = "") -> Retrieval:
        """At most `k` passages, best first; fewer only where the workspace has no more that the filter allows."""
        ...


@dataclass
class Stopwatch:
    """Milliseconds by stage, in the order in which the stages ran."""

    timings_ms: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what runs inside the `with` block as one stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = (time.perf_counter() - started) * 1000
            self.timings_ms[name] = round(self.timings_ms.get(name, 0.0) + spent, 3)


@dataclass
class Run:
    """One question on its way through a method; `through` has the enrichment that brought a passage."""

    method: str
    question: str
    k: int
    filter: str
    trace: Trace = field(init=False)
    watch: Stopwatch = field(default_factory=Stopwatch)
    through: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trace = Trace(method=self.method)


AnyRun = TypeVar("AnyRun", bound=Run)


def answered(resources: Resources, run: AnyRun, find: Callable[[AnyRun], list[ScoredPassage]]) -> Retrieval:
    """What a method finds for a question that can be asked, with its requests counted and its trace closed.

    Raises:
        InputError: the question, `k` or the filter cannot be used.
    """
    check_question(run.question, run.k, run.filter)
    with counting() as trips:
        passages = find(run) if run.k else []
        run.trace.path += _brought(resources.store, run, passages)
        run.trace.round_trips = trips.count
    run.trace.timings_ms = {**run.watch.timings_ms, "total": round(sum(run.watch.timings_ms.values()), 3)}
    return Retrieval(run.question, run.method, passages, run.trace)


def _brought(store: MilvusStore, run: Run, passages: Sequence[ScoredPassage]) -> list[str]:
    """A line for each passage that an enrichment brought: what is like the question there, and is not in its text."""
    wanted = {p.id: run.through[int(p.id)] for p in passages if int(p.id) in run.through}
    rows = store.get("enrichments", list(wanted.values()), ["kind", "text"])
    return [
        f'question -> {rows[i]["kind"]} of the passage "{rows[i]["text"]}" -> passage {p.title or p.id!r}'
        for p in passages
        if (i := wanted.get(p.id, -1)) in rows
    ]


def check_question(question: str, k: int, filter: str) -> None:
    """Raise `InputError` for what cannot be searched for."""
    if not question.strip():
        raise InputError("the question is empty; ask something")
    if not 0 <= k <= WINDOW:
        raise InputError(f"top-k is {k}; it must be from 0 to {WINDOW:,} (Milvus's window)")
    for name, text in (("question", question), ("filter", filter)):
        if not _is_unicode(text):
            raise InputError(f"the {name} {text!r:.80} has half a surrogate pair, which no UTF-8 can hold")
    if not _closed(filter):
        raise InputError(f"the filter {filter!r} closes a bracket or a quote that it did not open")


def joined(*filters: str) -> str:
    """All filters at once."""
    return " and ".join(f"({filter})" for filter in filters if filter)


def scored(passage_id: int, row: Mapping[str, Any], score: float) -> ScoredPassage:
    """A passage row as users see it."""
    return ScoredPassage(
        str(passage_id), row["doc_id"], row["title"], row["text"], round(float(score), 6), dict(row["metadata"] or {})
    )


def dense(resources: Resources, run: Run, vector: Vector, k: int, fields: Sequence[str] = PASSAGE_FIELDS) -> list[Hit]:
    """The `k` passages whose vectors, or whose enrichments' vectors, are nearest to the question's."""
    store = resources.store
    near = store.search("passages", vector[None], k, filter=run.filter, fields=fields)[0]
    if not resources.enriched:
        return near
    hits = folded(store, near, vector, k, filter=run.filter, fields=fields)
    run.through.update({hit.id: int(hit.row["through"]) for hit in hits if "through" in hit.row})
    return hits


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _closed(filter: str) -> bool:
    """True where brackets and quotes pair up, so that a filter cannot end the one that it is joined to."""
    closing = {"(": ")", "[": "]"}
    stack: list[str] = []
    quote = ""
    characters = iter(filter)
    for c in characters:
        if quote:
            if c == "\\":
                next(characters, "")
            elif c == quote:
                quote = ""
        elif c in "\"'":
            quote = c
        elif c in closing:
            stack.append(closing[c])
        elif c in ")]" and (not stack or stack.pop() != c):
            return False
    return not stack and not quote
