"""Extraction: passages in, relations out, in three ways and their combinations.

given   triples that came with the documents
local   a sentence with the names in it, by spaCy or by rules; no chat model, no key
llm     entities and then triples over them, by a chat model
auto    given where a passage has triples; else llm where there is a model; else local
a+b     what a finds and what b finds
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from pydantic import BaseModel, model_validator

from graphrag_milvus import prompts
from graphrag_milvus.builder.recogniser import Place, entities, pipeline_version, reads
from graphrag_milvus.errors import ModelError, SettingsError
from graphrag_milvus.llm import LLM, Messages
from graphrag_milvus.names import candidate_names, title_name
from graphrag_milvus.sentences import sentence_spans
from graphrag_milvus.types import ExtractedRelation, Extraction, Passage, normalize_name

__all__ = [
    "AutoExtractor",
    "CombinedExtractor",
    "Extractor",
    "GivenExtractor",
    "LLMExtractor",
    "LocalExtractor",
    "make_extractor",
]

MOST_NAME_BYTES = 1_000
MOST_PREDICATE_BYTES = 4_000

Span: TypeAlias = tuple[int, int]


class Extractor(Protocol):
    """Finds the relations of passages."""

    @property
    def name(self) -> str:
        """What it is called in settings and reports."""

    @property
    def recipe(self) -> str:
        """A short text that changes whenever the relations of the same passage could."""

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        """One extraction for each passage, in their order; what fails for one passage stands in its `failure`."""


# --- triples ------------------------------------------------------------------------------------------------------


class GivenExtractor:
    """Takes the `[subject, predicate, object]` triples that came with the documents.

    Numbers become text. A triple that is not three texts or numbers, or has an empty or over-long part, is
    skipped with a warning; the same triple twice in one passage is one relation.
    """

    name = "given"
    recipe = "given/1"

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        """The relations of each passage's `triplets`."""
        return [_from_triples(passage.triplets) for passage in passages]


def _from_triples(triples: Sequence[Any]) -> Extraction:
    problems = [(triple, problem) for triple in triples if (problem := _problem(triple))]
    relations: dict[tuple[str, ...], ExtractedRelation] = {}
    for triple in triples:
        if not _problem(triple):
            parts = [_text(part) for part in triple]
            relations.setdefault(tuple(map(normalize_name, parts)), _triple(*parts))
    warnings = [_skipped(problems, len(triples))] if problems else []
    return Extraction(tuple(relations.values()), tuple(warnings))


def _triple(subject: str, predicate: str, object_: str) -> ExtractedRelation:
    return ExtractedRelation(f"{subject} {predicate} {object_}", predicate, (subject, object_))


def _problem(triple: Any) -> str:
    """Why `triple` cannot be used, or an empty text."""
    if not isinstance(triple, (list, tuple)):
        return "not a list"
    if len(triple) != 3:
        return f"{len(triple)} parts in place of 3"
    if not all(map(_is_text, triple)):
        return "a part is neither text nor a finite number"
    parts = [_text(part) for part in triple]
    if not all(parts):
        return "a part is empty"
    limits = (MOST_NAME_BYTES, MOST_PREDICATE_BYTES, MOST_NAME_BYTES)
    too_long = [limit for part, limit in zip(parts, limits, strict=True) if _bytes(part) > limit]
    return f"a part has more than {too_long[0]:,} bytes" if too_long else ""


def _is_text(part: Any) -> bool:
    if isinstance(part, bool):
        return False
    if isinstance(part, int):
        return part.bit_length() < 1_024  # Python refuses to print much longer ones
    return isinstance(part, str) or (isinstance(part, float) and math.isfinite(part))


def _text(part: Any) -> str:
    return " ".join(str(part).split())


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _skipped(problems: Sequence[tuple[Any, str]], total: int) -> str:
    triple, problem = problems[0]
    shown = _shortened(triple)
    return f"{len(problems)} of {total} triples skipped, the first of them {shown}: {problem}"


def _shortened(value: Any) -> str:
    if isinstance(value, (list, tuple)) and len(value) < 6 and all(isinstance(part, str) for part in value):
        return f"[{', '.join(map(_shortened, value))}]"
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists in lists in lists
        return f"a {type(value).__name__}"
    return shown if len(shown) <= 80 else f"{shown[:80]}..."


# --- sentences ----------------------------------------------------------------------------------------------------


