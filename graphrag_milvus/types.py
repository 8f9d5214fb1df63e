"""The words of the package as plain frozen dataclasses, and the ids that derive from content."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Answer",
    "DeleteReport",
    "Document",
    "DocumentRecord",
    "Enriched",
    "Enrichment",
    "Entity",
    "EntityRef",
    "ExtractedRelation",
    "Extraction",
    "IndexReport",
    "Passage",
    "Relation",
    "Retrieval",
    "ScoredPassage",
    "Stats",
    "Trace",
    "Usage",
    "content_hash",
    "content_id",
    "entity_id",
    "normalize_name",
]

_WHITE_SPACE = re.compile(r"\s+")


def normalize_name(name: str) -> str:
    """The form under which two spellings are one entity: NFKC, casefold, white space, no final full stop.

    Any script stays itself: `C++`, `C#`, `-40`, `爱因斯坦` and `Beyoncé` stay apart. A final full stop
    goes because it is the sentence's as often as the name's (`ACME Corp.` is `ACME Corp`).
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    folded = _WHITE_SPACE.sub(" ", folded).strip()
    return folded.rstrip(".。 ") or folded


def content_hash(*parts: str) -> str:
    """32 hexadecimal digits that differ when any part, or the border between two parts, differs."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def content_id(*parts: str) -> int:
    """A positive 63-bit integer from `content_hash`: the same in every process and on every machine."""
    return int(content_hash(*parts)[:16], 16) >> 1


def entity_id(name: str, type: str = "") -> int:
    """The id of the entity called `name`; `type` counts only where a schema gives one."""
    return content_id("entity", normalize_name(name), type)


@dataclass(frozen=True, slots=True)
class Document:
    """What a user adds, names and deletes.

    Attributes:
        text: the whole text; it is split into passages.
        id: any text up to 1,024 bytes; left empty, it derives from title and text. Files have theirs from their path.
        title: what the text is about; it becomes an entity tied to every sentence of the document.
        source: the path or address that it was read from.
        metadata: JSON values that filters can name, as in `metadata["year"] > 1990`.
        triplets: `[subject, predicate, object]` lists that came with the text, for the `given` extractor. Subject and
            object are texts, numbers, or mappings with `name` and, where they have them, `type` and `official_name`.
    """

    text: str
    id: str = ""
    title: str = ""
    source: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    triplets: Sequence[Any] | None = None


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of one document that is retrieved and cited; `id` is 63-bit.

    `triplets` are those that came with the document and belong to this piece, as they came.
    """

    id: int
    doc_id: str
    title: str
    text: str
    position: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    triplets: tuple[Any, ...] = ()

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings above it in its document, from the highest down, as its metadata has them."""
        found = self.metadata.get("headings")
        return tuple(h for h in found if isinstance(h, str)) if isinstance(found, (list, tuple)) else ()


@dataclass(frozen=True, slots=True)
class Entity:
    """A thing that is named, shared by all documents; `name` is the normalised form."""

    id: int
    name: str
    type: str = ""


@dataclass(frozen=True, slots=True)
class EntityRef:
    """Which entity a name stands for: its official name, and its type where a schema or a mapping gives one."""

    name: str
    type: str = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """A text that ties entities together in one passage.

    A triple has two entities, subject first. A sentence has the title of its document, if there is one,
    and then the entities that it names, in order. `names` are the entities as the passage spells them,
    one for each of `entity_ids`. `entities` says what they stand for; it is empty where each name is an entity's own
    and has no type, and in a relation that was read from Milvus.
    """

    id: int
    text: str
    predicate: str
    entity_ids: tuple[int, ...]
    names: tuple[str, ...]
    passage_id: int
    doc_id: str
    entities: tuple[EntityRef, ...] = ()


@dataclass(frozen=True, slots=True)
class ExtractedRelation:
    """A relation before it has ids: its text, its predicate (empty for a sentence) and the names it ties.

    `entities` has one entry for each of `names`, or none where no name has a type or is an alias.
    """

    text: str
    predicate: str
    names: tuple[str, ...]
    entities: tuple[EntityRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Extraction:
    """What an extractor found in one passage; `failure` says why it found nothing, where it could not look.

    `outside` has a reason for each thing that a model gave and the schema does not allow.
    """

    relations: tuple[ExtractedRelation, ...] = ()
    warnings: tuple[str, ...] = ()
    failure: str = ""
    outside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Enrichment:
    """A text by which one passage is found, beside its own; `kind` is title, summary or question.

    It is no text of the document: it is neither shown as the passage nor cited.
    """

    id: int
    kind: str
    text: str
    passage_id: int
    doc_id: str


@dataclass(frozen=True, slots=True)
class Enriched:
    """What a chat model wrote about one passage, as pairs of kind and text; `failure` says why it is nothing."""

    texts: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Calls and tokens of a chat model."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )

    @property
    def tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class ScoredPassage:
    """A passage that was retrieved; `id` is text, since JavaScript loses integers over 2**53."""

    id: str
    doc_id: str
    title: str
    text: str
    score: float
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Trace:
    """What happened for one question, in the order in which it happened.

    Attributes:
        method: the method that ran.
        seeds: where the walk began: entities as `{id, name, mention, score}`, relations as `{id, text, score}`.
        expanded: how many relations the seeds reach.
        candidates: how many of them the reranker saw.
        selected: relations that it chose, best first: `{id, text, entities, passage_ids, score}`.
        scores: for each passage that was retrieved, by id, what each source gave it, before they were brought together.
        path: one line for each step from the question to a passage.
        reasons: the model's own words on its selection.
        timings_ms: milliseconds by stage.
        round_trips: requests to Milvus.
        usage: the chat model's calls and tokens.
        notes: what was done otherwise than asked, and why.
    """

    method: str = ""
    seeds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    expanded: int = 0
    candidates: int = 0
    candidate_ids: list[str] = field(default_factory=list)
    selected: list[dict[str, Any]] = field(default_factory=list)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    reasons: str = ""
    timings_ms: dict[str, float] = field(default_factory=dict)
    round_trips: int = 0
    usage: Usage = field(default_factory=Usage)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The passages for one question, best first, and how they were found."""

    question: str
    method: str
    passages: list[ScoredPassage]
    trace: Trace


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with the ids of the passages that it rests on.

    `extractive` is True where no model wrote it: `text` is then made of sentences of the passages.
    """

    question: str
    text: str
    citations: list[str]
    confidence: float
    passages: list[ScoredPassage]
    trace: Trace
    usage: Usage = field(default_factory=Usage)
    extractive: bool = False


@dataclass(slots=True)
class IndexReport:
    """What `add` did; `documents` is the sum of added, updated, unchanged and failed.

    `outside_schema` counts what a model gave that the schema does not allow: it is kept, and marked. `enriched` counts
    the passages that got a title, a summary or questions, `unenriched` those that are tried again by the next run.
    """

    documents: int = 0
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    failed: list[dict[str, str]] = field(default_factory=list)
    passages: int = 0
    relations: int = 0
    entities: int = 0
    outside_schema: int = 0
    enriched: int = 0
    unenriched: int = 0
    llm_calls: int = 0
    llm_cached: int = 0
    tokens: int = 0
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """Which documents were deleted, and which were not there."""

    deleted: list[str]
    missing: list[str]


@dataclass(frozen=True, slots=True)
class DocumentRecord:
    """What the manifest knows of a document; it is not `complete` while, or after, its indexing was cut short."""

    id: str
    title: str
    source: str
    passages: int
    relations: int
    indexed_at: int
    complete: bool
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stats:
    """Row counts of a workspace and what it was built with."""

    workspace: str
    documents: int
    passages: int
    relations: int
    entities: int
    incomplete: int
    embedding: str
    dimension: int
    enrichments: int = 0
