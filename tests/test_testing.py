"""The stand-ins themselves: deterministic, scripted, and gone without a trace when their block ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage

from graphrag_milvus.testing import HashingEmbeddings, Reply, ScriptedChatModel, ScriptedServer, ScriptExhaustedError


def _ask(server: ScriptedServer, path: str, body: Any = None, method: str = "POST") -> tuple[int, bytes]:
    """One plain HTTP request; (status, body)."""
    connection = http.client.HTTPConnection(server.base_url.split("/")[2], timeout=10)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


# --- HashingEmbeddings


@pytest.mark.parametrize(
    "text", ["Euler", "爱因斯坦在普林斯顿工作。", "Москва", "", " \n", "🙂", "C++", "\ud800", "a" * 50_000]
)
def test_vectors_have_length_one(text: str) -> None:
    vector = HashingEmbeddings(32).embed_query(text)
    assert len(vector) == 32
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-6)
    assert vector == np.asarray(vector, dtype=np.float32).tolist()


def test_an_empty_text_has_a_fixed_vector() -> None:
    assert HashingEmbeddings(4).embed_documents(["", "   "]) == [[1.0, 0.0, 0.0, 0.0]] * 2


def test_texts_that_share_words_are_nearer() -> None:
    question, near, far = np.array(
        HashingEmbeddings(256).embed_documents(["Who taught Euler?", "Bernoulli taught Euler.", "Milk is white."])
    )
    assert question @ near > 0.4
    assert question @ far < 0.2


def test_scripts_without_spaces_share_trigrams() -> None:
    question, near, far = np.array(
        HashingEmbeddings(256).embed_documents(["爱因斯坦在哪里工作", "爱因斯坦在普林斯顿工作", "牛奶是白色的"])
    )
    assert question @ near > question @ far + 0.2


def test_vectors_are_the_same_in_every_process() -> None:
    code = "from graphrag_milvus.testing import HashingEmbeddings as H; print(H(16).embed_query('Ünïcode 1'))"
    for seed in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"},
        )
        assert json.loads(run.stdout) == HashingEmbeddings(16).embed_query("Ünïcode 1")


# --- ScriptedChatModel


def test_replies_come_in_order_and_calls_are_kept() -> None:
    model = ScriptedChatModel(["one", AIMessage("two")], respond=lambda messages: f"echo {messages[-1].text}")
    assert [str(model.invoke(text).text) for text in ("a", "b", "c")] == ["one", "two", "echo c"]
    assert [call[-1].text for call in model.calls] == ["a", "b", "c"]


def test_a_bound_format_and_stop_words_are_kept_with_the_call() -> None:
    model = ScriptedChatModel(["{}"])
    assert model.bind(response_format={"type": "json_object"}).invoke("x", stop=["."]).text == "{}"
    assert model.options == [{"response_format": {"type": "json_object"}, "stop": ["."]}]


def test_an_exception_is_raised_and_the_script_goes_on() -> None:
    model = ScriptedChatModel([TimeoutError("slow"), "fine"])
    with pytest.raises(TimeoutError, match="slow"):
        model.invoke("x")
    assert model.invoke("x").text == "fine"


def test_a_call_beyond_the_script_says_which() -> None:
    model = ScriptedChatModel(["one"])
    model.invoke("first")
    with pytest.raises(ScriptExhaustedError, match=r"1 replies and this is call 2.*'second'"):
        model.invoke("second")


def test_the_chat_model_streams_in_pieces_with_usage() -> None:
    chunks = list(ScriptedChatModel(["Jakob and Johann Bernoulli"]).stream("Who were they?"))
    assert "".join(str(chunk.text) for chunk in chunks) == "Jakob and Johann Bernoulli"
    assert len([chunk for chunk in chunks if chunk.text]) == 4
    assert [u["total_tokens"] for chunk in chunks if (u := chunk.usage_metadata)] == [3 + 4]


def test_the_chat_model_works_asynchronously() -> None:
    async def run() -> list[str]:
        model = ScriptedChatModel(["one", "two three four"])
        first = str((await model.ainvoke("x")).text)
        return [first, "".join([str(chunk.text) async for chunk in model.astream([HumanMessage("y")])])]

    assert asyncio.run(run()) == ["one", "two three four"]


def test_threads_share_one_script() -> None:
    model = ScriptedChatModel([str(number) for number in range(40)])
    said: list[str] = []
    threads = [threading.Thread(target=lambda: said.append(str(model.invoke("x").text))) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said, key=int) == [str(number) for number in range(40)]


# --- ScriptedServer


def test_chat_answers_by_list_then_by_function() -> None:
    with ScriptedServer(["one"], lambda asked: asked["messages"][0]["content"].upper()) as server:
        answers = [json.loads(_ask(server, "/v1/chat/completions", _chat(text))[1]) for text in ("a b", "c")]
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["one", "C"]
    assert answers[0]["usage"] == {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    assert [request.json["messages"][0]["content"] for request in server.requests] == ["a b", "c"]


def test_chat_streams_events_with_usage() -> None:
    asked = _chat("hi", stream=True, stream_options={"include_usage": True})
    with ScriptedServer(["Riehen, near Basel"]) as server:
        _, body = _ask(server, "/v1/chat/completions", asked)
    *events, done = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    chunks = [json.loads(event) for event in events]
    assert done == "[DONE]"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]) == "Riehen, near Basel"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == 3


def test_faults_are_sent_as_scripted() -> None:
    replies = [
        Reply("slow down", status=429, headers={"retry-after": "7"}),
        Reply(raw="<html>", headers={"content-type": "text/plain"}),
        Reply("long enough", cut_after=20),
    ]
    with ScriptedServer(replies) as server:
        connection = http.client.HTTPConnection(server.base_url.split("/")[2], timeout=10)
        got = []
        for _ in replies[:2]:
            connection.request("POST", "/v1/chat/completions", json.dumps(_chat("x")))
            response = connection.getresponse()
            got.append((response.status, response.headers, response.read()))
        connection.close()
        with pytest.raises(http.client.IncompleteRead) as cut:
            _ask(server, "/v1/chat/completions", _chat("x"))
    assert (got[0][0], got[0][1]["Retry-After"]) == (429, "7")
    assert json.loads(got[0][2])["error"]["message"] == "slow down"
    assert (got[1][0], got[1][1].get_all("Content-Type"), got[1][2]) == (200, ["text/plain"], b"<html>")
    assert len(cut.value.partial) == 20


def test_what_the_script_does_not_have_is_answered_clearly() -> None:
    def broken(asked: dict[str, Any]) -> str:
        raise ValueError("my mistake")

    with ScriptedServer() as server, ScriptedServer(respond=broken) as wrong:
        beyond = _ask(server, "/v1/chat/completions", _chat("x"))
        raised = _ask(wrong, "/v1/chat/completions", _chat("x"))
        nowhere = _ask(server, "/v1/nothing", {})
        no_object = _ask(server, "/v1/embeddings", [1])
    assert beyond[0] == raised[0] == 410
    assert b"0 replies and this is request 1" in beyond[1]
    assert b"my mistake" in raised[1]
    assert (nowhere[0], no_object[0]) == (404, 400)


def test_models_are_listed() -> None:
    with ScriptedServer() as server:
        status, body = _ask(server, "/v1/models", method="GET")
    assert (status, json.loads(body)["data"][0]["object"]) == (200, "model")


def test_embeddings_check_their_input() -> None:
    with ScriptedServer(max_texts=2, embedding_replies=[Reply("busy", 503), None]) as server:
        busy = _ask(server, "/v1/embeddings", {"input": "a"})
        one = _ask(server, "/v1/embeddings", {"input": "a", "dimensions": 5})
        many = _ask(server, "/v1/embeddings", {"input": ["a", "b", "c"]})
        tokens = _ask(server, "/v1/embeddings", {"input": [[1, 2]]})
    assert [busy[0], one[0], many[0], tokens[0]] == [503, 200, 400, 400]
    assert json.loads(one[1])["data"][0]["embedding"] == HashingEmbeddings(5).embed_query("a")
    assert b"at most 2" in many[1]


def test_closing_waits_for_nobody_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with ScriptedServer([Reply("never", delay=60)]) as server:
        idle = http.client.HTTPConnection(server.base_url.split("/")[2])
        idle.request("GET", "/v1/models")
        idle.getresponse().read()  # and the connection stays open
        slow = http.client.HTTPConnection(server.base_url.split("/")[2])
        slow.request("POST", "/v1/chat/completions", json.dumps(_chat("x")))
        while server.peak == 0:
            time.sleep(0.005)
        began = time.monotonic()
    assert time.monotonic() - began < 2
    assert set(threading.enumerate()) <= before
    for connection in (idle, slow):
        connection.close()
    with pytest.raises(RuntimeError, match="with ScriptedServer"):
        _ = server.base_url
