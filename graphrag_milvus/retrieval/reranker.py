"""Which of the candidate relations help to answer: a model says in one reply, or a local score does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from graphrag_milvus import prompts
from graphrag_milvus.errors import ModelError
from graphrag_milvus.llm import LLM

__all__ = ["Candidate", "LocalSelector", "ModelSelector", "Selection", "Selector"]

SIMILARITY_WEIGHT = 12.0
"""How much a cosine of 1 weighs against a factor e of mass; 8 to 16 differ little."""
REPETITION_WEIGHT = 3.0
"""How much the same words once more take off; from 2 to 4 Recall@5 stays within half a point."""
CONTINUATION_WEIGHT = 2.0
"""How much it adds to lead on from what was chosen; from 1 to 3 Recall@2 stays within half a point."""
POOL = 100
"""Candidates that are compared with one another; all 300 give the same recall."""
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")

_BRACKET = re.compile(r"\[\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\]")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A relation text that may help, with all the relations and passages that have it.

    `mass` is what the walk left on them, `similarity` the cosine with the question, `entities` the
    positions of what they hold.
    """

    text: str
    relation_ids: tuple[int, ...]
    passage_ids: tuple[int, ...]
    mass: float
    similarity: float
    entities: frozenset[int] = frozenset()


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
    """Chooses without a model: where the walk's mass lies, what speaks of the question, and how it goes on.

    At each step the relation with the largest

        log(mass of its passage) + 12 * similarity - 3 * (largest overlap with a relation chosen before)
        + 2 where it holds an open entity

    is taken, and its passage is done. The third term is maximal marginal relevance [Carbonell & Goldstein,
    1998, SIGIR] with Dice's coefficient of the words: a second relation that says the same brings the question
    no further. The last follows a chain: the question's entities are open at first; what a chosen relation
    holds is closed, and what it brings in anew is open, so that the next step leads on from there and not
    from the beginning again.

    Args:
        seeds: positions of the entities that the question names.
    """

    seeds: frozenset[int] = frozenset()

    def select(self, question: str, candidates: Sequence[Candidate], limit: int) -> Selection:
        """At most `limit` places that lead to different passages; then the rest as far as `limit` goes."""
        if not candidates or limit <= 0:
            return Selection([], [])
        mass = np.log(np.maximum(_passage_mass(candidates), 1e-12))
        scores = mass + SIMILARITY_WEIGHT * np.array([c.similarity for c in candidates])
        order = [int(n) for n in np.lexsort((np.arange(len(scores)), -scores))]
        pool = order[: max(POOL, limit)]
        found = self._chain([candidates[n] for n in pool], scores[pool], limit)
        places = [pool[n] for n, _ in found]
        chosen = set(places)
        rest = [n for n in order if n not in chosen][: limit - len(places)]
        steps = [score for _, score in found] + [float(scores[n]) for n in rest]
        return Selection(places + rest, _falling(steps))

    def _chain(self, pool: Sequence[Candidate], scores: npt.NDArray[np.float64], limit: int) -> list[tuple[int, float]]:
        """Places in the pool, in the order in which they were chosen, with the score that each had then."""
        words = [frozenset(_WORD.findall(c.text.casefold())) for c in pool]
        repeated = np.zeros(len(pool))
        waiting = np.ones(len(pool), dtype=bool)
        open_, closed = set(self.seeds), set[int]()
        chosen: list[tuple[int, float]] = []
        while len(chosen) < limit and waiting.any():
            leads_on = np.array([not open_.isdisjoint(c.entities) for c in pool])
            now = scores - REPETITION_WEIGHT * repeated + CONTINUATION_WEIGHT * leads_on
            best = int(np.argmax(np.where(waiting, now, -np.inf)))
            chosen.append((best, float(now[best])))
            done = set(pool[best].passage_ids)
            waiting &= np.array([not done.issuperset(c.passage_ids) for c in pool])
            repeated = np.maximum(repeated, [_dice(words[best], other) for other in words])
            closed |= pool[best].entities & open_
            open_ = (open_ | pool[best].entities) - closed
        return chosen


