"""A test double: an HTTP server on 127.0.0.1 that speaks the wire format of chat completions and of messages, and answers as it is told.

It stands in for the two providers only. The SDKs, the connections and what is sent over them are real.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What to send. `stop` in the words of the protocol asked; `usage` as counts (input, cached, written, output), None to send none.

    `error`: (type, code, message, param) in place of an answer; `status` other than 200 needs one. `raw`: a body sent as it is. `break_after`: close
    the connection after so many bytes of the body. `pause_s`: before each `step` bytes of it. `stream_error`: an error event after the text.
    """

    text: str = ""
    stop: str | None = None
    usage: tuple[int, int, int, int] | None = (100, 0, 0, 10)
    thinking: str = ""
    status: int = 200
    error: tuple[str, str, str, str | None] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: tuple[str, bytes] | None = None  # content type, body
    break_after: int | None = None
    pause_s: float = 0.0
    step: int = 1
    stream_error: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # more keys of the message of a chat completion


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Loopback:
    """The server: `script` is answered in order, its last answer for ever; a callable decides by the request. `requests` is what came."""

    port: int
    script: list[Any]
    requests: list[Request] = field(default_factory=list)
    broken: int = 0  # connections that the client closed before everything was sent
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def next(self, request: Request) -> Answer:
        with self.lock:
            self.requests.append(request)
            answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return answer(request) if callable(answer) else answer


@contextmanager
def serving(*script: Any) -> Iterator[Loopback]:
    """A server for the time of the block."""
    loopback = Loopback(0, list(script))

    class Handler(_Handler):
        server_state = loopback

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that was killed is no news
    loopback.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield loopback
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_state: Loopback
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for the acknowledgement of its headers

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        request = Request(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        answer = self.server_state.next(request)
        kind, data = _rendered(answer, self.path, bool(body.get("stream")))
        try:
            self.send_response(answer.status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self._send(answer, data)
        except OSError:
            with self.server_state.lock:
                self.server_state.broken += 1

    def _send(self, answer: Answer, data: bytes) -> None:
        data = data if answer.break_after is None else data[: answer.break_after]
        if not answer.pause_s:
            self.wfile.write(data)
        else:
            for at in range(0, len(data), answer.step):
                self.wfile.write(data[at : at + answer.step])
                self.wfile.flush()
                time.sleep(answer.pause_s)
        if answer.break_after is not None:
            self.close_connection = True


def _rendered(answer: Answer, path: str, stream: bool) -> tuple[str, bytes]:
    """Content type and body."""
    if answer.raw:
        return answer.raw
    anthropic = path.endswith("/messages")
    if answer.error:
        kind, code, message, param = answer.error
        details = {"details": {"error_code": code}} if anthropic else {"code": code, "param": param}
        body: dict[str, Any] = {"error": {"type": kind, "message": message} | details}
        return "application/json", json.dumps(({"type": "error"} if anthropic else {}) | body).encode()
    if not anthropic:
        return "application/json", json.dumps(_chat(answer)).encode()
    if not stream:
        return "application/json", json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": "stream: required"}}).encode()
    return "text/event-stream", b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in _events(answer))


def _chat(answer: Answer) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer.text} | answer.extra
    usage = None
    if answer.usage:
        given, cached, written, output = answer.usage
        usage = {"prompt_tokens": given, "completion_tokens": output, "total_tokens": given + output}
        usage |= {"prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written} if cached or written else None}
    choice = {"index": 0, "message": message, "finish_reason": answer.stop or "stop"}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def _events(answer: Answer) -> Iterator[dict[str, Any]]:
    given, cached, written, output = answer.usage or (0, 0, 0, 0)
    usage = {"input_tokens": given - cached - written, "cache_read_input_tokens": cached, "cache_creation_input_tokens": written, "output_tokens": 1}
    message = {"id": "x", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    yield {"type": "message_start", "message": message | ({"usage": usage} if answer.usage else {})}
    yield {"type": "ping"}
    index = 0
    if answer.thinking:
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}}
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": answer.thinking}}
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}}
        yield {"type": "content_block_stop", "index": 0}
        index = 1
    if answer.text:
        yield {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
        for at in range(0, len(answer.text), 4000):
            yield {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": answer.text[at : at + 4000]}}
        yield {"type": "content_block_stop", "index": index}
    if answer.stream_error:
        yield {"type": "error", "error": {"type": answer.stream_error, "message": "as told"}}
    delta: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": answer.stop or "end_turn", "stop_sequence": None}}
    yield delta | ({"usage": {"output_tokens": output}} if answer.usage else {})
    yield {"type": "message_stop"}