class LocalExtractor:
    """Makes a relation of every sentence: its names are the title's and the entities in it.

    spaCy finds the entities where its pipeline reads the language of the text, as far as script and function
    words tell; elsewhere `graphrag_milvus.names.candidate_names` does. A sentence without entities is kept
    as well, since a search finds it by its text.

    Args:
        model: a spaCy pipeline with entity recognition, as a package or a folder; loaded when first needed,
            once in a process.
        batch_size: texts that spaCy has in work at once.

    Raises, when it extracts:
        MissingDependencyError: spaCy or the pipeline is not installed.
        SettingsError: the pipeline cannot be loaded, or recognises no entities.
    """

    name = "local"

    def __init__(self, model: str = "en_core_web_sm", batch_size: int = 64) -> None:
        self.model = model
        self.batch_size = batch_size

    @property
    def recipe(self) -> str:
        """Changes with the pipeline and its version."""
        return f"local/1 {self.model} {pipeline_version(self.model)}".rstrip()

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        """The sentences of each passage, with their names."""
        spans = [sentence_spans(passage.text) for passage in passages]
        by_rules = [not reads(self.model, passage.text) for passage in passages]
        read = [[] if rules else _blocks(p.text, s) for p, s, rules in zip(passages, spans, by_rules, strict=True)]
        found = self._recognised(read)
        return [
            _sentences(passage, places, _candidates(passage.text, places) if rules else names)
            for passage, places, rules, names in zip(passages, spans, by_rules, found, strict=True)
        ]

    def _recognised(self, texts: Sequence[Sequence[Place]]) -> list[list[Place]]:
        """The entities of each text, which comes in blocks."""
        blocks = [block for text in texts for _, block in text]
        found = iter(entities(blocks, self.model, self.batch_size) if blocks else ())
        return [[(at + start, name) for start, _ in text for at, name in next(found)] for text in texts]


def _sentences(passage: Passage, spans: Sequence[Span], found: Sequence[Place]) -> Extraction:
    title = title_name(passage.title)
    fits = _bytes(title) <= MOST_NAME_BYTES
    warning = f"the title has more than {MOST_NAME_BYTES:,} bytes and is tied to no sentence: {_shortened(title)}"
    first = [title] if title and fits else []
    relations: dict[str, ExtractedRelation] = {}
    for (start, end), names in zip(spans, _by_sentence(spans, found), strict=True):
        text = _text(passage.text[start:end])
        relations.setdefault(text, ExtractedRelation(text, "", _distinct([*first, *names])))
    return Extraction(tuple(relations.values()), () if fits else (warning,))


def _by_sentence(spans: Sequence[Span], found: Sequence[Place]) -> list[list[str]]:
    at = [place for place, _ in found]
    return [[name for _, name in found[bisect_left(at, start) : bisect_left(at, end)]] for start, end in spans]


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once, by its first spelling; "The Beatles" in a title is "Beatles" in the text."""
    kept: dict[str, str] = {}
    for name in names:
        kept.setdefault(_ARTICLE.sub("", normalize_name(name)), name)
    return tuple(kept.values())


_ARTICLE = re.compile(r"^(?:the|an?)\s+")


def _blocks(text: str, spans: Sequence[Span], size: int = 5_000) -> list[Place]:
    """Whole sentences together up to `size` characters: spaCy takes no text without end, and context helps it."""
    starts = [0]
    for start, end in spans:
        if end - starts[-1] > size and start > starts[-1]:
            starts.append(start)
    return [(start, text[start:end]) for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _candidates(text: str, spans: Sequence[Span]) -> list[Place]:
    """Names by rules. A word that is capitalised only where a sentence begins is none."""
    names = {name.casefold() for name in candidate_names(text, initial=False)}
    return [
        (start, name)
        for start, end in spans
        for name in candidate_names(text[start:end])
        if name.casefold() in names and _bytes(name) <= MOST_NAME_BYTES
    ]


# --- chat model ---------------------------------------------------------------------------------------------------


class _ListReply(BaseModel):
    """One list under its name; some models send the bare list, and null for an empty one."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {next(iter(cls.model_fields)): value} if isinstance(value, list) else value


class _Entities(_ListReply):
    entities: list[Any] | None


class _Triples(_ListReply):
    triples: list[Any] | None


class LLMExtractor:
    """Asks a chat model what a passage names, and then what it states about that.

    Passages are asked about concurrently, as `LLM.map` does it. Malformed triples are skipped with a
    warning. Where the model fails, the extraction has a `failure`; it is never an empty success.

    Args:
        llm: the chat model.
    """

    name = "llm"

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    @property
    def recipe(self) -> str:
        """Changes with the model and the prompts."""
        model = self.llm.model
        name = getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__
        return f"llm/1 {name} prompts/{prompts.EXTRACT_VERSION}"

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        """The triples of each passage; two calls of the model for each."""
        return [_outcome(result) for result in self.llm.map(self._one, passages)]

    def _one(self, passage: Passage) -> Extraction:
        reply = self.llm.structured(_ask_entities(passage), _Entities)
        entities = _entity_names(reply.entities or [])
        if not entities:
            return Extraction(warnings=("the model found nothing that is named",))
        triples = self.llm.structured(_ask_triples(passage, entities), _Triples).triples or []
        if not triples:
            return Extraction(warnings=(f"the model found {len(entities)} names and stated nothing about them",))
        return _from_triples([_as_list(triple) for triple in triples])


def _outcome(result: Extraction | Exception) -> Extraction:
    if isinstance(result, ModelError):
        return Extraction(failure=str(result))
    if isinstance(result, Exception):
        raise result
    return result


def _entity_names(entities: Iterable[Any]) -> list[str]:
    """Names out of texts, numbers or `{"name": ...}`; what is none of these is no name."""
    found = [entity.get("name") if isinstance(entity, Mapping) else entity for entity in entities]
    return list(_distinct(_text(name) for name in found if _is_text(name) and _text(name)))


