"""Which relations, and then which passages, help to answer: a model says in one reply, or a score does.

A `Selector` chooses among candidate relations, which is part of a method. A `PassageReranker` is a second stage
after any method: it puts the passages that were found in a better order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator, model_validator

from graphrag_milvus import prompts
from graphrag_milvus.errors import InputError, ModelError, SettingsError
from graphrag_milvus.llm import LLM
from graphrag_milvus.retrieval.base import Resources, Stopwatch
from graphrag_milvus.retrieval.scorers import LocalScorer, Scorer
from graphrag_milvus.types import Retrieval, ScoredPassage, Usage

__all__ = [
    "Candidate",
    "LocalSelector",
    "ModelReranker",
    "ModelSelector",
    "PassageReranker",
    "ScoreReranker",
    "Selection",
    "Selector",
    "diverse",
    "estimate_tokens",
    "fitting",
    "make_reranker",
    "rerank",
]

SIMILARITY_WEIGHT = 12.0
"""How much a cosine of 1 weighs against a factor e of mass; 8 to 16 differ little."""
REPETITION_WEIGHT = 3.0
"""How much the same words once more take off; from 2 to 4 Recall@5 stays within half a point."""
CONTINUATION_WEIGHT = 2.0
"""How much it adds to lead on from what was chosen; from 1 to 3 Recall@2 stays within half a point."""
POOL = 100
"""Candidates that are compared with one another; all 300 give the same recall."""
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")

TokenCount: TypeAlias = Callable[[str], int]
PROMPT_TOKENS = 3_000
_MESSAGE_TOKENS = 4  # that chat formats put around a message

_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f\u1e00-\u1eff]+")
_PIECE = re.compile(rf"{_LATIN.pattern}|\d+|[!-~]|[^\s!-~]+")

_NAMES = ("id", "number", "index", "text")
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
    """Places of candidates in the list that was given, best first, with a score for each, which falls."""

    places: list[int]
    scores: list[float]
    reasons: str = ""
    notes: list[str] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)


# --- a prompt within its budget -------------------------------------------------------------------------------------


def estimate_tokens(text: str) -> int:
    """About how many tokens of a chat model a text has; rather too many than too few.

    A word of Latin letters has one for every six letters begun and one for each letter with a mark, a number one
    for every three digits, a sign one, and whatever else one for every two bytes of UTF-8. Beside the vocabulary
    of gpt-4o that is 10 % too many for 2,000 triples and 11 % for 300 passages in English, some 70 % for Chinese,
    and twice to four times too many for scripts whose letters it joins well; beside that of gpt-4 it is 6, 10 and
    8 %. It does not depend on what is installed, so that everybody's prompts are the same.
    """
    return sum(map(_tokens_of, _PIECE.findall(text)))


def _tokens_of(piece: str) -> int:
    if piece.isascii():
        return 1 + (len(piece) - 1) // (3 if piece[0].isdigit() else 6)
    if _LATIN.match(piece):
        return 1 + (len(piece) - 1) // 6 + sum(not c.isascii() for c in piece)
    return (len(piece.encode("utf-8", "replace")) + 1) // 2


@dataclass(frozen=True)
class _Shown:
    """The numbered lines of a prompt, and of each the place of its text."""

    texts: list[str]
    lines: list[str]
    places: list[int]


def _shown(texts: Sequence[str], fixed: Sequence[tuple[str, str]], budget: int, count: TokenCount) -> _Shown:
    """As many texts, from the first on, as fit beside the fixed part; one that is too long for it is passed over."""
    room = budget - sum(count(message) + _MESSAGE_TOKENS for _, message in fixed)
    shown = _Shown([], [], [])
    for place, text in enumerate(texts):
        line = f"[{len(shown.lines) + 1}] {text}"
        tokens = count(line) + 1  # and the line break
        if tokens <= room:
            room -= tokens
            shown.texts.append(text)
            shown.lines.append(line)
            shown.places.append(place)
    return shown


def _shown_relations(question: str, texts: Sequence[str], limit: int, budget: int, count: TokenCount) -> _Shown:
    return _shown(list(map(_one_line, texts)), prompts.select_relations(question, [], limit), budget, count)


def fitting(question: str, texts: Sequence[str], limit: int, budget: int = PROMPT_TOKENS) -> list[int]:
    """Places of the relation texts that a model would be shown to select at most `limit`: those that fit its prompt."""
    return _shown_relations(question, texts, limit, budget, estimate_tokens).places


def _left_out(what: str, left: int, total: int, budget: int) -> list[str]:
    return [f"{left:,} of {total:,} {what} did not fit into the prompt of {budget:,} tokens"] if left else []


def _one_line(text: str) -> str:
    return " ".join(text.split())  # a line break would begin a line of its own number


# --- which relations ----------------------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class ModelSelector:
    """One call with a one-shot example: reasons first, then the lines that help, each with its `[number]`.

    The model sees the candidates in the order of `diverse`, as many as fit into the budget; a note says how many
    were left out. Where the model cannot be used, or names no line that exists, the local ranking stands in and a
    note says so.

    Args:
        budget: tokens of the whole prompt, the fixed part of about 300 included.
        count: how many tokens a text has.
    """

    llm: LLM
    fallback: Selector
    budget: int = PROMPT_TOKENS
    count: TokenCount = estimate_tokens

    def select(self, question: str, candidates: Sequence[Candidate], limit: int) -> Selection:
        """At most `limit` places in the model's order."""
        if not candidates or limit <= 0:
            return Selection([], [])
        order = diverse(candidates)
        texts = [candidates[place].text for place in order]
        shown = _shown_relations(question, texts, limit, self.budget, self.count)
        notes = _left_out("relations", len(order) - len(shown.places), len(order), self.budget)
        if not shown.places:
            return self._instead(question, candidates, limit, Selection([], [], "", notes))
        said = _ask(self.llm, prompts.select_relations(question, shown.lines, limit), _Relations, shown)
        said = replace(said, notes=notes + said.notes)
        if not said.places:
            return self._instead(question, candidates, limit, said)
        places = [order[place] for place in said.places][:limit]
        return replace(said, places=places, scores=_reciprocal(len(places)))

    def _instead(self, question: str, candidates: Sequence[Candidate], limit: int, said: Selection) -> Selection:
        local = self.fallback.select(question, candidates, limit)
        notes = [*said.notes[:-1], f"{said.notes[-1]}; the local ranking was used"]
        return replace(said, places=local.places, scores=local.scores, notes=notes)


