"""A cache on disk of what is slow or paid for: replies of chat models, and vectors.

It is one SQLite database. The standard library brings it, several processes and threads may use it at once, a
process that is killed at any moment loses nothing that was put in before, and values are plain bytes: nothing
that is read from it can run. It has to stand on a disk of this machine: SQLite's log cannot be shared over a
network.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

__all__ = ["Cache", "CacheStats"]

Result = TypeVar("Result")

FILE = "cache.sqlite"
_SUFFIXES = ("", "-wal", "-shm", "-journal")
_BUSY = 30.0  # seconds for which another process may write
_KEYS = 500  # keys in one request: SQLite takes no more than 999 parameters everywhere
_CHECK_EVERY = 256  # values, between two looks at the size
_KEPT = 0.9  # of the size that is left when something has to go
_FRESH = 86_400  # seconds in which a value's last use is not written again: it would make every read a write

_SCHEMA = (
    "create table if not exists items (key blob primary key, value blob not null, used integer not null)",
    "create index if not exists items_used on items (used)",
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CacheStats:
    """What a cache holds; `bytes` are those in use, free ones in its file not counted."""

    folder: str
    items: int
    bytes: int


class Cache:
    """Values by key, on disk. Threads and processes may share it.

    Where it cannot be used (no room, no permission, a broken file) everything goes on without it: nothing is found,
    nothing is kept, and it says so once, in the log and in `problem`.

    Args:
        folder: where its file is; made when it is needed.
        max_bytes: how large it may grow; beyond that, what was not used for longest goes.
    """

    def __init__(self, folder: str | Path, max_bytes: int = 4 << 30) -> None:
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self.problem = ""
        self._lock = threading.RLock()
        # One connection for each process: a child has a copy of its parent's, and may not even close it.
        self._connections: dict[int, sqlite3.Connection] = {}
        self._turns: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._unchecked = _CHECK_EVERY

    @property
    def path(self) -> Path:
        """The database file."""
        return self.folder / FILE

    def get(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The values of those of the keys that have one; keys are hexadecimal digits, as `content_hash` gives them."""
        found = self._guarded(lambda db: self._read(db, keys)) if keys else None
        return found or {}

    def put(self, values: Mapping[str, bytes]) -> None:
        """Keep values, all of them or none, each in place of what its key had."""
        if values:
            self._guarded(lambda db: self._write(db, values))

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        """In this process, one thread at a time has the turn of a key: what two want at once is made once."""
        with self._lock:
            lock = self._turns.setdefault(key, threading.Lock())
        with lock:
            yield

    def stats(self) -> CacheStats:
        """How much there is; nothing where there is no file, which this does not make."""
        counted = self._guarded(_count) if self.path.exists() else None
        return CacheStats(str(self.folder), *(counted or (0, 0)))

    def clear(self) -> CacheStats:
        """Delete everything; what there was. Others may go on using it meanwhile. A broken file is removed."""
        before = self.stats()
        if self.path.exists() and not self.problem:
            self._guarded(_empty)
        if self.problem:
            self.close()
            for suffix in _SUFFIXES:
                self.path.with_name(FILE + suffix).unlink(missing_ok=True)
        self.problem = ""
        return before

    def close(self) -> None:
        """Let go of the file; the next use opens it again."""
        with self._lock:
            connection = self._connections.pop(os.getpid(), None)
            if connection is not None:
                connection.close()

    # Inside

    def _guarded(self, action: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """What `action` gives, or None where the cache cannot be used."""
        if self.problem:
            return None
        with self._lock:
            try:
                return action(self._connection())
            except (sqlite3.Error, OSError) as error:
                self._give_up(error)
                return None

    def _give_up(self, error: Exception) -> None:
        if not self.problem:
            self.problem = f"the cache in {str(self.folder)!r} is not used any more: {error}; {_remedy(error)}"
            _log.warning("%s", self.problem)

    def _connection(self) -> sqlite3.Connection:
        pid = os.getpid()
        if pid not in self._connections:
            self._connections[pid] = self._open()
        return self._connections[pid]

    def _open(self) -> sqlite3.Connection:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        db = sqlite3.connect(self.path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        try:
            # With the log, a killed process loses nothing; a power cut may lose the last seconds, and breaks nothing.
            db.execute("pragma journal_mode = wal")
            db.execute("pragma synchronous = normal")
            db.execute(f"pragma journal_size_limit = {64 << 20}")
            for statement in _SCHEMA:
                db.execute(statement)
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _read(self, db: sqlite3.Connection, keys: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        stale: list[tuple[int, bytes]] = []
        now = int(time.time())
        for start in range(0, len(keys), _KEYS):
            part = [bytes.fromhex(key) for key in keys[start : start + _KEYS]]
            marks = ",".join("?" * len(part))
            for key, value, used in db.execute(f"select key, value, used from items where key in ({marks})", part):
                found[key.hex()] = value
                if now - used > _FRESH:
                    stale.append((now, key))
        if stale:
            with _transaction(db):
                db.executemany("update items set used = ? where key = ?", stale)
        return found

    def _write(self, db: sqlite3.Connection, values: Mapping[str, bytes]) -> None:
        now = int(time.time())
        with _transaction(db):
            rows = ((bytes.fromhex(key), value, now) for key, value in values.items())
            db.executemany("insert or replace into items values (?, ?, ?)", rows)
        self._unchecked += len(values)
        if self._unchecked >= _CHECK_EVERY:
            self._unchecked = 0
            self._shrink(db)

    def _shrink(self, db: sqlite3.Connection) -> None:
        """Delete what was not used for longest, where there is too much."""
        while (size := _used_bytes(db)) > self.max_bytes:
            items = _number(db, "select count(*) from items")
            surplus = max(1, int(items * (1 - self.max_bytes * _KEPT / size)))
            if not items:
                return
            oldest = "delete from items where rowid in (select rowid from items order by used, rowid limit ?)"
            with _transaction(db):
                db.execute(oldest, (surplus,))


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. Immediate: one that begins by reading could not wait for its turn to write."""
    db.execute("begin immediate")
    try:
        yield
        db.execute("commit")
    except BaseException:
        if db.in_transaction:  # SQLite may have taken it back itself where the disk was full
            db.execute("rollback")
        raise


def _number(db: sqlite3.Connection, statement: str) -> int:
    return int(db.execute(statement).fetchone()[0])


def _used_bytes(db: sqlite3.Connection) -> int:
    pages = _number(db, "pragma page_count") - _number(db, "pragma freelist_count")
    return pages * _number(db, "pragma page_size")


def _count(db: sqlite3.Connection) -> tuple[int, int]:
    return _number(db, "select count(*) from items"), _used_bytes(db)


def _empty(db: sqlite3.Connection) -> None:
    with _transaction(db):
        db.execute("delete from items")
    db.execute("vacuum")
    db.execute("pragma wal_checkpoint(truncate)").fetchall()


def _remedy(error: Exception) -> str:
    said = str(error)
    if "full" in said or "No space" in said:
        return "free some room, or set cache.folder to a disk that has some"
    if "malformed" in said or "not a database" in said:
        return "clear it with `graphrag-milvus cache --clear`"
    if "locked" in said:
        return "another process holds it; set cache.folder to another folder if that goes on"
    return "set cache.folder to a folder that can be written, or cache.enabled to false"