def _as_list(triple: Any) -> Any:
    if not isinstance(triple, Mapping):
        return triple
    predicate = triple.get("predicate", triple.get("relation"))
    return [triple.get("subject"), predicate, triple.get("object")]


def _ask_entities(passage: Passage) -> Messages:
    example = _passage_json(prompts.EXTRACT_EXAMPLE_TITLE, prompts.EXTRACT_EXAMPLE_TEXT)
    answer = _json({"entities": prompts.EXTRACT_EXAMPLE_ENTITIES})
    question = _passage_json(passage.title, passage.text, headings=passage.headings)
    return [("system", prompts.EXTRACT_ENTITIES_SYSTEM), ("human", example), ("ai", answer), ("human", question)]


def _ask_triples(passage: Passage, entities: Sequence[str]) -> Messages:
    known = prompts.EXTRACT_EXAMPLE_ENTITIES
    example = _passage_json(prompts.EXTRACT_EXAMPLE_TITLE, prompts.EXTRACT_EXAMPLE_TEXT, known)
    answer = _json({"triples": prompts.EXTRACT_EXAMPLE_TRIPLES})
    question = _passage_json(passage.title, passage.text, entities, passage.headings)
    return [("system", prompts.EXTRACT_TRIPLES_SYSTEM), ("human", example), ("ai", answer), ("human", question)]


def _passage_json(title: str, text: str, entities: Sequence[str] = (), headings: Sequence[str] = ()) -> str:
    """A passage as JSON, out of which no wording of its text can break."""
    given: dict[str, Any] = {"title": title, "headings": list(headings), "text": text, "entities": list(entities)}
    return _json({name: value for name, value in given.items() if value})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- combinations -------------------------------------------------------------------------------------------------


class CombinedExtractor:
    """Several extractors, one after another: the relations of all.

    Where one of them fails for a passage, the passage counts as failed and keeps what the others found.
    """

    def __init__(self, extractors: Sequence[Extractor]) -> None:
        self.extractors = extractors

    @property
    def name(self) -> str:
        """The names of its parts, joined by +."""
        return "+".join(extractor.name for extractor in self.extractors)

    @property
    def recipe(self) -> str:
        """The recipes of its parts, joined by +."""
        return " + ".join(extractor.recipe for extractor in self.extractors)

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        """What all of them find, each relation once."""
        found = [extractor.extract(passages) for extractor in self.extractors]
        return [_together(extractions) for extractions in zip(*found, strict=True)]


def _together(extractions: Sequence[Extraction]) -> Extraction:
    return Extraction(
        tuple(dict.fromkeys(relation for extraction in extractions for relation in extraction.relations)),
        tuple(warning for extraction in extractions for warning in extraction.warnings),
        "; ".join(extraction.failure for extraction in extractions if extraction.failure),
    )


class AutoExtractor:
    """Takes a passage's triples where it has usable ones, and lets `other` read the rest."""

    name = "auto"

    def __init__(self, other: Extractor) -> None:
        self.other = other

    @property
    def recipe(self) -> str:
        """Changes with that of `other`."""
        return f"auto: {GivenExtractor.recipe} or {self.other.recipe}"

    def extract(self, passages: Sequence[Passage]) -> list[Extraction]:
        """Triples as they came, or what `other` finds together with the warnings about unusable triples."""
        given = GivenExtractor().extract(passages)
        rest = [passage for passage, found in zip(passages, given, strict=True) if not found.relations]
        others = iter(self.other.extract(rest) if rest else ())
        return [found if found.relations else _together([found, next(others)]) for found in given]


def make_extractor(name: str, *, llm: LLM | None, spacy_model: str = "en_core_web_sm") -> Extractor:
    """The extractor of that name: given, local, llm, auto, or several of them joined by `+`.

    Raises:
        SettingsError: a name is unknown, or it is llm and there is no chat model.
    """
    makers: dict[str, Callable[[], Extractor]] = {
        "given": GivenExtractor,
        "local": lambda: LocalExtractor(spacy_model),
        "llm": lambda: LLMExtractor(_required(llm)),
        "auto": lambda: AutoExtractor(LocalExtractor(spacy_model) if llm is None else LLMExtractor(llm)),
    }
    names = list(dict.fromkeys(part.strip().lower() for part in name.split("+")))
    unknown = [part for part in names if part not in makers]
    if unknown:
        raise SettingsError(
            f"index.extractor={name!r}: {unknown[0]!r} is unknown; choose from {', '.join(makers)}, or join some by +"
        )
    extractors = [makers[part]() for part in names]
    return extractors[0] if len(extractors) == 1 else CombinedExtractor(extractors)


def _required(llm: LLM | None) -> LLM:
    if llm is None:
        raise SettingsError(
            "index.extractor names 'llm' and there is no chat model; set GRAPHRAG_LLM__MODEL with "
            "GRAPHRAG_LLM__API_KEY or GRAPHRAG_LLM__BASE_URL (or OPENAI_API_KEY), or choose 'local'"
        )
    return llm
