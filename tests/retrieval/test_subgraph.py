"""Graph retrieval: what is reached, what is chosen, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from graphrag_milvus import GraphRAG
from graphrag_milvus.demo import QUESTION
from graphrag_milvus.samples import load_questions
from graphrag_milvus.settings import RetrievalSettings
from graphrag_milvus.store import WINDOW
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Document, entity_id

OpenRag = Callable[..., GraphRAG]

# --- the sample corpus, without a chat model -----------------------------------------------------------------------


@pytest.mark.parametrize(("method", "k"), [("auto", 2), ("ppr", 2), ("subgraph", 3)])
def test_the_graph_finds_the_son_and_plain_retrieval_does_not(sample_rag: GraphRAG, method: str, k: int) -> None:
    graph = sample_rag.retrieve(QUESTION, method=method, k=k)
    assert graph.passages[0].doc_id == "leonhard-euler"
    assert graph.passages[-1].doc_id == "daniel-bernoulli"
    naive = sample_rag.retrieve(QUESTION, method="naive", k=k)
    assert len(naive.passages) == k
    assert "daniel-bernoulli" not in {p.doc_id for p in naive.passages}


@pytest.mark.parametrize(("method", "k"), [("ppr", 2), ("subgraph", 3)])
def test_the_path_goes_by_the_teacher(sample_rag: GraphRAG, method: str, k: int) -> None:
    path = sample_rag.retrieve(QUESTION, method=method, k=k).trace.path
    euler, daniel = path[0], path[-1]
    assert euler.startswith("Euler -> ") and euler.endswith("passage 'Leonhard Euler'")
    assert " -> Johann Bernoulli -> " in daniel and daniel.endswith("passage 'Daniel Bernoulli'")
    assert daniel.index("student of Johann Bernoulli") < daniel.index("a son of Johann Bernoulli")


def test_the_answer_names_fluid_dynamics_and_cites_the_son(sample_rag: GraphRAG) -> None:
    answer = sample_rag.ask(QUESTION, k=2)
    assert "fluid dynamics" in answer.text
    [daniel] = [p.id for p in answer.passages if p.doc_id == "daniel-bernoulli"]
    assert daniel in answer.citations
    assert answer.extractive
    assert 0.0 < answer.confidence <= 1.0
    assert answer.usage.calls == 0


def test_the_trace_tells_the_stages_and_the_seeds(sample_rag: GraphRAG) -> None:
    trace = sample_rag.retrieve(QUESTION, method="subgraph", k=2).trace
    assert list(trace.timings_ms) == [
        *("graph", "embed", "seeds", "search", "expand", "describe", "select", "passages", "explain", "total")
    ]
    assert trace.seeds["entities"][0]["name"] == "euler"
    assert len(trace.seeds["relations"]) == sample_rag.settings.retrieval.relation_seeds
    assert all(seed["text"] for seed in trace.seeds["relations"])
    assert trace.expanded >= trace.candidates == len(trace.candidate_ids) > 0
    assert trace.selected[0]["text"].startswith("Leonhard Euler was a student")
    assert "Johann Bernoulli" in trace.selected[0]["entities"]
    assert trace.selected[0]["score"] == 1.0


def test_questions_about_the_samples_are_answered_by_the_graph(sample_rag: GraphRAG) -> None:
    """Of nine questions over two or three passages; plain retrieval finds all of the passages for six."""
    found = {
        method: sum(
            set(q.gold) <= {p.doc_id for p in sample_rag.retrieve(q.question, method=method, k=3).passages}
            for q in load_questions()
        )
        for method in ("naive", "subgraph")
    }
    assert found["subgraph"] >= found["naive"] + 2
    assert found["subgraph"] >= len(load_questions()) - 1


def test_auto_is_the_graph_where_there_are_relations(sample_rag: GraphRAG) -> None:
    found = sample_rag.retrieve(QUESTION, k=2)
    assert found.method == "ppr"
    assert found.trace.notes[0].startswith("auto: ppr")


# --- Chinese ------------------------------------------------------------------------------------------------------

EINSTEIN = "爱因斯坦在普林斯顿工作。"
CHINESE = [
    *("居里夫人在巴黎研究放射性。", "欧拉出生于巴塞尔。", "长江是中国最长的河流。", "北京是中国的首都。"),
    *("李白是唐代诗人。", "鲁迅写了《狂人日记》。", "牛顿在剑桥大学学习。", "达尔文乘坐贝格尔号航行。"),
    *("莫扎特出生于萨尔茨堡。", "黄河流经山东省。", "上海有一座很高的塔。", "孔子是鲁国人。"),
    *("图灵在曼彻斯特工作。", "高斯在哥廷根教书。", "贝多芬在维也纳生活。", "伽利略在比萨出生。"),
    *("屠呦呦发现了青蒿素。", "杨振宁获得诺贝尔奖。", "钱学森在加州理工学院工作。", "普林斯顿是一座小城。"),
]


@pytest.mark.usefixtures("local_extra")
@pytest.mark.parametrize("embeddings", [None, HashingEmbeddings(64)], ids=["local", "hashing"])
def test_a_chinese_sentence_is_found_among_twenty(open_rag: OpenRag, embeddings: HashingEmbeddings | None) -> None:
    rag = open_rag(f"chinese {embeddings is None}", embeddings=embeddings)
    rag.add([*CHINESE[:10], EINSTEIN, *CHINESE[10:]], extractor="local", progress=False)
    for method in ("subgraph", "auto", "naive"):
        assert rag.retrieve("爱因斯坦在哪里工作？", method=method, k=3).passages[0].text == EINSTEIN
        assert rag.retrieve("谁发现了青蒿素？", method=method, k=3).passages[0].text == "屠呦呦发现了青蒿素。"
    found = rag.retrieve("爱因斯坦在哪里工作？", method="subgraph", k=2)
    assert "爱因斯坦" in [seed["name"] for seed in found.trace.seeds["entities"]]
    assert found.trace.selected[0]["text"] == EINSTEIN
    assert found.trace.path[0].startswith("爱因斯坦 -> ")


# --- small graphs -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain(open_rag: OpenRag) -> GraphRAG:
    """Ann taught Bob, who taught Cid, and so on; one statement stands in two documents."""
    rag = open_rag("subgraph chain", embeddings=HashingEmbeddings(64))
    names = ["Ann Ash", "Bob Birch", "Cid Cedar", "Dan Dogwood", "Eve Elm", "Flo Fir"]
    facts = [[a, "taught", b] for a, b in pairwise(names)]
    documents = [Document(f"{a} taught {b}.", id=a[:3].lower(), title=a, triplets=[[a, p, b]]) for a, p, b in facts]
    again = Document("It is said that Bob taught Cid.", id="rumour", triplets=[["Bob  Birch", "taught", "Cid Cedar"]])
    rag.add([*documents, again], extractor="given", progress=False)
    return rag


def settled(open_rag: OpenRag, **settings: float) -> GraphRAG:
    return open_rag("subgraph chain", embeddings=HashingEmbeddings(64), retrieval=RetrievalSettings(**settings))


def test_equal_relations_of_two_documents_are_one_candidate_with_both_passages(chain: GraphRAG) -> None:
    found = chain.retrieve("Bob Birch taught Cid Cedar", method="subgraph", k=3)
    merged = found.trace.selected[0]
    assert merged["text"] == "Bob Birch taught Cid Cedar"
    assert len(merged["passage_ids"]) == 2
    top = {p.doc_id: p for p in found.passages[:2]}
    assert top.keys() == {"bob", "rumour"}
    assert top["bob"].score == top["rumour"].score
    assert len(found.trace.candidate_ids) == found.trace.candidates + 1


@pytest.mark.parametrize(("degree", "reached"), [(0, 1), (1, 3), (2, 4), (3, 5), (8, 6)])
def test_the_degree_is_how_far_it_goes(open_rag: OpenRag, chain: GraphRAG, degree: int, reached: int) -> None:
    rag = settled(open_rag, degree=degree, relation_seeds=0, entity_seeds=0)
    assert rag.retrieve("What did Ann Ash do?", method="subgraph").trace.expanded == reached


def test_over_the_budget_the_heaviest_stay_and_a_note_says_so(open_rag: OpenRag, chain: GraphRAG) -> None:
    rag = settled(open_rag, degree=8, candidates=2, relation_seeds=0, entity_seeds=0)
    trace = rag.retrieve("What did Ann Ash do?", method="subgraph").trace
    assert trace.expanded == 6
    assert len(trace.candidate_ids) == 2
    assert "6 relations were reached; the 2 heaviest are candidates" in trace.notes
    assert trace.selected[0]["text"] == "Ann Ash taught Bob Birch"


def test_without_seeds_passages_come_by_vector(open_rag: OpenRag, chain: GraphRAG) -> None:
    rag = settled(open_rag, relation_seeds=0, entity_seeds=0)
    found = rag.retrieve("who taught whom", method="subgraph", k=3)
    naive = rag.retrieve("who taught whom", method="naive", k=3)
    assert [p.id for p in found.passages] == [p.id for p in naive.passages]
    assert (found.trace.expanded, found.trace.candidates, found.trace.path) == (0, 0, [])


def test_passages_that_fill_up_score_below_those_of_the_graph(open_rag: OpenRag, chain: GraphRAG) -> None:
    rag = settled(open_rag, degree=0, relation_seeds=0, entity_seeds=0)
    found = rag.retrieve("What did Ann Ash do?", method="subgraph", k=6).passages
    assert found[0].doc_id == "ann"
    assert len(found) == 6
    assert all(p.score <= found[0].score / 2 for p in found[1:])


def test_the_candidates_of_one_question_are_few_requests(chain: GraphRAG) -> None:
    question = "Whom did Bob Birch teach?"
    chain.retrieve(question, method="subgraph", k=2)
    assert chain.retrieve(question, method="subgraph", k=2).trace.round_trips <= 10


# --- a hub --------------------------------------------------------------------------------------------------------

COUNT = 20_000


@pytest.fixture(scope="module")
def hub(open_rag: OpenRag) -> GraphRAG:
    """One entity in 20,000 relations, more than one query of Milvus gives; written without the pipeline."""
    assert COUNT > WINDOW
    rag = open_rag("subgraph hub", embeddings=HashingEmbeddings(8))
    rag.store.open(model=rag.embedder.name, dimension=8)
    vector = np.eye(8, dtype=np.float32)[0]  # the same for all: what is found, the graph finds
    common = {"doc": 1, "doc_id": "hub", "title": "", "metadata": {}, "vector": vector}
    rag.store.upsert("relations", ({**common, "predicate": "knows", **_relation(n)} for n in range(COUNT)))
    passage = {**common, "position": 0, "recipe": "r", "relations": 100}
    passages = ({**passage, "id": n + 1, "text": f"passage {n}"} for n in range(COUNT // 100))
    rag.store.upsert("passages", passages)
    rag.store.touch()
    return rag


def _relation(n: int) -> dict[str, object]:
    names = ["Hub", f"spoke{n}"]
    return {
        "id": n + 1,
        "passage_id": n // 100 + 1,
        "text": f"Hub knows spoke{n}",
        "entity_ids": [entity_id(name) for name in names],
        "names": names,
    }


def test_every_relation_of_a_hub_counts(hub: GraphRAG) -> None:
    found = hub.retrieve("What does Hub know?", method="subgraph", k=5)
    assert found.trace.expanded == COUNT
    assert f"{COUNT:,} relations were reached" in found.trace.notes[-1]
    assert found.trace.candidates == hub.settings.retrieval.candidates
    assert len(found.passages) == 5


def test_a_spoke_is_found_however_big_the_hub(hub: GraphRAG, open_rag: OpenRag) -> None:
    names_only = RetrievalSettings(relation_seeds=0)
    rag = open_rag("subgraph hub", embeddings=HashingEmbeddings(8), retrieval=names_only)
    for n in (0, WINDOW + 5, COUNT - 1):
        found = rag.retrieve(f"Who knows spoke{n}?", method="subgraph", k=1)
        assert found.passages[0].id == str(n // 100 + 1)
        assert found.trace.selected[0]["text"] == f"Hub knows spoke{n}"


def test_the_largest_budget_is_the_window(hub: GraphRAG, open_rag: OpenRag) -> None:
    wide = RetrievalSettings(candidates=WINDOW, selected=3)
    rag = open_rag("subgraph hub", embeddings=HashingEmbeddings(8), retrieval=wide)
    trace = rag.retrieve("What does Hub know?", method="subgraph", k=5).trace
    assert trace.candidates == len(set(trace.candidate_ids)) == WINDOW
