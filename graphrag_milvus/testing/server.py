"""An OpenAI-compatible endpoint on loopback that answers by a script, faults included."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings

from graphrag_milvus.testing.models import HashingEmbeddings, count_words, pieces_of

__all__ = ["Reply", "Request", "ScriptedServer"]


@dataclass(frozen=True)
class Reply:
    """One answer of a `ScriptedServer`.

    Attributes:
        text: what the model says; with a `status` of 400 and more, the message of the error.
        status: the HTTP status.
        headers: sent in addition, such as `Retry-After`; they win over the server's own.
        delay: seconds before the answer begins.
        cut_after: bytes of the body after which the connection is cut; None lets it end.
        raw: the whole body, in place of JSON; sent as `text/html` where `headers` do not say otherwise.
        finish_reason: `stop`, or for example `length` for an answer that ran into the token limit.
    """

    text: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut_after: int | None = None
    raw: str | None = None
    finish_reason: str = "stop"


@dataclass(frozen=True)
class Request:
    """One request that a `ScriptedServer` got.

    Attributes:
        method: `GET` or `POST`.
        path: with the `/v1`.
        json: the body, or None where there was none or it was not JSON.
        headers: names in lower case.
        at: when it came, in seconds of `time.monotonic()`.
    """

    method: str
    path: str
    json: Any
    headers: Mapping[str, str]
    at: float


class ScriptedServer:
    """An OpenAI-compatible HTTP server on a free loopback port, for as long as its `with` block runs.

    It has `POST /v1/chat/completions` (whole, or as server-sent events), `POST /v1/embeddings` (as numbers
    or base64) and `GET /v1/models`.

    Args:
        replies: the chat answers in order; a text stands for `Reply(text)`.
        respond: makes the chat answer from the request's JSON once `replies` are used up. An exception in
            it is answered as status 410, which no client repeats.
        embeddings: makes the vectors; where a request names `dimensions`, `HashingEmbeddings` of that size do.
        max_texts: texts in one embeddings request; more are refused with status 400.
        embedding_replies: for each embeddings request a `Reply` to give in place of vectors, or None for vectors.

    Attributes:
        requests: every request so far.
        peak: how many chat requests were in work at once at the most.

    A chat request beyond the script is answered with status 410 and says so.
    """

    def __init__(
        self,
        replies: Sequence[Reply | str] = (),
        respond: Callable[[dict[str, Any]], Reply | str] | None = None,
        *,
        embeddings: Embeddings | None = None,
        max_texts: int | None = None,
        embedding_replies: Sequence[Reply | None] = (),
    ) -> None:
        self.replies = replies
        self.respond = respond
        self.embeddings = embeddings
        self.max_texts = max_texts
        self.embedding_replies = embedding_replies
        self.requests: list[Request] = []
        self.peak = 0
        self._in_work = 0
        self._lock = threading.Lock()
        self._turns = itertools.count()
        self._embedding_turns = itertools.count()
        self._http: _HTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`; only inside the `with` block."""
        if self._http is None:
            raise RuntimeError("the server does not run; use `with ScriptedServer(...) as server:`")
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> ScriptedServer:
        self._http = _HTTPServer(("127.0.0.1", 0), _Handler)
        self._http.script = self
        # shutdown() waits for one poll, so a short one keeps tests quick
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name="scripted", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None and self._thread is not None:
            self._http.stop()
            self._thread.join()
        self._http = self._thread = None

    def _answer(self, request: Request) -> _Body:
        with self._lock:
            self.requests.append(request)
        route = f"{request.method} {request.path.partition('?')[0]}"
        if route == "GET /v1/models":
            return _json_body(Reply(), {"object": "list", "data": [_model_card()]})
        if request.method == "POST" and not isinstance(request.json, dict):
            return _error_body(Reply("the body is not a JSON object", 400))
        if route == "POST /v1/chat/completions":
            return self._chat(request.json)
        if route == "POST /v1/embeddings":
            return self._embed(request.json)
        return _error_body(Reply(f"no such route: {route}", 404))

    def _chat(self, asked: dict[str, Any]) -> _Body:
        reply = self._chat_reply(asked)
        if reply.raw is not None or reply.status >= 400:
            return _error_body(reply)
        if asked.get("stream"):
            return _Body(reply, "text/event-stream", _events(asked, reply), chunked=True)
        return _json_body(reply, _completion(asked, reply))

    def _chat_reply(self, asked: dict[str, Any]) -> Reply:
        with self._lock:
            turn = next(self._turns)
        if turn < len(self.replies):
            return _as_reply(self.replies[turn])
        if self.respond is None:
            return Reply(f"the script has {len(self.replies)} replies and this is request {turn + 1}", 410)
        try:
            return _as_reply(self.respond(asked))
        except Exception as error:  # noqa: BLE001 - whatever the script raises has to reach the test, through HTTP
            return Reply(f"the script raised {error!r}", 410)

    def _embed(self, asked: dict[str, Any]) -> _Body:
        with self._lock:
            turn = next(self._embedding_turns)
        reply = self.embedding_replies[turn] if turn < len(self.embedding_replies) else None
        if reply is not None:
            return _error_body(reply)
        given: Any = asked.get("input")
        texts = [given] if isinstance(given, str) else given
        problem = _input_problem(texts, self.max_texts)
        if problem:
            return _error_body(Reply(problem, 400))
        return _json_body(Reply(), _vectors(asked, texts, self._embedder(asked)))

    def _embedder(self, asked: dict[str, Any]) -> Embeddings:
        if asked.get("dimensions"):
            return HashingEmbeddings(asked["dimensions"])
        return self.embeddings or HashingEmbeddings()

    def _count(self, change: int) -> None:
        with self._lock:
            self._in_work += change
            self.peak = max(self.peak, self._in_work)


