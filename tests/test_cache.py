"""The cache on disk: what was put in is found, by any thread and process, and no fault of the disk stops anything."""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_milvus import cache as module
from graphrag_milvus.cache import Cache
from graphrag_milvus.settings import CacheSettings, MilvusSettings, Settings
from graphrag_milvus.types import content_hash


def key(n: object) -> str:
    return content_hash(str(n))


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    made = Cache(tmp_path / "deep" / "cache")
    yield made
    made.close()


def test_what_was_put_in_is_found_again_after_reopening(cache: Cache) -> None:
    assert cache.get([key(1)]) == {} and cache.get([]) == {}
    cache.put({key(1): b"one", key(2): b"", key(3): bytes(range(256))})
    cache.put({key(1): b"uno"})
    cache.put({})
    wanted = {key(1): b"uno", key(2): b"", key(3): bytes(range(256))}
    assert cache.get([key(n) for n in range(9)]) == wanted
    cache.close()
    assert Cache(cache.folder).get([key(n) for n in range(2_000)]) == wanted
    assert cache.problem == ""


def test_only_its_owner_may_look_into_its_folder(cache: Cache) -> None:
    cache.put({key(1): b"x"})
    assert os.name == "nt" or cache.folder.stat().st_mode & 0o077 == 0


def test_looking_at_it_makes_no_file(cache: Cache) -> None:
    assert (cache.stats().items, cache.stats().bytes) == (0, 0)
    assert (cache.clear().items, cache.folder.exists()) == (0, False)


def test_clearing_gives_the_room_back(cache: Cache) -> None:
    cache.put({key(n): bytes(10_000) for n in range(500)})
    assert cache.stats().items == 500 and cache.stats().bytes > 5_000_000
    other = Cache(cache.folder)
    assert other.get([key(1)]) == {key(1): bytes(10_000)}
    assert cache.clear().items == 500
    assert cache.stats().items == 0 and cache.path.stat().st_size < 100_000
    assert other.get([key(1)]) == {}
    other.put({key(2): b"y"})
    assert cache.get([key(2)]) == {key(2): b"y"}
    other.close()


@given(st.lists(st.tuples(st.integers(0, 20), st.binary(max_size=50)), max_size=30))
def test_it_is_a_mapping(puts: list[tuple[int, bytes]]) -> None:
    cache = _shared()
    cache.clear()
    wanted = {}
    for n, value in puts:
        cache.put({key(n): value})
        wanted[key(n)] = value
    assert cache.get([key(n) for n in range(21)]) == wanted


_made: list[Cache] = []


@pytest.fixture(autouse=True, scope="module")
def _one_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    _made.append(Cache(tmp_path_factory.mktemp("mapping")))
    yield
    _made.pop().close()


def _shared() -> Cache:
    return _made[0]


# --- size ---------------------------------------------------------------------------------------------------------


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path, max_bytes=1_000_000)
    for day in range(6):
        now = 1e9 + day * 100_000
        monkeypatch.setattr(time, "time", lambda now=now: now)
        cache.put({key((day, n)): bytes(1_000) for n in range(256)})
        cache.get([key((0, 7))])  # used every day
    left = {day for day in range(6) for n in range(256) if cache.get([key((day, n))])}
    assert key((0, 7)) in cache.get([key((0, 7))])
    assert {4, 5} <= left and len(cache.get([key((1, n)) for n in range(256)])) == 0
    assert cache.stats().bytes <= 1_000_000 and cache.problem == ""
    cache.close()


def test_the_file_does_not_grow_beyond_the_limit_by_much(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=2_000_000)
    for start in range(0, 10_000, 500):
        cache.put({key(n): os.urandom(1_500) for n in range(start, start + 500)})
    assert cache.path.stat().st_size < 4_000_000
    assert len(cache.get([key(n) for n in range(9_800, 10_000)])) == 200
    cache.close()


# --- threads and processes ----------------------------------------------------------------------------------------


