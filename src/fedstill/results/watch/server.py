"""Serves the page to browsers on this machine, and to nobody else."""

from __future__ import annotations

import errno
import json
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from fedstill.common.errors import FedstillError
from fedstill.results.watch.watch import Watch

LOOPBACK = "127.0.0.1"
PORT = 8765
NEXT_PORTS = 20
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""No other site may frame the page or use what it holds; what scripts may do on it, the page itself says."""


class Server(ThreadingHTTPServer):
    """Serves what is watched, on the loopback interface."""

    daemon_threads = True

    def __init__(self, watch: Watch, port: int) -> None:
        self.watch = watch
        super().__init__((LOOPBACK, port), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that is closed while it is answered is nothing to tell of."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    """Answers `/` with the page, `/part` with what changes of it, and `/news` with how things stand."""

    server: Server
    server_version, sys_version = "fedstill", ""

    def do_GET(self) -> None:
        """Answer a request; the name by which we are called must be ours, or a foreign page has rebound its own."""
        ours = {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}
        if self.headers.get("Host", "").lower() not in ours:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", f"Open {self.server.address} instead.\n")
            return
        watch = self.server.watch
        try:
            match urlsplit(self.path).path:
                case "/":
                    found = "text/html", watch.page()
                case "/part":
                    found = "text/html", watch.page(is_whole=False)
                case "/news":
                    found = "application/json", json.dumps(watch.news())
                case _:
                    self._answer(HTTPStatus.NOT_FOUND, "text/plain", "There is only one page here: /\n")
                    return
        except Exception as error:  # files may change while they are read: whoever asks again gets an answer
            said = f"This cannot be read now, try again: {type(error).__name__}: {error}\n"
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", said)
            return
        self._answer(HTTPStatus.OK, *found)

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        """Say nothing: an open page asks every few seconds."""


def serve(watch: Watch, port: int | None) -> Server:
    """A server on this port, or on the first free one from 8765 on: an open page finds a restarted one again."""
    for number in range(PORT, PORT + NEXT_PORTS) if port is None else [port]:
        try:
            return Server(watch, number)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    where = f"port {port} is" if port is not None else f"ports {PORT} to {PORT + NEXT_PORTS - 1} are"
    raise FedstillError(f"{where} in use: choose another one with --port, or 0 for any.")
