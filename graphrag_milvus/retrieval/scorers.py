"""How well texts fit a question: by a cross-encoder in ONNX, or without any model by words and vectors."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from graphrag_milvus.embeddings import Embedder
from graphrag_milvus.errors import InputError, SettingsError, one_line
from graphrag_milvus.inference import Network, beginning, encodable, load, need, read_json

if TYPE_CHECKING:
    from tokenizers import Encoding

__all__ = ["CrossEncoder", "LocalScorer", "Scorer", "Scores"]

Scores = npt.NDArray[np.float64]

_GRAPHS = ("model.onnx", "onnx/model.onnx", "model_quantized.onnx", "onnx/model_quantized.onnx")
_MAX_TOKENS = 512  # what nearly all cross-encoders were trained on, also those that have more positions
_BUDGET = 1_024  # tokens in one pass, padding included; with six layers of 384 numbers 256 to 2,048 take the same time
_WHOSE = "cross-encoder"
_NO_SPACE = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_MARKS = r"\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0963\u0966-\u0dff"  # which \w leaves out of a word
_UNSPACED = re.compile(rf"[{_NO_SPACE}]")
_WORD = re.compile(rf"[{_NO_SPACE}]|[^\W_{_NO_SPACE}](?:[^\W_{_NO_SPACE}]|[{_MARKS}])*")

# Saturation of repeated words and weight of a text's length, as in Lucene and Milvus.
_K1, _B = 1.2, 0.75


class Scorer(Protocol):
    """Gives each text a score for a question."""

    def score(self, question: str, texts: Sequence[str]) -> Scores:
        """Shape (n,), larger is better, on any scale; the same input gives the same scores."""
        ...


# --- without a model ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalScorer:
    """Scores by shared words, and by vectors where there is an embedder; in any script.

    The score is `overlap + weight * cosine`. The overlap is BM25 [Robertson and Zaragoza, 2009] over the texts
    given as the collection, as a fraction of the most that the question's words could give, in 0..1: a word
    counts by how few of the texts have it, so that what all of them share says nothing. Words that none of
    them has are left out. In scripts without spaces characters and pairs of neighbours are the words.

    Args:
        embedder: gives the cosine of question and text; without it only words count. Texts are embedded at
            each call, which takes far longer than all the rest: some 15 ms for a passage.
        weight: how much a cosine of 1 weighs against all of the question's words. For the 50 nearest passages
            of MuSiQue's tuning set Recall@5 is 61.5 by the cosine alone and 51.7 by words alone; it is 62.4 to
            63.7 for weights from 1 to 4, and 60.2 at 0.5.
    """

    embedder: Embedder | None = None
    weight: float = 1.5

    def score(self, question: str, texts: Sequence[str]) -> Scores:
        """Shape (n,), from about `-weight` to `1 + weight`."""
        if not texts:
            return np.zeros(0)
        scores = _overlap(_words(question), [_words(text) for text in texts])
        if self.embedder is not None:
            scores += self.weight * (self.embedder.embed(texts) @ self.embedder.embed_one(question)).astype(np.float64)
        return scores


def _words(text: str) -> Counter[str]:
    """Folded words, and characters with pairs of neighbours in scripts that put no space between words."""
    found = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    words = Counter(found)
    words.update(one + other for one, other in pairwise(found) if _UNSPACED.match(one) and _UNSPACED.match(other))
    return words


def _overlap(question: Mapping[str, int], texts: Sequence[Counter[str]]) -> Scores:
    """BM25 of each text, divided by the largest that is possible; zeros where no word is shared."""
    lengths = np.array([text.total() for text in texts], dtype=np.float64)
    norms = _K1 * (1 - _B + _B * lengths / max(lengths.mean(), 1.0))
    scores, most = np.zeros(len(texts)), 0.0
    for word in question:  # in the question's order, so that sums are the same in every process
        counts = np.array([text[word] for text in texts], dtype=np.float64)
        having = np.count_nonzero(counts)
        if having:
            rarity = np.log1p((len(texts) - having + 0.5) / (having + 0.5))
            scores += rarity * counts / (counts + norms)
            most += rarity
    return scores / most if most else scores


# --- a cross-encoder ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CrossEncoder:
    """Scores by an ONNX model that reads question and text together, on the processor and without a network.

    The folder has `tokenizer.json` and `model.onnx` or `model_quantized.onnx`, beside it or in `onnx/`, as
    exports of Hugging Face models do; `config.json` and `tokenizer_config.json` are read where they are there.

    A score is the logit, or, where the model has two classes, by how much the logit of the second one, "fits",
    is above that of the first: log odds in both cases. A pair beyond `max_tokens` loses the end of its text; the
    question is never cut. The score of a text does not depend on the texts beside it: where a model quantises
    its activations, which would make them change each other's scale, it gets one pair at a time.

    The model is loaded at the first use, once. Threads may share an instance.

    Args:
        folder: where the model is.
        batch_size: pairs in one pass at the most; passes of long texts hold fewer.
        max_tokens: tokens of question, text and marks together; None is what the folder says, 512 at the most.
        threads: for one pass; 0 is one for every core.

    Raises, at the first use:
        MissingDependencyError: the extra `local` is not installed.
        SettingsError: the folder is not such a model.
        InputError: the question leaves no room for a text.
    """

    folder: str
    batch_size: int = 32
    max_tokens: int | None = None
    threads: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    _kept: list[_Model] = field(default_factory=list, init=False, repr=False, compare=False)

    def score(self, question: str, texts: Sequence[str]) -> Scores:
        """Shape (n,), as log odds."""
        scores = np.zeros(len(texts))
        if not len(texts):
            return scores
        model = self._load()
        pairs = model.pairs(question, texts)
        for places in model.network.batches([len(pair) for pair in pairs], self.batch_size, _BUDGET):
            scores[places] = model.scores([pairs[place] for place in places])
        return scores

    def _load(self) -> _Model:
        with self._lock:
            if not self._kept:
                self._kept.append(_loaded(Path(self.folder).expanduser(), self.max_tokens, self.threads))
            return self._kept[0]


@dataclass(frozen=True)
class _Model:
    """A model in memory."""

    folder: Path
    network: Network
    output: str
    max_tokens: int

    def pairs(self, question: str, texts: Sequence[str]) -> list[Encoding]:
        """Question and text as one row of tokens each; texts are cut at their end where that is too long."""
        tokenizer = self.network.tokenizer
        asked = tokenizer.encode(encodable(question), add_special_tokens=False)
        room = self.max_tokens - tokenizer.num_special_tokens_to_add(True) - len(asked)
        if room < 1:
            raise InputError(
                f"the question has {len(asked)} tokens and the cross-encoder {str(self.folder)!r} reads "
                f"{self.max_tokens}, the text included; ask a shorter one"
            )
        read = tokenizer.encode_batch([beginning(text, self.max_tokens) for text in texts], add_special_tokens=False)
        for encoding in read:
            encoding.truncate(room)
        return [tokenizer.post_process(asked, encoding) for encoding in read]

    def scores(self, pairs: Sequence[Encoding]) -> Scores:
        """The scores of pairs that are read in one pass."""
        ids, types = [pair.ids for pair in pairs], [pair.type_ids for pair in pairs]
        try:
            found, _ = self.network.run(self.output, ids, types)
        except Exception as error:  # onnxruntime's have no base but this one
            raise SettingsError(f"{_called(self.folder)} failed: {one_line(str(error))}; use another model") from error
        return self._odds(np.asarray(found, dtype=np.float64), len(pairs))

    def _odds(self, found: Scores, count: int) -> Scores:
        if found.shape not in ((count,), (count, 1), (count, 2)):
            raise SettingsError(
                f"{_called(self.folder)} gives numbers of shape {found.shape} for {count} pairs; a cross-encoder "
                "gives one or two for each"
            )
        scores: Scores = found[:, 1] - found[:, 0] if found.shape == (count, 2) else found.reshape(count)
        if not np.isfinite(scores).all():
            raise SettingsError(f"{_called(self.folder)} gives a score that is not finite; use another model")
        return scores


def _called(folder: Path) -> str:
    return f"retrieval.cross_encoder={str(folder)!r}"


def _loaded(folder: Path, max_tokens: int | None, workers: int) -> _Model:
    graph, tokenizer = _files(folder)
    need("a cross-encoder needs", "onnxruntime", "tokenizers")
    config = read_json(folder / "config.json", {}, _WHOSE)
    network = load(_called(folder), graph, tokenizer, workers=workers, pad_id=config.get("pad_token_id") or 0)
    return _Model(folder, network, _output(network, folder), max_tokens or _most_tokens(folder, config))


def _files(folder: Path) -> tuple[Path, Path]:
    if not folder.is_dir():
        raise SettingsError(f"{_called(folder)} is no folder; give one with an ONNX cross-encoder, or none")
    graphs = [folder / name for name in _GRAPHS if (folder / name).is_file()]
    tokenizer = folder / "tokenizer.json"
    missing = [
        what for what, there in ((" or ".join(_GRAPHS), graphs), (tokenizer.name, tokenizer.is_file())) if not there
    ]
    if missing:
        raise SettingsError(
            f"{_called(folder)} has no {' and no '.join(missing)}; export the model to ONNX, or give none"
        )
    return graphs[0], tokenizer


def _output(network: Network, folder: Path) -> str:
    outputs = list(network.outputs)
    if "logits" not in outputs and len(outputs) > 1:
        raise SettingsError(f"{_called(folder)} gives {outputs}; a cross-encoder gives logits")
    return "logits" if "logits" in outputs else outputs[0]


def _most_tokens(folder: Path, config: Mapping[str, Any]) -> int:
    tokenizer = read_json(folder / "tokenizer_config.json", {}, _WHOSE)
    said = (config.get("max_position_embeddings"), tokenizer.get("model_max_length"))
    return int(min([_MAX_TOKENS, *(most for most in said if isinstance(most, int | float) and most > 0)]))
