"""Chat models: how one is made, and replies as text, as pieces or as checked JSON.

`LLM` wraps any langchain chat model. Whatever goes wrong between it and the model is a `ModelError`:
`ModelUnavailableError` where there is no usable answer, `ModelReplyError` where the answer is not the JSON
that was asked for, also not the second time.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, MessageLikeRepresentation, convert_to_messages
from langchain_core.messages.ai import UsageMetadata
from pydantic import BaseModel, SecretStr

from graphrag_milvus import prompts
from graphrag_milvus.batch import Batch, identity, reply_key
from graphrag_milvus.cache import Cache
from graphrag_milvus.endpoints import Patience, provider_errors
from graphrag_milvus.errors import GraphRAGError, ModelReplyError, ModelUnavailableError, SettingsError, one_line
from graphrag_milvus.replies import fitting, parse_json
from graphrag_milvus.settings import LLMSettings
from graphrag_milvus.types import Usage

__all__ = ["LLM", "Messages", "Meter", "make_chat_model", "make_llm", "parse_json"]

DEFAULT_MODEL = "gpt-4o-mini"
_CREDENTIALS = re.compile(r"//[^/]*@")

Messages: TypeAlias = str | Sequence[MessageLikeRepresentation]
"""A text, or langchain messages in any of their spellings, such as `("system", "You are terse.")`."""

T = TypeVar("T", bound=BaseModel)
Item = TypeVar("Item")
Result = TypeVar("Result")

_log = logging.getLogger(__name__)


# --- construction -------------------------------------------------------------------------------------------------


def make_chat_model(settings: LLMSettings) -> BaseChatModel | None:
    """The chat model that `settings` describe, or None where they name no model, no address and no key.

    Raises:
        SettingsError: the address is none, or there is a model but neither an address nor a key.
    """
    if not (settings.model or settings.base_url or settings.api_key):
        return None
    from langchain_openai import ChatOpenAI  # takes more than a second, which only those who use it should wait

    return ChatOpenAI(
        model=settings.model or DEFAULT_MODEL,
        base_url=_checked_url(settings.base_url),
        api_key=_key(settings),
        temperature=settings.temperature,
        timeout=settings.timeout,
        max_retries=settings.max_retries,
        stream_usage=True,
    )


def make_llm(settings: LLMSettings) -> LLM | None:
    """`make_chat_model` in an `LLM` with the concurrency of `settings`, or None.

    A rate limit is waited out for as long as all tries together might have taken.
    """
    model = make_chat_model(settings)
    patience = settings.timeout * settings.max_retries
    return None if model is None else LLM(model, concurrency=settings.concurrency, patience=patience)


def _checked_url(url: str | None) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        shown = _CREDENTIALS.sub("//***@", url)
        raise SettingsError(f"llm.base_url={shown!r} is no address; give one like 'http://localhost:11434/v1'")
    return url


def _key(settings: LLMSettings) -> SecretStr:
    if settings.api_key:
        return settings.api_key
    if settings.base_url:
        return SecretStr("no-key-needed")  # the client insists on a key, local servers ignore it
    if os.environ.get("OPENAI_API_KEY"):
        return SecretStr(os.environ["OPENAI_API_KEY"])
    raise SettingsError(
        f"llm.model={settings.model!r} has neither llm.api_key nor llm.base_url; "
        "set OPENAI_API_KEY, or the base URL of a server that needs no key"
    )


# --- usage --------------------------------------------------------------------------------------------------------


class Meter:
    """Calls and tokens that were counted into it; threads may share one."""

    def __init__(self) -> None:
        self._usage = Usage()
        self._lock = threading.Lock()

    @property
    def usage(self) -> Usage:
        """What was counted up to now."""
        return self._usage

    def add(self, usage: Usage) -> None:
        """Count `usage` in."""
        with self._lock:
            self._usage += usage


# Which meters run where: pairs, since one `LLM` does not count into the meter of another one.
_METERS: contextvars.ContextVar[tuple[tuple[LLM, Meter], ...]] = contextvars.ContextVar("meters", default=())


# As with meters: pairs, innermost last.
_BATCHES: contextvars.ContextVar[tuple[tuple[LLM, Batch], ...]] = contextvars.ContextVar("batches", default=())


# --- the model ----------------------------------------------------------------------------------------------------


class LLM:
    """A chat model that answers with text or with checked JSON, counts what it uses and waits out rate limits.

    Threads may share it. What the endpoint refuses to understand (`response_format`, `temperature`,
    `stream_options`: status 400 or 422) is left out from then on.

    Args:
        model: any langchain chat model; its own retries come first.
        concurrency: calls that `map` keeps in work at once.
        patience: seconds for which a request is repeated when the endpoint says when to come back
            (`Retry-After`) and the model's own retries are used up; 0 for never.

    Raises, in every method that asks the model:
        ModelUnavailableError: no answer after all retries, or the endpoint refused. No key stands in the text.
    """

    def __init__(self, model: BaseChatModel, *, concurrency: int = 8, patience: float = 120.0) -> None:
        self.model = model
        self.concurrency = concurrency
        self._pauses = Patience(patience)
        self._total = Meter()
        self._refused: frozenset[str] = frozenset()

    @property
    def patience(self) -> float:
        """Seconds for which a request that was turned down for now is repeated."""
        return self._pauses.seconds

    @property
    def usage(self) -> Usage:
        """Calls that were answered, and their tokens where the endpoint counts them, since construction."""
        return self._total.usage

    @contextlib.contextmanager
    def meter(self) -> Iterator[Meter]:
        """Counts the calls of this block, those of `map` and `stream` included, and of no other thread or task.

        `map` and `stream` belong to the block in which they are called, wherever they are iterated.
        """
        meter = Meter()
        _METERS.set((*_METERS.get(), (self, meter)))
        try:
            yield meter
        finally:
            # no reset(token): a generator that holds this block may be finished in another context
            _METERS.set(tuple(pair for pair in _METERS.get() if pair[1] is not meter))

    @contextlib.contextmanager
    def batch(self, cache: Cache | None = None) -> Iterator[Batch]:
        """A block of batch work, as indexing is: `structured` gives replies that `cache` has, and keeps valid ones.

        A reply is found again by the model (name, address, temperature), all messages and the schema; so another
        prompt is another question. Rate limits are waited out also where the endpoint names no time, and a model
        that is down is left alone for a while. A model without a name is always asked.
        """
        batch = Batch(cache if identity(self.model) else None, max(8, 3 * self.concurrency))
        _BATCHES.set((*_BATCHES.get(), (self, batch)))
        try:
            yield batch
        finally:
            _BATCHES.set(tuple(pair for pair in _BATCHES.get() if pair[1] is not batch))

    def complete(self, messages: Messages) -> str:
        """The model's answer as text."""
        reply = self._ask(_conversation(messages))
        self._warn_if_cut(reply.response_metadata)
        return str(reply.text)

    def stream(self, messages: Messages) -> Iterator[str]:
        """The model's answer piece by piece; retries happen only before the first piece.

        Raises:
            ModelUnavailableError: also where the answer breaks off, after the pieces that came.
        """
        return self._pieces(_conversation(messages), self._meters())

    def structured(self, messages: Messages, schema: type[T]) -> T:
        """The model's answer as a `schema`; `messages` have to say what its JSON looks like.

        Code fences, prose around the JSON and small faults in it are put up with. An answer that does not
        fit is sent back once with what is wrong with it.

        Raises:
            ModelReplyError: the second answer does not fit either; `reply` has it.
        """
        conversation, batch = _conversation(messages), self._batch
        if batch is None or batch.cache is None:
            return self._valid(conversation, schema)[1]
        key = reply_key(self.model, conversation, schema)
        with batch.cache.turn(key):
            kept = batch.recall(key, schema)
            if kept is not None:
                return kept
            text, found = self._valid(conversation, schema)
            batch.keep(key, text)
            return found

    def map_structured(self, conversations: Iterable[Messages], schema: type[T]) -> Iterator[T | GraphRAGError]:
        """`structured` for each of `conversations`, as `map` does it."""
        return self.map(partial(self.structured, schema=schema), conversations)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result | GraphRAGError]:
        """`function` of each item, `concurrency` at once in threads, in the order of `items`.

        A `GraphRAGError` is given in place of the result that it prevented; any other exception is raised
        when its turn comes, and what has not begun by then is dropped. `items` are taken as they are needed.
        """
        return _in_order(function, items, self.concurrency, contextvars.copy_context())

    @property
    def _batch(self) -> Batch | None:
        return next((batch for llm, batch in reversed(_BATCHES.get()) if llm is self), None)

    # asking

    def _valid(self, conversation: list[BaseMessage], schema: type[T]) -> tuple[str, T]:
        """The text of a reply that fits, and what it says."""
        reply = self._ask(conversation, response_format={"type": "json_object"})
        try:
            return str(reply.text), fitting(reply, schema)
        except ModelReplyError as error:
            problem = prompts.ask_again(str(error), schema.model_json_schema())
            again = [*conversation, AIMessage(error.reply or "(empty)"), HumanMessage(problem)]
        reply = self._ask(again, response_format={"type": "json_object"})
        try:
            return str(reply.text), fitting(reply, schema)
        except ModelReplyError as error:
            raise ModelReplyError(f"{self._name()} did not give the JSON twice: {error}", error.reply) from None

    def _ask(self, messages: list[BaseMessage], **options: Any) -> AIMessage:
        def invoke(model: BaseChatModel, options: Mapping[str, Any]) -> AIMessage:
            try:
                return model.invoke(messages, **options)
            except provider_errors() as error:
                return _cut_message(error)

        with self._foreseen():
            reply = self._call(invoke, options)
        if self._batch is not None:
            self._batch.count()
        self._count(self._meters(), reply.usage_metadata)
        return reply

    def _pieces(self, messages: list[BaseMessage], meters: Sequence[Meter]) -> Iterator[str]:
        used: list[UsageMetadata | None] = []
        metadata: dict[str, Any] = {}
        try:
            with self._foreseen():
                for chunk in self._call(partial(_begun, messages), {"stream_usage": True}):
                    metadata |= chunk.response_metadata
                    used.append(chunk.usage_metadata)
                    if chunk.text:
                        yield str(chunk.text)
        finally:
            if used:  # an answer that was begun is paid for, also where nobody reads on
                self._count(meters, *used)
        self._check_end(metadata)

    def _call(self, call: Callable[[BaseChatModel, Mapping[str, Any]], Result], options: Mapping[str, Any]) -> Result:
        """`call` with the options that the endpoint takes; those that it does not take are found out here."""
        refused = self._refused
        while True:
            offered = {*options, "temperature"} - refused
            try:
                result = self._patiently(partial(call, *self._without(refused, options)))
            except provider_errors() as error:
                name = _refused_option(error, offered)
                if name is None:
                    raise
                refused |= {name}
            else:
                self._refused |= refused
                return result

    def _without(self, refused: frozenset[str], options: Mapping[str, Any]) -> tuple[BaseChatModel, dict[str, Any]]:
        kept = {name: value for name, value in options.items() if name not in refused and name != "stream_usage"}
        if "stream_usage" in refused & options.keys() and hasattr(self.model, "stream_usage"):
            kept["stream_usage"] = False
        if "temperature" in refused and getattr(self.model, "temperature", None) is not None:
            return self.model.model_copy(update={"temperature": None}), kept
        return self.model, kept

    def _patiently(self, call: Callable[[], Result]) -> Result:
        return self._pauses.call(call, unnamed=self._batch is not None)

    # counting

    def _meters(self) -> list[Meter]:
        return [meter for llm, meter in _METERS.get() if llm is self]

    def _count(self, meters: Iterable[Meter], *used: UsageMetadata | None) -> None:
        known = [usage for usage in used if usage]
        usage = Usage(1, sum(u["input_tokens"] for u in known), sum(u["output_tokens"] for u in known))
        for meter in (self._total, *meters):
            meter.add(usage)

    # saying what went wrong

    @contextlib.contextmanager
    def _foreseen(self) -> Iterator[None]:
        batch = self._batch
        if batch is not None:
            batch.check()
        try:
            yield
        except _foreseen_errors() as error:
            if batch is not None and getattr(error, "status_code", None) not in (400, 413, 422):
                batch.count(self._reason(error))
            # `from None`: the client's own text may quote the key, so no traceback may show it
            raise ModelUnavailableError(f"{self._name()}: {self._reason(error)}") from None

    def _name(self) -> str:
        name = getattr(self.model, "model_name", None) or type(self.model).__name__
        url = str(getattr(self.model, "openai_api_base", None) or "").partition("?")[0]
        return f"chat model {name!r}" + (f" at {_CREDENTIALS.sub('//', url)}" if url else "")

    def _reason(self, error: Exception) -> str:
        status = getattr(error, "status_code", None)
        said = one_line(_without_secrets(str(error), self.model))
        kind = f"status {status}" if status else type(error).__name__
        return f"{kind}: {said}; {_remedy(error, status)}"

    def _warn_if_cut(self, metadata: Mapping[str, Any]) -> None:
        if metadata.get("finish_reason") == "length":
            _log.warning("%s cut its answer off at its token limit", self._name())

    def _check_end(self, metadata: Mapping[str, Any]) -> None:
        """OpenAI's protocol ends each stream with a reason; without it the connection went down quietly."""
        if metadata.get("model_provider") == "openai" and not metadata.get("finish_reason"):
            raise ModelUnavailableError(f"{self._name()}: the stream broke off before its end; ask again")
        self._warn_if_cut(metadata)


