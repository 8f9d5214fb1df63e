"""Vectors of texts: on this machine through onnxruntime, from an OpenAI-compatible endpoint, or your own.

`make_embeddings` gives a langchain `Embeddings` from settings; `Embedder` wraps any of them for the rest of
the package: float32 rows of length 1, checked, equal texts embedded once.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from langchain_core.embeddings import Embeddings
from pydantic import SecretStr

from graphrag_milvus.cache import Cache
from graphrag_milvus.endpoints import Patience, provider_errors, status_of
from graphrag_milvus.errors import EmbeddingError, GraphRAGError, SettingsError, one_line
from graphrag_milvus.onnx import LocalEmbeddings, Progress, Vectors, unit_rows
from graphrag_milvus.settings import EmbeddingSettings, LLMSettings
from graphrag_milvus.types import content_hash

__all__ = ["Embedder", "LocalEmbeddings", "Progress", "make_embedder", "make_embeddings"]

OPENAI_MODEL = "text-embedding-3-small"
_REFUSED = (400, 413, 422)  # statuses of a request that is too large, or holds what the model does not take
_LOCAL_PART = 1_024  # texts after which the vectors of the local model are kept; it sorts them by length
_BLANK = "."  # stands for texts without any sign: several endpoints refuse those


# --- from settings ------------------------------------------------------------------------------------------------


def make_embeddings(settings: EmbeddingSettings, llm: LLMSettings | None = None) -> Embeddings:
    """The embeddings that `settings` describe; `auto` is `openai` where a key or an address is set, else `local`.

    An address or key that `settings` do not have is that of the chat model, but a key goes to no other address
    than its own: with an own `base_url` only an own `api_key` is sent.

    Raises:
        SettingsError: the provider cannot be made, or has neither key nor address.
    """
    endpoint = _endpoint(settings, llm or LLMSettings())
    provider = settings.provider if settings.provider != "auto" else _automatic(settings, endpoint)
    if provider == "local":
        return LocalEmbeddings(settings.model, settings.batch_size, settings.threads)
    if provider == "openai":
        return _openai(settings, endpoint, llm or LLMSettings())
    return _imported(provider, settings.model)


def make_embedder(settings: EmbeddingSettings, llm: LLMSettings | None = None) -> Embedder:
    """`make_embeddings` in an `Embedder` with the batch size and the dimension of `settings`.

    A rate limit is waited out for as long as all tries of a chat request together might take.
    """
    patience = (llm or LLMSettings()).timeout * (llm or LLMSettings()).max_retries
    made = make_embeddings(settings, llm)
    return Embedder(made, batch_size=settings.batch_size, dimension=settings.dimension, patience=patience)


@dataclass(frozen=True)
class _Endpoint:
    base_url: str | None
    api_key: SecretStr | None


def _endpoint(settings: EmbeddingSettings, llm: LLMSettings) -> _Endpoint:
    if settings.api_key or settings.base_url not in (None, llm.base_url):
        return _Endpoint(settings.base_url, settings.api_key)
    environment = os.environ.get("OPENAI_API_KEY") if llm.base_url is None else None
    return _Endpoint(llm.base_url, llm.api_key or (SecretStr(environment) if environment else None))


def _automatic(settings: EmbeddingSettings, endpoint: _Endpoint) -> str:
    if settings.model and Path(settings.model).expanduser().is_dir():
        return "local"
    return "openai" if endpoint.api_key or settings.base_url else "local"


def _openai(settings: EmbeddingSettings, endpoint: _Endpoint, llm: LLMSettings) -> Embeddings:
    if not (endpoint.api_key or endpoint.base_url):
        raise SettingsError(
            "embedding.provider='openai' has neither a key nor an address; set OPENAI_API_KEY, or the "
            "embedding.base_url of a server that needs no key, or embedding.provider=local"
        )
    from langchain_openai import OpenAIEmbeddings  # takes more than a second, which only those who use it should wait

    return OpenAIEmbeddings(
        model=settings.model or OPENAI_MODEL,
        base_url=endpoint.base_url,
        api_key=endpoint.api_key or SecretStr("no-key-needed"),  # the client insists on one, local servers ignore it
        dimensions=settings.dimension,
        chunk_size=settings.batch_size,
        timeout=llm.timeout,
        max_retries=llm.max_retries,
        check_embedding_ctx_length=False,  # else it downloads a vocabulary to count tokens
    )


def _imported(provider: str, model: str | None) -> Embeddings:
    target = _target(provider)
    try:
        made = target if isinstance(target, Embeddings) else target(**({"model": model} if model else {}))
    except (TypeError, ValueError) as error:
        raise SettingsError(f"embedding.provider={provider!r} cannot be made: {one_line(str(error))}") from error
    if not isinstance(made, Embeddings):
        raise SettingsError(f"embedding.provider={provider!r} is a {type(made).__name__}, not a langchain Embeddings")
    return made


def _target(provider: str) -> Any:
    module, _, attribute = provider.partition(":") if ":" in provider else provider.rpartition(".")
    if not module or not attribute:
        raise SettingsError(
            f"embedding.provider={provider!r} is unknown; give auto, local, openai or an import path 'module:Class'"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # TypeError: a module like '..'
        raise SettingsError(f"embedding.provider={provider!r} cannot be imported: {error}") from error


# --- for the rest of the package ----------------------------------------------------------------------------------


class Embedder:
    """Any langchain `Embeddings`, giving float32 rows of length 1 or an error. Threads may share it.

    Args:
        embeddings: what makes the vectors.
        name: the model's identity, which a workspace records; None takes it from `embeddings`.
        batch_size: texts in one call of `embeddings` at the most; a `LocalEmbeddings` divides by itself. Where a
            call is refused for its size (status 400, 413 or 422), it is halved until one is taken, and what was
            taken is the most from then on.
        dimension: numbers that a vector has to have; None takes what comes first.
        cached: questions whose vector `embed_one` keeps.
        cache: where `embed` keeps vectors, and looks for them; None for nowhere. Embeddings of another library are
            told apart by class, model, address and dimension; those without a name or model are not cached.
        patience: seconds for which a request is repeated that a rate limit turned down.

    Texts without any sign are embedded as a full stop, since several endpoints refuse empty ones.

    Raises, in everything that needs vectors:
        EmbeddingError: the embeddings failed, or what they gave is not one finite vector of the same size, not
            all zeros, for each text. No key stands in the message.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        name: str | None = None,
        batch_size: int = 64,
        dimension: int | None = None,
        cached: int = 256,
        *,
        cache: Cache | None = None,
        patience: float = 120.0,
    ) -> None:
        self.embeddings = embeddings
        self.batch_size = batch_size
        self.cached = cached
        self.cache = cache
        self._pauses = Patience(patience)
        self._name = name
        self._dimension = dimension
        self._lock = threading.Lock()
        self._questions: OrderedDict[str, Vectors] = OrderedDict()

    @property
    def name(self) -> str:
        """The model's identity, such as `openai:text-embedding-3-small`."""
        return self._name or _name(self.embeddings)

    @property
    def dimension(self) -> int:
        """Numbers in a vector; asks the embeddings once where nothing has told it yet."""
        if self._dimension is None:
            self.embed(["dimension"])
        assert self._dimension is not None  # embed() sets it or raises
        return self._dimension

    def caching(self, cache: Cache | None) -> Embedder:
        """The same embedder with a cache, for work that may be done again."""
        return Embedder(
            self.embeddings,
            self._name,
            self.batch_size,
            self._dimension,
            self.cached,
            cache=cache,
            patience=self._pauses.seconds,
        )

    def embed(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """The vectors of `texts`, shape (n, d), in order; equal texts are embedded once."""
        places: dict[str, int] = {}
        rows = [places.setdefault(_said(text), len(places)) for text in texts]
        if not rows:
            return np.empty((0, self.dimension), dtype=np.float32)
        vectors = self._embed(list(places), progress)
        if progress is not None and len(rows) > len(places):
            progress(len(rows) - len(places))
        return vectors[rows]

    def embed_one(self, text: str) -> Vectors:
        """The vector of a question, shape (d,), read-only; the last ones are kept."""
        with self._lock:
            if text in self._questions:
                self._questions.move_to_end(text)
                return self._questions[text]
        vector: Vectors = self._checked([self._ask(lambda: self.embeddings.embed_query(_said(text)))], [text], 0)[0]
        vector.flags.writeable = False
        self._keep(text, vector)
        return vector

    def _keep(self, text: str, vector: Vectors) -> None:
        with self._lock:
            self._questions[text] = vector
            while len(self._questions) > self.cached:
                self._questions.popitem(last=False)

    def _embed(self, texts: list[str], progress: Progress | None) -> Vectors:
        """The vectors of distinct texts, those that the cache has from there."""
        keys = self._keys(texts)
        kept = self._kept(keys)
        if not kept:
            return self._made(texts, keys, progress)
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        missing = [n for n, key in enumerate(keys) if key not in kept]
        for n, key in enumerate(keys):
            vectors[n] = kept.get(key, 0.0)
        if progress is not None:
            progress(len(texts) - len(missing))
        if missing:
            vectors[missing] = self._made([texts[n] for n in missing], [keys[n] for n in missing], progress)
        return vectors

    def _made(self, texts: list[str], keys: list[str], progress: Progress | None) -> Vectors:
        """The vectors of texts, part by part, each part kept as soon as it is there."""
        parts: list[Vectors] = []
        start, most = 0, self.batch_size
        try:
            while start < len(texts):
                parts.append(self._part(texts, start, progress))
                end = start + len(parts[-1])
                if self.cache is not None and keys:
                    values = (row.astype("<f4").tobytes() for row in parts[-1])
                    self.cache.put(dict(zip(keys[start:end], values, strict=True)))
                start = end
        except EmbeddingError:
            self.batch_size = most  # it was one of the texts that was refused, or nobody knows
            raise
        return np.concatenate(parts)

    def _part(self, texts: list[str], start: int, progress: Progress | None) -> Vectors:
        """The vectors of as many texts from `start` on as can be had at once."""
        if isinstance(self.embeddings, LocalEmbeddings):
            local, part = self.embeddings, texts[start : start + _LOCAL_PART]
            return self._checked(self._ask(lambda: local.embed(part, progress)), part, start)
        part = texts[start : start + self.batch_size]
        rows = self._halved(part, start)
        if progress is not None:
            progress(len(rows))
        return rows

    def _halved(self, texts: list[str], start: int) -> Vectors:
        """The vectors of `texts`, or of the first of them where all at once are refused."""
        size = len(texts)
        while True:
            part = texts[:size]
            try:
                rows = self._checked(self._ask(partial(self.embeddings.embed_documents, part)), part, start)
            except _RefusedError as error:
                if size == 1:
                    raise EmbeddingError(f"{error} (text {start}: {one_line(texts[0], 60)!r})", texts[0]) from None
                size = (size + 1) // 2
            else:
                if size < len(texts):
                    self.batch_size = size
                return rows

    def _keys(self, texts: Sequence[str]) -> list[str]:
        """The keys of texts in the cache; none where there is no cache, or the vectors would not be told apart."""
        identity = _identity(self.embeddings, self._name) if self.cache is not None else ""
        return [content_hash("vector", identity, text) for text in texts] if identity else []

    def _kept(self, keys: list[str]) -> dict[str, Vectors]:
        """Vectors in the cache, of the size of the others."""
        found = self.cache.get(keys) if self.cache is not None and keys else {}
        rows = {key: np.frombuffer(value, dtype="<f4") for key, value in found.items() if value and len(value) % 4 == 0}
        if rows and self._dimension is None:
            self._fit(len(next(iter(rows.values()))))
        return {key: row for key, row in rows.items() if len(row) == self._dimension and np.isfinite(row).all()}

    def _ask(self, call: Callable[[], Any]) -> Any:
        try:
            return self._pauses.call(call, unnamed=self.cache is not None)
        except GraphRAGError:
            raise
        except Exception as error:  # noqa: BLE001  the embeddings are anybody's: their errors have no common base
            message = f"{self.name} failed: {self._reason(error)}"
            # `from None`: a client's own text may quote the key, so no traceback may show it
            if status_of(error) in _REFUSED or (status_of(error) is None and isinstance(error, ValueError)):
                raise _RefusedError(message) from None
            raise EmbeddingError(message, unavailable=isinstance(error, provider_errors())) from None

    def _reason(self, error: Exception) -> str:
        status = getattr(error, "status_code", None)
        kind = f"{type(error).__name__} (status {status})" if status else type(error).__name__
        said = one_line(_without_secrets(str(error), self.embeddings))
        return f"{kind}: {said}; check embedding.provider, embedding.model, embedding.base_url and the key"

    def _checked(self, found: Any, texts: Sequence[str], start: int) -> Vectors:
        """`found` as unit rows; `start` is the place of the first of `texts` in what was asked for."""
        rows = self._numbers(found)
        if rows.ndim != 2 or len(rows) != len(texts) or rows.shape[1] == 0:
            raise EmbeddingError(f"{self.name} gave vectors of shape {rows.shape} for {len(texts)} texts")
        self._fit(rows.shape[1])
        # of float32, since that is what is stored: 1e39 is infinite there
        with np.errstate(over="ignore"):
            narrow = rows.astype(np.float32)
        self._refuse(np.isfinite(narrow).all(axis=1), "a number that is not finite", texts, start)
        self._refuse(narrow.any(axis=1), "nothing but zeros", texts, start)
        return unit_rows(rows)

    def _numbers(self, found: Any) -> npt.NDArray[np.floating[Any]]:
        try:
            return np.asarray(found, dtype=np.float32 if isinstance(found, np.ndarray) else np.float64)
        except (TypeError, ValueError) as error:
            raise EmbeddingError(f"{self.name} gave vectors that are not equally long lists of numbers") from error

    def _fit(self, dimension: int) -> None:
        with self._lock:
            if self._dimension is None:
                self._dimension = dimension
        if dimension != self._dimension:
            raise EmbeddingError(
                f"{self.name} gave vectors of {dimension} numbers where {self._dimension} were expected; "
                "check embedding.model and embedding.dimension"
            )

    def _refuse(self, right: npt.ArrayLike, what: str, texts: Sequence[str], start: int) -> None:
        if not np.all(right):
            place = int(np.argmin(right))
            shown = f"text {start + place}: {one_line(texts[place], 60)!r}"
            raise EmbeddingError(f"{self.name} gave {what} for {shown}; try another model", texts[place])


class _RefusedError(EmbeddingError):
    """A request was refused for what was in it, or for how much."""


def _said(text: str) -> str:
    return text if text.strip() else _BLANK


def _name(embeddings: Embeddings) -> str:
    own = getattr(embeddings, "name", None)
    if isinstance(own, str) and own:
        return own
    kind = type(embeddings).__name__
    model = next((value for key in ("model", "model_name") if (value := getattr(embeddings, key, None))), None)
    prefix = "openai" if kind == "OpenAIEmbeddings" else kind
    return f"{prefix}:{model}" if isinstance(model, str) else prefix


def _identity(embeddings: Embeddings, given: str | None) -> str:
    """What the vectors of a text depend on; empty where another model of this class could not be told apart."""
    own = getattr(embeddings, "name", None)
    model = next((value for key in ("model", "model_name") if (value := getattr(embeddings, key, None))), None)
    named = [name for name in (given, own, model) if isinstance(name, str) and name]
    if not named or (named == [model] and Path(named[0]).exists()):  # a folder may hold another model tomorrow
        return ""
    kind = f"{type(embeddings).__module__}.{type(embeddings).__qualname__}"
    options = [getattr(embeddings, key, None) for key in ("openai_api_base", "base_url", "dimensions", "dimension")]
    if isinstance(embeddings, LocalEmbeddings):
        options = []
    return " ".join([kind, *named, *(str(option) for option in options if option)])


_SECRET = re.compile(r"\bsk-[\w*-]{4,}|(?<=Bearer )\S+|(?<=//)[^/\s@]+(?=@)")


def _without_secrets(text: str, embeddings: Embeddings) -> str:
    for value in getattr(embeddings, "__dict__", {}).values():
        if isinstance(value, SecretStr) and value.get_secret_value():
            text = text.replace(value.get_secret_value(), "***")
    return _SECRET.sub("***", text)