def _as_reply(reply: Reply | str) -> Reply:
    return Reply(reply) if isinstance(reply, str) else reply


def _input_problem(texts: Any, most: int | None) -> str:
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        return "input has to be a text or a list of texts; token numbers are not understood"
    if most is not None and len(texts) > most:
        return f"{len(texts)} texts in one request; at most {most} are allowed"
    return ""


def _model_card() -> dict[str, Any]:
    return {"id": "scripted", "object": "model", "created": 0, "owned_by": "test"}


def _usage(asked: dict[str, Any], said: str) -> dict[str, int]:
    prompt = count_words(" ".join(str(message.get("content") or "") for message in asked.get("messages", [])))
    return {"prompt_tokens": prompt, "completion_tokens": count_words(said), "total_tokens": prompt + count_words(said)}


def _completion(asked: dict[str, Any], reply: Reply) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply.text}
    return {
        "id": "scripted",
        "object": "chat.completion",
        "created": 0,
        "model": asked.get("model", "scripted"),
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish_reason}],
        "usage": _usage(asked, reply.text),
    }


def _events(asked: dict[str, Any], reply: Reply) -> list[bytes]:
    frame = {"id": "scripted", "object": "chat.completion.chunk", "created": 0, "model": asked.get("model", "scripted")}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in pieces_of(reply.text)]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": reply.finish_reason})
    events: list[dict[str, Any]] = [{**frame, "choices": [choice]} for choice in choices]
    if (asked.get("stream_options") or {}).get("include_usage"):
        events.append({**frame, "choices": [], "usage": _usage(asked, reply.text)})
    return [f"data: {json.dumps(event)}\n\n".encode() for event in events] + [b"data: [DONE]\n\n"]


def _vectors(asked: dict[str, Any], texts: list[str], embedder: Embeddings) -> dict[str, Any]:
    packed = asked.get("encoding_format") == "base64"
    rows = [_packed(vector) if packed else vector for vector in embedder.embed_documents(texts)]
    tokens = sum(map(count_words, texts))
    return {
        "object": "list",
        "model": asked.get("model", "scripted"),
        "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _packed(vector: list[float]) -> str:
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode("ascii")


@dataclass(frozen=True)
class _Body:
    """What goes over the wire: `parts` together are the body."""

    reply: Reply
    content_type: str
    parts: list[bytes]
    chunked: bool = False


def _json_body(reply: Reply, value: Any) -> _Body:
    return _Body(reply, "application/json", [json.dumps(value).encode()])


def _error_body(reply: Reply) -> _Body:
    if reply.raw is not None:
        return _Body(reply, "text/html; charset=utf-8", [reply.raw.encode()])
    return _json_body(reply, {"error": {"message": reply.text, "type": "scripted", "param": None, "code": None}})


class _HTTPServer(ThreadingHTTPServer):
    """Knows its open connections, so that closing does not wait for clients that keep theirs alive."""

    daemon_threads = False  # server_close() joins only threads that are not daemons
    request_queue_size = 64
    script: ScriptedServer

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.stopping = threading.Event()
        self._connections: set[Any] = set()

    def server_bind(self) -> None:
        """Bind without the look-up of this machine's name, which is slow where there is no name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def stop(self) -> None:
        """Take no more, cut what is open, and wait until every thread is gone."""
        self.stopping.set()
        self.shutdown()
        for connection in list(self._connections):
            _cut(connection)
        self.server_close()


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side may have been quicker
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _HTTPServer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the log is `ScriptedServer.requests`."""

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # a client that has given up waiting is part of many tests
            self.close_connection = True

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _handle(self) -> None:
        request = self._request()
        chat = request.path.startswith("/v1/chat/")
        self.server.script._count(+chat)
        try:
            body = self.server.script._answer(request)
            stopped = self.server.stopping.wait(body.reply.delay) if body.reply.delay else False
        finally:
            # before the first byte goes out: a client that has its answer may ask again at once
            self.server.script._count(-chat)
        self._end() if stopped else self._send(body)

    def _request(self) -> Request:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Request(self.command, self.path, _parsed(data), headers, time.monotonic())

    def _send(self, body: _Body) -> None:
        self.send_response(body.reply.status)
        for name, value in self._headers(body).items():
            self.send_header(name, value)
        self.end_headers()
        left = body.reply.cut_after
        for part in body.parts:
            self._write(part if left is None else part[:left], body.chunked)
            left = None if left is None else max(0, left - len(part))
        if body.reply.cut_after is not None:
            self._end()
        elif body.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _headers(self, body: _Body) -> dict[str, str]:
        length = str(sum(map(len, body.parts)))
        framing = {"Transfer-Encoding": "chunked"} if body.chunked else {"Content-Length": length}
        given = {name.title(): value for name, value in body.reply.headers.items()}
        return {"Content-Type": body.content_type, **framing, **given}

    def _write(self, data: bytes, chunked: bool) -> None:
        if data and chunked:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        elif data:
            self.wfile.write(data)

    def _end(self) -> None:
        self.close_connection = True
        _cut(self.connection)


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return None
