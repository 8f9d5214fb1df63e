"""Which of the candidate relations help to answer: a model says in one reply, or a local score does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from graphrag_milvus import prompts
from graphrag_milvus.errors import ModelError
from graphrag_milvus.llm import LLM

__all__ = ["Candidate", "LocalSelector", "ModelSelector", "Selection", "Selector"]

SIMILARITY_WEIGHT = 8.0
"""How much a cosine of 1 weighs against a factor e of mass; on 2WikiMultiHopQA 4 to 16 differ by 1 point of R@5."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A relation text that may help, with all the relations and passages that have it.

    `mass` is what the walk left on them, `similarity` the cosine with the question.
    """

    text: str
    relation_ids: tuple[int, ...]
    passage_ids: tuple[int, ...]
    mass: float
    similarity: float


@dataclass(frozen=True, slots=True)
class Selection:
    """Places of candidates in the list that was given, best first, with a score for each in 0..1."""

    places: list[int]
    scores: list[float]
    reasons: str = ""
    notes: list[str] = field(default_factory=list)


class Selector(Protocol):
    """Chooses among candidates."""

    def select(self, question: str, candidates: Sequence[Candidate], limit: int) -> Selection:
        """At most `limit` places of `candidates`, best first."""
        ...


@dataclass(frozen=True)
class LocalSelector:
    """Ranks passages by the mass of their relations and takes the best relation of each.

    The score of a relation is `log(mass of its passage) + 8 * cosine(question, relation)`: the walk says
    where in the graph the answer lies, the cosine which of the sentences there speaks of it.
    """

    def select(self, question: str, candidates: Sequence[Candidate], limit: int) -> Selection:
        """At most `limit` places, no two that lead to the same passage first."""
        if not candidates:
            return Selection([], [])
        passages: dict[int, float] = {}
        for candidate in candidates:
            for passage in candidate.passage_ids:
                passages[passage] = passages.get(passage, 0.0) + candidate.mass / len(candidate.passage_ids)
        scores = [
            float(np.log(max(max(passages[p] for p in c.passage_ids), 1e-12)) + SIMILARITY_WEIGHT * c.similarity)
            for c in candidates
        ]
        order = sorted(range(len(candidates)), key=lambda n: (-scores[n], candidates[n].relation_ids))
        places = _one_a_passage(order, candidates)[:limit]
        return Selection(places, [float(np.exp(scores[n] - scores[order[0]])) for n in places])


class _Reply(BaseModel):
    """What the model is asked for; a list that is null, or of numbers, is understood."""

    model_config = ConfigDict(extra="ignore")

    thought_process: str | None = Field(default="", validation_alias=AliasChoices("thought_process", "thoughts"))
    useful_relationships: list[Any] | None = Field(
        validation_alias=AliasChoices("useful_relationships", "useful_relations", "relationships")
    )


@dataclass(frozen=True)
class ModelSelector:
    """One call with a one-shot example: reasons first, then the lines that help, each with its `[number]`.

    Where the model cannot be used, or names no line that exists, the local ranking stands in and a note says so.
    """

    llm: LLM
    fallback: Selector = field(default_factory=LocalSelector)

    def select(self, question: str, candidates: Sequence[Candidate], limit: int) -> Selection:
        """At most `limit` places in the model's order."""
        if not candidates:
            return Selection([], [])
        lines = [f"[{n}] {c.text}" for n, c in enumerate(candidates, start=1)]
        try:
            reply = self.llm.structured(prompts.select_relations(question, lines, limit), _Reply)
        except ModelError as error:
            return self._instead(question, candidates, limit, f"the model could not select relations: {error}")
        reasons = (reply.thought_process or "").strip()
        places = [n - 1 for n in _numbers(reply.useful_relationships or [], len(candidates))][:limit]
        if not places:
            return self._instead(question, candidates, limit, "the model selected no relation", reasons)
        return Selection(places, [1.0 / rank for rank in range(1, len(places) + 1)], reasons)

    def _instead(
        self, question: str, candidates: Sequence[Candidate], limit: int, why: str, reasons: str = ""
    ) -> Selection:
        local = self.fallback.select(question, candidates, limit)
        return Selection(local.places, local.scores, reasons, [f"{why}; the local ranking was used"])


def _numbers(lines: Sequence[Any], last: int) -> list[int]:
    """The numbers that lines begin with, as `[3] ...`, `3` or `{"id": 3}`; unknown and repeated ones are left out."""
    found: dict[int, None] = {}
    for line in lines:
        if isinstance(line, dict):
            line = next((line[key] for key in ("id", "number", "index") if key in line), "")
        match = re.match(r"\s*\[?\s*(\d+)", str(line)) or re.search(r"\[(\d+)\]", str(line))
        if match and 1 <= int(match.group(1)) <= last:
            found.setdefault(int(match.group(1)))
    return list(found)


def _one_a_passage(order: Sequence[int], candidates: Sequence[Candidate]) -> list[int]:
    """The first candidate of each passage, in order; then the others."""
    seen: set[int] = set()
    first, rest = [], []
    for n in order:
        (rest if seen.issuperset(candidates[n].passage_ids) else first).append(n)
        seen.update(candidates[n].passage_ids)
    return first + rest
