"""An ONNX model that reads tokens, run by onnxruntime: loading, batches of like lengths, padded passes."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from graphrag_milvus.errors import MissingDependencyError, SettingsError, one_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Network", "Tokens", "beginning", "encodable", "load", "need", "read_json", "threads"]

# Characters that are looked at for one token that is kept. Languages have 1 to 6, so nothing that a model would
# have read is lost, but 2 MB of text need 4 ms and not 3 s in the tokenizer.
_CHARACTERS_PER_TOKEN = 40
_KINDS: dict[str, type[np.signedinteger[Any]]] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_INPUTS = frozenset(["input_ids", "attention_mask", "token_type_ids"])
_SCALING = (b"DynamicQuantize", b"QAttention")  # operators that scale activations by all of a pass

Tokens: TypeAlias = npt.NDArray[np.int64]
"""Shape (rows, tokens of the longest)."""
Json = TypeVar("Json", dict[str, Any], list[Any])


@dataclass(frozen=True)
class Network:
    """A graph and its tokenizer in memory. Threads may share it.

    Attributes:
        session: onnxruntime's.
        tokenizer: it pads nothing, and cuts nothing unless its user tells it to.
        inputs: what the graph reads, with the type of each.
        pad_id: the token that fills rows up.
        alone: rows have to be run one at a time, since the graph scales its activations by all rows of a pass.
    """

    session: Any
    tokenizer: Tokenizer
    inputs: Mapping[str, type[np.signedinteger[Any]]]
    pad_id: int
    alone: bool

    @property
    def outputs(self) -> dict[str, Sequence[int | str]]:
        """The shape of each output; a name stands for a size that the graph leaves open."""
        return {str(output.name): output.shape for output in self.session.get_outputs()}

    def batches(self, lengths: Sequence[int], most: int, budget: int) -> Iterator[npt.NDArray[np.intp]]:
        """Places of rows of about the same length, so that little padding is computed.

        Args:
            lengths: tokens of each row.
            most: rows in one pass at the most.
            budget: tokens in one pass at the most, padding included; a row that is longer has a pass of its own.
        """
        most, batch = 1 if self.alone else most, list[int]()
        for place in np.argsort(np.asarray(lengths), kind="stable").tolist():
            if batch and (len(batch) >= most or (len(batch) + 1) * lengths[place] > budget):
                yield np.asarray(batch, dtype=np.intp)
                batch = []
            batch.append(place)
        if batch:
            yield np.asarray(batch, dtype=np.intp)

    def run(
        self, output: str, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]] = ()
    ) -> tuple[npt.NDArray[Any], Tokens]:
        """What the graph gives for rows of tokens in one pass, and the mask, 1 where a row has a token.

        Args:
            output: which of the graph's outputs.
            rows: the ids of each row's tokens.
            types: the segment of each token; 0 everywhere without.
        """
        mask = _padded([[1] * len(row) for row in rows], 0)
        given = {
            "input_ids": _padded(rows, self.pad_id),
            "attention_mask": mask,
            "token_type_ids": _padded(types, 0) if types else np.zeros_like(mask),
        }
        feed = {name: given[name].astype(kind, copy=False) for name, kind in self.inputs.items()}
        (found,) = self.session.run([output], feed)
        return found, mask


def _padded(rows: Sequence[Sequence[int]], fill: int) -> Tokens:
    padded = np.full((len(rows), max([1, *map(len, rows)])), fill, dtype=np.int64)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return padded


def load(called: str, graph: Path | bytes, tokenizer: Path | bytes, *, workers: int = 0, pad_id: int = 0) -> Network:
    """Read a graph and its tokenizer.

    Args:
        called: the setting that names them, for messages.
        graph: a file, or what one holds.
        tokenizer: likewise.
        workers: threads for one pass; 0 is one for every core.
        pad_id: where the tokenizer does not tell.

    Raises:
        SettingsError: they cannot be read, or the graph wants something else than tokens.
    """
    from tokenizers import Tokenizer

    try:
        session = _session(graph, threads(workers))
        data = tokenizer if isinstance(tokenizer, bytes) else tokenizer.read_bytes()
        read = Tokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # both libraries raise plain or unrelated exceptions
        raise SettingsError(f"{called} cannot be loaded: {one_line(str(error))}") from error
    pad_id = int((read.padding or {}).get("pad_id", pad_id))
    read.no_padding()
    read.no_truncation()
    return Network(session, read, _inputs(called, session), pad_id, _is_scaled_by_pass(graph))


def _session(graph: Path | bytes, workers: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = workers
    # Spinning threads take the cores from the passes beside them: without, twice as fast on a busy machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    given = graph if isinstance(graph, bytes) else str(graph)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def _inputs(called: str, session: Any) -> dict[str, type[np.signedinteger[Any]]]:
    wanted = {given.name: given.type for given in session.get_inputs()}
    if "input_ids" not in wanted or not wanted.keys() <= _INPUTS or not _KINDS.keys() >= set(wanted.values()):
        raise SettingsError(f"{called} wants {wanted}; only integers for {sorted(_INPUTS)} can be given")
    return {name: _KINDS[kind] for name, kind in wanted.items()}


def _is_scaled_by_pass(graph: Path | bytes) -> bool:
    """True where the scale of a pass is computed from all of its rows together."""
    if isinstance(graph, bytes):
        return any(operator in graph for operator in _SCALING)
    with graph.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(operator) >= 0 for operator in _SCALING)


def threads(asked: int) -> int:
    """As many as asked for; for 0 one for every core that this process may use."""
    if asked:
        return asked
    # not os.cpu_count(): a container often may use fewer cores than the machine has
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def need(what: str, *packages: str) -> None:
    """Raise `MissingDependencyError`, which says `what` needs them, where packages of the extra `local` are missing."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise MissingDependencyError(f'{what} {" and ".join(missing)}; pip install "graphrag-milvus[local]"')


def read_json(path: Path, absent: Json, whose: str) -> Json:
    """What a file beside a graph holds, which has to be of the kind of `absent`, which stands for a missing one.

    Raises:
        SettingsError: it cannot be read or holds something else; `whose` file it is stands in the message.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return absent
    except (OSError, ValueError) as error:
        raise SettingsError(f"{str(path)!r} of the {whose} cannot be read: {error}") from error
    if not isinstance(found, type(absent)):
        raise SettingsError(f"{str(path)!r} of the {whose} holds a {type(found).__name__}; get it again")
    return found


def beginning(text: str, max_tokens: int) -> str:
    """What a tokenizer takes of a text of which `max_tokens` tokens are kept."""
    most = max_tokens * _CHARACTERS_PER_TOKEN
    return encodable(text.lstrip()[:most] if len(text) > most else text)


def encodable(text: str) -> str:
    """The text without lone surrogates, which no tokenizer takes."""
    return text.encode("utf-8", "replace").decode("utf-8")
