"""What every method of retrieval must do, on every engine: both embedded generations, and a server."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

from graphrag_milvus import GraphRAG
from graphrag_milvus.errors import InputError, SettingsError
from graphrag_milvus.rag import METHODS
from graphrag_milvus.retrieval.base import check_question
from graphrag_milvus.settings import (
    EmbeddingSettings,
    IndexSettings,
    LLMSettings,
    MilvusSettings,
    RetrievalSettings,
    Settings,
)
from graphrag_milvus.testing import HashingEmbeddings
from graphrag_milvus.types import Document, Retrieval

OpenRag = Callable[..., GraphRAG]

EMBEDDINGS = HashingEmbeddings(32)
COUNT = 500
QUESTION = "Where was the pupil of Person7 born?"
SECRET = "Zyxwv"
"""A name that only documents under a filter of the tests have."""

NAMES = [*METHODS, "auto"]


@pytest.fixture(params=NAMES)
def method(request: pytest.FixtureRequest) -> str:
    """Each by name. A test that writes goes through all of them by itself, since a server is slow to write."""
    return str(request.param)


def _document(n: int) -> Document:
    """A person who was born in one of 40 towns and taught the next person."""
    person, pupil, town = f"Person{n}", f"Person{(n + 1) % COUNT}", f"Town{n % 40}"
    return Document(
        f"{person} was born in {town}. {person} taught {pupil}.",
        id=f"doc-{n}",
        title=person,
        metadata={"group": n % 100, "half": n % 2, "tags": [f"t{n % 3}"]},
        triplets=[[person, "was born in", town], [person, "taught", pupil]],
    )


def _secret(n: int) -> Document:
    """A document that names Person7, and what nobody may see who filters for `group`."""
    return Document(
        f"{SECRET}{n} was the rival of Person7.",
        id=f"secret-{n}",
        title=f"{SECRET}{n}",
        metadata={"group": 1_000, "half": 7},
        triplets=[[f"{SECRET}{n}", "was the rival of", "Person7"]],
    )


@pytest.fixture(scope="module")
def rag(open_rag: OpenRag) -> GraphRAG:
    """500 people and 5 secrets, to be read only."""
    rag = open_rag("methods", embeddings=EMBEDDINGS, index=IndexSettings(window=COUNT + 5))
    report = rag.add([*map(_document, range(COUNT)), *map(_secret, range(5))], extractor="given", progress=False)
    assert (report.added, report.failed) == (COUNT + 5, [])
    return rag


@pytest.fixture(scope="module")
def changing(open_rag: OpenRag) -> GraphRAG:
    """A workspace that tests leave as they found it: four documents."""
    rag = open_rag("methods that change", embeddings=EMBEDDINGS)
    rag.add(map(_document, range(4)), extractor="given", progress=False)
    return rag


def everything(found: Retrieval) -> str:
    """All that a user may see of a retrieval."""
    return json.dumps([dataclasses.asdict(p) for p in found.passages] + [dataclasses.asdict(found.trace)])


# --- how many -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 5, 120])
def test_there_are_k_passages_and_none_twice(rag: GraphRAG, method: str, k: int) -> None:
    found = rag.retrieve(QUESTION, method=method, k=k)
    assert len(found.passages) == k
    assert len({p.id for p in found.passages}) == k


def test_scores_do_not_rise(rag: GraphRAG, method: str) -> None:
    scores = [p.score for p in rag.retrieve(QUESTION, method=method, k=200).passages]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[-1]


def test_the_trace_has_the_scores_by_source_of_each_passage_and_of_no_other(rag: GraphRAG, method: str) -> None:
    found = rag.retrieve(QUESTION, method=method, k=7)
    assert set(found.trace.scores) == {p.id for p in found.passages}
    assert all(scores and all(map(math.isfinite, scores.values())) for scores in found.trace.scores.values())


def test_k_of_zero_gives_no_passage(rag: GraphRAG, method: str) -> None:
    assert rag.retrieve(QUESTION, method=method, k=0).passages == []


def test_k_of_ten_thousand_gives_every_passage_once(rag: GraphRAG, method: str) -> None:
    ids = [p.doc_id for p in rag.retrieve(QUESTION, method=method, k=10_000).passages]
    assert sorted(ids) == sorted([d.id for d in map(_document, range(COUNT))] + [f"secret-{n}" for n in range(5)])


def test_a_larger_k_keeps_what_a_smaller_one_gave(rag: GraphRAG, method: str) -> None:
    few = [p.id for p in rag.retrieve(QUESTION, method=method, k=3).passages]
    more = [p.id for p in rag.retrieve(QUESTION, method=method, k=10).passages]
    assert few == more[:3]


@pytest.mark.parametrize("k", [-1, 20_000])
def test_k_out_of_range_is_an_input_error(rag: GraphRAG, method: str, k: int) -> None:
    with pytest.raises(InputError, match=str(k)):
        rag.retrieve(QUESTION, method=method, k=k)


# --- questions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", ["", "  ", "\n\t\u3000"])
def test_a_question_without_words_is_an_input_error(rag: GraphRAG, method: str, question: str) -> None:
    with pytest.raises(InputError, match="empty"):
        rag.retrieve(question, method=method)


@pytest.mark.parametrize(
    "question",
    ["what is it all about", "???", "x\0y", "爱因斯坦在哪里工作？", "🎈", "'\"\\) or (1==1", "Person7 " * 20_000],
    ids=["no-entity", "marks", "nul", "chinese", "emoji", "injection", "long"],
)
def test_any_question_gives_k_passages(rag: GraphRAG, method: str, question: str) -> None:
    found = rag.retrieve(question, method=method, k=4)
    assert len({p.id for p in found.passages}) == 4
    assert found.question == question


def test_half_a_surrogate_pair_is_an_input_error(rag: GraphRAG, method: str) -> None:
    with pytest.raises(InputError, match="surrogate"):
        rag.retrieve("Who is \ud800?", method=method)
    with pytest.raises(InputError, match="surrogate"):
        rag.retrieve(QUESTION, method=method, filter='title == "\ud800"')


# --- filters ------------------------------------------------------------------------------------------------------


def test_a_filter_that_leaves_one_percent_still_gives_k(rag: GraphRAG, method: str) -> None:
    found = rag.retrieve(QUESTION, method=method, k=5, filter='metadata["group"] == 42')
    assert sorted(p.doc_id for p in found.passages) == ["doc-142", "doc-242", "doc-342", "doc-42", "doc-442"]
    assert len(rag.retrieve(QUESTION, method=method, k=3, filter='metadata["group"] == 42').passages) == 3


def test_a_filter_that_leaves_nothing_gives_nothing(rag: GraphRAG, method: str) -> None:
    found = rag.retrieve(QUESTION, method=method, filter='metadata["group"] == 77777')
    assert found.passages == []
    assert "Person" not in everything(found)


@pytest.mark.parametrize(
    "filter",
    [
        'metadata["group"] < 100',
        'metadata["half"] == 0 or metadata["half"] == 1',
        'doc_id like "doc-%"',
        'title != "" and doc_id < "e"',
    ],
)
def test_what_a_filter_excludes_appears_nowhere(rag: GraphRAG, method: str, filter: str) -> None:
    assert SECRET in everything(rag.retrieve("Who was the rival of Person7?", method=method, k=20))
    found = rag.retrieve(f"Who was the rival of Person7, {SECRET}1 or another?", method=method, k=20, filter=filter)
    assert len(found.passages) == 20
    assert SECRET.casefold() not in everything(found).casefold()


def test_what_a_filter_on_one_document_excludes_appears_nowhere(rag: GraphRAG, method: str) -> None:
    found = rag.retrieve(QUESTION, method=method, k=10, filter='doc_id == "doc-7"')
    assert [p.doc_id for p in found.passages] == ["doc-7"]
    allowed = {p.id for p in found.passages}
    assert {i for s in found.trace.selected for i in s["passage_ids"]} <= allowed
    relations = {int(row["id"]) for row in rag.store.iterate("relations", [], filter='doc_id == "doc-7"')}
    assert {int(i) for i in found.trace.candidate_ids} <= relations
    assert {int(s["id"]) for s in found.trace.seeds.get("relations", [])} <= relations
    assert {int(s["id"]) for s in found.trace.selected} <= relations
    names = {"person7", "person8", "town7"}
    assert {s["name"] for s in found.trace.seeds.get("entities", [])} <= names
    assert not any(f"Person{n}" in line for line in found.trace.path for n in range(9, COUNT))


def test_the_same_filter_is_kept_and_others_do_not_mix(rag: GraphRAG, method: str) -> None:
    for _ in range(2):
        for half in (0, 1):
            found = rag.retrieve(QUESTION, method=method, k=30, filter=f'metadata["half"] == {half}')
            assert {p.metadata["half"] for p in found.passages} == {half}


def test_white_space_is_no_filter(rag: GraphRAG, method: str) -> None:
    plain = rag.retrieve(QUESTION, method=method).passages
    assert rag.retrieve(QUESTION, method=method, filter=" \n ").passages == plain


@pytest.mark.parametrize(
    "filter",
    [
        "1==1) or (1==1",
        'doc_id == "x") or (doc_id != "x"',
        'doc_id == "doc-1" or (title == "',
        "metadata[",
        "((1==1)",
        "doc_id ==",
        "nope == 1 and",
        "this is prose",
        "'",
        '"\\"',
        "; drop",
        "\0",
    ],
)
def test_a_filter_that_is_none_or_breaks_out_is_an_input_error(rag: GraphRAG, method: str, filter: str) -> None:
    with pytest.raises(InputError, match="filter"):
        rag.retrieve(QUESTION, method=method, filter=filter)


def test_a_filter_with_brackets_and_quotes_in_a_text_is_understood(rag: GraphRAG, method: str) -> None:
    for text in (") or (", "a ' b", "]["):
        check_question(QUESTION, 1, f'title == "{text}"')
        assert rag.retrieve(QUESTION, method=method, filter=f'title == "{text}"').passages == []
    check_question(QUESTION, 1, r'title == "a \" ) b"')


# --- the trace ----------------------------------------------------------------------------------------------------


def test_the_trace_is_json_and_says_what_was_done(rag: GraphRAG, method: str) -> None:
    found = rag.retrieve(QUESTION, method=method, k=5)
    told = json.loads(json.dumps(dataclasses.asdict(found)))
    assert told["trace"]["round_trips"] > 0
    assert told["trace"]["method"] == found.method
    assert found.method in METHODS
    timings = told["trace"]["timings_ms"]
    assert all(ms >= 0 for ms in timings.values())
    assert timings["total"] == pytest.approx(sum(ms for stage, ms in timings.items() if stage != "total"), abs=0.01)
    assert told["trace"]["usage"] == {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0}
    assert told["passages"][0]["id"] == str(int(told["passages"][0]["id"]))


def test_passages_come_as_they_were_indexed(rag: GraphRAG, method: str) -> None:
    for passage in rag.retrieve(QUESTION, method=method, k=5, filter='doc_id like "doc-%"').passages:
        original = _document(int(passage.doc_id.removeprefix("doc-")))
        assert (passage.title, passage.text) == (original.title, original.text)
        assert passage.metadata == original.metadata


# --- again --------------------------------------------------------------------------------------------------------


def ranking(rag: GraphRAG, method: str) -> list[tuple[str, float]]:
    return [(p.id, p.score) for p in rag.retrieve(QUESTION, method=method, k=20).passages]


def test_another_object_gives_the_same(rag: GraphRAG, open_rag: OpenRag, method: str) -> None:
    other = open_rag("methods", embeddings=EMBEDDINGS)
    assert ranking(other, method) == ranking(rag, method)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, engine: MilvusSettings) -> Iterator[tuple[GraphRAG, Any]]:
    """A workspace that is closed again, since only one process may have an embedded database open."""
    embedded = engine.embedded
    uri = str(tmp_path_factory.mktemp("elsewhere") / "other.db") if embedded else engine.uri
    settings = _settings(uri)
    with GraphRAG(settings, embeddings=EMBEDDINGS) as rag:
        rag.add(map(_document, range(60)), extractor="given", progress=False)
        before = {name: ranking(rag, name) for name in NAMES}
        rag.close()
        code = (
            "import json, sys; sys.path[:0] = [sys.argv[1]]; import test_methods as t; from graphrag_milvus import *\n"
            "rag = GraphRAG(t._settings(sys.argv[2]), embeddings=t.EMBEDDINGS)\n"
            "print(json.dumps({name: t.ranking(rag, name) for name in t.NAMES})); rag.close()"
        )
        here = __file__.rpartition("/")[0]
        done = subprocess.run([sys.executable, "-c", code, here, uri], capture_output=True, text=True, check=True)
        yield before, json.loads(done.stdout.splitlines()[-1])
        if not embedded:
            rag.store.drop()


def _settings(uri: str) -> Settings:
    return Settings(
        workspace="elsewhere",
        milvus=MilvusSettings(uri=uri),
        embedding=EmbeddingSettings(),
        llm=LLMSettings(),
        retrieval=RetrievalSettings(),
    )


def test_another_process_gives_the_same(elsewhere: tuple[dict[str, Any], dict[str, Any]], method: str) -> None:
    before, after = elsewhere
    assert len(before[method]) == 20
    assert [tuple(pair) for pair in after[method]] == before[method]


def test_questions_do_not_change_one_another(rag: GraphRAG, method: str) -> None:
    before = ranking(rag, method)
    rag.retrieve("Whom did Person300 teach?", method=method, filter='metadata["half"] == 0')
    assert ranking(rag, method) == before


# --- change -------------------------------------------------------------------------------------------------------


def test_one_object_sees_what_another_added_changed_and_deleted(changing: GraphRAG, open_rag: OpenRag) -> None:
    other = open_rag("methods that change", embeddings=EMBEDDINGS)

    def ask(method: str, question: str = "Whom did Person77 teach?") -> Retrieval:
        return other.retrieve(question, method=method, k=9)

    before = {method: ask(method, QUESTION).passages for method in NAMES}
    new = _document(77)
    changing.add(new, extractor="given", progress=False)
    for method in NAMES:
        assert [p.text for p in ask(method).passages if p.doc_id == "doc-77"] == [new.text]

    text = "Person77 painted Town37."
    changed = dataclasses.replace(new, text=text, triplets=[["Person77", "painted", "Town37"]])
    changing.add(changed, extractor="given", progress=False)
    for method in NAMES:
        assert [p.text for p in ask(method).passages if p.doc_id == "doc-77"] == [text]
        assert "taught Person78" not in everything(ask(method))

    assert changing.delete(["doc-77"]).deleted == ["doc-77"]
    for method in NAMES:
        found = ask(method, "What did Person77 paint?")
        assert "doc-77" not in everything(found)
        assert not any("person77" in seed["name"] for seed in found.trace.seeds.get("entities", []))
        assert ask(method, QUESTION).passages == before[method]
        assert len(before[method]) == 4


def test_deleted_documents_do_not_take_the_place_of_others(changing: GraphRAG, open_rag: OpenRag) -> None:
    """Entities outlive their documents until `gc`, and must not crowd out those that are still there."""
    generous = RetrievalSettings(entity_threshold=0.2)
    rag = open_rag("methods that change", embeddings=EMBEDDINGS, retrieval=generous)
    changing.gc()
    before = {method: rag.retrieve("Where was Person2x born?", method=method, k=2) for method in NAMES}
    assert before["subgraph"].trace.seeds["entities"]
    gone = [
        Document(f"Person2{c} slept.", id=f"g{c}", triplets=[[f"Person2{c}", "slept in", "Town1"]]) for c in "abcdxyz"
    ]
    changing.add(gone, extractor="given", progress=False)
    changing.delete([d.id for d in gone])
    for method in NAMES:
        after = rag.retrieve("Where was Person2x born?", method=method, k=2)
        assert (after.passages, after.trace.seeds) == (before[method].passages, before[method].trace.seeds)


# --- nothing there ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def emptied(open_rag: OpenRag) -> GraphRAG:
    """A workspace whose last document was deleted."""
    rag = open_rag("methods emptied", embeddings=EMBEDDINGS)
    rag.add(_document(1), extractor="given", progress=False)
    rag.delete(["doc-1"])
    return rag


@pytest.fixture(scope="module")
def unrelated(open_rag: OpenRag) -> GraphRAG:
    """Documents in which no relation was found."""
    rag = open_rag("methods unrelated", embeddings=EMBEDDINGS)
    rag.add([f"Text number {n}." for n in range(6)], extractor="given", progress=False)
    assert rag.stats().relations == 0
    return rag


def test_a_workspace_that_was_never_made_gives_nothing_and_says_so(open_rag: OpenRag, method: str) -> None:
    found = open_rag("methods never", embeddings=EMBEDDINGS).retrieve(QUESTION, method=method)
    assert found.passages == []
    assert "nothing is indexed" in found.trace.notes[0]
    json.dumps(dataclasses.asdict(found))


def test_an_emptied_workspace_gives_nothing(emptied: GraphRAG, method: str) -> None:
    for k in (0, 5, 10_000):
        found = emptied.retrieve(QUESTION, method=method, k=k)
        assert (found.passages, found.trace.selected, found.trace.candidate_ids) == ([], [], [])
    assert emptied.retrieve(QUESTION, method=method, filter='metadata["group"] == 1').passages == []


def test_without_relations_passages_are_still_found(unrelated: GraphRAG, method: str) -> None:
    found = unrelated.retrieve("Text number 3.", method=method, k=2)
    assert len(found.passages) == 2
    assert found.passages[0].text == "Text number 3."
    assert len(unrelated.retrieve("Text", method=method, k=10_000).passages) == 6


# --- in a chain ---------------------------------------------------------------------------------------------------


def test_it_is_a_langchain_retriever(rag: GraphRAG, method: str) -> None:
    retriever = rag.as_retriever(method=method, k=3, filter='metadata["half"] == 1')
    chain = retriever | RunnableLambda(lambda documents: [d.page_content for d in documents])
    expected = rag.retrieve(QUESTION, method=method, k=3, filter='metadata["half"] == 1').passages
    assert chain.invoke(QUESTION) == [p.text for p in expected]
    first = retriever.invoke(QUESTION)[0]
    assert first.id == first.metadata["passage_id"] == expected[0].id
    assert first.metadata["doc_id"] == expected[0].doc_id
    assert first.metadata["score"] == expected[0].score
    assert first.metadata["half"] == 1
    assert [d.id for d in asyncio.run(retriever.ainvoke(QUESTION))] == [p.id for p in expected]


def test_a_retriever_takes_method_and_k_from_the_settings(open_rag: OpenRag, rag: GraphRAG, method: str) -> None:
    one = open_rag("methods", embeddings=EMBEDDINGS, retrieval=RetrievalSettings(method=method, top_k=2))
    asked = rag.retrieve(QUESTION, method=method, k=2).passages
    assert [d.id for d in one.as_retriever().invoke(QUESTION)] == [p.id for p in asked]


def test_an_unknown_method_is_named(rag: GraphRAG, open_rag: OpenRag, method: str) -> None:
    for one in (rag, open_rag("methods never", embeddings=EMBEDDINGS)):
        with pytest.raises(SettingsError, match=f"{method}x.*known are auto, naive"):
            one.retrieve(QUESTION, method=f"{method}x")
