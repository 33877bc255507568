"""The heavy half of a site: a process that holds the rows and the model, and that may die without taking the job along.

It speaks over a socket to whoever started it, and to nobody else: requests in, replies, progress and failures out.
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

from fedstill.common.errors import FedstillError
from fedstill.common.events import Event, Tell
from fedstill.engines.hosting import Outcome, Pipe, Reason, Request, serve
from fedstill.engines.processes import STOP_S, how_it_died
from fedstill.federation.requests import Refusal
from fedstill.wire.frames import frame, unframe


class Died(Exception):
    """The worker is gone; the message says how."""


class Failed(Exception):
    """The worker lives but could not do it; the message may leave the site."""


@dataclass(frozen=True)
class Errand:
    """What a worker is started for."""

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
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedstill.federation.worker", str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        there.close()
        self.pipe = Pipe(Connection(here.detach()))
        with contextlib.suppress(OSError):  # who asks it something will notice that it died at once
            # Not as an argument, which everybody on the machine could read.
            self.pipe.connection.send_bytes(frame(asdict(errand)))

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.poll() is None

    def ask(self, request: Request, tell: Tell) -> bytes:
        """Its reply; progress is told on the way."""
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
        """End it, whatever it does; how it died, where it had done so already."""
        if self.process.poll() is None:
            try:
                self.process.wait(STOP_S / 10)  # its end of the socket closes a moment before it is gone
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.process.wait()
        self.pipe.connection.close()
        return how_it_died(code)


def main() -> None:
    """A worker's life: requests one after the other until the socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: who started it decides
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    errand = Errand(**unframe(connection.recv_bytes())[0])
    from fedstill.federation.host import SiteHost

    def make(tell: Tell) -> Callable[[Request], Outcome]:
        host = SiteHost(errand, tell)

        def answer(request: Request) -> Outcome:
            try:
                return host.answer(request)
            except Exception as error:  # the method's own code may raise anything, and the worker goes on
                return Reason(_safe(error))

        return answer

    serve(connection, make)


def _safe(error: Exception) -> str:
    """What may leave of an error. Its own words could quote private rows: they go to the site's log."""
    if isinstance(error, Refusal):
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
    """Die with the parent, however it dies."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
