"""An embedder and a chat model that run in this process and learn from nothing but their arguments."""

from __future__ import annotations

import hashlib
import re
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

__all__ = ["HashingEmbeddings", "ScriptExhaustedError", "ScriptedChatModel", "count_words", "pieces_of"]

_PIECE = 8  # characters in one piece of a streamed reply
_WORD = re.compile(r"\w+")


class ScriptExhaustedError(AssertionError):
    """A scripted model was asked more often than its script has replies; the test or the code is wrong."""


# --- embeddings ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HashingEmbeddings(Embeddings):
    """Embeddings from hashed words and character trigrams: texts that share them are near each other.

    Feature hashing with signs (Weinberger et al. 2009): feature f adds its weight, with the sign h'(f),
    to component h(f). Vectors are `dimension` numbers with float32 values and length 1. A text without
    any letter, digit or other sign gets the first unit vector.
    """

    dimension: int = 64

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text, in order."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """The vector of one text; a question and a document with the same text have the same vector."""
        vector = np.zeros(self.dimension, dtype=np.float64)
        for feature, weight in _features(text):
            place, sign = _hashed(feature, self.dimension)
            vector[place] += sign * weight
        return _unit(vector)


def _features(text: str) -> Iterator[tuple[str, float]]:
    folded = unicodedata.normalize("NFKC", text).casefold()
    for word in _WORD.findall(folded):
        yield f"word {word}", 1.0
    run = f" {' '.join(folded.split())} "
    for start in range(len(run) - 2):
        yield f"gram {run[start : start + 3]}", 0.5


def _hashed(feature: str, dimension: int) -> tuple[int, int]:
    digest = hashlib.blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    return (number >> 1) % dimension, 1 if number & 1 else -1


def _unit(vector: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    length = float(np.linalg.norm(vector))
    if length == 0.0:  # no feature, or features that cancel out
        vector[0] = length = 1.0
    unit: list[float] = (vector / length).astype(np.float32).tolist()
    return unit


# --- a chat model in this process ---------------------------------------------------------------------------------


class ScriptedChatModel(BaseChatModel):
    """A langchain chat model that says what a script tells it.

    Args:
        replies: what it answers, call by call: a text, an `AIMessage`, or an exception, which is raised.
        respond: answers from the messages once `replies` are used up; it gives what `replies` may hold.

    Attributes:
        calls: the messages of every call so far, in the order in which the calls came.
        options: for every call what was bound to it or given with it, such as `response_format`.

    A call beyond the script raises `ScriptExhaustedError`. Tokens are counted as words. Threads may share it.
    """

    replies: Sequence[Any] = ()
    respond: Callable[[list[BaseMessage]], Any] | None = None

    _calls: list[list[BaseMessage]] = PrivateAttr(default_factory=list)
    _options: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def __init__(
        self,
        replies: Sequence[str | AIMessage | Exception] = (),
        respond: Callable[[list[BaseMessage]], str | AIMessage | Exception] | None = None,
        **kwargs: Any,
    ) -> None:
        given: dict[str, Any] = {"replies": list(replies), "respond": respond, **kwargs}
        super().__init__(**given)

    @property
    def calls(self) -> list[list[BaseMessage]]:
        """The messages of every call so far."""
        return self._calls

    @property
    def options(self) -> list[dict[str, Any]]:
        """What was bound to, or given with, every call so far."""
        return self._options

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._next(messages, stop, kwargs))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        message = self._next(messages, stop, kwargs)
        for piece in pieces_of(str(message.text)):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=piece))
            if run_manager:
                run_manager.on_llm_new_token(piece, chunk=chunk)
            yield chunk
        yield ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=message.usage_metadata))

    def _next(self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any]) -> AIMessage:
        with self._lock:
            number = len(self._calls)
            self._calls.append(list(messages))
            self._options.append(options if stop is None else {**options, "stop": stop})
        return _message(self._scripted(number, messages), messages)

    def _scripted(self, number: int, messages: list[BaseMessage]) -> Any:
        if number < len(self.replies):
            return self.replies[number]
        if self.respond is not None:
            return self.respond(messages)
        last = str(messages[-1].text)[:200] if messages else ""
        raise ScriptExhaustedError(
            f"the script has {len(self.replies)} replies and this is call {number + 1}; its last message is {last!r}"
        )


def _message(reply: Any, messages: Sequence[BaseMessage]) -> AIMessage:
    if isinstance(reply, Exception):
        raise reply
    message = reply if isinstance(reply, AIMessage) else AIMessage(content=reply)
    if message.usage_metadata is not None:
        return message
    prompt = count_words(" ".join(str(m.text) for m in messages))
    said = count_words(str(message.text))
    usage = {"input_tokens": prompt, "output_tokens": said, "total_tokens": prompt + said}
    return message.model_copy(update={"usage_metadata": usage})


def count_words(text: str) -> int:
    """The tokens of a text, as all stand-ins count them."""
    return len(text.split())


def pieces_of(text: str) -> list[str]:
    """The pieces in which a reply is streamed."""
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
