"""KG2RAG: what the seeds reach, which of it joins, and in what order the trees give their passages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings

from graphrag_milvus import GraphRAG
from graphrag_milvus.demo import QUESTION
from graphrag_milvus.rag import METHODS
from graphrag_milvus.retrieval.base import Resources
from graphrag_milvus.retrieval.kg2rag import ABLATIONS, HEAVIEST, KG2RAG, MOST_COMPARED
from graphrag_milvus.retrieval.snapshot import SnapshotSource
from graphrag_milvus.samples import load_questions
from graphrag_milvus.settings import RetrievalSettings
from graphrag_milvus.store import WINDOW
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Document, Retrieval, entity_id

OpenRag = Callable[..., GraphRAG]


class Marked(Embeddings):
    """A text's cosine with a question is the number in brackets that it ends with; else 0.3 for teaching, and 0.1."""

    name = "marked"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self._embed(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self._embed(text)

    @staticmethod
    def _embed(text: str) -> list[float]:
        mark = re.search(r"\((-?[\d.]+)\)$", text)
        unmarked = 1.0 if text.endswith("?") else 0.3 if "taught" in text else 0.1
        cosine = float(mark[1]) if mark else unmarked
        return [cosine, (1 - cosine**2) ** 0.5, 0.0, 0.0]


def note(id: str, cosine: float, *triples: Sequence[str], **metadata: Any) -> Document:
    """A document that is as like every question as is said."""
    return Document(
        f"{id} ({cosine})", id=id, metadata={"group": "all", **metadata}, triplets=[list(t) for t in triples]
    )


def resources(rag: GraphRAG, **settings: Any) -> Resources:
    return Resources(rag.store, rag.embedder, SnapshotSource(rag.store), RetrievalSettings(**settings))


def ids(found: Retrieval) -> list[str]:
    return [p.doc_id for p in found.passages]


# --- a small graph ------------------------------------------------------------------------------------------------

#   a .9 - A-B, A-S    b .2 - B-C    c .1 - C-D    d .15 - S-T     tree of a
#   x .8 - X-Y         y .3 - Y-Z                                  tree of x
#   n .7 without triples; m .05 and l .04 tied to nothing else
NOTES = [
    note("a", 0.9, ["A", "taught", "B"], ["A", "studied", "S"]),
    note("b", 0.2, ["B", "taught", "C"]),
    note("c", 0.1, ["C", "taught", "D"]),
    note("d", 0.15, ["S", "borders", "T"]),
    note("x", 0.8, ["X", "wrote", "Y"], hidden=True),
    note("y", 0.3, ["Y", "rhymes with", "Z"]),
    note("n", 0.7),
    note("m", 0.05, ["M", "met", "M"]),
    note("l", 0.04, ["L", "left", "O"]),
]


@pytest.fixture(scope="module")
def small(open_rag: OpenRag) -> GraphRAG:
    rag = open_rag("kg2rag small", embeddings=Marked())
    assert rag.add(NOTES, extractor="given", progress=False).failed == []
    return rag


def ask(rag: GraphRAG, question: str = "Whom?", *, k: int = 9, filter: str = "", **options: Any) -> Retrieval:
    scorer = options.pop("scorer", None)
    known = {name: options.pop(name) for name in ("candidates", "degree") if name in options}
    method = KG2RAG(replace(resources(rag, **known), scorer=scorer), **options)
    return method.retrieve(question, k, filter)


def test_trees_come_by_their_strongest_edge_and_tell_their_passages_depth_first(small: GraphRAG) -> None:
    found = ask(small, seeds=3)
    assert ids(found) == ["a", "b", "d", "x", "y", "n", "c", "m", "l"]
    assert [p["title"] for p in found.trace.seeds["passages"]] == ["", "", ""]
    assert [p["score"] for p in found.trace.seeds["passages"]] == [0.9, 0.8, 0.7]
    assert found.trace.expanded == 6


def test_words_of_the_question_put_a_tree_first(small: GraphRAG) -> None:
    assert ids(ask(small, "What rhymes with what Y wrote?", seeds=3))[:2] == ["x", "y"]


def test_depth_first_goes_to_the_end_of_the_stronger_branch(small: GraphRAG) -> None:
    assert ids(ask(small, seeds=4, hops=2))[:4] == ["a", "b", "c", "d"]


def test_each_hop_reaches_further(small: GraphRAG) -> None:
    reached = [ask(small, seeds=1, hops=hops).trace.expanded for hops in range(4)]
    assert reached == [2, 4, 5, 5]


def test_the_setting_degree_is_how_far_it_goes(small: GraphRAG) -> None:
    assert [ask(small, seeds=1, degree=d).trace.expanded for d in (0, 1, 2)] == [2, 4, 5]


def test_without_expansion_only_the_seeds_are_put_in_order(small: GraphRAG) -> None:
    found = ask(small, seeds=3, hops=0)
    assert ids(found) == ["a", "x", "n", "y", "b", "d", "c", "m", "l"]
    assert found.trace.notes == []


def test_without_organization_passages_that_joined_come_by_similarity(small: GraphRAG) -> None:
    assert ids(ask(small, seeds=3, organize=False)) == ["a", "x", "n", "y", "b", "d", "c", "m", "l"]


def test_no_more_join_than_there_are_seeds_and_a_note_says_so(small: GraphRAG) -> None:
    found = ask(small, seeds=1)
    assert ids(found)[:2] == ["a", "b"]
    assert found.trace.notes == [
        "2 passages were reached besides the seeds; of the 2 heaviest the 2 most like the question were compared, "
        "and 1 joined"
    ]


def test_the_edge_of_a_circle_that_is_least_like_the_question_goes(open_rag: OpenRag) -> None:
    rag = open_rag("kg2rag circle", embeddings=Marked())
    circle = [note("p", 0.9, ["A", "r", "B"]), note("q", 0.8, ["B", "r", "C"]), note("r", 0.7, ["C", "r", "A"])]
    again = note("s", 0.5, ["A", "knows", "B"])
    rag.add([*circle, again, note("t", 0.6)], extractor="given", progress=False)
    found = ask(rag, seeds=5, k=5)
    assert [s["text"] for s in found.trace.selected] == ["A r B", "B r C"]
    assert ids(found) == ["p", "q", "t", "r", "s"], "the filtered ones come after the trees, by vector"


def test_weights_of_zero_and_below_stay_edges(open_rag: OpenRag) -> None:
    rag = open_rag("kg2rag zero", embeddings=Marked())
    rag.add(
        [note("p", 0.0, ["A", "r", "B"]), note("q", -0.5, ["B", "r", "C"]), note("r", -0.6, ["C", "r", "D"])],
        extractor="given",
        progress=False,
    )
    found = ask(rag, k=3)
    assert ids(found) == ["p", "q", "r"]
    assert [s["text"] for s in found.trace.selected] == ["A r B", "B r C", "C r D"]
    assert [p.score for p in found.passages] == [0.0, 0.0, 0.0]


def test_a_relation_with_one_entity_holds_its_passage(small: GraphRAG) -> None:
    found = ask(small, k=1, filter='doc_id == "m"')
    assert ids(found) == ["m"]
    assert [(s["text"], s["entities"]) for s in found.trace.selected] == [("M met M", ["M", "M"])]


def test_scores_are_the_least_cosine_so_far_and_half_of_it_at_most_after_the_trees(small: GraphRAG) -> None:
    scores = [p.score for p in ask(small, seeds=3).passages]
    assert scores[:6] == pytest.approx([0.9, 0.2, 0.15, 0.15, 0.15, 0.15], abs=1e-4)
    assert scores == sorted(scores, reverse=True)
    assert scores[6] <= scores[5] / 2


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_a_smaller_k_is_the_beginning_of_a_larger_one(small: GraphRAG, k: int) -> None:
    whole = ask(small, seeds=3, k=100).passages
    assert len(whole) == len(NOTES)
    assert ask(small, seeds=3, k=k).passages == whole[:k]


@pytest.mark.parametrize("seeds", [0, 1, 100])
def test_any_number_of_seeds_gives_every_passage_once(small: GraphRAG, seeds: int) -> None:
    assert sorted(ids(ask(small, seeds=seeds, k=50))) == sorted(d.id for d in NOTES)


def test_with_fewer_candidates_each_passage_keeps_a_relation_and_a_note_says_so(small: GraphRAG) -> None:
    found = ask(small, seeds=3, candidates=1)
    assert found.trace.candidates == 6
    few = ask(small, seeds=2, hops=0, candidates=2)
    assert few.trace.notes == [
        "3 relations stand in the passages that joined; the 2 heaviest, some of each passage, are candidates"
    ]
    assert ids(few)[:2] == ["a", "x"]
    assert few.trace.candidates == len(few.trace.candidate_ids) == 2


# --- a cross-encoder ----------------------------------------------------------------------------------------------


@dataclass
class LastFirst:
    """A scorer that likes the texts that it is given last, and remembers them."""

    seen: list[str] = field(default_factory=list)

    def score(self, question: str, texts: Sequence[str]) -> np.ndarray:
        self.seen += texts
        return np.arange(len(texts), dtype=np.float64)


def test_a_cross_encoder_sees_each_tree_as_its_relations_and_says_the_order(small: GraphRAG) -> None:
    scorer = LastFirst()
    found = ask(small, seeds=3, scorer=scorer)
    assert scorer.seen == [
        "A taught B\nB taught C\nA studied S\nS borders T",
        "X wrote Y\nY rhymes with Z",
        "\nn (0.7)",
    ]
    assert ids(found)[:6] == ["n", "x", "y", "a", "b", "d"]


# --- the trace ----------------------------------------------------------------------------------------------------


def test_the_trace_tells_seeds_candidates_relations_and_the_way(small: GraphRAG) -> None:
    trace = ask(small, seeds=3, k=5).trace
    assert list(trace.timings_ms) == [
        *("graph", "embed", "seeds", "expand", "organize", "passages", "explain", "total")
    ]
    assert {seed["text"] for seed in trace.seeds["relations"]} == {"A taught B", "A studied S", "X wrote Y"}
    assert (trace.candidates, len(set(trace.candidate_ids))) == (6, 6)
    assert [s["text"] for s in trace.selected][:2] == ["A taught B", "B taught C"]
    assert trace.selected[0]["score"] == pytest.approx(0.9, abs=1e-4)
    assert trace.selected[1]["entities"] == ["B", "C"]
    assert trace.path[1].startswith('question -> "A taught B" -> B -> "B taught C" -> passage ')
    assert trace.round_trips <= 9, "the first retrieval reads the graph, too"


def test_what_was_not_returned_is_not_told_as_selected(small: GraphRAG) -> None:
    found = ask(small, seeds=3, k=2)
    assert {i for s in found.trace.selected for i in s["passage_ids"]} == {p.id for p in found.passages}


def test_what_a_filter_hides_is_no_bridge_either(small: GraphRAG) -> None:
    found = ask(small, seeds=2, filter='doc_id != "b" and doc_id != "x"')
    assert ids(found) == ["a", "d", "n", "y", "c", "m", "l"]
    told = repr(found.trace)
    assert "B taught C" not in told and "X wrote Y" not in told and "passage 'x" not in told


# --- ablations ----------------------------------------------------------------------------------------------------


def test_the_ablations_have_names_for_measurements(small: GraphRAG) -> None:
    found = {name: make(resources(small)).retrieve("Whom?", 6) for name, make in ABLATIONS.items()}
    assert {name: one.method for name, one in found.items()} == {name: name for name in ABLATIONS}
    assert found["kg2rag-no-expansion"].trace.expanded == 5
    assert ids(found["kg2rag-no-organization"]) == ["a", "x", "n", "y", "b", "d"]
    assert not set(ABLATIONS) & set(METHODS)


# --- change during a question -------------------------------------------------------------------------------------


def test_a_document_that_goes_between_search_and_fetch_leaves_its_place_to_the_next(
    open_rag: OpenRag, monkeypatch: pytest.MonkeyPatch
) -> None:
    rag = open_rag("kg2rag going", embeddings=Marked())
    rag.add(NOTES, extractor="given", progress=False)
    method = KG2RAG(resources(rag), seeds=3)
    before = ids(method.retrieve("Whom?", 5))
    assert before == ["a", "b", "d", "x", "y"]
    real = rag.store.get

    def get(collection: Any, wanted: Sequence[int], fields: Sequence[str]) -> dict[int, dict[str, Any]]:
        if collection == "passages":
            rag.delete(["d"])
        return real(collection, wanted, fields)

    monkeypatch.setattr(rag.store, "get", get)
    assert ids(method.retrieve("Whom?", 5)) == ["a", "b", "x", "y", "n"]


def test_a_document_that_goes_after_the_snapshot_is_passed_over(
    open_rag: OpenRag, monkeypatch: pytest.MonkeyPatch
) -> None:
    rag = open_rag("kg2rag gone", embeddings=Marked())
    rag.add(NOTES, extractor="given", progress=False)
    method = KG2RAG(resources(rag), seeds=3)
    method.retrieve("Whom?", 1)
    old = method.resources.snapshots.get()
    rag.delete(["a", "y"])
    monkeypatch.setattr(SnapshotSource, "get", lambda *_: old)
    found = method.retrieve("Whom?", 9)
    assert sorted(ids(found)) == ["b", "c", "d", "l", "m", "n", "x"]
    assert "A taught B" not in repr(found.trace)


# --- other graphs -------------------------------------------------------------------------------------------------


def test_without_relations_it_is_the_dense_ranking(open_rag: OpenRag) -> None:
    rag = open_rag("kg2rag unrelated", embeddings=HashingEmbeddings(32))
    rag.add([f"Text number {n} of many." for n in range(8)], extractor="given", progress=False)
    found = rag.retrieve("Which is number 3?", method="kg2rag", k=8)
    assert found.passages == rag.retrieve("Which is number 3?", method="naive", k=8).passages
    assert (found.trace.expanded, found.trace.candidates, found.trace.path) == (0, 0, [])


def test_the_sample_questions_are_answered_by_five_passages(sample_rag: GraphRAG) -> None:
    questions = load_questions()
    found = [set(q.gold) <= set(ids(sample_rag.retrieve(q.question, method="kg2rag", k=5))) for q in questions]
    assert sum(found) >= len(questions) - 1
    trace = sample_rag.retrieve(QUESTION, method="kg2rag", k=5).trace
    assert any("son of Johann Bernoulli" in line for line in trace.path)


# --- a hub --------------------------------------------------------------------------------------------------------

COUNT = 20_000


@pytest.fixture(scope="module")
def hub(open_rag: OpenRag) -> GraphRAG:
    """One entity in 20,000 relations of as many passages; passage 17,000 is most like the question after the seeds."""
    assert COUNT > WINDOW
    rag = open_rag("kg2rag hub", embeddings=Marked())
    rag.store.open(model=rag.embedder.name, dimension=4)
    common = {"doc": 1, "doc_id": "hub", "title": "", "metadata": {}}
    rag.store.upsert("relations", ({**common, **_relation(n)} for n in range(COUNT)))
    rag.store.upsert("passages", ({**common, **_passage(n)} for n in range(COUNT)))
    rag.store.touch()
    return rag


def _relation(n: int) -> dict[str, Any]:
    names = ["Hub", f"spoke{n}"]
    return {
        "id": n + 1,
        "passage_id": n + 1,
        "text": f"Hub knows spoke{n}",
        "predicate": "knows",
        "entity_ids": [entity_id(name) for name in names],
        "names": names,
        "vector": np.eye(4, dtype=np.float32)[0],
    }


def _passage(n: int) -> dict[str, Any]:
    cosine = {0: 0.9, 1: 0.85, 17_000: 0.5}.get(n, 0.4 - n / COUNT / 10)
    vector = np.array([cosine, (1 - cosine**2) ** 0.5, 0, 0], dtype=np.float32)
    return {"id": n + 1, "text": f"passage {n}", "position": 0, "recipe": "r", "relations": 1, "vector": vector}


def test_every_relation_of_a_hub_counts_and_the_budget_is_told(hub: GraphRAG) -> None:
    found = ask(hub, "What does Hub know?", seeds=2, k=4)
    assert found.trace.expanded == COUNT
    assert found.trace.notes == [
        "19,998 passages were reached besides the seeds; of the 19,998 heaviest the 500 most like the question were "
        "compared, and 2 joined"
    ]
    assert [p.text for p in found.passages[:3]] == ["passage 0", "passage 1", "passage 17000"]


def test_no_more_is_compared_than_one_search_gives() -> None:
    assert HEAVIEST <= MOST_COMPARED <= WINDOW
