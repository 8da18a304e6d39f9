"""A proxy between a client and a server that delays, throttles, cuts off, or returns stale answers."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Between:
    """`trouble(n, method, path)` decides what happens to the n-th request: `None`, `"throttle"`, `"cut"` (the connection ends while the request
    is forwarded), `"lose"` (the request is carried out, but its answer is lost) or `"stale"` (the answer is the first one ever given for the
    path)."""

    def __init__(self, port: int, trouble: Callable[[int, str, str], str | None] = lambda *_: None, delay: float = 0.0) -> None:
        self.trouble, self.delay, self.upstream = trouble, delay, port
        self.requests: list[tuple[str, str]] = []
        self.first: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}
        self.lock = threading.Lock()
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def answer(self) -> None:
                between.answer(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        path = handler.path.split("?")[0]
        with self.lock:
            self.requests.append((handler.command, handler.path))
            n = len(self.requests)
        time.sleep(self.delay)
        trouble = self.trouble(n, handler.command, handler.path)
        if trouble == "throttle":
            return self.give(handler, 503, [("Content-Type", "application/xml")], SLOW_DOWN)
        if trouble == "cut":
            return self.cut(handler)
        status, headers, content = self.pass_on(handler, body)
        if trouble == "lose":
            return self.cut(handler)
        if handler.command == "GET" and status == 200:
            kept = self.first.setdefault(path, (status, headers, content))
            if trouble == "stale":
                status, headers, content = kept
        self.give(handler, status, headers, content)

    def pass_on(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        connection.request(handler.command, handler.path, body, dict(handler.headers.items()))
        answer = connection.getresponse()
        content = answer.read()
        skipped = {"connection", "transfer-encoding", "content-length", "date", "server"}
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in skipped]
        if handler.command == "HEAD":
            headers.append(("Content-Length", answer.getheader("Content-Length") or "0"))
        connection.close()
        return answer.status, headers, content

    @staticmethod
    def give(handler: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        if not any(name == "Content-Length" for name, _ in headers):
            handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)

    @staticmethod
    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.server.shutdown()
