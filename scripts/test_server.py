#!/usr/bin/env python3
"""Run the tests that need a Milvus server against a real one, and leave nothing behind.

    .venv/bin/python scripts/test_server.py [PYTEST ARGUMENTS...]

Installs Milvus 2.3.5 from PyPI in an environment of its own (`.venv-server`), starts it on free ports
with its data in a temporary folder, waits until it answers requests, runs `tests/contracts` and
`tests/integration` with `GRAPHRAG_TEST_URI` set, and stops it: the wrapper, its child `milvus run
standalone`, and the folder. The exit status is pytest's; 3 says that no server could be had. Linux x86-64
only, as is the package. pytest runs under the Python that runs this script, which itself needs nothing
but the standard library.

Other scripts take the server alone:

    with MilvusServer() as uri:
        client = MilvusClient(uri)
"""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType

__all__ = ["MilvusServer", "ServerError", "main"]

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-server"
PACKAGE = "milvus==2.3.5"
SUITES = ("tests/contracts", "tests/integration")
NO_SERVER = 3
NO_TESTS = 5  # as pytest says it

# Every port that the wrapper lets its caller choose; it looks for one for metrics itself, from 9091 up.
PORT_OPTIONS = (
    "proxy",
    "proxy-internal",
    "root-coord",
    "query-coord",
    "query-node",
    "index-coord",
    "index-node",
    "data-coord",
    "data-node",
    "etcd",
)
COMPONENTS = ("proxy", "rootCoord", "queryCoord", "queryNode", "indexNode", "dataCoord", "dataNode")
# Below the ports that Linux hands to outgoing connections, so that none is taken before the server has it.
PORT_RANGE = range(20_000, 32_000)

# The wrapper's --etcd-port says only where etcd is looked for; where it listens stands in this file.
ETCD_CONFIG = """\
name: default
listen-client-urls: http://127.0.0.1:{client}
advertise-client-urls: http://127.0.0.1:{client}
listen-peer-urls: http://127.0.0.1:{peer}
initial-advertise-peer-urls: http://127.0.0.1:{peer}
initial-cluster: default=http://127.0.0.1:{peer}
"""


class ServerError(RuntimeError):
    """The server could not be installed, or was not ready in time."""


class MilvusServer:
    """A Milvus server for the length of a `with` block, which is given its URI.

    Args:
        venv: folder of the environment that holds the server; made and filled when it is not there.
        timeout: seconds that the server has to get ready; the installation is not counted.
    """

    def __init__(self, venv: Path = VENV, timeout: float = 120.0) -> None:
        self.venv = venv
        self.timeout = timeout
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> list[int]:
        """The wrapper and its child, as far as they run; to measure their memory, for example."""
        return _session_members(self._process.pid) if self._process else []

    def __enter__(self) -> str:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> str:
        """Install if need be, start, wait until requests are answered; the URI `http://127.0.0.1:PORT`.

        Raises:
            ServerError: not Linux x86-64, the installation failed, or the server was not ready in time.
        """
        command = _install(self.venv)
        self._folder = Path(tempfile.mkdtemp(prefix="milvus-server-"))
        *chosen, peer = _free_ports(len(PORT_OPTIONS) + 1)
        ports = dict(zip(PORT_OPTIONS, chosen, strict=True))
        self._process = _launch(command, self._folder, ports, peer)
        uri = f"http://127.0.0.1:{ports['proxy']}"
        self._wait(uri, time.monotonic() + self.timeout)
        return uri

    def stop(self) -> None:
        """End every process that `start` began and remove the data; harmless where there is nothing."""
        with _undisturbed():
            if self._process is not None:
                _kill_session(self._process)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._process = self._folder = None

    def _wait(self, uri: str, deadline: float) -> None:
        most = 0
        while not _answers(uri):
            running = len(self.pids)
            if running < most:
                raise ServerError(f"the server stopped before it was ready; its logs end with\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise ServerError(f"no answer at {uri} in {self.timeout:g} s; the logs end with\n{self._log_tail()}")
            most = max(most, running)
            time.sleep(0.2)

    def _log_tail(self, lines: int = 30) -> str:
        """The last lines of each log that is not empty."""
        assert self._folder is not None
        logs = [log for log in sorted(self._folder.glob("**/*.log")) if log.is_file() and log.stat().st_size]
        tails = [log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:] for log in logs]
        return "\n".join(f"--- {log.name}\n" + "\n".join(tail) for log, tail in zip(logs, tails, strict=True))