def test_threads_share_one(cache: Cache) -> None:
    def work(thread: int) -> None:
        for n in range(60):
            cache.put({key((thread, n)): b"%d" % n, key(n): b"same"})
            assert cache.get([key((thread, n))])

    threads = [threading.Thread(target=work, args=(t,)) for t in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.problem == "" and cache.stats().items == 6 * 60 + 60


def test_what_two_threads_want_at_once_is_made_once(cache: Cache) -> None:
    made: list[int] = []

    def work() -> None:
        with cache.turn(key(1)):
            if not cache.get([key(1)]):
                made.append(1)
                time.sleep(0.02)
                cache.put({key(1): b"x"})

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


# The module alone, since all of the package takes a second to be imported.
_WRITER = """
import hashlib, importlib.util, sys
folder, name, count, module = sys.argv[1:]
spec = importlib.util.spec_from_file_location("cache", module)
sys.modules["cache"] = loaded = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loaded)
cache = loaded.Cache(folder)
for n in range(int(count)):
    cache.put({hashlib.md5(f"{name} {n} {part}".encode()).hexdigest(): b"v" * 300 for part in range(5)})
    print(n, flush=True)
print(repr(cache.problem), flush=True)
"""


def _written(name: object, n: int) -> list[str]:
    """The keys of the n-th put of a writer."""
    return [hashlib.md5(f"{name} {n} {part}".encode()).hexdigest() for part in range(5)]


def _writer(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, str(folder), name, str(count), str(module.__file__)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_share_one_from_its_first_moment(tmp_path: Path) -> None:
    writers = [_writer(tmp_path / "c", str(n), 80) for n in range(4)]
    for writer in writers:
        output, _ = writer.communicate(timeout=120)
        assert writer.returncode == 0 and output.splitlines()[-1] == "''"
    cache = Cache(tmp_path / "c")
    assert cache.stats().items == 4 * 80 * 5
    cache.close()


def test_a_process_killed_at_any_moment_loses_nothing_and_leaves_whole_values(tmp_path: Path) -> None:
    for turn in range(5):
        writer = _writer(tmp_path / "c", str(turn), 100_000)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.02 + 0.03 * turn)
        writer.kill()
        done = writer.communicate()[0].split()
        last = int(done[-1]) if done else 0
        cache = Cache(tmp_path / "c")
        found = cache.get([key for n in range(last + 1) for key in _written(turn, n)])
        assert len(found) == 5 * (last + 1) and set(found.values()) == {b"v" * 300}
        torn = cache.get(_written(turn, last + 1))
        assert len(torn) in (0, 5)  # a put is whole or not there
        assert cache.problem == ""
        cache.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_opens_its_own(cache: Cache) -> None:
    cache.put({key(1): b"parent"})
    pid = os.fork()
    if pid == 0:
        cache.put({key(2): b"child"})
        os._exit(0 if cache.get([key(1)]) and not cache.problem else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert cache.get([key(1), key(2)]) == {key(1): b"parent", key(2): b"child"}


# --- what goes wrong ----------------------------------------------------------------------------------------------


def _full(cache: Cache) -> None:
    """Let the file have no page more: SQLite then says what it says on a full disk."""
    cache.put({key("before"): b"x"})
    connection = next(iter(cache._connections.values()))
    pages = connection.execute("pragma page_count").fetchone()[0]
    connection.execute(f"pragma max_page_count = {pages}")


def _spoilt(cache: Cache) -> None:
    cache.folder.mkdir(parents=True)
    cache.path.write_bytes(b"no database at all, but long enough to look like one " * 200)


def _torn(cache: Cache) -> None:
    cache.put({key(n): os.urandom(2_000) for n in range(200)})
    cache.close()
    data = bytearray(cache.path.read_bytes())
    for start in range(4_096, len(data), 4_096):
        data[start : start + 64] = b"\xff" * 64
    cache.path.write_bytes(bytes(data))


def _no_folder(cache: Cache) -> None:
    cache.folder.parent.mkdir(parents=True)
    cache.folder.write_text("a file stands where the folder should be")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(_full, "database or disk is full; free some room", id="full disk"),
        pytest.param(_spoilt, "cache --clear", id="no database"),
        pytest.param(_torn, "cache --clear", id="torn pages"),
        pytest.param(_no_folder, "set cache.folder", id="no folder"),
    ],
)
def test_everything_goes_on_without_it_and_it_says_so_once(
    cache: Cache, caplog: pytest.LogCaptureFixture, spoil: Callable[[Cache], None], said: str
) -> None:
    spoil(cache)
    with caplog.at_level(logging.WARNING):
        for n in range(3):
            cache.put({key((n, m)): os.urandom(3_000) for m in range(100)})
            cache.get([key((n, m)) for m in range(100)])
    assert len(caplog.records) == 1 and said in cache.problem
    assert cache.problem == caplog.records[0].getMessage() and str(cache.folder) in cache.problem
    assert cache.get([key("before")]) == {}


@pytest.mark.parametrize("spoil", [_spoilt, _torn])
def test_a_broken_file_can_be_cleared(cache: Cache, spoil: Callable[[Cache], None]) -> None:
    spoil(cache)
    cache.get([key(1)])
    cache.put({key((1, m)): os.urandom(3_000) for m in range(100)})
    cache.clear()
    cache.put({key(1): b"x"})
    assert cache.get([key(1)]) == {key(1): b"x"} and cache.problem == "" and cache.stats().items == 1


def test_a_full_disk_keeps_what_was_there_for_the_next_time(cache: Cache) -> None:
    _full(cache)
    cache.put({key((1, m)): os.urandom(3_000) for m in range(100)})
    assert cache.problem
    cache.close()
    again = Cache(cache.folder)
    assert again.get([key("before"), key((1, 0))]) == {key("before"): b"x"}
    again.put({key(5): b"y"})
    assert again.get([key(5)]) and again.problem == ""
    again.close()


def test_another_process_that_writes_for_long_is_waited_for(cache: Cache) -> None:
    cache.put({key(1): b"x"})
    other = sqlite3.connect(cache.path, isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")
    timer = threading.Timer(0.4, lambda: other.execute("commit"))
    timer.start()
    began = time.monotonic()
    cache.put({key(2): b"y"})
    assert time.monotonic() - began > 0.3 and cache.get([key(2)]) == {key(2): b"y"}
    timer.join()
    other.close()


# --- where it is --------------------------------------------------------------------------------------------------


def test_it_stands_beside_the_database_or_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded = Settings(milvus=MilvusSettings(uri=str(tmp_path / "a" / "b.db")))
    assert embedded.cache_folder == tmp_path / "a" / ".graphrag_milvus_cache"
    server = Settings(milvus=MilvusSettings(uri="http://127.0.0.1:1"))
    if sys.platform.startswith("linux"):
        assert server.cache_folder == tmp_path / "cache" / "graphrag-milvus"
    assert server.cache_folder.name == "graphrag-milvus"
    monkeypatch.setenv("GRAPHRAG_CACHE__FOLDER", str(tmp_path / "mine"))
    assert Settings().cache_folder == tmp_path / "mine"
    assert Settings(cache=CacheSettings(folder="~/x")).cache_folder == Path.home() / "x"
