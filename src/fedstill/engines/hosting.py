"""How to talk to a host, wherever it runs: a request in, progress and then a reply or a reason out."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from fedstill.common.errors import FedstillError
from fedstill.common.events import Event, Tell, from_json, to_json
from fedstill.common.files import unusable
from fedstill.common.traces import in_words

What = Literal["call", "save", "restore", "export", "begin", "begin as the first of a machine"]


@dataclass(frozen=True)
class Request:
    """What to do, for which client, in which round, and with what."""

    what: What
    client: str = ""
    round: int = 0
    payload: bytes = b""

    @property
    def header(self) -> dict[str, Any]:
        """All but the payload, as plain values."""
        return {"what": self.what, "client": self.client, "round": self.round}

    @classmethod
    def of(cls, header: Mapping[str, Any], payload: bytes) -> Request:
        """The request with this header and payload."""
        return cls(header["what"], header["client"], header["round"], payload)


@dataclass(frozen=True)
class Reason:
    """Why a request failed."""

    sentence: str


Outcome = bytes | Reason
Answer = Callable[[Request], bytes]


def outcome(answer: Answer, request: Request) -> Outcome:
    """The reply to a request, or why it failed: a method's code may raise anything, which must not end this process."""
    try:
        return answer(request)
    except FedstillError as error:
        return Reason(str(error))
    except Exception as error:
        if request.what in ("save", "restore") or (request.what == "export" and isinstance(error, OSError)):
            raise  # a disk that cannot be used is not a client's failure
        return Reason(in_words(error))


def send(connection: Connection, header: Mapping[str, Any], payload: bytes = b"") -> None:
    """Send a header and bytes; apart, because joining them would copy a model's parameters."""
    connection.send_bytes(json.dumps(header).encode())
    connection.send_bytes(payload)


def receive(connection: Connection) -> tuple[dict[str, Any], bytes]:
    """What `send` sent."""
    return json.loads(connection.recv_bytes()), connection.recv_bytes()


class Pipe:
    """The end that sends requests, one at a time. Raises EOFError or OSError when the other end is gone."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def send(self, request: Request) -> None:
        """Send a request."""
        send(self.connection, request.header, request.payload)

    def hear(self) -> Outcome | Event:
        """Wait for what comes next: progress, or the outcome of the request."""
        header, payload = receive(self.connection)
        if header["kind"] == "progress":
            return from_json(header["event"])
        return payload if header["kind"] == "reply" else Reason(header["reason"])


def serve(connection: Connection, make: Callable[[Tell], Callable[[Request], Outcome]]) -> None:
    """The end that answers requests, one after the other, until the connection closes.

    `make` receives the function that reports progress, from any thread, and returns the one that answers requests.
    """
    lock = threading.Lock()

    def say(header: Mapping[str, Any], payload: bytes = b"") -> None:
        with lock:
            send(connection, header, payload)

    answer = make(lambda event: say({"kind": "progress", "event": to_json(event)}))
    while True:
        try:
            request = Request.of(*receive(connection))
        except (EOFError, OSError):
            return
        try:
            came = answer(request)
        except OSError as error:
            came = Reason(unusable(error))
        try:
            if isinstance(came, Reason):
                say({"kind": "failure", "reason": came.sentence})
            else:
                say({"kind": "reply"}, came)
        except OSError:
            return