def diverse(candidates: Sequence[Candidate]) -> list[int]:
    """All places, so that the beginning leads to as many passages as it can, the likeliest first.

    The heaviest relation of each passage comes first, passages in the order of their mass, then the second
    relation of each, and so on: one line is enough to reach a passage, so that a list that has to be cut should
    not spend its lines on a few. A relation that stands in several passages counts for each of them.
    """
    heaviest = sorted(range(len(candidates)), key=lambda place: -candidates[place].mass)
    queues: dict[int, list[int]] = {}
    for place in reversed(heaviest):
        for passage in candidates[place].passage_ids:
            queues.setdefault(passage, []).append(place)
    mass = _masses(candidates)
    first = {place: rank for rank, place in enumerate(heaviest)}
    waiting = sorted(queues, key=lambda passage: (-mass[passage], first[queues[passage][-1]], passage))
    return list(dict.fromkeys([*_in_turn(waiting, queues, candidates), *heaviest]))


def _in_turn(passages: list[int], queues: dict[int, list[int]], candidates: Sequence[Candidate]) -> Iterator[int]:
    """One place of each passage at a turn, from the ends of their queues, but for those that a shared one served."""
    served: Counter[int] = Counter()
    taken: set[int] = set()
    turn = 0
    while passages:
        turn += 1
        for passage in passages:
            queue = queues[passage]
            while queue and queue[-1] in taken:
                queue.pop()
            if queue and served[passage] < turn:
                taken.add(queue[-1])
                served.update(candidates[queue[-1]].passage_ids)
                yield queue.pop()
        passages = [passage for passage in passages if queues[passage]]


# --- which passages -----------------------------------------------------------------------------------------------


class PassageReranker(Protocol):
    """Puts passages in a better order."""

    @property
    def name(self) -> str:
        """What the setting and the trace call it."""
        ...

    def rerank(self, question: str, passages: Sequence[ScoredPassage]) -> Selection:
        """All places of `passages`, best first; in the order in which they came where they cannot be judged."""
        ...


