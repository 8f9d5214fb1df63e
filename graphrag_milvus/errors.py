"""Every error that this package raises on purpose.

    GraphRAGError
    ├── UsageError                  the caller asked for something that cannot be meant
    │   ├── SettingsError           a setting is missing, malformed or contradicts another
    │   ├── InputError              a document, triple, id or question is not usable
    │   └── MissingDependencyError  an optional package that the chosen way needs is not installed
    ├── StoreError                  Milvus refused or lost something
    │   ├── StoreUnavailableError   nobody answers at the URI, or the database file is in use
    │   ├── WorkspaceMismatchError  the workspace was built with another embedding model or dimension
    │   └── IdCollisionError        two different contents share one 63-bit id
    ├── EmbeddingError              the embedder failed or returned vectors that cannot be stored
    └── ModelError                  the chat model could not be used
        ├── ModelUnavailableError   no answer after all retries, or the endpoint refused the request
        └── ModelReplyError         it answered, but not with what was asked for, twice

A message names the value that was wrong, on one line, and what to do about it. Tokens and keys never stand in one.
"""

from __future__ import annotations

__all__ = [
    "EmbeddingError",
    "GraphRAGError",
    "IdCollisionError",
    "InputError",
    "MissingDependencyError",
    "ModelError",
    "ModelReplyError",
    "ModelUnavailableError",
    "SettingsError",
    "StoreError",
    "StoreUnavailableError",
    "UsageError",
    "WorkspaceMismatchError",
    "one_line",
]


class GraphRAGError(Exception):
    """The root: catch it to catch everything that is foreseen."""


class UsageError(GraphRAGError):
    """The caller asked for something that cannot be meant; asking again will not help."""


class SettingsError(UsageError):
    """A setting is missing, malformed or contradicts another one."""


class InputError(UsageError):
    """A document, a triple, an id or a question is not usable."""


class MissingDependencyError(UsageError):
    """An optional package that the chosen way needs is not installed."""


class StoreError(GraphRAGError):
    """Milvus refused a request or did not keep what it acknowledged."""


class StoreUnavailableError(StoreError):
    """Nobody answers at the URI, or another process holds the embedded database."""


class WorkspaceMismatchError(StoreError):
    """The workspace was built with another embedding model or dimension."""


class IdCollisionError(StoreError):
    """Two different contents share one 63-bit id."""


class EmbeddingError(GraphRAGError):
    """The embedder failed, or returned vectors that cannot be stored.

    `text` is the one at fault, where one is known to be; `unavailable` says that nothing was wrong with the texts.
    """

    def __init__(self, message: str, text: str = "", *, unavailable: bool = False) -> None:
        super().__init__(message)
        self.text = text
        self.unavailable = unavailable


class ModelError(GraphRAGError):
    """The chat model could not be used."""


class ModelUnavailableError(ModelError):
    """No answer after all retries, or the endpoint refused the request."""


class ModelReplyError(ModelError):
    """The model answered, but twice not with what was asked for; `reply` keeps the last answer."""

    def __init__(self, message: str, reply: str = "") -> None:
        super().__init__(message)
        self.reply = reply


def one_line(text: str, most: int = 300) -> str:
    """`text` on one line for a message, of `most` characters at the most."""
    line = " ".join(text[: 10 * most].split())
    return line if len(line) <= most else line[: most - 1] + "…"