def _conversation(messages: Messages) -> list[BaseMessage]:
    return [HumanMessage(messages)] if isinstance(messages, str) else convert_to_messages(messages)


def _begun(messages: list[BaseMessage], model: BaseChatModel, options: Mapping[str, Any]) -> Iterator[Any]:
    """A stream whose first chunk has come, so that what can be tried again has failed by now."""
    chunks = model.stream(messages, **options)
    first = list(itertools.islice(chunks, 1))
    return itertools.chain(first, chunks)


def _in_order(
    function: Callable[[Item], Result], items: Iterable[Item], concurrency: int, context: contextvars.Context
) -> Iterator[Result | GraphRAGError]:
    waiting: deque[Future[Result]] = deque()

    def oldest() -> Result | GraphRAGError:
        try:
            return waiting.popleft().result()
        except GraphRAGError as error:
            return error

    with ThreadPoolExecutor(concurrency, thread_name_prefix="llm") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(context.copy().run, function, item))
                if len(waiting) >= 2 * concurrency:  # the oldest may be slow: keep the others at work meanwhile
                    yield oldest()
            while waiting:
                yield oldest()
        finally:
            for future in waiting:
                future.cancel()


# --- errors of the clients ----------------------------------------------------------------------------------------

# What clients raise when a 200 is not what the protocol says: a page of HTML, no choices, a half event.
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)
_SECRET = re.compile(r"\bsk-[\w-]{8,}|(?<=Bearer )\S+")


