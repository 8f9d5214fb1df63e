"""Batch work with a chat model: what is remembered under which key, and when a model is left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from graphrag_milvus import batch as batch_module
from graphrag_milvus.batch import Batch, identity
from graphrag_milvus.cache import Cache
from graphrag_milvus.endpoints import Patience
from graphrag_milvus.errors import ModelReplyError, ModelUnavailableError
from graphrag_milvus.llm import LLM
from graphrag_milvus.testing import ScriptedChatModel


class Named(ScriptedChatModel):
    """A scripted model with a name, as every model behind an endpoint has one."""

    model_name: str = "named"
    temperature: float | None = 0.0


class Names(BaseModel):
    names: list[str]


class Places(BaseModel):
    names: list[str]
    country: str = ""


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    made = Cache(tmp_path)
    yield made
    made.close()


def test_a_valid_reply_is_asked_for_once(cache: Cache) -> None:
    llm = LLM(Named(["nonsense", 'Sure: {"names": ["Basel"]}']))
    for _ in range(3):
        with llm.meter() as meter, llm.batch(cache) as batch:
            assert llm.structured("Where?", Names).names == ["Basel"]
        assert batch.recalled == (meter.usage.calls == 0)
    assert llm.usage.calls == 2


def test_what_a_reply_depends_on_is_in_its_key(cache: Cache) -> None:
    asked: list[Any] = []

    def respond(messages: Any) -> str:
        asked.append(messages)
        return '{"names": ["Basel"]}'

    def ask(model: Any, question: Any = "Where?", schema: Any = Names) -> None:
        llm = LLM(model)
        with llm.batch(cache):
            llm.structured(question, schema)

    for n, arguments in enumerate(
        [
            (Named(respond=respond),),
            (Named(respond=respond, model_name="other"),),
            (Named(respond=respond, temperature=0.5),),
            (Named(respond=respond), "Where"),
            (Named(respond=respond), [("system", "Be brief."), ("human", "Where?")]),
            (Named(respond=respond), [("human", "Be brief."), ("human", "Where?")]),
            (Named(respond=respond), "Where?", Places),
        ],
        start=1,
    ):
        ask(*arguments)
        ask(*arguments)
        assert len(asked) == n


def test_a_model_without_a_name_is_always_asked(cache: Cache) -> None:
    model = ScriptedChatModel(['{"names": ["a"]}', '{"names": ["b"]}'])
    assert identity(model) == ""
    llm = LLM(model)
    with llm.batch(cache):
        assert [llm.structured("Where?", Names).names for _ in range(2)] == [["a"], ["b"]]


def test_a_reply_that_does_not_fit_any_more_is_asked_for_again(cache: Cache) -> None:
    llm = LLM(Named(['{"names": ["a"]}', '{"names": ["b"]}']))
    with llm.batch(cache):
        llm.structured("Where?", Names)
    key = batch_module.reply_key(llm.model, [*_human("Where?")], Names)
    assert cache.get([key]) == {key: b'{"names": ["a"]}'}
    cache.put({key: b'{"names": 7}'})
    with llm.batch(cache):
        assert llm.structured("Where?", Names).names == ["b"]


def _human(text: str) -> Iterator[Any]:
    from langchain_core.messages import HumanMessage

    yield HumanMessage(text)


CUT = AIMessage('{"names": ["a', response_metadata={"finish_reason": "length"})


@pytest.mark.parametrize("bad", ["no JSON", '{"names": 7}', CUT])
def test_a_reply_that_is_bad_twice_is_not_kept(cache: Cache, bad: Any) -> None:
    llm = LLM(Named([bad, bad, '{"names": ["a"]}']))
    with llm.batch(cache):
        with pytest.raises(ModelReplyError):
            llm.structured("Where?", Names)
        assert cache.stats().items == 0
        assert llm.structured("Where?", Names).names == ["a"]


def test_the_same_question_in_many_threads_is_asked_once(cache: Cache) -> None:
    def respond(_: Any) -> str:
        time.sleep(0.02)
        return '{"names": ["a"]}'

    llm = LLM(Named(respond=respond), concurrency=8)
    with llm.batch(cache) as batch:
        found = list(llm.map_structured(["Where?"] * 20 + ["Who?"] * 20, Names))
    assert len(found) == 40 and llm.usage.calls == 2 and batch.recalled == 38


def test_a_block_ends_and_holds_for_no_other_model(cache: Cache) -> None:
    one, two = (LLM(Named(respond=lambda _: '{"names": ["a"]}')) for _ in range(2))
    with one.batch(cache):
        one.structured("Where?", Names)
        two.structured("Where?", Names)
    one.structured("Where?", Names)
    assert (one.usage.calls, two.usage.calls) == (2, 1)


# --- a model that is down -----------------------------------------------------------------------------------------


def test_a_model_that_is_down_is_asked_now_and_then_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    batch = Batch(most=3)
    for _ in range(3):
        batch.check()
        batch.count("status 500")
    with pytest.raises(ModelUnavailableError, match="not asked, since 3 requests failed: status 500"):
        batch.check()
    now[0] += 11
    batch.check()  # one may look
    with pytest.raises(ModelUnavailableError):
        batch.check()  # the others wait for what it sees
    batch.count()
    batch.check()
    batch.check()


def test_failures_that_are_not_in_a_row_do_not_count() -> None:
    batch = Batch(most=3)
    for _ in range(10):
        batch.count("status 500")
        batch.count("status 500")
        batch.count()
    batch.check()


# --- waiting ------------------------------------------------------------------------------------------------------


class BusyError(ConnectionError):
    def __init__(self, status: int = 429, after: str = "") -> None:
        super().__init__("busy")
        self.status_code = status
        headers = {"retry-after": after} if after else {}
        self.response = type("Response", (), {"headers": headers, "status_code": status})()


def _failing(count: int, error: Exception) -> Any:
    left = iter([error] * count)

    def request() -> str:
        for failure in left:
            raise failure
        return "done"

    return request


def test_threads_pause_together() -> None:
    patience = Patience(5.0)
    times: list[float] = []
    refused = threading.Event()

    def first() -> str:
        if not refused.is_set():
            refused.set()
            raise BusyError(after="0.3")
        times.append(time.monotonic())
        return "done"

    def other() -> None:
        refused.wait()
        time.sleep(0.05)
        patience.call(lambda: times.append(time.monotonic()))

    began = time.monotonic()
    threads = [threading.Thread(target=other) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert patience.call(first) == "done"
    for thread in threads:
        thread.join()
    assert len(times) == 7 and min(times) - began >= 0.3
    assert max(times) - min(times) > 0.001  # and they do not all come back at once


@pytest.mark.parametrize(
    ("error", "unnamed", "waits"),
    [
        (BusyError(after="0.01"), False, True),
        (BusyError(503, "0.01"), False, True),
        (BusyError(), False, False),
        (BusyError(), True, True),
        (BusyError(503), True, False),
        (BusyError(500), True, False),
        (BusyError(400), True, False),
        (ConnectionError("refused"), True, False),
    ],
)
def test_what_is_waited_for(error: Exception, unnamed: bool, waits: bool) -> None:
    request = _failing(1, error)
    if waits:
        assert Patience(5.0).call(request, unnamed=unnamed) == "done"
    else:
        with pytest.raises(ConnectionError):
            Patience(5.0).call(request, unnamed=unnamed)


def test_a_spent_quota_is_not_waited_for() -> None:
    error = BusyError()
    error.args = ("insufficient_quota: check your plan",)
    with pytest.raises(BusyError):
        Patience(5.0).call(_failing(1, error), unnamed=True)


def test_without_patience_nothing_is_repeated() -> None:
    with pytest.raises(BusyError):
        Patience(0.0).call(_failing(1, BusyError(after="0")))
