"""Work of many requests to a chat model: replies are remembered, and a model that is down is left alone."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from pydantic import BaseModel

from graphrag_milvus.cache import Cache
from graphrag_milvus.errors import ModelReplyError, ModelUnavailableError
from graphrag_milvus.replies import fitting
from graphrag_milvus.types import content_hash

__all__ = ["Batch", "identity", "reply_key"]

T = TypeVar("T", bound=BaseModel)

_REST = 10.0  # seconds for which a model that is down is not asked


class Batch:
    """Work of many requests, as long as its block runs: replies come from a cache, and a model that is down rests.

    Args:
        cache: where valid structured replies are kept; None keeps none.
        most: failures in a row after which the model counts as down. It is then asked once in ten seconds, and all
            other requests fail at once, for the same reason: each would take minutes to fail by itself.
    """

    def __init__(self, cache: Cache | None = None, most: int = 24) -> None:
        self.cache = cache
        self.most = most
        self.recalled = 0
        self._lock = threading.Lock()
        self._failures = 0
        self._reason = ""
        self._again = 0.0

    def check(self) -> None:
        """Raise `ModelUnavailableError` while the model is down, but for the one request that looks."""
        with self._lock:
            if self._failures >= self.most:
                if time.monotonic() < self._again:
                    raise ModelUnavailableError(f"not asked, since {self._failures} requests failed: {self._reason}")
                self._again = time.monotonic() + _REST

    def count(self, failure: str = "") -> None:
        """Note that a request was answered, or why it was not."""
        with self._lock:
            self._failures = self._failures + 1 if failure else 0
            self._reason = failure
            self._again = time.monotonic() + _REST

    def recall(self, key: str, schema: type[T]) -> T | None:
        """The reply that was kept, where it still fits `schema`."""
        kept = self.cache.get([key]) if self.cache is not None else {}
        for value in kept.values():
            with contextlib.suppress(ModelReplyError):
                found = fitting(AIMessage(value.decode("utf-8", "replace")), schema)
                with self._lock:
                    self.recalled += 1
                return found
        return None

    def keep(self, key: str, text: str) -> None:
        """Keep the text of a valid reply."""
        if self.cache is not None:
            self.cache.put({key: text.encode("utf-8", "replace")})


def identity(model: BaseChatModel) -> str:
    """What replies depend on beside the messages: class, name, address, temperature; empty without a name."""
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    address = getattr(model, "openai_api_base", None) or getattr(model, "base_url", None)
    return f"{kind} {name} {address} {getattr(model, 'temperature', None)}" if isinstance(name, str) else ""


def reply_key(model: BaseChatModel, conversation: Sequence[BaseMessage], schema: type[BaseModel]) -> str:
    """Under which a reply is kept. All of the prompt is in it, and so is each version and each rule of it."""
    said = json.dumps([[message.type, message.content] for message in conversation])
    return content_hash("reply", identity(model), _schema_text(schema), said)


@lru_cache(maxsize=64)
def _schema_text(schema: type[BaseModel]) -> str:
    return json.dumps([schema.__qualname__, schema.model_json_schema()], sort_keys=True)
