"""What comes back from Milvus: hits of a search, and how many requests it took."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from graphrag_milvus.layout import loaded

__all__ = ["Hit", "RoundTrips", "best_first", "count_request", "counting", "hits"]


@dataclass(frozen=True, slots=True)
class Hit:
    """One row that a search found; `score` is larger for the better hit, on every engine."""

    id: int
    score: float
    row: Mapping[str, Any]


def hits(found: Iterable[Mapping[str, Any]], score: Callable[[float], float] = float) -> list[Hit]:
    """The hits of one query as pymilvus gives them, best first."""
    return best_first(Hit(int(h["id"]), score(h["distance"]), loaded(h.get("entity", {}))) for h in found)


def best_first(found: Iterable[Hit]) -> list[Hit]:
    """Hits in a fixed order: equal scores are ordered by id, so that every run gives the same."""
    return sorted(found, key=lambda hit: (-hit.score, hit.id))


@dataclass(slots=True)
class RoundTrips:
    """How many requests went to Milvus while this was counting."""

    count: int = 0


_counter: contextvars.ContextVar[RoundTrips | None] = contextvars.ContextVar("round_trips", default=None)


@contextmanager
def counting() -> Iterator[RoundTrips]:
    """Count the requests that this thread of work sends inside the `with` block."""
    counter = RoundTrips()
    token = _counter.set(counter)
    try:
        yield counter
    finally:
        _counter.reset(token)


def count_request() -> None:
    """Count one request, where somebody is counting."""
    counter = _counter.get()
    if counter is not None:
        counter.count += 1
