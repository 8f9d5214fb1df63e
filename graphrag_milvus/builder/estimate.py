"""What indexing would cost, before anything is spent: passages, requests, tokens and money."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from graphrag_milvus.builder.paths import ReadFailure, find, suffix_of
from graphrag_milvus.builder.readers.registry import READERS
from graphrag_milvus.builder.splitters.sizes import EstimatedTokens
from graphrag_milvus.types import IndexReport, Passage

__all__ = ["Estimate", "Estimator", "Prices", "expected_documents"]

# Of one token of text, on 3,000 passages of encyclopaedias with the entities and triples that a chat model found:
_REPLY = 2.2  # tokens of its replies, 0.56 for the entities and 1.65 for the triples
_RELATIONS = 1.0  # tokens of the relations and entities, which are embedded beside the passage
_PROMPT = 420  # tokens of a request beside the text, where the extractor does not tell its requests
_REQUESTS = 2  # for a passage, likewise
_ENRICHED = {"title": 10, "summary": 50, "questions": 75}  # tokens of each part of a reply, at the most asked for
_MESSAGE = 4  # tokens by which a message is more than its text


@dataclass(frozen=True, slots=True)
class Prices:
    """Money for a million tokens, in any currency; None where it is not known."""

    prompt: float | None = None
    reply: float | None = None
    embedding: float | None = None


@dataclass(slots=True)
class Estimate:
    """What `add` would do. Tokens are guessed from the texts, within about a third for English.

    Attributes:
        added, updated, unchanged, failed: documents, as far as that can be told without a model.
        passages: those that would be extracted and embedded; finished ones are not.
        llm_calls: requests to the chat model. Replies that the cache has cost nothing, and are counted all the same.
        embedding_tokens: of passages, relations and entities.
        cost: of all tokens whose price is known; None where no price is.
    """

    documents: int = 0
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    failed: list[dict[str, str]] = field(default_factory=list)
    passages: int = 0
    llm_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    embedding_tokens: int = 0
    cost: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens of the chat model, prompts and replies together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass
class Estimator:
    """Adds up what passages would cost.

    Args:
        extractor: the one that would read them. One that asks a chat model may have a method `requests`, which
            gives the messages of each request for a passage; another one is taken to ask twice.
        prices: of tokens.
        enricher: the one that would be asked about passages; None where there is none.
    """

    extractor: Any
    prices: Prices = field(default_factory=Prices)
    estimate: Estimate = field(default_factory=Estimate)
    enricher: Any = None

    def add(self, passages: Sequence[Passage]) -> None:
        """Count passages in."""
        self.estimate.passages += len(passages)
        for passage in passages:
            self._add(passage)

    def result(self, report: IndexReport) -> Estimate:
        """The whole, with the documents of `report`."""
        one = self.estimate
        one.documents, one.added, one.updated, one.unchanged = (
            report.documents,
            report.added,
            report.updated,
            report.unchanged,
        )
        one.failed, one.notes = report.failed, report.warnings
        priced = (
            (self.prices.prompt, one.prompt_tokens),
            (self.prices.reply, one.completion_tokens),
            (self.prices.embedding, one.embedding_tokens),
        )
        costs = [price * tokens / 1_000_000 for price, tokens in priced if price is not None]
        one.cost = sum(costs) if costs else None
        return one

    def _add(self, passage: Passage) -> None:
        text = _tokens(passage.text) + _tokens(passage.title)
        requests = _requests(self.extractor, passage, text)
        self.estimate.llm_calls += len(requests)
        self.estimate.prompt_tokens += sum(requests)
        self.estimate.completion_tokens += round(_REPLY * text) if requests else 0
        self.estimate.embedding_tokens += round((1 + _RELATIONS) * text)
        if self.enricher is not None:
            self._add_enrichment(passage)

    def _add_enrichment(self, passage: Passage) -> None:
        written = sum(_ENRICHED[part] for part in self.enricher.parts)
        self.estimate.llm_calls += 1
        self.estimate.prompt_tokens += sum(_requests(self.enricher, passage, 0))
        self.estimate.completion_tokens += written
        self.estimate.embedding_tokens += written


def _requests(extractor: Any, passage: Passage, text: int) -> list[int]:
    """Tokens of each request that the extractor would send for a passage."""
    if hasattr(extractor, "extractors"):
        return [tokens for part in extractor.extractors for tokens in _requests(part, passage, text)]
    if hasattr(extractor, "other"):
        return [] if passage.triplets else _requests(extractor.other, passage, text)
    if hasattr(extractor, "requests"):
        return [sum(_said(message) + _MESSAGE for message in messages) for messages in extractor.requests(passage)]
    return [_PROMPT + text] * _REQUESTS if getattr(extractor, "llm", None) is not None else []


def _said(message: Any) -> int:
    content = message[1] if isinstance(message, tuple) else getattr(message, "content", message)
    return _tokens_again(str(content))


def _tokens(text: str) -> int:
    return len(EstimatedTokens().ruler(text, 1).starts or ())


_tokens_again = lru_cache(maxsize=64)(_tokens)  # the same instructions and examples stand in every request


# --- how many documents -------------------------------------------------------------------------------------------

_LINES = (".jsonl", ".ndjson", ".csv", ".tsv")
_MOST_BYTES = 4 << 30  # that are read beforehand, for a progress bar that knows its end
_PIECE = 1 << 20


def expected_documents(paths: Iterable[Path]) -> int | None:
    """About how many documents there are behind paths, by lines and rows; None where that takes too long to tell."""
    total, size = 0, 0
    for file in (found for path in paths for found in find(str(path), READERS)):
        if isinstance(file, ReadFailure) or not file.is_file():
            total += 1
            continue
        suffix = suffix_of(file, READERS)
        size += file.stat().st_size if suffix in (*_LINES, ".json") else 0
        if suffix.endswith(".gz") or size > _MOST_BYTES:
            return None
        total += _expected(file, suffix)
    return total


def _expected(file: Path, suffix: str) -> int:
    try:
        if suffix in _LINES:
            return max(1, _count(file, b"\n") - (suffix in (".csv", ".tsv")))
        if suffix == ".json":
            return max(1, _count(file, b'"text"'))
        return _parquet_rows(file) if suffix == ".parquet" else 1
    except OSError:
        return 1


def _count(file: Path, what: bytes) -> int:
    with file.open("rb") as data:
        return sum(piece.count(what) for piece in iter(lambda: data.read(_PIECE), b""))


def _parquet_rows(file: Path) -> int:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        return 1
    try:
        return int(parquet.ParquetFile(file).metadata.num_rows)
    except ArrowException:
        return 1
