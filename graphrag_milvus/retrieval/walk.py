"""The walk with restart from a question: where it begins, what draws it, and what it leaves where."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.graph import Incidence, Masses, PassageGraph
from graphrag_milvus.hits import Hit
from graphrag_milvus.names import candidate_names
from graphrag_milvus.retrieval.base import Resources, Run, dense
from graphrag_milvus.retrieval.lexicon import tokenize
from graphrag_milvus.retrieval.seeds import Seeds, find_entities, named_entities
from graphrag_milvus.retrieval.snapshot import Snapshot
from graphrag_milvus.types import normalize_name

__all__ = ["POOL", "RELEVANT", "Start", "begin", "largest", "walk", "without"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float32]
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
"""Of the masses' total: some seven steps; with 0.001 no recall differs by more than 0.4 points."""
_FEWEST_WORDS = 3


@dataclass(frozen=True)
class Start:
    """What a question has in common with the graph.

    Attributes:
        vector: the mean of the question's and of the question's without the names that are linked.
        seeds: the entities that it names.
        passages: positions of the passages that are most like it; `similarity` is theirs.
        alike: the relations that are most like it.
    """

    vector: Vector
    seeds: Seeds
    passages: Ints
    similarity: Floats
    alike: list[Hit]

    def weights(self, incidence: Incidence) -> Floats:
        """Of each relation in the walk: 1 for those that are no more like the question than the last of `alike`."""
        weights = np.ones(len(incidence.relation_ids))
        positions = incidence.relation_positions([hit.id for hit in self.alike])
        similarity = np.array([hit.score for hit in self.alike])
        here = positions >= 0
        weights[positions[here]] = np.exp(RELEVANCE * (similarity[here] - similarity.min(initial=1.0)))
        return weights


def begin(run: Run, snapshot: Snapshot, resources: Resources, *, passages: int, relations: int) -> Start:
    """Link the question's names and search for as many passages and relations like it.

    A search with the mean of two vectors gives the mean of two similarities. That with the question without its
    names is for what lies further along: the passage on a film's director says nothing of the film (`Who is the
    spouse of the director of ...`).
    """
    named = named_entities(run.question, snapshot)
    # By vector, a name finds others of its kind; where one is known for sure these do more harm than good.
    names = [] if named else candidate_names(run.question)
    with run.watch.stage("embed"):
        vectors = _vectors(run.question, [mention.text for mention in named.values()], names, resources.embedder)
    with run.watch.stage("seeds"):
        seeds = find_entities(named, names, vectors[1:], snapshot, resources, filter=run.filter)
    with run.watch.stage("search"):
        near = dense(resources, run, vectors[0], passages, fields=())
        [alike] = resources.store.search("relations", vectors[:1], relations, filter=run.filter)
    positions = snapshot.graph.passage_positions([hit.id for hit in near])
    here = positions >= 0
    similarity = np.array([hit.score for hit in near], dtype=np.float64)[here]
    return Start(vectors[0], seeds, positions[here], similarity, alike)


def _vectors(question: str, mentions: Sequence[str], names: Sequence[str], embedder: Embedder) -> Vectors:
    """In row 0 the mean of the question and of the question without its names, then names as entities are."""
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
