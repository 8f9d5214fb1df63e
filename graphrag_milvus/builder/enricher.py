"""Enrichment: what a chat model says that a passage is found by, beside its own text.

title      what it is about
summary    what it says
questions  what it answers
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, StringConstraints, create_model

from graphrag_milvus import prompts
from graphrag_milvus.errors import ModelError, SettingsError
from graphrag_milvus.llm import LLM, Messages
from graphrag_milvus.types import Enriched, Passage

__all__ = ["PARTS", "Enricher", "make_enricher"]

PARTS = ("title", "summary", "questions")
"""What can be asked for, in the order in which it is."""
MOST_QUESTIONS = 10
LONGEST_QUESTION = 500
"""Characters; what is longer is no question that somebody asks."""


@dataclass(frozen=True)
class Enricher:
    """Asks a chat model about passages, all parts of one in one call.

    Passages are asked about concurrently, as `LLM.map` does it. A reply that lacks a part is a bad one: it is asked
    for once more, and then the passage has a `failure`, to be tried again by the next run.

    Args:
        llm: the chat model.
        parts: of `PARTS`, at least one.
    """

    llm: LLM
    parts: tuple[str, ...] = PARTS

    @property
    def recipe(self) -> str:
        """A short text that changes whenever what is written about the same passage could."""
        model = self.llm.model
        name = getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__
        return f"enrich/1 {','.join(self.parts)} {name} prompts/{prompts.ENRICH_VERSION}"

    def enrich(self, passages: Sequence[Passage]) -> list[Enriched]:
        """What is written about each passage, in their order."""
        return [_outcome(result) for result in self.llm.map(self._one, passages)]

    def requests(self, passage: Passage) -> list[Messages]:
        """The messages of each request for a passage."""
        return [self._ask(passage)]

    def _one(self, passage: Passage) -> Enriched:
        reply = self.llm.structured(self._ask(passage), _schema(self.parts)).model_dump()
        questions, warnings = _questions(reply.get("questions") or ())
        single = [(part, reply[part]) for part in self.parts if part != "questions"]
        return Enriched((*single, *(("question", question) for question in questions)), warnings)

    def _ask(self, passage: Passage) -> Messages:
        given = {"title": passage.title, "headings": list(passage.headings), "text": passage.text}
        text = json.dumps({name: value for name, value in given.items() if value}, ensure_ascii=False)
        return prompts.enrich(text, self.parts)


def make_enricher(parts: str, llm: LLM | None) -> Enricher | None:
    """The enricher for parts joined by commas, or None where there are none.

    Raises:
        SettingsError: a part is unknown, or there is no chat model.
    """
    named = {part for name in parts.split(",") if (part := name.strip().lower())} - {"none"}
    if unknown := sorted(named - set(PARTS)):
        raise SettingsError(
            f"index.enrich={parts!r}: {unknown[0]!r} is unknown; choose from {', '.join(PARTS)}, joined by commas"
        )
    if not named:
        return None
    if llm is None:
        raise SettingsError(
            f"index.enrich={parts!r} needs a chat model and there is none; set GRAPHRAG_LLM__MODEL with "
            "GRAPHRAG_LLM__API_KEY or GRAPHRAG_LLM__BASE_URL (or OPENAI_API_KEY), or leave index.enrich empty"
        )
    return Enricher(llm, tuple(part for part in PARTS if part in named))


# --- replies --------------------------------------------------------------------------------------------------------


def _listed(value: Any) -> Any:
    """Some models send null for an empty list, or the one question by itself."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


def _spaced(value: Any) -> Any:
    return " ".join(value.split()) if isinstance(value, str) else value


_SHAPES: dict[str, Any] = {
    "title": Annotated[str, BeforeValidator(_spaced), StringConstraints(min_length=1, max_length=300)],
    "summary": Annotated[str, BeforeValidator(_spaced), StringConstraints(min_length=1, max_length=3_000)],
    "questions": Annotated[list[Any], BeforeValidator(_listed)],
}


@lru_cache(maxsize=8)
def _schema(parts: tuple[str, ...]) -> type[BaseModel]:
    """A reply that has all parts."""
    fields: dict[str, Any] = {part: (_SHAPES[part], ...) for part in parts}
    return create_model("EnrichmentReply", **fields)


def _questions(given: Sequence[Any]) -> tuple[list[str], tuple[str, ...]]:
    """Distinct questions out of texts or `{"question": ...}`, and what is wrong with the others."""
    texts = [_spaced(one.get("question") if isinstance(one, Mapping) else one) for one in given]
    usable = [text for text in texts if isinstance(text, str) and 0 < len(text) <= LONGEST_QUESTION]
    distinct: dict[str, str] = {}
    for text in usable:
        distinct.setdefault(text.casefold(), text)
    kept, warnings = list(distinct.values()), []
    if not given:
        warnings.append("the model found no question that the passage answers")
    if len(usable) < len(texts):
        warnings.append(f"{len(texts) - len(usable)} of {len(texts)} questions skipped: no text, empty or too long")
    if len(kept) > MOST_QUESTIONS:
        warnings.append(f"{len(kept)} questions, of which the first {MOST_QUESTIONS} are kept")
    return kept[:MOST_QUESTIONS], tuple(warnings)


def _outcome(result: Enriched | Exception) -> Enriched:
    if isinstance(result, ModelError):
        return Enriched(failure=str(result))
    if isinstance(result, Exception):
        raise result
    return result
