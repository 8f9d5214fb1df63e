"""The walk with restart from a question: where it begins, what draws it, and what it leaves where."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.graph import Incidence, Masses, PassageGraph
from graphrag_milvus.retrieval.lexicon import tokenize
from graphrag_milvus.store import Hit
from graphrag_milvus.types import normalize_name

__all__ = ["largest", "passage_similarity", "question_vectors", "relation_weights", "walk", "without"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.float32]

PRIOR = 0.03
"""Part of the reset mass that is on passages like the question, where entities are linked; else all of it is."""
SHARPNESS = 20.0
"""A passage's part of the prior is in proportion to exp(20 * cosine)."""
POOL = 100
"""Passages that share the prior; 30 give the same recall."""
RELEVANCE = 12.0
"""A relation weighs exp(12 * cosine) in the walk; from 6 to 12 no recall differs by more than 1.2 points."""
RELEVANT = 300
"""Relations whose similarity is asked for; the others count as if they were like the last of them. With 1,000 no
recall differs by more than a point, and a question takes some milliseconds more."""
TOLERANCE = 0.03
"""Of the masses' total: a dozen steps; with 0.001 no recall differs by more than 0.4 points."""
_FEWEST_WORDS = 3


def question_vectors(embedder: Embedder, question: str, mentions: Sequence[str], names: Sequence[str]) -> Vectors:
    """In row 0 the mean of the question and of the question without its names, then names as entities are.

    A search with the mean of two vectors gives the mean of two similarities. The second is for what lies further
    along: the passage on a film's director says nothing of the film (`Who is the spouse of the director of ...`).
    """
    whole = embedder.embed_one(question)
    rest = without(question, mentions)
    mean = whole if rest == question else (whole + embedder.embed_one(rest)) / 2
    return np.stack([mean, *(embedder.embed_one(normalize_name(name)) for name in names)]).astype(np.float32)


def without(question: str, mentions: Sequence[str]) -> str:
    """The question without the names in it; as it is where hardly a word would stay.

    Where some of the names begin with a capital, or in a script without case, those in lower case stay: they are
    things like `film`, which say what is asked for.
    """
    rest = unicodedata.normalize("NFKC", question)  # as mentions are
    names = [mention for mention in mentions if not mention[:1].islower()] or mentions
    for mention in sorted(names, key=len, reverse=True):
        # Not a part of a word; other scripts may have no space between.
        before, after = (r"(?<!\w)", r"(?!\w)") if mention.isascii() else ("", "")
        rest = re.sub(f"{before}{re.escape(mention)}{after}", " ", rest, flags=re.ASCII)
    rest = re.sub(r"\s+(?=['’]s\b|[,.;:?!？。，])", "", " ".join(rest.split()))
    return rest if sum(any(map(str.isalpha, token)) for token in tokenize(rest)) >= _FEWEST_WORDS else question


def relation_weights(alike: Sequence[Hit], incidence: Incidence) -> Floats:
    """The weight of each relation in the walk: 1 for those that are no more like the question than the last hit."""
    weights = np.ones(len(incidence.relation_ids))
    positions = incidence.relation_positions([hit.id for hit in alike])
    similarity = np.array([hit.score for hit in alike])
    here = positions >= 0
    weights[positions[here]] = np.exp(RELEVANCE * (similarity[here] - similarity.min(initial=1.0)))
    return weights


def passage_similarity(near: Sequence[Hit], graph: PassageGraph) -> tuple[Ints, Floats]:
    """Positions and similarity of the passages that are hits and in the graph."""
    positions = graph.passage_positions([hit.id for hit in near])
    here = positions >= 0
    return positions[here], np.array([hit.score for hit in near], dtype=np.float64)[here]


def walk(graph: PassageGraph, entities: Floats, positions: Ints, similarity: Floats, weights: Floats) -> Masses | None:
    """The masses, or None where there is nowhere to begin.

    Args:
        entities: reset mass of each entity, not more than 1 in total.
        positions: passages like the question; `similarity` is theirs.
        weights: of each relation.
    """
    prior = np.zeros(len(graph.passage_ids))
    if len(positions):
        prior[positions] = np.exp(SHARPNESS * (similarity - similarity.max()))
        prior *= (PRIOR if entities.sum() > 0 else 1.0) / prior.sum()
    if not prior.sum() + entities.sum() > 0:
        return None
    return graph.pagerank((1 - PRIOR) * entities, prior, weights=weights, tolerance=TOLERANCE)


def largest(values: Floats, most: int) -> Ints:
    """Places of the largest values, largest first and equal ones by place."""
    places = np.arange(len(values))
    if len(values) > most:  # the others need no order
        least = np.partition(values, len(values) - most)[len(values) - most]
        places = np.flatnonzero(values >= least)
    order: Ints = places[np.lexsort((places, -values[places]))][:most]
    return order
