"""The local engine: one machine, clients spread over worker processes that keep their models."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedstill.common.allocator import keep_freed_memory
from fedstill.common.errors import FedstillError
from fedstill.common.events import Event, Tell
from fedstill.engines import processes
from fedstill.engines.books import Books
from fedstill.engines.host import Host
from fedstill.engines.hosting import Outcome, Pipe, Request, outcome, serve
from fedstill.engines.processes import STOP_S, follow_parent, how_it_died, stop
from fedstill.engines.sharing import SharingEngine, answer_all, raise_if_failed, share_out
from fedstill.plan.plan import Plan


class LocalEngine(SharingEngine["_Where"]):
    """Clients in this process, or in workers that each host a share of them."""

    def __init__(self, plan: Plan, books: Books) -> None:
        torch.set_num_threads(plan.experiment.threads)
        super().__init__(plan, books)
        shares = share_out(plan, plan.workers)
        if len(shares) == 1:
            self.hosts: list[_Where] = [Host(plan, books.tell)]
        else:
            processes.load_too()
            self.is_apart = True
            self.hosts = [_Worker(plan, len(shares), books.tell) for _ in shares]
        self.host_of = {name: host for host, names in zip(self.hosts, shares, strict=True) for name in names}
        self.saving: list[_Worker] = []
        """Workers that were told to save early and have not answered yet."""

    def save_soon(self, round: int) -> None:
        self.saving = [host for host in self.hosts if isinstance(host, _Worker)]
        for worker in self.saving:
            worker.begin(Request("save", round=round))

    def close(self) -> None:
        for host in self.hosts:
            if isinstance(host, _Worker):
                host.close()

    def work(self, requests: Mapping[_Where, deque[Request]]) -> Iterator[tuple[Request, Outcome]]:
        self._settle()
        busy: dict[Any, tuple[_Worker, Request]] = {}
        for host, queue in requests.items():
            if isinstance(host, Host):
                yield from answer_all(host, list(queue))
            elif queue:
                busy[host.pipe.connection] = (host, host.begin(queue.popleft()))
        while busy:
            for connection in wait(list(busy)):
                worker, request = busy[connection]
                heard = worker.hear()
                if isinstance(heard, Event):
                    self.books.tell(heard)
                    continue
                del busy[connection]
                if requests[worker]:
                    busy[connection] = (worker, worker.begin(requests[worker].popleft()))
                yield request, heard

    def _settle(self) -> None:
        """Wait for the workers that are saving early; the files of all clients are in the reply to the next `save`."""
        while self.saving:
            heard = self.saving[-1].hear()
            if isinstance(heard, Event):
                self.books.tell(heard)
                continue
            self.saving.pop()
            raise_if_failed(heard)


class _Worker:
    """A host in its own process."""

    def __init__(self, plan: Plan, workers: int, tell: Tell) -> None:
        self.is_busy = False
        host, device = (None if whole is None else whole // workers for whole in (plan.host_bytes, plan.device_bytes))
        plan = replace(plan, host_bytes=host, device_bytes=device)
        how = processes.context(processes.WORKERS)
        here, there = how.Pipe()
        self.pipe = Pipe(here)
        self.process = how.Process(target=_live, args=(there, plan), daemon=True)
        self.process.start()
        there.close()

    def begin(self, request: Request) -> Request:
        self.is_busy = True
        try:
            self.pipe.send(request)
        except OSError as error:
            raise self._died() from error
        return request

    def hear(self) -> Outcome | Event:
        try:
            heard = self.pipe.hear()
        except (EOFError, OSError) as error:
            raise self._died() from error
        self.is_busy = isinstance(heard, Event)
        return heard

    def _died(self) -> FedstillError:
        self.process.join(STOP_S)
        how = how_it_died(self.process.exitcode)
        return FedstillError(f"a worker process died ({how}). Go on from the last checkpoint with --resume.")

    def close(self) -> None:
        self.pipe.connection.close()
        if not self.is_busy:  # an idle worker ends by itself when its pipe closes
            self.process.join(STOP_S)
        stop([self.process])


_Where = Host | _Worker


def _live(connection: Connection, plan: Plan) -> None:
    """What a worker process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=follow_parent, daemon=True).start()
    torch.set_num_threads(plan.experiment.threads)
    keep_freed_memory()

    def make(tell: Tell) -> Callable[[Request], Outcome]:
        return partial(outcome, Host(plan, tell).answer)

    serve(connection, make)
