"""The texts by which passages, relations and entities are found, and their vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.errors import EmbeddingError
from graphrag_milvus.types import Enrichment, Entity, Passage, Relation

__all__ = ["Vectorizer", "Vectors"]

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Vectorizer:
    """Turns rows into float32 vectors of length one, shape (rows, dimension)."""

    embedder: Embedder

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return self.embedder.dimension

    def passages(self, passages: Sequence[Passage]) -> Vectors:
        """A passage is found by its title, the headings above it, and its text."""
        texts = [_with_context(p) for p in passages]
        return self._embed(texts, lambda n: f"passage {passages[n].position} of {passages[n].doc_id!r}")

    def relations(self, relations: Sequence[Relation], titles: Sequence[str]) -> Vectors:
        """A triple is found by its text; a sentence with its title, for the sake of its pronouns."""
        texts = [_in_context(r, title) for r, title in zip(relations, titles, strict=True)]
        return self._embed(
            texts, lambda n: f"a relation in passage {relations[n].passage_id} of {relations[n].doc_id!r}"
        )

    def enrichments(self, enrichments: Sequence[Enrichment]) -> Vectors:
        """An enrichment is found by its text alone: it names in full what it is about."""
        texts = [one.text for one in enrichments]
        return self._embed(
            texts,
            lambda n: f"a {enrichments[n].kind} of passage {enrichments[n].passage_id} of {enrichments[n].doc_id!r}",
        )

    def entities(self, entities: Sequence[Entity]) -> Vectors:
        """An entity is found by its normalised name, so that every spelling gives the same vector."""
        return self._embed([entity.name for entity in entities], lambda n: f"entity {entities[n].name[:80]!r}")

    def _embed(self, texts: list[str], place: Callable[[int], str]) -> Vectors:
        try:
            return self.embedder.embed(texts)
        except EmbeddingError as error:
            if not error.text or error.text not in texts:
                raise
            raise EmbeddingError(f"{place(texts.index(error.text))}: {error}", error.text) from None


def _with_context(passage: Passage) -> str:
    """Headings on one line; those that are the title, or stand in the text, are not said twice."""
    path = [h for h in passage.headings if h != passage.title and h not in passage.text]
    return "\n".join(part for part in (passage.title, " > ".join(path), passage.text) if part)


def _in_context(relation: Relation, title: str) -> str:
    if relation.predicate or not title or title.casefold() in relation.text.casefold():
        return relation.text
    return f"{title}: {relation.text}"
