"""Intake: documents as they come, made fit to be kept, or refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from graphrag_milvus.builder.paths import ReadFailure
from graphrag_milvus.errors import InputError
from graphrag_milvus.layout import MAX_BYTES, MAX_ID_BYTES
from graphrag_milvus.types import Document, IndexReport, content_hash

__all__ = ["accept", "as_text", "checked_metadata", "clean", "failed", "fingerprint", "stored_id"]


def accept(document: Document | ReadFailure, report: IndexReport) -> Document | None:
    """The document with its id and clean texts, or None where it could not be read or cannot be kept."""
    if isinstance(document, ReadFailure):
        report.failed.append({"source": document.source, "reason": document.reason})
        return None
    try:
        return _usable(document)
    except InputError as error:
        report.failed.append(failed(document, str(error)))
        return None


def _usable(document: Document) -> Document:
    _check(document)
    triplets: Any = document.triplets  # callers need not be typed
    text, title = clean(document.text), clean(document.title)
    return replace(
        document,
        id=stored_id(document.id) or f"text-{content_hash('text', title, text)[:16]}",
        title=title,
        text=text,
        source=clean(document.source),
        metadata=checked_metadata(document.metadata),
        triplets=tuple(triplets) if isinstance(triplets, Iterator) else triplets,  # they are read more than once
    )


def stored_id(doc_id: str) -> str:
    """The id under which a document is kept: what no database holds is written as an escape, so that ids stay apart."""
    return doc_id.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def _check(document: Document) -> None:
    text: Any = document.text  # callers need not be typed
    if not isinstance(text, str) or not text.strip():
        raise InputError("the text is empty; a document needs some")
    for name, limit in (("id", MAX_ID_BYTES), ("title", MAX_BYTES), ("source", MAX_BYTES)):
        value = getattr(document, name)
        if not isinstance(value, str):
            raise InputError(f"{name} is {value!r:.80}; it must be a text")
        used = len((stored_id(value) if name == "id" else clean(value)).encode())
        if used > limit:
            raise InputError(f"{name} has {used:,} bytes; the most is {limit:,}")


def checked_metadata(given: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata as it comes back from JSON.

    Raises:
        InputError: it is no JSON, or too much.
    """
    try:
        text = clean(json.dumps(dict(given), ensure_ascii=False, allow_nan=False))
        metadata: dict[str, Any] = json.loads(text, parse_int=_int64)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"metadata is not JSON ({error}); give texts, finite numbers, lists and mappings") from None
    used = len(text.encode())
    if used > MAX_BYTES:
        raise InputError(f"metadata has {used:,} bytes as JSON; the most is {MAX_BYTES:,}")
    return metadata


def _int64(digits: str) -> int:
    value = int(digits)
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{digits:.40} has more than 64 bits")
    return value


def clean(text: str) -> str:
    """Without lone surrogates, which no UTF-8 can hold, and without NUL, which C++ engines end a text at."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")


def failed(document: Document, reason: str) -> dict[str, str]:
    """What a report says of a document that failed."""
    return {"source": str(document.id or document.source or str(document.text)[:60]), "reason": reason}


def fingerprint(triplets: object) -> str:
    """A text that changes with the triplets, whatever is in them."""
    return ",".join(map(as_text, triplets)) if isinstance(triplets, (list, tuple)) else as_text(triplets)


def as_text(value: object) -> str:
    """JSON that is the same for equal values; of what is none, the name of its type."""
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=_plain)
    except (TypeError, ValueError, RecursionError):  # mixed keys, an integer of thousands of digits, lists in lists
        return type(value).__name__


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else type(value).__name__