def make_reranker(resources: Resources) -> PassageReranker | None:
    """The second stage that the settings name, or None.

    Raises:
        SettingsError: it needs a cross-encoder or a chat model and none is configured.
    """
    settings = resources.settings
    if settings.rerank == "none":
        return None
    if settings.rerank == "local":
        return ScoreReranker(LocalScorer(resources.embedder), "local")
    if settings.rerank == "model":
        if resources.llm is None:
            raise SettingsError("retrieval.rerank='model' needs a chat model; set llm.model, or rerank='local'")
        return ModelReranker(resources.llm, settings.prompt_tokens)
    if resources.scorer is None:
        raise SettingsError(
            "retrieval.rerank='cross-encoder' needs the folder of an ONNX model; set retrieval.cross_encoder, "
            "or rerank='local'"
        )
    return ScoreReranker(resources.scorer)


def rerank(found: Retrieval, reranker: PassageReranker, k: int) -> Retrieval:
    """The best `k` of the passages that were found, in the reranker's order; the trace is carried on."""
    watch, trace = Stopwatch(), found.trace
    with watch.stage("rerank"):
        selection = reranker.rerank(found.question, found.passages)
    best = list(zip(selection.places, selection.scores, strict=True))[:k]
    passages = [replace(found.passages[place], score=round(score, 6)) for place, score in best]
    stages = {name: ms for name, ms in trace.timings_ms.items() if name != "total"} | watch.timings_ms
    trace.timings_ms = {**stages, "total": round(sum(stages.values()), 3)}
    trace.reasons = "\n".join(filter(None, [trace.reasons, selection.reasons]))
    trace.usage += selection.usage
    trace.notes += [f"{reranker.name} reranked {len(found.passages)} passages", *selection.notes]
    return replace(found, passages=passages)


@dataclass(frozen=True)
class ScoreReranker:
    """Puts passages in the order of a score of title and text.

    A passage's score is exp(its score - the best one): of log odds, as a cross-encoder gives them, the odds
    relative to the best passage's. Equal scores keep the order in which the passages came.
    """

    scorer: Scorer
    name: str = "cross-encoder"

    def rerank(self, question: str, passages: Sequence[ScoredPassage]) -> Selection:
        """All places, best first; in the order in which they came where the question is too long for a model."""
        try:
            scores = self.scorer.score(question, [f"{p.title}\n{p.text}" if p.title else p.text for p in passages])
        except InputError as error:
            return _as_they_came(passages, Selection([], [], "", [str(error)]))
        order = np.argsort(-scores, kind="stable")
        return Selection(order.tolist(), _falling(scores[order].tolist()))


@dataclass(frozen=True)
class ModelReranker:
    """One call with numbered passages: reasons first, then the numbers of those that help, best first.

    What the model does not name follows in the order in which it came, and so does what the budget left out of
    the prompt. The score is 1 / rank.
    """

    llm: LLM
    budget: int = PROMPT_TOKENS
    count: TokenCount = estimate_tokens
    name: str = "model"

    def rerank(self, question: str, passages: Sequence[ScoredPassage]) -> Selection:
        """All places, best first; in the order in which they came where the model cannot be used."""
        texts = [_one_line(f"{p.title}: {p.text}" if p.title else p.text) for p in passages]
        shown = _shown(texts, prompts.rerank_passages(question, []), self.budget, self.count)
        notes = _left_out("passages", len(texts) - len(shown.places), len(texts), self.budget)
        if not shown.places:
            return _as_they_came(passages, Selection([], [], "", notes))
        said = _ask(self.llm, prompts.rerank_passages(question, shown.lines), _Passages, shown)
        said = replace(said, notes=notes + said.notes)
        if not said.places:
            return _as_they_came(passages, said)
        places = list(dict.fromkeys([*said.places, *range(len(passages))]))
        return replace(said, places=places, scores=_reciprocal(len(places)))


def _as_they_came(passages: Sequence[ScoredPassage], said: Selection) -> Selection:
    notes = [*said.notes[:-1], f"{said.notes[-1]}; the order was kept"] if said.notes else []
    return replace(said, places=list(range(len(passages))), scores=[p.score for p in passages], notes=notes)


# --- a reply ------------------------------------------------------------------------------------------------------


