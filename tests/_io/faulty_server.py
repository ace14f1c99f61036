"""A real HTTP server on 127.0.0.1 that misbehaves on order."""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from robustcf._io.fetching import Policy, fetch

MOST_SENT = 1 << 28  # an endless body ends here all the same, for the sake of the disk


@dataclass
class Plan:
    """What the server does: one word a request, the last one for all that follow.

    ``ok`` (ranges honoured), ``no-range`` (ranges ignored), ``500``, ``503-retry-after``,
    ``404``, ``hang``, ``cut`` (announces all, sends half, closes), ``wrong`` (other bytes),
    ``bad-range`` (answers another range than asked for), ``416``, ``drop`` (closes at once),
    ``chunked`` (no length announced), ``early-end`` (no length announced, half the bytes),
    ``endless`` (no length announced, the body over and over; a range is begun where asked for),
    ``endless-chunks`` (the same in HTTP chunks), ``announces-much`` (a length of 10^15, the body
    over and over), ``announces-little`` (half the length, all the bytes), ``odd-length`` (a length
    that is not a number), ``packed`` (gzip, although the client did not ask for it).
    ``sent`` counts the bytes of endless bodies.
    """

    body: bytes
    steps: list[str] = field(default_factory=lambda: ["ok"])
    seen: list[dict[str, str]] = field(default_factory=list)
    delay: float = 0.0
    sent: int = 0
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
        if step == "wrong":
            body = body[::-1]
        half = body[: len(body) // 2]
        asked = self.headers.get("Range")
        if step == "hang":
            self.released.wait(30)
        elif step == "drop":
            pass
        elif step.isdigit():
            self._send(int(step), b"")
        elif step == "503-retry-after":
            self._send(503, b"", **{"Retry-After": "7"})
        elif step in ("chunked", "early-end"):
            self._send(200, body if step == "chunked" else half, length=None)
        elif step.startswith("endless") or step in ("announces-much", "odd-length"):
            self._without_end(step)
        elif step == "announces-little":
            self._send(200, body, length=len(half))
        elif step == "packed":
            self._send(200, gzip.compress(body), **{"Content-Encoding": "gzip"})
        elif asked and step in ("ok", "cut", "wrong", "bad-range"):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            claimed = start + 1 if step == "bad-range" else start
            extra = {"Content-Range": f"bytes {claimed}-{len(body) - 1}/{len(body)}"}
            rest = body[start:]
            sent = rest[: len(rest) // 2] if step == "cut" else rest
            self._send(206, sent, length=len(rest), **extra)
        else:
            self._send(200, half if step == "cut" else body, length=len(body))

    def _without_end(self, step: str) -> None:
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{10**15}/*")
        if step == "announces-much":
            self.send_header("Content-Length", str(10**15))
        if step == "odd-length":
            self.send_header("Content-Length", "9" * 5000)
        if step == "endless-chunks":
            self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        body = self.plan.body
        piece = b"%x\r\n%s\r\n" % (len(body), body) if step == "endless-chunks" else body
        with suppress(OSError):  # the client has had enough
            while not self.released.is_set() and self.plan.sent < MOST_SENT:
                self.plan.sent += self.wfile.write(piece)

    def _send(self, status: int, body: bytes, length: int | None = -1, **extra: str) -> None:
        self.send_response(status)
        if length is not None:
            extra["Content-Length"] = str(len(body) if length < 0 else length)
        for name, value in {"Connection": "close", **extra}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def fetch_from(url: str, target: str, digest: str) -> None:
    """Fetch a file, in a process that imports little."""

    def check(path: Path) -> str | None:
        right = hashlib.sha256(path.read_bytes()).hexdigest() == digest
        return None if right else "wrong checksum"

    fetch([url], Path(target), check, policy=Policy(lock_timeout=30))


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
