"""A real HTTP server on 127.0.0.1 that misbehaves on order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Plan:
    """What the server does: one word a request, the last one for all that follow.

    ``ok`` (ranges honoured), ``no-range`` (ranges ignored), ``500``, ``503-retry-after``,
    ``404``, ``hang``, ``cut`` (announces all, sends half, closes), ``wrong`` (other bytes),
    ``bad-range`` (answers another range than asked for), ``416``, ``drop`` (closes at once),
    ``chunked`` (no length announced), ``early-end`` (no length announced, half the bytes).
    """

    body: bytes
    steps: list[str] = field(default_factory=lambda: ["ok"])
    seen: list[dict[str, str]] = field(default_factory=list)
    delay: float = 0.0
    url: str = ""

    def next_step(self) -> str:
        return self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    plan: Plan
    released: threading.Event

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        plan, body = self.plan, self.plan.body
        plan.seen.append(dict(self.headers))
        step = plan.next_step()
        time.sleep(plan.delay)
        self.close_connection = True
        if step == "hang":
            self.released.wait(30)
            return
        if step == "drop":
            return
        if step.isdigit():
            self._head(int(step), 0)
            return
        if step == "503-retry-after":
            self._head(503, 0, **{"Retry-After": "7"})
            return
        if step in ("chunked", "early-end"):
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body if step == "chunked" else body[: len(body) // 2])
            return
        if step == "wrong":
            body = bytes(reversed(body))
        asked = self.headers.get("Range")
        if asked and step in ("ok", "cut", "wrong", "bad-range"):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            claimed = start + 1 if step == "bad-range" else start
            extra = {"Content-Range": f"bytes {claimed}-{len(body) - 1}/{len(body)}"}
            self._head(206, len(body) - start, **extra)
            body = body[start:]
        else:
            self._head(200, len(body))
        self.wfile.write(body[: len(body) // 2] if step == "cut" else body)

    def _head(self, status: int, length: int, **extra: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        for name, value in extra.items():
            self.send_header(name, value)
        self.end_headers()


@contextmanager
def serve(plan: Plan) -> Iterator[Plan]:
    """Run the plan on a free port of 127.0.0.1; ``plan.url`` is the address of its file."""
    released = threading.Event()
    handler = type("Handler", (_Handler,), {"plan": plan, "released": released})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    plan.url = f"http://127.0.0.1:{server.server_port}/file"
    try:
        yield plan
    finally:
        released.set()
        server.shutdown()
        server.server_close()
        thread.join()
