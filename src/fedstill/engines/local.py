"""The local engine: one machine, clients spread over worker processes that keep their models."""

from __future__ import annotations

import json
import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedstill.common.errors import FedstillError
from fedstill.common.events import Event, Tell, from_json, to_json
from fedstill.engines import processes
from fedstill.engines.host import Host
from fedstill.engines.journal import Journal
from fedstill.engines.processes import STOP_S, follow_parent, how_it_died, stop
from fedstill.engines.sharing import Request, SharingEngine, answer, answer_all, share_out
from fedstill.plan.plan import Plan


class LocalEngine(SharingEngine["_Host"]):
    """Clients in this process, or in workers that each host a share of them."""

    def __init__(self, plan: Plan, journal: Journal, tell: Tell) -> None:
        torch.set_num_threads(plan.threads)
        super().__init__(plan, journal, tell)
        shares = share_out(plan, plan.workers)
        if len(shares) == 1:
            self.hosts: list[_Host] = [_Here(plan, tell)]
        else:
            self.hosts = [_Worker(plan, len(shares), tell) for _ in shares]
        self.host_of = {name: host for host, names in zip(self.hosts, shares, strict=True) for name in names}

    def close(self) -> None:
        for host in self.hosts:
            host.close()

    def work(self, requests: Mapping[_Host, deque[Request]]) -> Iterator[tuple[Request, bytes | str]]:
        busy: dict[Any, tuple[_Worker, Request]] = {}
        for host, queue in requests.items():
            if isinstance(host, _Here):
                yield from answer_all(host.host, list(queue))
            elif queue:
                busy[host.pipe] = (host, host.begin(queue.popleft()))
        while busy:
            for pipe in wait(list(busy)):
                worker, request = busy[pipe]
                outcome = worker.hear()
                if outcome is None:
                    continue
                del busy[pipe]
                if requests[worker]:
                    busy[pipe] = (worker, worker.begin(requests[worker].popleft()))
                yield request, outcome


class _Here:
    """A host in this very process."""

    def __init__(self, plan: Plan, tell: Tell) -> None:
        self.host = Host(plan, plan.host_bytes, tell)

    def close(self) -> None:
        pass


class _Worker:
    """A host in a process of its own."""

    def __init__(self, plan: Plan, workers: int, tell: Tell) -> None:
        self.tell = tell
        self.is_busy = False
        limit, own = (None if whole is None else whole // workers for whole in (plan.host_bytes, plan.device_bytes))
        plan = replace(plan, device_bytes=own)
        how = processes.context(["fedstill.engines.local"])
        self.pipe, other = how.Pipe()
        self.process = how.Process(target=_serve, args=(other, plan, limit), daemon=True)
        self.process.start()
        other.close()

    def begin(self, request: Request) -> Request:
        kind, name, raw = request
        self.is_busy = True
        try:
            self.pipe.send_bytes(json.dumps([kind, name]).encode())
            self.pipe.send_bytes(raw)
        except OSError as error:
            raise self._died() from error
        return request

    def hear(self) -> bytes | str | None:
        """A reply, the reason of a failure, or None when it was only progress."""
        try:
            kind: bytes = self.pipe.recv_bytes()
            raw: bytes = self.pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._died() from error
        if kind == b"p":
            self.tell(from_json(json.loads(raw)))
            return None
        self.is_busy = False
        return raw if kind == b"r" else raw.decode()

    def _died(self) -> FedstillError:
        self.process.join(STOP_S)
        how = how_it_died(self.process.exitcode)
        return FedstillError(f"a worker process died ({how}). Go on from the last checkpoint with --resume.")

    def close(self) -> None:
        self.pipe.close()
        if not self.is_busy:  # an idle worker ends by itself when its pipe closes
            self.process.join(STOP_S)
        stop([self.process])


_Host = _Here | _Worker


def _serve(pipe: Connection, plan: Plan, limit_bytes: int | None) -> None:
    """A worker's life: requests one after the other until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=follow_parent, daemon=True).start()
    torch.set_num_threads(plan.threads)

    def tell(event: Event) -> None:
        _send(pipe, b"p", json.dumps(to_json(event)).encode())

    host = Host(plan, limit_bytes, tell)
    while True:
        try:
            kind, name = json.loads(pipe.recv_bytes())
            reply = answer(host, (kind, name, pipe.recv_bytes()))
            _send(pipe, *((b"f", reply.encode()) if isinstance(reply, str) else (b"r", reply)))
        except (EOFError, OSError) as error:
            if isinstance(error, EOFError | BrokenPipeError | ConnectionError):
                return
            _send(pipe, b"f", str(error).encode())


def _send(pipe: Connection, kind: bytes, raw: bytes) -> None:
    pipe.send_bytes(kind)
    pipe.send_bytes(raw)
