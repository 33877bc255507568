"""A site's worker: a process that holds the rows and the model; if it dies, the job can continue.

It is connected by a socket to the process that started it, and to no other: it receives requests, and sends replies,
progress and failures.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedstill.common.allocator import keep_freed_memory
from fedstill.common.errors import FedstillError
from fedstill.common.events import Event, Tell
from fedstill.engines.hosting import Outcome, Pipe, Reason, Request, receive, send, serve
from fedstill.engines.processes import STOP_S, how_it_died
from fedstill.federation.requests import Refusal
from fedstill.wire.messages import BadMessage


class Died(Exception):
    """The worker process died; the message says how."""


class Failed(Exception):
    """The worker could not do what was asked, but lives; the message may be sent to the centre."""


@dataclass(frozen=True)
class Errand:
    """What a worker needs to start."""

    site: str
    job: str
    file: dict[str, Any]
    folder: str
    public: str


class Worker:
    """A worker seen from the process that started it."""

    def __init__(self, errand: Errand, log: Path) -> None:
        here, there = socket.socketpair()
        with log.open("ab") as out:
            log.chmod(0o600)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedstill.federation.worker", str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        there.close()
        self.pipe = Pipe(Connection(here.detach()))
        with contextlib.suppress(OSError):  # it died already, which the first request will notice
            # Not as an argument of the command, which every user of the machine could read.
            send(self.pipe.connection, asdict(errand))

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def ask(self, request: Request, tell: Tell) -> bytes:
        """The reply to a request; progress is passed to `tell` meanwhile."""
        try:
            self.pipe.send(request)
            while isinstance(heard := self.pipe.hear(), Event):
                tell(heard)
        except (EOFError, OSError) as error:
            raise Died(self.kill()) from error
        if isinstance(heard, Reason):
            raise Failed(heard.sentence)
        return heard

    def kill(self) -> str:
        """End the process; returns how it died."""
        if self.process.poll() is None:
            try:
                self.process.wait(STOP_S / 10)  # a dying process closes its socket a moment before it has ended
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.process.wait()
        self.pipe.connection.close()
        return how_it_died(code)


def main() -> None:
    """The main function of a worker: it answers requests one after the other until the socket closes."""
    os.umask(0o077)  # states are private
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the parent decides what to do
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    keep_freed_memory()
    connection = Connection(int(sys.argv[1]))
    errand = Errand(**receive(connection)[0])
    from fedstill.federation.host import SiteHost

    def make(tell: Tell) -> Callable[[Request], Outcome]:
        host = SiteHost(errand, tell)

        def answer(request: Request) -> Outcome:
            try:
                return host.answer(request)
            except Exception as error:  # the method's code may raise anything, and the worker continues
                return Reason(_safe(error))

        return answer

    serve(connection, make)


def _safe(error: Exception) -> str:
    """A message that may be sent to the centre. The error's own message may quote private rows: it is only logged."""
    if isinstance(error, Refusal | BadMessage):  # what is wrong with the centre's message is nothing private
        return str(error)
    import traceback

    print(time.strftime("%Y-%m-%d %H:%M:%S"), "error:", flush=True)
    if isinstance(error, FedstillError):
        print(error, flush=True)
    else:
        traceback.print_exception(error, file=sys.stdout)
        sys.stdout.flush()
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}; the site's own worker.log says more."


def _follow(parent: int) -> None:
    """End this process when the parent has ended, even if the parent was killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