class _Reply(BaseModel):
    """What the model is asked for; a list that is null, of numbers, or without its name is understood."""

    model_config = ConfigDict(extra="ignore")

    thought_process: Any = Field(default="", validation_alias=AliasChoices("thought_process", "thoughts"))
    useful_relationships: list[Any] | None = Field(
        validation_alias=AliasChoices("useful_relationships", "useful_relations", "relationships")
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        # [1] alone is more likely a citation in prose than the whole selection.
        bare = isinstance(value, list) and (len(value) > 1 or any(isinstance(line, str) for line in value))
        return {"useful_relationships": value} if bare else value

    @property
    def reasons(self) -> str:
        """The model's reasons as text; some give a list of steps."""
        thoughts = self.thought_process
        return "\n".join(map(str, thoughts)) if isinstance(thoughts, list) else str(thoughts or "").strip()


@dataclass(frozen=True)
class ModelSelector:
    """One call with a one-shot example: reasons first, then the lines that help, each with its `[number]`.

    Where the model cannot be used, or names no line that exists, the local ranking stands in and a note says so.
    """

    llm: LLM
    fallback: Selector

    def select(self, question: str, candidates: Sequence[Candidate], limit: int) -> Selection:
        """At most `limit` places in the model's order."""
        if not candidates:
            return Selection([], [])
        texts = [" ".join(c.text.split()) for c in candidates]  # a line break would begin a line of its own number
        lines = [f"[{n}] {text}" for n, text in enumerate(texts, start=1)]
        try:
            reply = self.llm.structured(prompts.select_relations(question, lines, limit), _Reply)
        except ModelError as error:
            return self._instead(question, candidates, limit, f"the model could not select relations: {error}")
        places = [n - 1 for n in _numbers(reply.useful_relationships or [], texts)][:limit]
        if not places:
            return self._instead(question, candidates, limit, "the model selected no relation", reply.reasons)
        return Selection(places, [1.0 / rank for rank in range(1, len(places) + 1)], reply.reasons)

    def _instead(
        self, question: str, candidates: Sequence[Candidate], limit: int, why: str, reasons: str = ""
    ) -> Selection:
        local = self.fallback.select(question, candidates, limit)
        return Selection(local.places, local.scores, reasons, [f"{why}; the local ranking was used"])


def _numbers(lines: Sequence[Any], texts: Sequence[str]) -> list[int]:
    """Numbers of the texts that lines name, each once; a line that names none that exists is left out."""
    known = {text.casefold(): n for n, text in reversed(list(enumerate(texts, start=1)))}
    found = (n for line in lines for n in _numbers_of(line, known))
    return list(dict.fromkeys(n for n in found if 1 <= n <= len(texts)))


def _numbers_of(line: Any, known: Mapping[str, int]) -> list[int]:
    """What one line names: `[3] text`, `[3, 5]`, `3`, `{"id": 3}`, or the text of a relation without its number."""
    if isinstance(line, Mapping):
        line = next((line[key] for key in ("id", "number", "index", "text") if key in line), "")
    said = " ".join(str(line).split())
    if said.casefold() in known:
        return [known[said.casefold()]]
    match = _BRACKET.match(said) or re.match(r"\[?\s*(\d{1,9})(?!\d)", said) or _BRACKET.search(said)
    return [int(n) for n in re.findall(r"\d+", match.group(1))] if match else []


def _passage_mass(candidates: Sequence[Candidate]) -> npt.NDArray[np.float64]:
    """For each candidate the mass of all candidates of its passage, of the heaviest where it has several."""
    total: dict[int, float] = {}
    for candidate in candidates:
        for passage in candidate.passage_ids:
            total[passage] = total.get(passage, 0.0) + candidate.mass / len(candidate.passage_ids)
    return np.array([max(total[p] for p in c.passage_ids) for c in candidates])


def _dice(one: frozenset[str], other: frozenset[str]) -> float:
    return 2 * len(one & other) / (len(one) + len(other)) if one or other else 1.0


def _falling(scores: Sequence[float]) -> list[float]:
    """Scores on a log scale as fractions of the first, never above the one before."""
    fractions = np.exp(np.minimum(np.asarray(scores) - scores[0], 0.0)) if len(scores) else np.zeros(0)
    return [float(f) for f in np.minimum.accumulate(fractions)]