def _foreseen_errors() -> tuple[type[Exception], ...]:
    return (*provider_errors(), *_MALFORMED)


def _cut_message(error: Exception) -> AIMessage:
    """The reply in openai's error for an answer that ran into the token limit; any other error is raised."""
    completion = getattr(error, "completion", None)
    if completion is None or completion.choices[0].finish_reason != "length":
        raise error
    used = completion.usage
    usage: Any = used and {
        "input_tokens": used.prompt_tokens,
        "output_tokens": used.completion_tokens,
        "total_tokens": used.total_tokens,
    }
    text = completion.choices[0].message.content or ""
    return AIMessage(text, response_metadata={"finish_reason": "length"}, usage_metadata=usage)


def _refused_option(error: Exception, offered: set[str]) -> str | None:
    """Which of the options that were `offered` to leave out next, after the endpoint refused the request."""
    if getattr(error, "status_code", None) not in (400, 422):
        return None
    text = str(error).replace("stream_options", "stream_usage")
    named = [name for name in sorted(offered) if name in text]
    # an endpoint that does not name the culprit most often does not know the newest option
    return next(iter([*named, *(offered & {"response_format"})]), None)


def _without_secrets(text: str, model: BaseChatModel) -> str:
    for value in vars(model).values():
        if isinstance(value, SecretStr) and value.get_secret_value():
            text = text.replace(value.get_secret_value(), "***")
    return _SECRET.sub("***", text)


def _remedy(error: Exception, status: int | None) -> str:
    if status is None:
        return _remedy_without_status(error)
    if status in (401, 403):
        return "check the API key"
    if status == 404:
        return "check the model's name and the base URL"
    if status == 429:
        return "lower the concurrency, or check the quota"
    return "the endpoint is in trouble, try later" if status >= 500 else "the request has to change"


def _remedy_without_status(error: Exception) -> str:
    kind = type(error).__name__
    if "ContentFilter" in kind:
        return "the endpoint's content filter stopped it"
    if "Timeout" in kind:
        return "raise the timeout, or ask a faster model"
    if isinstance(error, _MALFORMED) or "Decode" in kind:
        return "the answer is no chat completion; check that the base URL is that of an OpenAI-compatible API"
    return "check that the base URL is right and something answers there"
