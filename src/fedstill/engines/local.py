"""The local engine: one machine, clients spread over worker processes that keep their models."""

from __future__ import annotations

import json
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from fedstill.engines import processes
from fedstill.engines.engine import Engine, Tell
from fedstill.engines.host import Host
from fedstill.engines.journal import Journal
from fedstill.engines.plan import Plan
from fedstill.engines.processes import STOP_S, follow_parent, how_it_died, stop
from fedstill.errors import FedstillError
from fedstill.files import FileReference
from fedstill.models.build import cost
from fedstill.wire.replies import Failure

Request = tuple[str, str, bytes]
"""What to do (call, save, restore, export), for whom, and with what."""


class LocalEngine(Engine):
    """Clients in this process, or in workers that each host a share of them."""

    def __init__(self, plan: Plan, journal: Journal, tell: Tell) -> None:
        torch.set_num_threads(plan.threads)
        super().__init__(plan, journal, tell)
        shares = share_out(plan)
        if len(shares) == 1:
            self.hosts: list[_Host] = [_Here(plan, tell)]
        else:
            self.hosts = [_Worker(plan, len(shares), tell) for _ in shares]
        self.host_of = {name: host for host, names in zip(self.hosts, shares, strict=True) for name in names}

    def deliver(self, parcels: Mapping[str, bytes]) -> Mapping[str, bytes | Failure]:
        requests: dict[_Host, deque[Request]] = {host: deque() for host in self.hosts}
        for name, raw in parcels.items():
            requests[self.host_of[name]].append(("call", name, raw))
        return {
            name: Failure(name, outcome) if isinstance(outcome, str) else outcome
            for (_, name, _), outcome in self._work(requests)
        }

    def save_clients(self) -> Mapping[str, FileReference]:
        files: dict[str, FileReference] = {}
        for reply in self._order({host: [("save", str(self.round), b"")] for host in self.hosts}):
            files |= {name: FileReference(**reference) for name, reference in json.loads(reply).items()}
        return files

    def restore_clients(self, files: Mapping[str, FileReference]) -> None:
        own: dict[_Host, dict[str, Any]] = {host: {} for host in self.hosts}
        for name, reference in files.items():
            own[self.host_of[name]][name] = asdict(reference)
        self._order({host: [("restore", "", json.dumps(states).encode())] for host, states in own.items()})

    def export_clients(self) -> None:
        self._order(
            {host: [("export", n, b"") for n in self.host_of if self.host_of[n] is host] for host in self.hosts}
        )

    def _order(self, requests: Mapping[_Host, list[Request]]) -> list[bytes]:
        """Work in which nothing may fail."""
        replies = []
        for _, outcome in self._work({host: deque(orders) for host, orders in requests.items()}):
            if isinstance(outcome, str):
                raise FedstillError(f"{outcome} The last checkpoint is whole: mend that, then go on with --resume.")
            replies.append(outcome)
        return replies

    def close(self) -> None:
        for host in self.hosts:
            host.close()

    def _work(self, requests: Mapping[_Host, deque[Request]]) -> Iterator[tuple[Request, bytes | str]]:
        """Keep every host busy until its queue is empty; yields requests with their reply, or why there is none."""
        busy: dict[Any, tuple[_Worker, Request]] = {}
        for host, queue in requests.items():
            if isinstance(host, _Here):
                yield from ((request, answer(host.host, request)) for request in queue)
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


def share_out(plan: Plan) -> list[list[str]]:
    """Which clients each worker hosts: the costliest first, each to whoever has least to do."""
    work = {
        name: cost(spec.model)
        * (len(plan.partition.train[name]) * spec.train.epochs + len(plan.partition.public) * spec.distill.epochs)
        for name, spec in plan.clients.items()
    }
    shares: list[list[str]] = [[] for _ in range(min(plan.workers, len(work)))]
    loads = [0.0] * len(shares)
    for name in sorted(work, key=lambda name: (-work[name], name)):
        least = loads.index(min(loads))
        shares[least].append(name)
        loads[least] += work[name]
    return shares


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
        limit = None if plan.host_bytes is None else plan.host_bytes // workers
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
            self.tell(json.loads(raw))
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


def answer(host: Host, request: Request) -> bytes | str:
    """What a host replies: bytes, or a sentence when the client's part failed."""
    kind, name, raw = request
    if kind == "save":
        return json.dumps({key: asdict(value) for key, value in host.save(int(name)).items()}).encode()
    if kind == "restore":
        host.restore({key: FileReference(**value) for key, value in json.loads(raw).items()})
        return b""
    try:
        if kind == "export":
            host.export(name)
            return b""
        return host.call(name, raw)
    except FedstillError as error:
        return str(error)
    except Exception as error:  # the method's own code may raise anything; the round decides what a failure means
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: {error}"


def _serve(pipe: Connection, plan: Plan, limit_bytes: int | None) -> None:
    """A worker's life: requests one after the other until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=follow_parent, daemon=True).start()
    torch.set_num_threads(plan.threads)

    def tell(event: dict[str, Any]) -> None:
        _send(pipe, b"p", json.dumps(event).encode())

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


def default_workers() -> int:
    """One a core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
