"""With a model: selection, answers, extraction and embeddings by langchain-openai over real HTTP on loopback."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from graphrag_milvus import GraphRAG
from graphrag_milvus.errors import WorkspaceMismatchError
from graphrag_milvus.settings import EmbeddingSettings, LLMSettings, RetrievalSettings
from graphrag_milvus.testing import HashingEmbeddings, Reply, ScriptedServer
from graphrag_milvus.types import Answer, Document

OpenRag = Callable[..., GraphRAG]

QUICK = {"retry-after": "0.02"}
KEY = "sk-very-secret-0123456789"
QUESTION = "What did the son of Johann Bernoulli found?"
FACTS = {
    "johann": ["Johann Bernoulli", "taught", "Leonhard Euler"],
    "daniel": ["Daniel Bernoulli", "was a son of", "Johann Bernoulli"],
    "book": ["Daniel Bernoulli", "founded", "fluid dynamics"],
    "euler": ["Leonhard Euler", "was born in", "Basel"],
    "rhine": ["The Rhine", "flows through", "Basel"],
    "jakob": ["Jakob Bernoulli", "was a brother of", "Johann Bernoulli"],
}
DOCUMENTS = [Document(f"{' '.join(fact)}.", id=key, triplets=[fact]) for key, fact in FACTS.items()]


@pytest.fixture(scope="module")
def local(open_rag: OpenRag) -> GraphRAG:
    """Six documents, each with one triple; no model."""
    rag = open_rag("model path", embeddings=HashingEmbeddings(64))
    assert rag.add(DOCUMENTS, extractor="given", progress=False).relations == 6
    return rag


@pytest.fixture
def ask(open_rag: OpenRag, local: GraphRAG) -> Iterator[Callable[..., tuple[GraphRAG, ScriptedServer]]]:
    """The same workspace with a model whose server answers by a script."""
    servers: list[ScriptedServer] = []

    def make(*replies: Reply | str, respond: Any = None, **settings: Any) -> tuple[GraphRAG, ScriptedServer]:
        servers.append(ScriptedServer(replies, respond).__enter__())
        options = {"max_retries": 2, "timeout": 5.0, **settings}
        llm = LLMSettings(model="scripted", base_url=servers[-1].base_url, api_key=KEY, **options)
        return open_rag("model path", embeddings=HashingEmbeddings(64), llm=llm), servers[-1]

    yield make
    for server in servers:
        server.__exit__(None, None, None)


def lines_of(request: Any) -> dict[str, int]:
    """Which number each relation has in the prompt."""
    lines = request.json["messages"][-1]["content"].splitlines()
    found = [line[1:].split("] ", 1) for line in lines if line.startswith("[")]
    return {text: int(number) for number, text in found}


def choosing(*texts: str) -> Callable[[dict[str, Any]], str]:
    """A model that selects relations by their text, in this order."""

    def respond(asked: dict[str, Any]) -> str:
        lines = asked["messages"][-1]["content"].splitlines()
        chosen = [line for text in texts for line in lines if line.endswith(f"] {text}")]
        return json.dumps({"thought_process": "the son, then the book", "useful_relationships": chosen})

    return respond


CHOICE = ("Daniel Bernoulli was a son of Johann Bernoulli", "Daniel Bernoulli founded fluid dynamics")


# --- selection ----------------------------------------------------------------------------------------------------


def test_passages_come_in_the_order_of_the_selection_and_then_by_vector(ask: Any, local: GraphRAG) -> None:
    rag, server = ask(respond=choosing(*CHOICE))
    found = rag.retrieve(QUESTION, method="subgraph", k=5)
    dense = [p.doc_id for p in local.retrieve(QUESTION, method="naive", k=6).passages]
    rest = [doc_id for doc_id in dense if doc_id not in ("daniel", "book")]
    assert [p.doc_id for p in found.passages] == ["daniel", "book", *rest[:3]]
    assert [p.score for p in found.passages[:2]] == [1.0, 0.5]
    assert [s["text"] for s in found.trace.selected] == list(CHOICE)
    assert found.trace.reasons == "the son, then the book"
    assert found.trace.notes == []
    assert len(server.requests) == 1
    json.dumps(dataclasses.asdict(found))


def test_the_prompt_has_numbered_lines_and_asks_for_json(ask: Any) -> None:
    rag, server = ask(respond=choosing(*CHOICE))
    trace = rag.retrieve(QUESTION, method="subgraph", k=2).trace
    [request] = server.requests
    assert sorted(lines_of(request).values()) == list(range(1, trace.candidates + 1))
    assert set(CHOICE) <= lines_of(request).keys()
    assert QUESTION in request.json["messages"][-1]["content"]
    assert request.json["response_format"] == {"type": "json_object"}
    assert request.json["temperature"] == 0.0
    assert request.headers["authorization"] == f"Bearer {KEY}"


def test_usage_is_counted_in_the_trace(ask: Any) -> None:
    rag, server = ask(respond=choosing(*CHOICE))
    usage = rag.retrieve(QUESTION, method="subgraph", k=2).trace.usage
    assert usage.calls == 1
    assert usage.prompt_tokens > 100
    assert usage.completion_tokens > 10
    answered = rag.ask(QUESTION, method="subgraph", k=2)
    assert answered.usage.calls == 2  # the selection, and the answer
    assert len(server.requests) == 3
    assert rag.llm is not None and rag.llm.usage.calls == 3


@pytest.mark.parametrize(
    ("said", "first"),
    [
        ('```json\n{"thought_process": "so", "useful_relationships": ["[2] x", "[1] y",],}\n```', 2),
        ('Certainly! {"useful_relationships": ["[3] x"]} Does that help [1]?', 3),
        ('["[2] x", "[1] y"]', 2),
        ('{"useful_relationships": [3, 1]}', 3),
        ('{"useful_relationships": ["[3, 1]"]}', 3),
        ('{"useful_relationships": ["[88] none", "[2] x", "[2] again"]}', 2),
    ],
)
def test_replies_that_are_not_quite_as_asked_for(ask: Any, local: GraphRAG, said: str, first: int) -> None:
    rag, server = ask(said)
    trace = rag.retrieve(QUESTION, method="subgraph", k=3).trace
    numbers = lines_of(server.requests[0])
    assert numbers[trace.selected[0]["text"]] == first
    assert trace.notes == []
    assert trace.usage.calls == 1


FALLBACKS = {
    "null": ('{"useful_relationships": null}', 1),
    "empty-list": ('{"useful_relationships": []}', 1),
    "no-such-line": ('{"useful_relationships": ["[77] x"]}', 1),
    "nothing": ("", 2),
    "prose": ("I am sorry, but no.", 2),
    "cut-at-the-limit": (Reply('{"useful_relationships": ["[1] x", "[2', finish_reason="length"), 2),
}


@pytest.mark.parametrize("case", FALLBACKS)
def test_a_reply_of_no_use_leaves_the_local_ranking(ask: Any, local: GraphRAG, case: str) -> None:
    reply, calls = FALLBACKS[case]
    rag, server = ask(*[reply] * calls)
    found = rag.retrieve(QUESTION, method="subgraph", k=4)
    _is_local(found, local)
    assert len(server.requests) == calls
    assert found.trace.usage.calls == calls


def _is_local(found: Any, local: GraphRAG) -> None:
    assert found.passages == local.retrieve(QUESTION, method="subgraph", k=4).passages
    [note] = [n for n in found.trace.notes if "the model" in n]
    assert note.endswith("the local ranking was used")
    assert KEY not in note


DOWN = {
    "500": Reply("trouble", 500, QUICK),
    "401": Reply(f"key {KEY} is wrong", 401),
    "404": Reply("no such model", 404),
    "cut": Reply('{"useful_relationships": ["[1] x"]}', cut_after=30),
    "html": Reply(raw="<html>gateway</html>"),
    "slow": Reply("late", delay=1.0),
    "429": Reply("slow down", 429),
}


@pytest.mark.parametrize("case", DOWN)
def test_a_model_that_is_down_leaves_the_local_ranking(ask: Any, local: GraphRAG, case: str) -> None:
    rag, _ = ask(*[DOWN[case]] * 2, max_retries=0, timeout=0.4)
    _is_local(rag.retrieve(QUESTION, method="subgraph", k=4), local)


def test_nobody_listens(open_rag: OpenRag, local: GraphRAG) -> None:
    with ScriptedServer() as server:
        url = server.base_url
    llm = LLMSettings(model="m", base_url=url, max_retries=0)
    rag = open_rag("model path", embeddings=HashingEmbeddings(64), llm=llm)
    _is_local(rag.retrieve(QUESTION, method="subgraph", k=4), local)
    answer = rag.ask(QUESTION, method="subgraph", k=2)
    assert answer.extractive
    assert len(answer.trace.notes) == 2  # one of the selection, one of the answer


def test_trouble_that_passes_is_waited_out(ask: Any) -> None:
    for faults in ([500, 500], [429], [503, 429], ["cut", 500]):
        replies = [DOWN["cut"] if f == "cut" else Reply("wait", int(f), QUICK) for f in faults]
        rag, server = ask(*replies, respond=choosing(*CHOICE))
        found = rag.retrieve(QUESTION, method="subgraph", k=2)
        assert [p.doc_id for p in found.passages] == ["daniel", "book"]
        assert found.trace.notes == []
        assert len(server.requests) == len(faults) + 1


def test_six_refusals_of_ten_with_a_time_to_come_back(ask: Any) -> None:
    select, turns, lock = choosing(*CHOICE), iter([1, 1, 0, 1, 0, 1, 1, 0, 1, 0] * 10), threading.Lock()

    def respond(asked: dict[str, Any]) -> Reply | str:
        with lock:
            refused = next(turns)
        return Reply("slow down", 429, QUICK) if refused else select(asked)

    rag, server = ask(respond=respond)
    for _ in range(8):
        found = rag.retrieve(QUESTION, method="subgraph", k=2)
        assert [p.doc_id for p in found.passages] == ["daniel", "book"]
        assert found.trace.usage.calls == 1
        assert found.trace.notes == []
    assert len(server.requests) == 20


def test_a_model_is_not_asked_where_there_is_nothing_to_select(ask: Any) -> None:
    rag, server = ask()
    assert rag.retrieve(QUESTION, method="subgraph", k=0).passages == []
    assert rag.retrieve(QUESTION, method="subgraph", filter='doc_id == "nope"').passages == []
    assert len(rag.retrieve(QUESTION, method="naive", k=2).passages) == 2
    assert server.requests == []


def test_what_a_filter_excludes_is_not_shown_to_the_model(ask: Any) -> None:
    rag, server = ask(respond=choosing(*CHOICE))
    found = rag.retrieve(QUESTION, method="subgraph", k=6, filter='doc_id != "book"')
    assert "book" not in {p.doc_id for p in found.passages}
    assert "fluid" not in json.dumps(server.requests[0].json["messages"][-1])


def test_no_more_is_selected_than_the_setting_allows(open_rag: OpenRag, local: GraphRAG) -> None:
    with ScriptedServer(['{"useful_relationships": [4, 3, 2, 1]}']) as server:
        llm = LLMSettings(model="m", base_url=server.base_url)
        few = RetrievalSettings(selected=2)
        rag = open_rag("model path", embeddings=HashingEmbeddings(64), llm=llm, retrieval=few)
        trace = rag.retrieve(QUESTION, method="subgraph", k=5).trace
        assert "at most 2" in server.requests[0].json["messages"][-1]["content"]
    assert len(trace.selected) == 2


# --- answers ------------------------------------------------------------------------------------------------------


def answering(text: str) -> Callable[[dict[str, Any]], str]:
    select = choosing(*CHOICE)

    def respond(asked: dict[str, Any]) -> str:
        return select(asked) if "response_format" in asked else text

    return respond


def test_an_answer_with_citations(ask: Any) -> None:
    rag, server = ask(respond=answering("Daniel, a son of Johann [1], founded fluid dynamics [2]. Not [7]."))
    answer = rag.ask(QUESTION, method="subgraph", k=3)
    ids = {p.doc_id: p.id for p in answer.passages}
    assert answer.citations == [ids["daniel"], ids["book"]]
    assert not answer.extractive
    assert answer.trace.notes == ["the model cited [7], and there is no such passage"]
    prompt = server.requests[-1].json["messages"][-1]["content"]
    assert "[1] Daniel Bernoulli was a son of Johann Bernoulli." in prompt
    assert f"- {CHOICE[1]}" in prompt
    json.dumps(dataclasses.asdict(answer))


def test_an_answer_as_a_stream(ask: Any) -> None:
    text = "Daniel founded fluid dynamics [1, 2]."
    rag, server = ask(respond=answering(text))
    *pieces, answer = rag.stream(QUESTION, method="subgraph", k=2)
    assert isinstance(answer, Answer)
    assert len(pieces) > 1
    assert "".join(pieces) == answer.text == text
    assert answer.citations == [p.id for p in answer.passages]
    assert answer.usage.calls == 2
    assert server.requests[-1].json["stream_options"] == {"include_usage": True}


def test_a_model_that_selects_but_cannot_answer(ask: Any) -> None:
    select = choosing(*CHOICE)

    def respond(asked: dict[str, Any]) -> Reply | str:
        return select(asked) if "response_format" in asked else Reply("Daniel founded it " * 20, cut_after=600)

    rag, _ = ask(respond=respond, max_retries=0)
    *pieces, answer = rag.stream(QUESTION, method="subgraph", k=2)
    assert "".join(pieces).startswith("Daniel founded")
    assert "".join(pieces).endswith(answer.text)
    assert answer.extractive
    assert "fluid dynamics" in answer.text
    assert "could not answer" in answer.trace.notes[0]
    assert answer.usage.calls == 2  # what was begun is paid for


# --- extraction ---------------------------------------------------------------------------------------------------


def extracting(asked: dict[str, Any]) -> str:
    """A model that finds the one fact of a passage, selects all relations, and answers."""
    said = asked["messages"][-1]["content"]
    if "response_format" not in asked:
        return "Fluid dynamics [1]."
    if not said.startswith("{"):
        return '{"useful_relationships": [1, 2, 3]}'
    data = json.loads(said)
    [fact] = [fact for fact in FACTS.values() if f"{' '.join(fact)}." == data["text"]]
    if "entities" in data:
        assert data["entities"] == [fact[0], fact[2]]
        return "```json\n" + json.dumps({"triples": [fact]}) + "\n```"
    return json.dumps({"entities": [fact[0], fact[2]]})


def test_documents_are_extracted_by_a_model_once_and_then_asked_about(open_rag: OpenRag) -> None:
    documents = [Document(d.text, id=d.id) for d in DOCUMENTS[:3]]
    with ScriptedServer(respond=extracting) as server:
        llm = LLMSettings(model="m", base_url=server.base_url, concurrency=2)
        rag = open_rag("model extraction", embeddings=HashingEmbeddings(64), llm=llm)
        report = rag.add(documents, extractor="llm", progress=False)
        assert (report.added, report.relations, report.failed) == (3, 3, [])
        assert report.llm_calls == len(server.requests) == 6
        assert report.tokens > 100

        again = rag.add(documents, extractor="llm", progress=False)
        assert (again.unchanged, again.llm_calls, len(server.requests)) == (3, 0, 6)

        answer = rag.ask(QUESTION, k=3)
        assert answer.trace.method == "subgraph"
        assert {p.doc_id for p in answer.passages} == {"johann", "daniel", "book"}
        assert answer.citations == [answer.passages[0].id]
        assert len(server.requests) == 8
        assert server.peak <= 2


# --- embeddings ---------------------------------------------------------------------------------------------------


def test_embeddings_of_an_endpoint_end_to_end(open_rag: OpenRag) -> None:
    hashing = HashingEmbeddings(48)
    with ScriptedServer(embeddings=hashing, embedding_replies=[None, Reply("wait", 429, QUICK)]) as server:
        endpoint = EmbeddingSettings(provider="openai", base_url=server.base_url, model="words-48", batch_size=4)
        rag = open_rag("model embeddings", embedding=endpoint)
        report = rag.add(DOCUMENTS, extractor="given", progress=False)
        assert (report.added, report.failed) == (6, [])
        assert rag.stats().embedding == "openai:words-48"
        assert rag.stats().dimension == 48
        assert {r.path for r in server.requests} == {"/v1/embeddings"}
        assert max(len(r.json["input"]) for r in server.requests if isinstance(r.json["input"], list)) == 4

        for method in ("naive", "subgraph"):
            found = rag.retrieve("Who founded fluid dynamics?", method=method, k=3)
            assert found.passages[0].doc_id == "book"
            assert len(found.passages) == 3
        asked = len(server.requests)
        rag.retrieve("Who founded fluid dynamics?", method="naive", k=1)
        assert len(server.requests) == asked  # a question's vector is kept

        other = open_rag("model embeddings", embedding=endpoint.model_copy(update={"model": "other"}))
        with pytest.raises(WorkspaceMismatchError, match=r"openai:words-48.*openai:other"):
            other.retrieve("Who?")