class _Reply(BaseModel):
    """What the model is asked for; a list that is null, of numbers, a mapping, or without its name is understood."""

    model_config = ConfigDict(extra="ignore")

    thought_process: Any = Field(default="", validation_alias=AliasChoices("thought_process", "thoughts"))
    chosen: list[Any] | None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        # [1] alone is more likely a citation in prose than the whole selection.
        bare = isinstance(value, list) and (len(value) > 1 or any(isinstance(line, str) for line in value))
        return {"chosen": value} if bare else value

    @field_validator("chosen", mode="before", check_fields=False)
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """`{"2": "text", "1": "text"}` names the lines 2 and 1, `{"id": 2}` is one line."""
        if not isinstance(value, Mapping):
            return value
        if any(key in value for key in _NAMES):
            return [value]
        return [key if re.search(r"\d", str(key)) else line for key, line in value.items()]

    @property
    def reasons(self) -> str:
        """The model's reasons as text; some give a list of steps."""
        thoughts = self.thought_process
        return "\n".join(map(str, thoughts)) if isinstance(thoughts, list) else str(thoughts or "").strip()


class _Relations(_Reply):
    chosen: list[Any] | None = Field(
        validation_alias=AliasChoices("useful_relationships", "useful_relations", "relationships", "chosen")
    )


class _Passages(_Reply):
    chosen: list[Any] | None = Field(
        validation_alias=AliasChoices("useful_passages", "passages", "ranking", "order", "chosen")
    )


def _ask(llm: LLM, messages: list[tuple[str, str]], schema: type[_Reply], shown: _Shown) -> Selection:
    """What the model names, as places of the texts that were shown; none, and a note, where it names nothing."""
    what = "relation" if schema is _Relations else "passage"
    with llm.meter() as meter:
        try:
            reply = llm.structured(messages, schema)
        except ModelError as error:
            return Selection([], [], "", [f"the model could not select {what}s: {error}"], meter.usage)
    places = [shown.places[n - 1] for n in _numbers(reply.chosen or [], shown.texts)]
    notes = [] if places else [f"the model selected no {what}"]
    return Selection(places, _reciprocal(len(places)), reply.reasons, notes, meter.usage)


def _numbers(lines: Sequence[Any], texts: Sequence[str]) -> list[int]:
    """Numbers of the texts that lines name, each once; a line that names none that exists is left out."""
    known = {text.casefold(): n for n, text in reversed(list(enumerate(texts, start=1)))}
    found = (n for line in lines for n in _numbers_of(line, known))
    return list(dict.fromkeys(n for n in found if 1 <= n <= len(texts)))


def _numbers_of(line: Any, known: Mapping[str, int]) -> list[int]:
    """What one line names: `[3] text`, `[3, 5]`, `3`, `{"id": 3}`, or the text of a relation without its number."""
    if isinstance(line, Mapping):
        line = next((line[key] for key in _NAMES if key in line), "")
    said = " ".join(str(line).split())
    if said.casefold() in known:
        return [known[said.casefold()]]
    match = _BRACKET.match(said) or re.match(r"\[?\s*(\d{1,9})(?!\d)", said) or _BRACKET.search(said)
    return [int(n) for n in re.findall(r"\d+", match.group(1))] if match else []


# --- numbers ------------------------------------------------------------------------------------------------------


def _masses(candidates: Sequence[Candidate]) -> dict[int, float]:
    """For each passage the mass of all its candidates, each in equal parts to the passages that it stands in."""
    total: dict[int, float] = {}
    for candidate in candidates:
        for passage in candidate.passage_ids:
            total[passage] = total.get(passage, 0.0) + candidate.mass / len(candidate.passage_ids)
    return total


def _passage_mass(candidates: Sequence[Candidate]) -> npt.NDArray[np.float64]:
    """For each candidate the mass of its passage, of the heaviest where it has several."""
    total = _masses(candidates)
    return np.array([max(total[p] for p in c.passage_ids) for c in candidates])


def _reciprocal(count: int) -> list[float]:
    return [1.0 / rank for rank in range(1, count + 1)]


def _dice(one: frozenset[str], other: frozenset[str]) -> float:
    return 2 * len(one & other) / (len(one) + len(other)) if one or other else 1.0


def _falling(scores: Sequence[float]) -> list[float]:
    """Scores on a log scale as fractions of the first, never above the one before."""
    fractions = np.exp(np.minimum(np.asarray(scores) - scores[0], 0.0)) if len(scores) else np.zeros(0)
    return [float(f) for f in np.minimum.accumulate(fractions)]
