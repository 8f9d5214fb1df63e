"""Connections to Milvus: a server, or the embedded engine of a file."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout
from pymilvus import MilvusClient, MilvusException

from graphrag_milvus.errors import MissingDependencyError, SettingsError, StoreUnavailableError
from graphrag_milvus.settings import MilvusSettings

__all__ = ["about_a_filter", "connect", "first_line", "lite_line", "release"]

_LOCAL_CHANNEL = {"grpc.keepalive_time_ms": 2**31 - 1, "grpc.keepalive_permit_without_calls": 0}
"""No keep-alive pings: the embedded engine hangs up on a client that sends them while it is idle."""

_guard = threading.Lock()
_owned: dict[str, BaseFileLock] = {}
_users: Counter[str] = Counter()


@cache
def lite_line() -> int:
    """The first number of the embedded engine's version: 2 is written in C++, 3 in Python."""
    return int(version("milvus-lite").split(".")[0])


def connect(settings: MilvusSettings) -> MilvusClient:
    """A client of the server, or of the embedded engine, that the settings name.

    Raises:
        SettingsError: the URI is neither an address nor a file that can be one.
        StoreUnavailableError: nobody answers, or the file is in use.
    """
    if not settings.embedded:
        return _connect_server(settings)
    path = _checked_file(settings.uri)
    with _guard:
        _own(path, settings)
        try:
            return _open_file(path, settings)
        except BaseException:
            _disown(str(path.resolve()))
            raise


def _own(path: Path, settings: MilvusSettings) -> None:
    """Lock the file for this process, or count one more user of it.

    The engine has a lock of its own, but an attempt that it refuses removes that lock's file, and the next
    attempt would start a second engine on the same data.
    """
    key = str(path.resolve())
    if key not in _owned:
        lock = FileLock(f"{key}.lock", timeout=settings.connect_timeout)
        try:
            lock.acquire()
        except Timeout:
            raise StoreUnavailableError(
                f"cannot open {settings.uri!r}: another process has it open, and an embedded database takes one at a "
                f"time; end the other process, or start a Milvus server and name its address"
            ) from None
        except OSError as error:
            raise StoreUnavailableError(f"cannot lock {settings.uri!r}: {error}; choose another file") from error
        _owned[key] = lock
    _users[key] += 1


def _disown(key: str) -> None:
    """One user less; after the last one the file is free for other processes."""
    _users[key] -= 1
    if _users[key] <= 0:
        _owned.pop(key).release()


def _checked_file(uri: str) -> Path:
    """The file's path, its folder made; the name is one that both generations of the engine take."""
    path = Path(uri).expanduser()
    if path.suffix != ".db" or not re.fullmatch(r"[A-Za-z0-9._-]{1,36}", path.name):
        raise SettingsError(
            f"Milvus URI {uri!r} is neither http(s)://host:port nor a file of the embedded engine; such a file is "
            f"called NAME.db, with ASCII letters, digits, '.', '_' and '-' and 36 characters at the most"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailableError(f"cannot make the folder of {uri!r}: {error}; choose another file") from error
    return path


def _open_file(path: Path, settings: MilvusSettings) -> MilvusClient:
    deadline = time.monotonic() + settings.connect_timeout
    while True:
        try:
            with _quiet():
                return MilvusClient(str(path), timeout=settings.timeout, grpc_options=_LOCAL_CHANNEL)
        except MilvusException as error:
            if "milvus-lite is required" in str(error):
                raise MissingDependencyError("the embedded engine is missing; pip install milvus-lite") from None
            # The engine of a process that was killed a moment ago may not have ended yet.
            if time.monotonic() > deadline:
                raise StoreUnavailableError(
                    f"cannot open {settings.uri!r}: it was written by another generation of milvus-lite, or by "
                    f"something else ({first_line(error)}); choose another file"
                ) from error
            time.sleep(0.2)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the engine from logging, on the root logger, the failure that is raised here in our own words."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _connect_server(settings: MilvusSettings) -> MilvusClient:
    token = settings.token.get_secret_value() if settings.token else ""
    try:
        client = MilvusClient(settings.uri, token=token, db_name=settings.database, timeout=settings.connect_timeout)
        client.list_collections(timeout=settings.connect_timeout)
    except MilvusException as error:
        raise StoreUnavailableError(
            f"nobody answers as Milvus at {settings.uri} within {settings.connect_timeout:g} s "
            f"({first_line(error)}); start the server, or set GRAPHRAG_MILVUS__URI to a file such as ./graphrag.db"
        ) from error
    return client


def release(uri: str) -> None:
    """Stop the embedded engine of a file that nobody in this process has open any more."""
    from milvus_lite.server_manager import server_manager_instance

    key = str(Path(uri).expanduser().resolve())
    with _guard:
        if _users[key] == 1:
            server_manager_instance.release_server(key)
        _disown(key)


def about_a_filter(error: MilvusException) -> bool:
    """True where a filter could not be understood: servers speak of an expr, one embedded engine of a column.

    The other one takes no constants: `true` fails in its FilterBitsNode, `doc_id in []` on a field 0.
    """
    signs = r"\bexpr|expression|at column \d+|FilterBitsNode|field with field_id: 0\b"
    return re.search(signs, str(error), re.IGNORECASE) is not None


def first_line(error: Exception) -> str:
    """What went wrong, without the frames and codes around it."""
    message = getattr(error, "message", "") or str(error)
    return message.strip().splitlines()[0][:300] if message.strip() else type(error).__name__
