"""JSON in a chat model's reply: found, repaired where it is nearly JSON, and checked against a schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import json_repair
from langchain_core.messages import AIMessage
from pydantic import BaseModel, ValidationError

from graphrag_milvus.errors import ModelReplyError

__all__ = ["fitting", "parse_json"]

T = TypeVar("T", bound=BaseModel)

_THOUGHTS_END = "</think>"
_OBJECT = re.compile(r"""\{\s*(["'“]|[\w$-]+\s*:)""")
_ARRAY = re.compile(r"""\[\s*(["'“{\[]|-?\d+(\.\d+)?\s*[,\]]|(true|false|null)\b)""")
_QUOTED_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_QUOTED_OR_NO_NUMBER = re.compile(
    r"""("(?:[^"\\]|\\.)*")|(?<![\w'])-?(?:NaN|Infinity|inf)(?![\w'])""", re.I | re.DOTALL
)
_MOST_UNCLOSED = 8  # brackets that never close, each of which makes the search begin anew
_DEEPEST = 40  # nesting that is still repaired; json-repair takes time by its square


def parse_json(text: str) -> Any:
    """The JSON value in a model's reply: the whole of it, else its longest object, else its longest array.

    Code fences, prose, reasoning up to `</think>`, final commas, single quotes and missing brackets are put
    up with. NaN and infinities become None, since JSON has none.

    Raises:
        ModelReplyError: nothing in `text` looks like JSON.
    """
    for value in _values(text):
        return value
    raise ModelReplyError(f"there is no JSON in the reply {_preview(text)}", text)


def _values(text: str) -> Iterator[Any]:
    """What may be meant, the likeliest first."""
    text = text.rpartition(_THOUGHTS_END)[2].strip()
    found, whole = _strict(text)
    if found:
        yield whole
        return
    for region in sorted(_regions(text), key=lambda region: (region[0] == "{", len(region)), reverse=True):
        found, value = _strict(region)
        if not found and (_OBJECT if region[0] == "{" else _ARRAY).match(region):
            found, value = _repaired(region)
        if found:
            yield value


def _strict(text: str) -> tuple[bool, Any]:
    try:
        return True, _finite(json.loads(text, strict=False))
    except (ValueError, RecursionError):
        return False, None


def _repaired(text: str) -> tuple[bool, Any]:
    if _depth(text) > _DEEPEST:
        return False, None
    # json-repair would make the text "NaN" of a bare NaN
    text = _QUOTED_OR_NO_NUMBER.sub(lambda match: match.group(1) or "null", text)
    try:
        value = _finite(json_repair.loads(text, skip_json_loads=True))
    except (ValueError, RecursionError):
        return False, None
    return isinstance(value, (dict, list)) and bool(value), value


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _regions(text: str) -> Iterator[str]:
    """The outermost `{...}` and `[...]` of a text; one that never closes goes to the end, and what is in it follows."""
    start, unclosed = _next_bracket(text, 0), 0
    while start >= 0 and unclosed < _MOST_UNCLOSED:
        end = _closing(text, start)
        unclosed += end is None
        yield text[start:end]
        start = _next_bracket(text, start + 1 if end is None else end)


def _next_bracket(text: str, start: int) -> int:
    return min((place for bracket in "{[" if (place := text.find(bracket, start)) >= 0), default=-1)


def _closing(text: str, start: int) -> int | None:
    """The end of what opens at `start`; brackets in double quotes do not count."""
    return next((end for depth, end in _depths(text, start) if depth == 0), None)


def _depth(text: str) -> int:
    return max((depth for depth, _ in _depths(text, 0)), default=0)


def _depths(text: str, start: int) -> Iterator[tuple[int, int]]:
    """How deep the text is nested after each bracket, and where that bracket ends."""
    depth = 0
    for match in _QUOTED_OR_BRACKET.finditer(text, start):
        token = match.group()
        if len(token) == 1:
            depth += 1 if token in "{[" else -1
            yield depth, match.end()


def fitting(reply: AIMessage, schema: type[T]) -> T:
    """The likeliest JSON value in a model's reply that fits `schema`.

    Raises:
        ModelReplyError: the reply was cut off at the token limit, has no JSON, or none that fits.
    """
    text = str(reply.text)
    if reply.response_metadata.get("finish_reason") == "length":
        # json-repair would close it neatly, and what was cut off would be missing without a word
        raise ModelReplyError("the reply was cut off at the token limit; be briefer", text)
    problem = ""
    for value in _values(text):
        try:
            return schema.model_validate(value)
        except ValidationError as error:
            problem = problem or _problems(error)
    raise ModelReplyError(problem or f"there is no JSON in the reply {_preview(text)}", text)


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False)
    lines = [f"{'.'.join(map(str, e['loc'])) or 'reply'}: {e['msg']}, not {_preview(e['input'])}" for e in found[:5]]
    return "; ".join(lines) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")


def _preview(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 120 else f"{shown[:120]}..."
