"""Interrupted anywhere and run again, indexing ends where it would have ended, and repeats no finished passage."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import indexing
import pytest
from indexing import DIMENSION, Sentences, Workspaces, index, killed_at, long_corpus, rows

from graphrag_milvus.builder.writer import Writer
from graphrag_milvus.settings import MilvusSettings
from graphrag_milvus.store import MilvusStore
from graphrag_milvus.types import Document

PARAGRAPHS = [
    f"{name} stands on a hill above the river and can be seen from afar. {name} was founded by monks from Corvey."
    for name in ("Arles", "Basel", "Chur", "Davos")
]
A, B, C, D = (
    Document("\n\n".join(PARAGRAPHS[first:last]), id=id, title=f"Title {id}", metadata={"n": n})
    for n, (id, first, last) in enumerate([("a", 0, 3), ("b", 1, 3), ("c", 2, 4), ("d", 0, 2)])
)
CHANGED_A = replace(A, text="\n\n".join((PARAGRAPHS[3], PARAGRAPHS[0], "Elm is new.", PARAGRAPHS[2])))
CHANGED_B = replace(B, metadata={"n": 7, "by": "ann"})


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspaces]:
    shared = Workspaces(tmp_path_factory.mktemp("interruption"))
    # Batches so small that a request is cut in two wherever one can be.
    shared.settings = shared.settings.model_copy(update={"batch_size": 2})
    yield shared
    shared.close()


# --- at every request ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """What a workspace holds, what is done to it, and what it is to hold then."""

    before: list[Document]
    recipe_before: str
    after: list[Document]
    recipe: str = "sentences/1"
    deleted: tuple[str, ...] = ()
    interrupted_recipe: str = ""
    """Another recipe for the run that is interrupted; the run after it uses `recipe` again."""


ONE, TWO = "sentences/1", "sentences/2"
CHANGES = {
    "new": Change([], ONE, [A, B, C]),
    "update": Change([A, B, C], ONE, [CHANGED_A, CHANGED_B, replace(C, title="Other")]),
    "update and delete": Change([A, B, C], ONE, [CHANGED_A, D], deleted=("b", "c")),
    "other extractor": Change([A, B], ONE, [A, B], TWO),
    "other extractor and back": Change([A, B], ONE, [A, B], ONE, interrupted_recipe=TWO),
    "other extractor and other text": Change([A, B], ONE, [CHANGED_A, CHANGED_B], TWO),
}


def finished(store: MilvusStore, recipes: dict[int, str]) -> set[int]:
    """The passages whose rows say that they are done as they are to be in the end."""
    stored = store.iterate("passages", ["recipe"])
    return {int(row["id"]) for row in stored if row["recipe"] and row["recipe"] == recipes.get(int(row["id"]))}


def _step(store: MilvusStore, step: int) -> int:
    """A server takes seconds for what is done around each request: there, one of so many has to do."""
    return 1 if store.settings.embedded else step


@pytest.mark.parametrize("name", list(CHANGES))
def test_killed_at_any_request_a_rerun_ends_the_same_and_repeats_nothing(workspaces: Workspaces, name: str) -> None:
    change = CHANGES[name]
    workspaces.give_back()
    wanted_store = workspaces.empty()
    index(wanted_store, change.after, Sentences(change.recipe))
    wanted = rows(wanted_store)
    recipes = {int(row["id"]): str(row["recipe"]) for row in wanted["passages"]}

    def run(store: MilvusStore, extractor: Sentences) -> None:
        index(store, change.after, extractor, window=2)
        Writer(store).remove(change.deleted)

    n, interrupted = 0, True
    while interrupted:
        workspaces.give_back()
        workspaces.empty()
        store = workspaces.empty()
        index(store, change.before, Sentences(change.recipe_before))
        first = Sentences(change.interrupted_recipe or change.recipe)
        interrupted = killed_at(store, n, lambda store=store, first=first: run(store, first))
        done, revision, second = finished(store, recipes), store.revision(), Sentences(change.recipe)
        changed = interrupted and rows(store) != wanted
        run(store, second)
        again = {passage.id for passage in second.seen}
        assert not again & done, f"killed at request {n}: finished passages were extracted again"
        assert max(Counter(p.id for p in second.seen).values(), default=0) <= 1
        if changed:
            assert store.revision() != revision, f"killed at request {n}: nobody would notice the change"
        Writer(store).collect_garbage()
        assert rows(store) == wanted, f"killed at request {n}"
        n += _step(store, 9)
    assert n > 10  # requests were there to be killed at


def test_a_document_whose_first_indexing_was_cut_short_can_be_seen_and_deleted(workspaces: Workspaces) -> None:
    """From its first row on, that is: before anything else of it is there."""
    n, interrupted = 0, True
    while interrupted:
        workspaces.give_back()
        store = workspaces.empty()
        interrupted = killed_at(store, n, lambda store=store: index(store, [A]))
        begun = store.count("relations") + store.count("passages") > 0
        if begun and interrupted:
            assert store.count("documents", 'hash == ""') == 1, f"killed at request {n}"
        removed = Writer(store).remove(["a"])
        assert removed == ["a"] or not begun
        Writer(store).collect_garbage()
        assert rows(store) == {"documents": [], "passages": [], "relations": [], "entities": []}
        n += _step(store, 4)
    assert n > 5


def test_a_deletion_cut_short_can_be_completed_or_taken_back(workspaces: Workspaces) -> None:
    workspaces.give_back()
    full = workspaces.empty()
    index(full, [A, B])
    wanted = rows(full)
    n, interrupted = 0, True
    while interrupted:
        store = workspaces.empty()
        index(store, [A, B])
        interrupted = killed_at(store, n, lambda store=store: Writer(store).remove(["a"]))
        if interrupted:
            assert Writer(store).remove(["a"]) == ["a"]
        assert store.count("documents") == 1
        index(store, [A, B])
        assert rows(store) == wanted
        workspaces.give_back()
        full = workspaces.empty()
        n += _step(store, 2)
    assert n > 3


def test_a_deleted_document_can_be_added_again_at_once(workspaces: Workspaces) -> None:
    """A server tells no time for a deletion, so that a read that waits for what it was told may come too early."""
    workspaces.give_back()
    store = workspaces.empty()
    for _ in range(3):
        report = index(store, [A, B])
        assert report.failed == [] and report.added + report.updated + report.unchanged == 2
        wanted = rows(store)
        Writer(store).remove(["a", "b"])
        assert [store.count(name) for name in ("documents", "passages", "relations")] == [0, 0, 0]
    report = index(store, [A, B])
    assert (report.added, report.failed, report.passages) == (2, [], 5)
    assert rows(store) == wanted


# --- by the system ------------------------------------------------------------------------------------------------

KILLS = 10
SECONDS = 0.012  # for one passage, so that 600 of them outlast ten kills
MOST_WAIT = 0.55


@dataclass
class Indexer:
    """A process that indexes the long corpus; `log` has a line for each passage that it extracted."""

    settings: MilvusSettings
    workspace: str
    log: Path

    def start(self) -> subprocess.Popen[str]:
        tests = Path(indexing.__file__).parent
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tests), *filter(None, sys.path)]),
            "GRAPHRAG_MILVUS__URI": self.settings.uri,
            "GRAPHRAG_WORKSPACE": self.workspace,
            "GRAPHRAG_EMBEDDING__PROVIDER": "graphrag_milvus.testing:HashingEmbeddings",
            "GRAPHRAG_INDEX__WINDOW": "8",
        }
        command = [sys.executable, indexing.__file__, str(self.log), str(SECONDS)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def extracted(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []


def children(pid: int) -> list[int]:
    """The embedded engine is a child of the process that uses it; only Linux tells it without a library."""
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def wait_until_gone(pids: list[int], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while any(map(_runs, pids)):
        assert time.monotonic() < deadline, f"of {pids} some still run, {seconds:g} s after their parent was killed"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def kill_after(process: subprocess.Popen[str], seconds: float) -> bool:
    """Kill the process a while after it began; False where it was done before. Its engine is gone then too."""
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    engine = children(process.pid)
    time.sleep(seconds)
    was_killed = process.poll() is None
    process.kill()
    process.communicate()
    wait_until_gone(engine)
    return was_killed


def test_kill_9_at_ten_random_moments_loses_and_repeats_nothing(tmp_path: Path, workspaces: Workspaces) -> None:
    server = not workspaces.settings.embedded
    settings = MilvusSettings(uri=workspaces.settings.uri if server else str(tmp_path / "killed.db"))
    name = f"killed_{uuid.uuid4().hex[:8]}"
    indexer = Indexer(settings, name, tmp_path / "log")
    moments = random.Random(9)
    kills = sum(kill_after(indexer.start(), moments.uniform(0.05, MOST_WAIT)) for _ in range(KILLS))
    assert kills == KILLS
    last = indexer.start()
    try:
        output, _ = last.communicate(timeout=240)
    finally:
        last.kill()
    assert output == "begun\ndone []\n" and last.returncode == 0
    killed, whole = MilvusStore(settings, name), MilvusStore(settings, f"{name}_whole")
    try:
        _index_whole(whole)
        assert rows(killed) == rows(whole)
        assert killed.count("documents") == 300
        # Each kill costs at most the passages that were in work.
        assert len(indexer.extracted()) <= 300 + KILLS * 8
    finally:
        for store in (killed, whole):
            store.drop()
            store.close()


def _index_whole(store: MilvusStore) -> None:
    dimension = 64
    assert dimension != DIMENSION
    store.open(model="HashingEmbeddings", dimension=dimension)
    embedder: Any = indexing.Embedder(indexing.HashingEmbeddings(dimension))
    report = index(store, long_corpus(), passage_size=1_200, embedder=embedder)
    assert report.added == 300
