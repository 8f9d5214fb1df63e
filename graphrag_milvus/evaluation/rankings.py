"""What an evaluation keeps on disk, so that a run goes on after any interruption and two runs compare.

run.json                 the data, the index and the settings of each method
rankings/METHOD.jsonl    a line for each question: passages, times, what the candidates reach
answers/METHOD.jsonl     a line for each question that a chat model answered
report.json              the last report
index.db                 the index, where no server is named
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from filelock import FileLock, Timeout

from graphrag_milvus.errors import InputError

__all__ = ["AnswerRow", "Folder", "Ranking", "Rows"]

_FORMAT = 1


@dataclass(frozen=True)
class Ranking:
    """What one method gave for one question.

    Attributes:
        id: of the question.
        question: its text.
        method: the method that ran, which `auto` chose.
        documents: ids, best first, each once.
        scores: the best score of each.
        ms: milliseconds of the whole call, as its caller sees them.
        timings_ms: the trace's milliseconds by stage.
        round_trips: requests to Milvus.
        candidates: relations that a reranker sees, equal texts as one; None where the method has no candidates.
        reached: ids of the documents that the candidates lead to.
        prompt_tokens: tokens of the prompt that shows the candidates to a chat model.
        calls: calls of a chat model.
        tokens: tokens of these.
        notes: what the trace says was done otherwise than asked.
    """

    id: str
    question: str
    method: str
    documents: list[str]
    scores: list[float]
    ms: float
    timings_ms: dict[str, float]
    round_trips: int = 0
    candidates: int | None = None
    reached: list[str] = field(default_factory=list)
    prompt_tokens: float | None = None
    calls: int = 0
    tokens: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class AnswerRow:
    """What a chat model answered to one question from the first of the passages; `documents` are their ids."""

    id: str
    question: str
    documents: list[str]
    answer: str


class _Row(Protocol):
    @property
    def id(self) -> str: ...


Kind = TypeVar("Kind", bound=_Row)


@dataclass(frozen=True)
class Rows(Generic[Kind]):
    """The lines of one file as dataclasses."""

    path: Path
    kind: type[Kind]

    def read(self) -> dict[str, Kind]:
        """The rows by id, the last of each; a line that was half-written when a run was killed is none."""
        rows = (self._row(line) for line in self._lines())
        return {row.id: row for row in rows if row is not None}

    @contextmanager
    def appending(self) -> Iterator[_Appender[Kind]]:
        """Write rows, each of them at once; lines that are none are taken out before."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._repair()
            with self.path.open("ab") as file:
                yield _Appender(file)
        except OSError as error:
            raise InputError(f"cannot write {str(self.path)!r}: {error}; name another folder") from error

    def _lines(self) -> list[bytes]:
        try:
            return self.path.read_bytes().split(b"\n")
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise InputError(f"cannot read {str(self.path)!r}: {error}; name another folder") from error

    def _repair(self) -> None:
        lines = self._lines()
        good = [line for line in lines if self._row(line) is not None]
        if lines and [*good, b""] != lines:
            _replace(self.path, b"".join(line + b"\n" for line in good))

    def _row(self, line: bytes) -> Kind | None:
        try:
            return self.kind(**json.loads(line))
        except (ValueError, TypeError):  # not JSON, not an object, or other fields
            return None


@dataclass(frozen=True)
class _Appender(Generic[Kind]):
    file: Any

    def write(self, row: Kind) -> None:
        """Append one row."""
        fields: Any = row
        self.file.write(json.dumps(dataclasses.asdict(fields), ensure_ascii=False).encode() + b"\n")
        self.file.flush()


@dataclass
class Folder:
    """The folder of one evaluation."""

    path: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working in the folder.

        Raises:
            InputError: one does already, or nothing can be written there.
        """
        lock = FileLock(self.path / "run.lock")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"another evaluation is working in {str(self.path)!r}; wait, or name another") from None
        except OSError as error:
            raise InputError(f"cannot write into {str(self.path)!r}: {error}; name another folder") from error
        try:
            yield
        finally:
            lock.release()

    def read(self) -> dict[str, Any]:
        """What `run.json` says; nothing where the folder is new.

        Raises:
            InputError: there are rankings whose making nothing tells, or the file is none of an evaluation.
        """
        file = self.path / "run.json"
        if not file.is_file():
            if list(self.path.glob("rankings/*.jsonl")):
                raise InputError(f"{str(self.path)!r} has rankings and no run.json; delete them or name another folder")
            return {}
        try:
            data = json.loads(file.read_bytes())
        except ValueError as error:
            raise InputError(f"{str(file)!r} is not JSON ({error}); delete the folder or name another") from None
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise InputError(f"{str(file)!r} is not of an evaluation of this version; name another folder")
        return data

    def write(self, run: Mapping[str, Any]) -> None:
        """Keep what `read` gives."""
        self._json("run.json", {"format": _FORMAT, **run})

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Keep the report of the last run."""
        self._json("report.json", report)

    def rankings(self, method: str) -> Rows[Ranking]:
        """The rankings of a method."""
        return Rows(self.path / "rankings" / f"{method}.jsonl", Ranking)

    def answers(self, method: str) -> Rows[AnswerRow]:
        """The answers from what a method found."""
        return Rows(self.path / "answers" / f"{method}.jsonl", AnswerRow)

    def forget(self, method: str) -> None:
        """Delete a method's rankings and answers."""
        for path in (self.rankings(method).path, self.answers(method).path):
            path.unlink(missing_ok=True)

    def _json(self, name: str, data: Mapping[str, Any]) -> None:
        _replace(self.path / name, json.dumps(data, ensure_ascii=False, indent=1).encode())


def _replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    part.replace(path)
