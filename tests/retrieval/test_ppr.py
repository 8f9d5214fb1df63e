"""PageRank retrieval: what is near in the graph comes first, and what is like the question helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphrag_milvus import GraphRAG
from graphrag_milvus.demo import QUESTION
from graphrag_milvus.retrieval.base import Resources
from graphrag_milvus.retrieval.ppr import PPR
from graphrag_milvus.retrieval.snapshot import SnapshotSource
from graphrag_milvus.retrieval.walk import without
from graphrag_milvus.samples import load_questions
from graphrag_milvus.settings import RetrievalSettings
from graphrag_milvus.store import WINDOW
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Document, Retrieval, entity_id

OpenRag = Callable[..., GraphRAG]


def resources(rag: GraphRAG, **settings: Any) -> Resources:
    return Resources(rag.store, rag.embedder, SnapshotSource(rag.store), RetrievalSettings(**settings))


def ids(found: Retrieval) -> list[str]:
    return [p.doc_id for p in found.passages]


def note(id: str, text: str, *triples: list[str], title: str = "") -> Document:
    return Document(text, id=id, title=title, triplets=list(triples))


NOTES = [
    note("a", "Ada taught Ben.", ["Ada", "taught", "Ben"], title="Ada"),
    note("b", "Ben was born in Corfu.", ["Ben", "was born in", "Corfu"], title="Ben"),
    note("c", "Corfu is an island.", ["Corfu", "is", "an island"], title="Corfu"),
    note("x", "Xavier was born in Zagreb.", ["Xavier", "was born in", "Zagreb"], title="Xavier"),
    note("y", "Where and in which town somebody was born is hard to say."),
]


@pytest.fixture(scope="module")
def small(open_rag: OpenRag) -> GraphRAG:
    rag = open_rag("ppr small", embeddings=HashingEmbeddings(64))
    assert rag.add(NOTES, extractor="given", progress=False).failed == []
    return rag


def ask(rag: GraphRAG, question: str, k: int = 5, **settings: Any) -> Retrieval:
    return PPR(resources(rag, **settings)).retrieve(question, k)


def test_what_the_question_leads_to_comes_before_what_is_like_it(small: GraphRAG) -> None:
    found = ask(small, "Where was the pupil of Ada born?")
    assert ids(found)[:2] == ["a", "b"]
    assert ids(small.retrieve("Where was the pupil of Ada born?", method="naive", k=1)) != ["a"]
    assert sorted(ids(found)) == ["a", "b", "c", "x", "y"]


def test_the_trace_tells_seeds_scores_by_source_and_the_way(small: GraphRAG) -> None:
    trace = ask(small, "Where was the pupil of Ada born?").trace
    assert [(seed["name"], seed["mention"]) for seed in trace.seeds["entities"]] == [("ada", "Ada")]
    assert trace.expanded >= 3 and trace.candidates == len(trace.candidate_ids)
    assert trace.path[:2] == [
        "Ada -> \"Ada taught Ben\" -> passage 'Ada'",
        'Ada -> "Ada taught Ben" -> Ben -> "Ben was born in Corfu" -> passage \'Ben\'',
    ]
    assert [s["text"] for s in trace.selected][:2] == ["Ada taught Ben", "Ben was born in Corfu"]
    assert all(set(scores) == {"walk", "dense"} for scores in trace.scores.values())
    first, second = (trace.scores[passage] for passage in trace.selected[0]["passage_ids"] + list(trace.scores)[1:2])
    assert first["walk"] > second["walk"]
    assert list(trace.timings_ms) == ["graph", "embed", "seeds", "search", "walk", "passages", "explain", "total"]


def test_where_no_entity_is_named_the_walk_begins_at_passages_like_the_question(small: GraphRAG) -> None:
    found = ask(small, "who was born on some isle?")
    assert found.trace.seeds["entities"] == []
    assert "no entity of the graph is named in the question" in found.trace.notes[0]
    assert set(ids(found)[:3]) & {"b", "x"}


def test_names_are_looked_up_by_vector_only_where_none_is_known(small: GraphRAG) -> None:
    assert [s["name"] for s in ask(small, "Did Adda teach?", entity_threshold=-1).trace.seeds["entities"]] != []
    linked = ask(small, "Did Adda teach Ben?", entity_threshold=-1).trace.seeds["entities"]
    assert [s["name"] for s in linked] == ["ben"]


def test_without_relations_it_is_the_dense_order(open_rag: OpenRag) -> None:
    rag = open_rag("ppr unrelated", embeddings=HashingEmbeddings(32))
    rag.add([f"Text number {n} of many." for n in range(8)], extractor="given", progress=False)
    found = rag.retrieve("Which is number 3?", method="ppr", k=8)
    assert ids(found) == ids(rag.retrieve("Which is number 3?", method="naive", k=8))
    assert (found.trace.expanded, found.trace.candidates, found.trace.path) == (0, 0, [])


def test_a_document_that_goes_after_the_snapshot_leaves_its_place_to_the_next(
    open_rag: OpenRag, monkeypatch: pytest.MonkeyPatch
) -> None:
    rag = open_rag("ppr gone", embeddings=HashingEmbeddings(64))
    rag.add(NOTES, extractor="given", progress=False)
    method = PPR(resources(rag))
    old = method.resources.snapshots.get()
    rag.delete(["a"])
    monkeypatch.setattr(SnapshotSource, "get", lambda *_: old)
    found = method.retrieve("Where was the pupil of Ada born?", 4)
    assert sorted(ids(found)) == ["b", "c", "x", "y"]
    assert "Ada taught Ben" not in repr(found.trace)


def test_the_sample_questions_are_answered_by_five_passages(sample_rag: GraphRAG) -> None:
    questions = load_questions()
    found = [set(q.gold) <= set(ids(sample_rag.retrieve(q.question, method="ppr", k=5))) for q in questions]
    assert sum(found) >= len(questions) - 1
    path = sample_rag.retrieve(QUESTION, method="ppr", k=5).trace.path
    assert any("Daniel Bernoulli" in line for line in path)


# --- a hub --------------------------------------------------------------------------------------------------------

COUNT = 20_000


def test_every_relation_of_a_hub_counts(open_rag: OpenRag) -> None:
    assert COUNT > WINDOW
    rag = open_rag("ppr hub", embeddings=HashingEmbeddings(8))
    rag.store.open(model=rag.embedder.name, dimension=8)
    common = {"doc": 1, "doc_id": "hub", "title": "", "metadata": {}}
    rag.store.upsert("relations", ({**common, **_relation(n)} for n in range(COUNT)))
    rag.store.upsert("passages", ({**common, **_passage(n)} for n in range(COUNT)))
    rag.store.touch()
    found = rag.retrieve("What does Hub know?", method="ppr", k=4)
    assert found.trace.expanded == COUNT
    assert len(found.passages) == 4
    assert len(ask(rag, "What does spoke19999 know?", k=2).passages) == 2


def _relation(n: int) -> dict[str, Any]:
    names = ["Hub", f"spoke{n}"]
    return {
        "id": n + 1,
        "passage_id": n + 1,
        "text": f"Hub knows spoke{n}",
        "predicate": "knows",
        "entity_ids": [entity_id(name) for name in names],
        "names": names,
        "vector": np.eye(8, dtype=np.float32)[n % 8],
    }


def _passage(n: int) -> dict[str, Any]:
    vector = np.eye(8, dtype=np.float32)[n % 7]
    return {"id": n + 1, "text": f"passage {n}", "position": 0, "recipe": "r", "relations": 1, "vector": vector}


# --- the question without its names -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "names", "rest"),
    [
        ("Who is the spouse of the director of Big Eyes?", ["Big Eyes"], "Who is the spouse of the director of?"),
        ("Who was Ada's best pupil then?", ["Ada"], "Who was's best pupil then?"),
        ("Where was Ada born?", ["Ada"], "Where was born?"),
        ("Is Ada Ben?", ["Ada", "Ben"], "Is Ada Ben?"),  # hardly a word would stay
        ("Who directed the film Big Eyes?", ["film", "Big Eyes"], "Who directed the film?"),
        ("who directed the film big eyes?", ["film", "big eyes"], "who directed the?"),
        ("欧拉的老师的儿子做了什么贡献?", ["欧拉"], "的老师的儿子做了什么贡献?"),
        ("Did Ann meet Anna in old Annapolis?", ["Ann", "Anna"], "Did meet in old Annapolis?"),
        ("Did Ada的老师 meet C++ users there?", ["Ada"], "Did 的老师 meet C++ users there?"),
        ("nothing is named here", [], "nothing is named here"),
    ],
)
def test_the_question_without_its_names(question: str, names: list[str], rest: str) -> None:
    assert without(question, names) == rest
