"""What the clients of endpoints raise, and how requests that were turned down for now are repeated."""

from __future__ import annotations

import email.utils
import itertools
import math
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from langchain_core.exceptions import LangChainException

__all__ = ["Patience", "provider_errors", "retry_after", "status_of"]

Result = TypeVar("Result")

_CLIENTS = (("openai", "OpenAIError"), ("httpx", "HTTPError"), ("httpx2", "HTTPError"), ("anthropic", "AnthropicError"))
_LONGEST = 60.0  # seconds of one wait where the endpoint names no time


def provider_errors() -> tuple[type[Exception], ...]:
    """The errors of the clients that are loaded. An `except` clause calls this only once something was raised."""
    found = [getattr(sys.modules.get(module), name, None) for module, name in _CLIENTS]
    return (ConnectionError, TimeoutError, LangChainException, *(error for error in found if error))


def status_of(error: Exception) -> int | None:
    """The HTTP status that a client's error tells, or None."""
    for holder in (error, getattr(error, "response", None)):
        status: Any = getattr(holder, "status_code", None)
        if isinstance(status, int):
            return status
    return None


def retry_after(error: Exception) -> float | None:
    """Seconds after which the endpoint wants to be asked again; None where it does not say so."""
    if status_of(error) not in (429, 503):
        return None
    value = getattr(getattr(error, "response", None), "headers", {}).get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        date = email.utils.parsedate_tz(value)
        seconds = email.utils.mktime_tz(date) - time.time() if date else math.nan
    return max(0.0, seconds) if math.isfinite(seconds) else None


class Patience:
    """Repeats requests that an endpoint turns down for now. Threads that share one pause together.

    The clients repeat a request a few times by themselves, each on its own; this is what comes after them. While
    one request waits, no other one is sent: in a rate limit each would only be refused and counted.

    Args:
        seconds: for which a request is repeated; 0 for never.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._closed_until = 0.0

    def call(self, request: Callable[[], Result], *, unnamed: bool = False) -> Result:
        """`request`, again for as long as the endpoint names a time to come back that the seconds cover.

        Args:
            unnamed: wait out a rate limit also where the endpoint names no time, longer from turn to turn.
        """
        deadline = time.monotonic() + self.seconds
        for turn in itertools.count():
            self._wait(deadline)
            try:
                return request()
            except provider_errors() as error:
                wait = _wait_after(error, turn, unnamed)
                if wait is None or time.monotonic() + wait > deadline:
                    raise
            with self._lock:
                self._closed_until = max(self._closed_until, time.monotonic() + wait)
        raise AssertionError("itertools.count() does not end")

    def _wait(self, deadline: float) -> None:
        """Until nobody waits any more, and a little longer, so that not all of them come back at once."""
        while (left := min(self._closed_until, deadline) - time.monotonic()) > 0:
            time.sleep(left * (1 + random.uniform(0, 0.25)))


def _wait_after(error: Exception, turn: int, unnamed: bool) -> float | None:
    after = retry_after(error)
    if after is not None:
        return max(after, 0.05 * 2.0**turn)  # at least doubling, so that "Retry-After: 0" is no endless loop
    if unnamed and status_of(error) == 429 and "insufficient_quota" not in str(error):
        return min(_LONGEST, 0.5 * 2.0**turn)
    return None