def _install(venv: Path) -> Path:
    """The path of `milvus-server`, in `venv`, which is made unless it holds the right version."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise ServerError(f"{PACKAGE} runs on Linux x86-64 only, not on {sys.platform} {platform.machine()}")
    stamp = venv / ".installed"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != PACKAGE:
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", PACKAGE]
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
            subprocess.run(pip, check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
        except subprocess.CalledProcessError as error:
            raise ServerError(f"{PACKAGE} could not be installed in {venv}: {error}") from error
        stamp.write_text(PACKAGE, encoding="utf-8")
    return venv / "bin" / "milvus-server"


def _launch(command: Path, folder: Path, ports: dict[str, int], peer: int) -> subprocess.Popen[bytes]:
    etcd = folder / "etcd.yaml"
    etcd.write_text(ETCD_CONFIG.format(client=ports["etcd"], peer=peer), encoding="utf-8")
    arguments = [str(command), "--data", str(folder / "data")]
    arguments += [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]
    arguments += [word for name in COMPONENTS for word in ("--extra-config", f"{name}.ip=127.0.0.1")]
    with (folder / "wrapper.log").open("wb") as log:
        # A session of its own: Ctrl-C reaches only this script, and every process of the server can be found.
        return subprocess.Popen(
            arguments,
            env={**os.environ, "ETCD_CONFIG_PATH": str(etcd)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _free_ports(count: int) -> list[int]:
    """`count` different ports that nobody listens on, on any address, at this moment."""
    ports: list[int] = []
    with ExitStack() as held:
        for port in random.sample(PORT_RANGE, len(PORT_RANGE)):
            probe = held.enter_context(socket.socket())
            try:
                probe.bind(("", port))
            except OSError:
                continue
            ports.append(port)
            if len(ports) == count:
                return ports
    raise ServerError(f"fewer than {count} free ports from {PORT_RANGE.start} to {PORT_RANGE.stop - 1}")


def _answers(uri: str) -> bool:
    """True when the server lists its collections; its port is open long before that."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{uri}/v1/vector/collections", timeout=5) as response:
            reply = json.load(response)
    except (OSError, ValueError):
        return False
    return isinstance(reply, dict) and reply.get("code") == 200


def _session_members(session: int) -> list[int]:
    """Ids of the processes in a session, also of those whose parent is gone; the dead are left out."""
    return [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _session_of(entry) == session
    ]


def _session_of(entry: Path) -> int:
    """Session of the process at `/proc/ID`; -1 for one that is gone or a zombie."""
    try:
        stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return -1
    # The name of the program, in parentheses, may hold anything: the fields count from the last one.
    state, _parent, _group, session = stat.rpartition(")")[2].split()[:4]
    return -1 if state in "ZX" else int(session)


def _kill_session(process: subprocess.Popen[bytes], timeout: float = 10.0) -> None:
    """End the wrapper and what it began, by process id, and wait until none is left.

    Asked politely, the server takes more than ten seconds to put its data in order; they are thrown away.
    """
    deadline = time.monotonic() + timeout
    while (members := _session_members(process.pid)) and time.monotonic() < deadline:
        for pid in members:
            _kill(pid)
        time.sleep(0.05)
    process.wait(timeout)
    if members:
        raise ServerError(f"processes {members} of the server do not end; end them by hand")


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended in between


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold signals back for the length of the block: a second Ctrl-C would leave the child behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_pytest(uri: str, arguments: list[str]) -> int:
    """Exit status of pytest, which is ended first when this script is interrupted."""
    suites = [suite for suite in SUITES if (ROOT / suite).is_dir()]
    if not suites:
        print(f"neither of {', '.join(SUITES)} exists in {ROOT}", file=sys.stderr)
        return NO_TESTS
    command = [sys.executable, "-m", "pytest", *suites, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "GRAPHRAG_TEST_URI": uri})
    try:
        return process.wait()
    except BaseException:
        with _undisturbed():
            _end(process)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)  # pytest then closes its fixtures
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(arguments: list[str] | None = None) -> int:
    """Start a server, run the suites with `arguments` for pytest, stop the server; the exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    try:
        with MilvusServer() as uri:
            print(f"Milvus is ready at {uri}", file=sys.stderr, flush=True)
            return _run_pytest(uri, sys.argv[1:] if arguments is None else arguments)
    except ServerError as error:
        print(error, file=sys.stderr)
        return NO_SERVER
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
