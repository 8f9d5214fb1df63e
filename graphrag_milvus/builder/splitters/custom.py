"""A splitter of the user's own, held to what is kept: texts of a size that Milvus stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from graphrag_milvus.builder.splitters.length import LengthSplitter
from graphrag_milvus.builder.splitters.sheet import Piece
from graphrag_milvus.builder.splitters.sizes import MOST_CHARACTERS
from graphrag_milvus.errors import GraphRAGError, InputError, SettingsError

__all__ = ["AnySplitter", "CustomSplitter", "SplitFunction", "Splitter", "as_splitter"]

SplitFunction: TypeAlias = "Callable[[str], Iterable[Any]]"
"""A text in; out come texts, or pairs of a text and the metadata that its passage has beside its document's."""


@runtime_checkable
class Splitter(Protocol):
    """Cuts the text of a document into those of its passages."""

    @property
    def recipe(self) -> str:
        """A short text that changes whenever the passages of the same text could."""

    def split(self, text: str) -> list[Piece]:
        """The texts of the passages in order, each with what is to be in its metadata."""


AnySplitter: TypeAlias = "Splitter | SplitFunction | Any"
"""A `Splitter`, a function, or an object with a method `split` or, as langchain's have it, `split_text`."""


def as_splitter(given: AnySplitter) -> Splitter:
    """A splitter of `given`, which is checked as it splits.

    Raises:
        SettingsError: it is neither a function nor an object that splits.
    """
    methods = [getattr(given, name, None) for name in ("split", "split_text")]
    function = next((method for method in [*methods, given] if callable(method)), None)
    if function is None or isinstance(given, (str, type)):
        raise SettingsError(f"{given!r:.80} is no splitter; give a function of a text, or an object with `split`")
    return CustomSplitter(function, getattr(given, "recipe", "") or _name(given))


@dataclass(frozen=True)
class CustomSplitter:
    """The user's function.

    What it gives is stripped, and dropped where that leaves nothing. A text of more than 16,383 characters is cut
    by length, and all its parts have its metadata.

    Args:
        function: gives texts, or pairs of a text and a mapping.
        recipe: is to change when `function` gives something else, so that documents are split again.
    """

    function: SplitFunction
    recipe: str

    def split(self, text: str) -> list[Piece]:
        """The passages.

        Raises:
            InputError: the function failed, or gave something else.
        """
        whole = LengthSplitter(MOST_CHARACTERS)
        return [(part, said) for piece, said in self._pieces(text) for part, _ in whole.split(piece)]

    def _pieces(self, text: str) -> Iterator[Piece]:
        for item in self._called(text):
            piece, said = (item, {}) if isinstance(item, str) else _pair(item)
            if not isinstance(piece, str) or not isinstance(said, Mapping):
                raise InputError(f"splitter {self.recipe!r} gave {item!r:.80}; give texts or (text, metadata) pairs")
            yield piece.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd"), said

    def _called(self, text: str) -> list[Any]:
        try:
            return list(self.function(text))
        except GraphRAGError:
            raise
        except Exception as error:  # the function is anybody's: its errors have no common base
            raise InputError(f"splitter {self.recipe!r} failed: {type(error).__name__}: {error!s:.200}") from error


def _pair(item: Any) -> tuple[Any, Any]:
    return (item[0], item[1]) if isinstance(item, (tuple, list)) and len(item) == 2 else (None, None)


def _name(given: Any) -> str:
    """The name of a function, or of an object's class with the plain values in it: a size, a list of separators."""
    if hasattr(given, "__qualname__"):
        return f"{given.__module__}.{given.__qualname__}"
    plain = (
        {name: value for name, value in vars(given).items() if _is_plain(value)} if hasattr(given, "__dict__") else {}
    )
    return f"{type(given).__module__}.{type(given).__qualname__} {plain}"


def _is_plain(value: Any) -> bool:
    return all(isinstance(v, (str, int, float)) for v in (value if isinstance(value, (list, tuple)) else [value]))
