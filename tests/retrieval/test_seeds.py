"""Where a question enters the graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graphrag_milvus import GraphRAG
from graphrag_milvus.names import candidate_names
from graphrag_milvus.retrieval.base import Resources
from graphrag_milvus.retrieval.seeds import Seeds, add_relations, find_entities, named_entities
from graphrag_milvus.retrieval.snapshot import Snapshot
from graphrag_milvus.settings import RetrievalSettings
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Document, entity_id, normalize_name

FACTS = {
    "euler": ["Leonhard Euler", "was born in", "Basel"],
    "johann": ["Johann Bernoulli", "taught", "Leonhard Euler"],
    "daniel": ["Daniel Bernoulli", "was a son of", "Johann Bernoulli"],
    "bern": ["Bern", "is the capital of", "Switzerland"],
}


@pytest.fixture(scope="module")
def rag(open_rag: Callable[..., GraphRAG]) -> GraphRAG:
    rag = open_rag("seeds", embeddings=HashingEmbeddings(64))
    documents = [Document(f"{' '.join(fact)}.", id=key, triplets=[fact]) for key, fact in FACTS.items()]
    rag.add(documents, extractor="given", progress=False)
    return rag


def seeds_of(rag: GraphRAG, question: str, filter: str = "", **settings: float) -> tuple[Seeds, Snapshot]:
    snapshot = rag._resources.snapshots.get(filter)
    names = candidate_names(question)
    vectors = np.stack([rag.embedder.embed_one(t) for t in [question, *map(normalize_name, names)]])
    resources = Resources(rag.store, rag.embedder, rag._resources.snapshots, RetrievalSettings(**settings))
    named = named_entities(question, snapshot)
    seeds = find_entities(named, names, vectors[1:], snapshot, resources, filter=filter)
    told = resources.settings.relation_seeds
    [alike] = resources.store.search("relations", vectors[:1], 2 * told, filter=filter)
    add_relations(seeds, alike, snapshot, told=told)
    return seeds, snapshot


def weights(seeds: Seeds, snapshot: Snapshot) -> dict[str, float]:
    ids = snapshot.incidence.entity_ids[seeds.entity_positions]
    found = seeds.entity_weights[seeds.entity_positions]
    return {snapshot.lexicon.name(int(i)): float(w) for i, w in zip(ids, found, strict=True)}


def test_names_in_the_question_are_seeds(rag: GraphRAG) -> None:
    named = named_entities("Whom did leonhard euler's teacher from Basel meet?", rag._resources.snapshots.get())
    assert {key: (m.text, m.doubtful) for key, m in named.items()} == {
        entity_id("Leonhard Euler"): ("leonhard euler", True),
        entity_id("Basel"): ("Basel", False),
    }


def test_names_beyond_the_filter_are_not(rag: GraphRAG) -> None:
    snapshot = rag._resources.snapshots.get('doc_id == "daniel"')
    assert named_entities("Who are Basel and Daniel Bernoulli?", snapshot).keys() == {entity_id("Daniel Bernoulli")}


def test_a_name_weighs_less_the_more_passages_mention_it(rag: GraphRAG) -> None:
    seeds, snapshot = seeds_of(rag, "How are Leonhard Euler and Basel connected?", entity_seeds=0)
    assert weights(seeds, snapshot) == pytest.approx({"leonhard euler": 1 / 3, "basel": 2 / 3})
    assert [(s["name"], s["mention"], s["score"]) for s in seeds.entities] == [
        ("leonhard euler", "Leonhard Euler", 1.0),
        ("basel", "Basel", 1.0),
    ]


def test_a_part_of_a_name_is_looked_up_by_vector(rag: GraphRAG) -> None:
    seeds, _ = seeds_of(rag, "Who taught Euler?", entity_threshold=0.3)
    assert seeds.entities[0]["name"] == "leonhard euler"
    assert seeds.entities[0]["mention"] == "Euler"
    assert 0.3 <= seeds.entities[0]["score"] < 1.0


def test_the_threshold_and_the_number_hold(rag: GraphRAG) -> None:
    assert seeds_of(rag, "Who taught Euler?", entity_threshold=0.99)[0].entities == []
    assert seeds_of(rag, "Who taught Euler?", entity_seeds=0)[0].entities == []
    many = seeds_of(rag, "Who is called Bernoulli?", entity_seeds=2, entity_threshold=0.0)[0].entities
    assert {s["name"] for s in many} == {"johann bernoulli", "daniel bernoulli"}


def test_entities_come_best_first(rag: GraphRAG) -> None:
    seeds, _ = seeds_of(rag, "Did Bernoulli of Switzerland know Basel?", entity_seeds=5, entity_threshold=0.1)
    scores = [s["score"] for s in seeds.entities]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == 1.0 > scores[-1]


def test_no_weight_is_negative_whatever_the_threshold(rag: GraphRAG) -> None:
    seeds, _ = seeds_of(rag, "Who was Xyzzy of Basel?", entity_seeds=7, entity_threshold=-1.0)
    assert (seeds.entity_weights >= 0).all()
    assert seeds.entity_weights.sum() == pytest.approx(1.0)


def test_under_a_filter_the_nearest_that_it_leaves_are_found(rag: GraphRAG) -> None:
    """The two nearest to this name are Bernoullis; neither is in the document that the filter leaves."""
    question = "Was Bernoulli there?"
    seeds, _ = seeds_of(rag, question, 'doc_id == "bern"', entity_seeds=1, entity_threshold=0.01)
    assert [s["name"] for s in seeds.entities] == ["bern"]
    assert [s["name"] for s in seeds_of(rag, question, entity_seeds=1)[0].entities] != ["bern"]


def test_relations_like_the_question_are_seeds(rag: GraphRAG) -> None:
    seeds, snapshot = seeds_of(rag, "Who taught Leonhard Euler?", relation_seeds=2)
    assert len(seeds.relations) == 2
    assert seeds.relation_weights.sum() == pytest.approx(1.0)
    row = rag.store.get("relations", [int(seeds.relations[0]["id"])], ["text"])
    assert [r["text"] for r in row.values()] == ["Johann Bernoulli taught Leonhard Euler"]
    assert len(seeds.relation_positions) == 4 <= len(snapshot.incidence.relation_ids)  # as many again, untold
    assert seeds_of(rag, "Who taught Leonhard Euler?", relation_seeds=0)[0].relations == []


def test_a_question_without_names_has_relations_only(rag: GraphRAG) -> None:
    seeds, _ = seeds_of(rag, "who was a son of somebody")
    assert seeds.entities == []
    assert seeds.entity_weights.sum() == 0
    assert seeds.relations
