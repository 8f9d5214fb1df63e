"""Chat models over real HTTP on loopback: what comes back, what goes wrong, what is counted."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel, RootModel, SecretStr

from graphrag_milvus.errors import GraphRAGError, ModelReplyError, ModelUnavailableError, SettingsError
from graphrag_milvus.llm import LLM, make_chat_model, make_llm, parse_json
from graphrag_milvus.settings import LLMSettings
from graphrag_milvus.testing import HashingEmbeddings, Reply, ScriptedChatModel, ScriptedServer
from graphrag_milvus.types import Usage

KEY = "sk-very-secret-0123456789"
QUICK = {"retry-after": "0.02"}


class Selection(BaseModel):
    """What a reranker gives."""

    useful_relationships: list[str]


class TolerantSelection(BaseModel):
    """The same, where null means none."""

    useful_relationships: list[str] | None


class Score(BaseModel):
    """A number that a model may write as NaN."""

    score: float


class Names(RootModel[list[str]]):
    """A reply that is an array."""


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, address or proxy of the machine that runs the tests."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def _llm(server: ScriptedServer, **settings: Any) -> LLM:
    defaults = {"model": "m", "api_key": SecretStr(KEY), "timeout": 10.0}
    llm = make_llm(LLMSettings(base_url=server.base_url, **{**defaults, **settings}))
    assert llm is not None
    return llm


def _scripted(*replies: Any) -> tuple[LLM, ScriptedChatModel]:
    model = ScriptedChatModel(replies)
    return LLM(model), model


def _failure(call: Callable[[], object]) -> str:
    """Everything that a log would show of the `ModelUnavailableError` that `call` raises."""
    with pytest.raises(ModelUnavailableError) as caught:
        call()
    shown = "".join(traceback.format_exception(caught.type, caught.value, caught.tb))
    assert KEY not in shown
    return str(caught.value)


# --- construction


def test_no_settings_no_model() -> None:
    assert make_chat_model(LLMSettings()) is None
    assert make_llm(LLMSettings()) is None


def test_importing_does_not_load_the_client() -> None:
    code = "import sys, graphrag_milvus.llm, graphrag_milvus.testing; print('openai' in sys.modules)"
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=path)
    assert run.stdout.strip() == "False", run.stderr


def test_settings_reach_the_model() -> None:
    model: Any = make_chat_model(LLMSettings(api_key=SecretStr(KEY), timeout=7, max_retries=3, temperature=0.5))
    assert (model.model_name, model.request_timeout, model.max_retries) == ("gpt-4o-mini", 7, 3)
    assert (model.temperature, model.openai_api_key.get_secret_value()) == (0.5, KEY)
    llm = make_llm(LLMSettings(api_key=SecretStr(KEY), timeout=7, max_retries=3, concurrency=2))
    assert llm is not None
    assert (llm.concurrency, llm.patience) == (2, 21)


def test_a_local_server_needs_no_key() -> None:
    with ScriptedServer(["hello"]) as server:
        assert _llm(server, api_key=None, model=None).complete("hi") == "hello"
    assert server.requests[0].json["model"] == "gpt-4o-mini"


def test_a_model_without_key_or_address_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"'some-model'.*OPENAI_API_KEY"):
        make_chat_model(LLMSettings(model="some-model"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model: Any = make_chat_model(LLMSettings(model="some-model"))
    assert model.openai_api_key.get_secret_value() == KEY


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://x", "http://", "http://[bad", "http://u:hush@", "http://x:99999"]
)
def test_an_address_that_is_none_is_a_clear_error(url: str) -> None:
    with pytest.raises(SettingsError, match="base_url") as caught:
        make_chat_model(LLMSettings(base_url=url))
    assert "hush" not in str(caught.value)


# --- text, whole and in pieces


def test_complete_counts_usage() -> None:
    with ScriptedServer(["He taught Euler.", "Yes."]) as server:
        llm = _llm(server)
        assert llm.complete([("system", "Be terse."), ("user", "What did Johann do?")]) == "He taught Euler."
        assert llm.complete("Sure?") == "Yes."
    assert llm.usage == Usage(calls=2, prompt_tokens=2 + 4 + 1, completion_tokens=3 + 1)
    assert [message["role"] for message in server.requests[0].json["messages"]] == ["system", "user"]
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_stream_gives_pieces_and_counts_usage() -> None:
    with ScriptedServer(["Daniel Bernoulli wrote Hydrodynamica. 流体力学"]) as server:
        llm = _llm(server)
        pieces = list(llm.stream("What?"))
    assert len(pieces) > 3
    assert "".join(pieces) == "Daniel Bernoulli wrote Hydrodynamica. 流体力学"
    assert llm.usage == Usage(1, 1, 5)


def test_a_stream_that_is_left_is_counted_as_a_call() -> None:
    llm, _ = _scripted("a text of several pieces")
    pieces = llm.stream("x")
    assert next(pieces) == "a text o"
    pieces.close()  # type: ignore[attr-defined]
    assert llm.usage.calls == 1


def test_an_answer_at_the_token_limit_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedServer([Reply("Basel and", finish_reason="length")] * 2) as server:
        assert _llm(server).complete("x") == "Basel and"
        assert "".join(_llm(server).stream("x")) == "Basel and"
    assert [
        record.message.endswith("at its token limit") for record in caplog.records if record.levelname == "WARNING"
    ] == [
        True,
        True,
    ]


# --- JSON


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('```json\n{"useful_relationships": ["[1] a", "[2] b",],}\n```', {"useful_relationships": ["[1] a", "[2] b"]}),
        ('By [1] and [2]:\n{"a": 1}\nI hope {this} helps.', {"a": 1}),
        ('<think>{"draft": "a long one, with much in it"}</think>{"a": 1}', {"a": 1}),
        ('{"a": {"b": [1, 2], "c": "}"}, "d": 4,} and so on', {"a": {"b": [1, 2], "c": "}"}, "d": 4}),
        ("{'a': 'b', c: True}", {"a": "b", "c": True}),
        ('{"triplets": [["Jakob", "met", "Johann"], ["Daniel', {"triplets": [["Jakob", "met", "Johann"], ["Daniel"]]}),
        ('{"a": "line\nbreak"}', {"a": "line\nbreak"}),
        ('{"a": "she said "yes" to it"}', {"a": 'she said "yes" to it'}),
        ('{"a": NaN, "b": [Infinity, -Infinity, 1e999], "c": 2}', {"a": None, "b": [None, None, None], "c": 2}),
        ("""{"a": NaN, "b": [-inf, 'NaN', "NaN"],}""", {"a": None, "b": [None, "NaN", "NaN"]}),
        ('Names: ["爱因斯坦", "Москва"].', ["爱因斯坦", "Москва"]),
        ('see [1 and {"a": 1}', {"a": 1}),
        ("null", None),
        ("[]", []),
        ("It is {}.", {}),
    ],
)  # fmt: skip
def test_json_is_found(text: str, value: object) -> None:
    assert parse_json(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "I cannot help with that.",
        "I cannot do {that}.",
        "[see note]",
        "```json\n```",
        "{",
        "[" * 5_000,
        "{]}" * 50,
    ],
)
def test_what_is_no_json_does_not_pass_for_it(text: str) -> None:
    with pytest.raises(ModelReplyError, match="no JSON") as caught:
        parse_json(text)
    assert caught.value.reply == text


@pytest.mark.parametrize(
    "text", ['{"a":' * 5_000, '{"a": "' * 5_000, "[1, {" * 5_000, '"' * 20_000 + "{", "x" * 200_000]
)
def test_hostile_replies_take_no_long_time(text: str) -> None:
    began = time.monotonic()
    with contextlib.suppress(ModelReplyError):
        parse_json(text)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"useful_relationships": ["a", "b",]}\n```',
        'Sure! I looked at [1] and [2].\n\n{"useful_relationships": ["a", "b"]}\n\nAnything else?',
        '{"useful_relationships": ["a", "b"]',
    ],
)
def test_structured_puts_up_with_small_faults(text: str) -> None:
    with ScriptedServer([text]) as server:
        assert _llm(server).structured("Give JSON", Selection).useful_relationships == ["a", "b"]
    assert len(server.requests) == 1
    assert server.requests[0].json["response_format"] == {"type": "json_object"}


def test_null_fits_where_the_schema_takes_it() -> None:
    with ScriptedServer(['{"useful_relationships": null}']) as server:
        assert _llm(server).structured("Give JSON", TolerantSelection).useful_relationships is None
    assert len(server.requests) == 1


def test_null_is_asked_about_once_and_then_an_error() -> None:
    reply = '{"useful_relationships": null}'
    with ScriptedServer([reply, reply]) as server:
        llm = _llm(server)
        with pytest.raises(ModelReplyError, match=r"twice: useful_relationships.*not None") as caught:
            llm.structured("Give JSON", Selection)
    assert caught.value.reply == reply
    assert llm.usage.calls == len(server.requests) == 2
    first, second = (request.json["messages"] for request in server.requests)
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[:1] == first
    assert second[1]["content"] == reply
    assert "useful_relationships" in second[2]["content"]


@pytest.mark.parametrize("first", ["", "I do not know.", '{"other": 1}', '["a"]'])
def test_a_second_answer_that_fits_is_taken(first: str) -> None:
    llm, model = _scripted(first, '{"useful_relationships": ["a"]}')
    assert llm.structured("Give JSON", Selection).useful_relationships == ["a"]
    assert [len(call) for call in model.calls] == [1, 3]
    assert all(message.text for message in model.calls[1])  # some endpoints refuse an empty message


def test_nothing_twice_is_an_error() -> None:
    llm, _ = _scripted("", "")
    with pytest.raises(ModelReplyError, match="no JSON"):
        llm.structured("Give JSON", Selection)


def test_the_value_that_fits_the_schema_is_taken() -> None:
    llm, _ = _scripted('For {"query": "x"} I found ["Euler", "Basel"]')
    assert llm.structured("Give JSON", Names).root == ["Euler", "Basel"]


def test_not_a_number_is_no_number() -> None:
    llm, model = _scripted('{"score": NaN}', '{"score": 0.5}')
    assert llm.structured("Give JSON", Score).score == 0.5
    assert "score" in str(model.calls[1][-1].text)


def test_a_reply_that_was_cut_off_is_not_repaired() -> None:
    cut = Reply('{"useful_relationships": ["a", "b', finish_reason="length")
    with ScriptedServer([cut, '{"useful_relationships": ["a", "b", "c"]}', cut, cut]) as server:
        llm = _llm(server)
        assert llm.structured("Give JSON", Selection).useful_relationships == ["a", "b", "c"]
        with pytest.raises(ModelReplyError, match="token limit"):
            llm.structured("Give JSON", Selection)
    assert llm.usage.calls == 4
    assert llm.usage.completion_tokens > 0


# --- options that an endpoint does not know


def _refusing(*options: str, named: bool = True) -> Callable[[dict[str, Any]], Reply | str]:
    def respond(asked: dict[str, Any]) -> Reply | str:
        for option in options:
            if option in asked:
                return Reply(f"unknown parameter {option if named else ''}", 400)
        return '{"useful_relationships": []}'

    return respond


@pytest.mark.parametrize("named", [True, False])
def test_an_endpoint_without_json_mode_is_asked_without_it_from_then_on(named: bool) -> None:
    with ScriptedServer(respond=_refusing("response_format", named=named)) as server:
        llm = _llm(server)
        for _ in range(3):
            assert llm.structured("Give JSON", Selection).useful_relationships == []
    assert ["response_format" in request.json for request in server.requests] == [True, False, False, False]
    assert llm.usage.calls == 3


def test_a_model_without_temperature_is_asked_without_it() -> None:
    with ScriptedServer(respond=_refusing("temperature", "response_format")) as server:
        llm = _llm(server)
        assert llm.structured("Give JSON", Selection).useful_relationships == []
        assert llm.complete("x")
    assert ["temperature" in request.json for request in server.requests] == [True, False, False, False]


def test_an_endpoint_without_stream_options_still_streams() -> None:
    with ScriptedServer(respond=_refusing("stream_options")) as server:
        llm = _llm(server)
        assert "".join(llm.stream("x")) == "".join(llm.stream("x")) == '{"useful_relationships": []}'
    assert ["stream_options" in request.json for request in server.requests] == [True, False, False]
    assert llm.usage == Usage(calls=2)


def test_a_request_that_is_refused_for_itself_is_an_error() -> None:
    with ScriptedServer(respond=lambda _: Reply("context too long", 400)) as server:
        llm = _llm(server)
        assert "status 400" in _failure(lambda: llm.structured("Give JSON", Selection))
        assert "context too long" in _failure(lambda: llm.complete("x"))
    assert len(server.requests) == 3
    assert llm.usage == Usage()


# --- endpoints in trouble


def _six_of_ten(turns: Iterator[int]) -> Callable[[dict[str, Any]], Reply | str]:
    def respond(asked: dict[str, Any]) -> Reply | str:
        if next(turns) % 10 < 6:
            return Reply("slow down", 429, QUICK)
        return str(asked["messages"][0]["content"])

    return respond


def test_rate_limits_are_waited_out() -> None:
    with ScriptedServer(respond=_six_of_ten(iter(range(1_000)))) as server:
        llm = _llm(server)
        assert [llm.complete(str(number)) for number in range(10)] == [str(number) for number in range(10)]
    assert llm.usage.calls == 10
    assert len(server.requests) == 10 + 3 * 6


def test_rate_limits_in_a_row_outlast_the_retries_of_the_client() -> None:
    with ScriptedServer([Reply("slow down", 429, QUICK)] * 9 + ["done"]) as server:
        assert _llm(server, max_retries=2).complete("x") == "done"
    assert len(server.requests) == 10


def test_rate_limits_are_waited_out_by_many_threads() -> None:
    with ScriptedServer(respond=_six_of_ten(iter(range(1_000)))) as server:
        llm = _llm(server)
        assert list(llm.map(llm.complete, map(str, range(10)))) == list(map(str, range(10)))


def test_retry_after_is_respected() -> None:
    with ScriptedServer([Reply("later", 429, {"Retry-After": "0.4"}), "now"]) as server:
        assert _llm(server, max_retries=0).patience == 0
        model = make_chat_model(LLMSettings(base_url=server.base_url, max_retries=0))
        assert model is not None
        assert LLM(model, patience=5).complete("x") == "now"
    first, second = server.requests
    assert 0.4 <= second.at - first.at < 1.4


@pytest.mark.parametrize("after", ["0", "0.01", "3600", "Wed, 21 Oct 2999 07:28:00 GMT"])
def test_patience_has_an_end(after: str) -> None:
    with ScriptedServer(respond=lambda _: Reply("slow down", 429, {"Retry-After": after})) as server:
        model = make_chat_model(LLMSettings(base_url=server.base_url, max_retries=0))
        assert model is not None
        began = time.monotonic()
        assert "status 429" in _failure(lambda: LLM(model, patience=0.5).complete("x"))
    assert time.monotonic() - began < 2
    assert len(server.requests) < 6


def test_a_spent_quota_is_not_waited_for() -> None:
    with ScriptedServer(respond=lambda _: Reply("insufficient_quota", 429)) as server:
        assert "quota" in _failure(lambda: _llm(server, max_retries=0).complete("x"))
    assert len(server.requests) == 1


def test_a_server_error_is_tried_again() -> None:
    with ScriptedServer([Reply("oops", 500, QUICK), "fine"]) as server:
        assert _llm(server).complete("x") == "fine"
    assert len(server.requests) == 2


def test_a_stream_is_tried_again_before_its_first_piece() -> None:
    with ScriptedServer([Reply("oops", 500, QUICK), Reply("slow down", 429, QUICK), "fine"]) as server:
        assert "".join(_llm(server, max_retries=1, timeout=5).stream("x")) == "fine"


def test_a_slow_answer_is_given_up() -> None:
    with ScriptedServer([Reply("late", delay=30)]) as server:
        llm = _llm(server, timeout=0.3, max_retries=0)
        began = time.monotonic()
        assert "raise the timeout" in _failure(lambda: llm.complete("x"))
        assert time.monotonic() - began < 3


@pytest.mark.parametrize("cut_after", [0, 40])
def test_a_cut_connection_is_an_error(cut_after: int) -> None:
    with ScriptedServer([Reply("half", cut_after=cut_after)]) as server:
        assert "something answers there" in _failure(lambda: _llm(server, max_retries=0).complete("x"))


def test_a_cut_connection_is_tried_again() -> None:
    with ScriptedServer([Reply("half", cut_after=40), "whole"]) as server:
        assert _llm(server, max_retries=1).complete("x") == "whole"


def test_a_cut_stream_is_an_error_after_its_pieces() -> None:
    with ScriptedServer([Reply("a text of several pieces", cut_after=600)]) as server:
        llm = _llm(server)
        pieces = llm.stream("x")
        assert next(pieces) == "a text o"
        _failure(lambda: list(pieces))
    assert llm.usage.calls == 1


def test_a_stream_that_ends_without_a_reason_is_an_error() -> None:
    event = {"id": "1", "object": "chat.completion.chunk", "model": "m", "created": 0}
    raw = f"data: {json.dumps({**event, 'choices': [{'index': 0, 'delta': {'content': 'half'}}]})}\n\n"
    with ScriptedServer([Reply(raw=raw, headers={"Content-Type": "text/event-stream"})]) as server:
        pieces = _llm(server).stream("x")
        assert next(pieces) == "half"
        assert "broke off" in _failure(lambda: list(pieces))


@pytest.mark.parametrize("content_type", ["text/html", "application/json"])
@pytest.mark.parametrize("raw", ["<html>Sign in</html>", '{"detail": "ok"}', '{"choices": null}', "[]", ""])
def test_a_page_in_place_of_an_answer_is_an_error(raw: str, content_type: str) -> None:
    reply = Reply(raw=raw, headers={"Content-Type": content_type})
    with ScriptedServer([reply] * 3) as server:
        llm = _llm(server, max_retries=0)
        _failure(lambda: llm.complete("x"))
        _failure(lambda: llm.structured("Give JSON", Selection))
        _failure(lambda: list(llm.stream("x")))


def test_nobody_answers() -> None:
    with ScriptedServer() as server:
        llm = _llm(server, max_retries=0)
    began = time.monotonic()
    assert "'m' at http://127.0.0.1:" in _failure(lambda: llm.complete("x"))
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_no_key_stands_in_an_error(status: int) -> None:
    text = f"Incorrect API key provided: {KEY}, sent as Bearer {KEY}, like sk-another-0123456789"
    with ScriptedServer([Reply(text, status)]) as server:
        message = _failure(lambda: _llm(server, max_retries=0).complete("x"))
    assert f"status {status}" in message
    assert "***" in message
    assert "sk-" not in message


def test_no_password_of_the_address_stands_in_an_error() -> None:
    with ScriptedServer([Reply("no", 404)]) as server:
        url = server.base_url.replace("//", "//user:hush@")
        llm = make_llm(LLMSettings(base_url=url, model="m"))
        assert llm is not None
        assert "hush" not in _failure(lambda: llm.complete("x"))


def test_errors_of_other_clients_are_translated() -> None:
    llm, _ = _scripted(ConnectionError("gone"), TimeoutError("slow"), RuntimeError("a mistake in the program"))
    assert "ScriptedChatModel" in _failure(lambda: llm.complete("x"))
    _failure(lambda: llm.complete("x"))
    with pytest.raises(RuntimeError, match="a mistake"):
        llm.complete("x")


# --- many at once


def test_map_keeps_the_order_and_the_bound() -> None:
    def respond(asked: dict[str, Any]) -> Reply:
        text = str(asked["messages"][0]["content"])
        return Reply(text, delay=0.08 if int(text) % 3 == 0 else 0.02)

    with ScriptedServer(respond=respond) as server:
        llm = _llm(server, concurrency=3)
        assert list(llm.map(llm.complete, map(str, range(15)))) == list(map(str, range(15)))
    assert server.peak == 3
    assert llm.usage.calls == 15


def test_map_gives_foreseen_errors_in_their_place() -> None:
    def half(number: int) -> int:
        if number % 2:
            raise ModelReplyError(f"{number} is odd", "x")
        return number // 2

    llm, _ = _scripted()
    results = list(llm.map(half, range(5)))
    assert [str(r) if isinstance(r, GraphRAGError) else r for r in results] == [0, "1 is odd", 1, "3 is odd", 2]
    with pytest.raises(ZeroDivisionError):
        list(llm.map(lambda number: 1 // number, [1, 0, 1]))


def test_map_takes_items_as_they_are_needed_and_drops_the_rest() -> None:
    taken: list[int] = []
    done: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1_000):
            taken.append(number)
            yield number

    results = LLM(ScriptedChatModel(), concurrency=2).map(done.append, items())
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(taken) <= 5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("llm")]
    assert set(done) <= set(taken)


def test_map_structured() -> None:
    def respond(asked: dict[str, Any]) -> str:
        text = asked["messages"][0]["content"]
        return json.dumps({"useful_relationships": [text]}) if text != "bad" else "no"

    with ScriptedServer(respond=respond) as server:
        a, bad, b = _llm(server).map_structured(["a", "bad", "b"], Selection)
    assert isinstance(a, Selection)
    assert isinstance(bad, ModelReplyError)
    assert isinstance(b, Selection)
    assert (a.useful_relationships, b.useful_relationships) == (["a"], ["b"])


# --- the usage of one question


def test_meters_of_threads_do_not_mix() -> None:
    llm = LLM(ScriptedChatModel(respond=lambda messages: str(messages[-1].text)), concurrency=4)
    measured: dict[int, Usage] = {}

    def question(number: int) -> None:
        with llm.meter() as meter:
            list(llm.map(llm.complete, ["a b"] * number))
            "".join(llm.stream("c"))
            measured[number] = meter.usage

    threads = [threading.Thread(target=question, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert measured == {number: Usage(number + 1, 2 * number + 1, 2 * number + 1) for number in range(1, 7)}
    assert llm.usage.calls == sum(range(1, 7)) + 6


def test_meters_nest_and_end() -> None:
    llm, _ = _scripted(*["x"] * 4)
    other, _ = _scripted("y")
    with llm.meter() as outer:
        llm.complete("a")
        with llm.meter() as inner:
            llm.complete("b")
            other.complete("c")
        llm.complete("d")
    llm.complete("e")
    assert (outer.usage.calls, inner.usage.calls, llm.usage.calls) == (3, 1, 4)


def test_a_stream_and_a_map_belong_to_the_block_they_were_called_in() -> None:
    llm, _ = _scripted(*["x"] * 3)
    with llm.meter() as meter:
        pieces, results = llm.stream("a"), llm.map(llm.complete, ["b", "c"])
    assert ["".join(pieces), *results] == ["x", "x", "x"]
    assert meter.usage.calls == 3


def test_a_meter_may_end_in_another_thread() -> None:
    llm, _ = _scripted("x", "y")

    def answer() -> Iterator[str]:
        with llm.meter() as meter:
            yield llm.complete("a")
            yield str(meter.usage.calls)

    pieces = answer()
    assert next(pieces) == "x"
    rest: list[str] = []
    thread = threading.Thread(target=lambda: rest.extend(pieces))
    thread.start()
    thread.join()
    assert rest == ["1"]


def test_usage_is_zero_where_the_endpoint_counts_nothing() -> None:
    llm, _ = _scripted(AIMessage("x", usage_metadata={"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}))
    llm.complete([HumanMessage("a long question")])
    assert llm.usage == Usage(calls=1)


# --- embeddings of the scripted server, through the client that the package uses


@pytest.mark.parametrize("encoding", [None, "float"])
def test_openai_embeddings_get_the_vectors(encoding: str | None) -> None:
    from langchain_openai import OpenAIEmbeddings

    texts = [f"text {number}" for number in range(7)]
    options: dict[str, Any] = {"model_kwargs": {"encoding_format": encoding}} if encoding else {}
    with ScriptedServer(max_texts=3) as server:
        embeddings = OpenAIEmbeddings(
            base_url=server.base_url, api_key=SecretStr(KEY), check_embedding_ctx_length=False, chunk_size=3, **options
        )
        vectors = embeddings.embed_documents(texts)
    assert vectors == [pytest.approx(vector, abs=1e-6) for vector in HashingEmbeddings().embed_documents(texts)]
    assert [len(request.json["input"]) for request in server.requests] == [3, 3, 1]
    assert {request.json["encoding_format"] for request in server.requests} == {encoding or "base64"}
