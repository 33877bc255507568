"""Clients shared out over hosts: what the engines of a simulation do the same way."""

from __future__ import annotations

import json
import traceback
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedstill.common.errors import FedstillError
from fedstill.common.files import FileReference
from fedstill.engines.engine import Engine
from fedstill.engines.host import Host
from fedstill.learning.fast.card import meet
from fedstill.models.build import cost
from fedstill.plan.plan import Plan
from fedstill.wire.replies import Failure

Request = tuple[str, str, bytes]
"""What to do (call, save, restore, export), for whom, and with what."""

Where = TypeVar("Where")
"""What stands for a host: a worker, a rank."""


class SharingEngine(Engine, Generic[Where]):
    """Every host runs a share of the clients; an engine of its own says how requests reach a host."""

    hosts: Sequence[Where]
    host_of: Mapping[str, Where]

    @abstractmethod
    def work(self, requests: Mapping[Where, deque[Request]]) -> Iterator[tuple[Request, bytes | str]]:
        """Keep every host busy until its queue is empty; yields requests with their reply, or why there is none."""

    def deliver(self, parcels: Mapping[str, bytes]) -> Mapping[str, bytes | Failure]:
        requests: dict[Where, deque[Request]] = {host: deque() for host in self.hosts}
        for name, raw in parcels.items():
            requests[self.host_of[name]].append(("call", name, raw))
        return {
            name: Failure(name, outcome) if isinstance(outcome, str) else outcome
            for (_, name, _), outcome in self.work(requests)
        }

    def save_clients(self) -> Mapping[str, FileReference]:
        files: dict[str, FileReference] = {}
        for reply in self._order({host: [("save", str(self.round), b"")] for host in self.hosts}):
            files |= {name: FileReference(**reference) for name, reference in json.loads(reply).items()}
        return files

    def restore_clients(self, files: Mapping[str, FileReference], round: int) -> None:
        own: dict[Where, dict[str, Any]] = {host: {} for host in self.hosts}
        for name, reference in files.items():
            own[self.host_of[name]][name] = asdict(reference)
        self._order({host: [("restore", "", json.dumps(states).encode())] for host, states in own.items()})

    def export_clients(self) -> None:
        self._order(
            {host: [("export", n, b"") for n in self.host_of if self.host_of[n] == host] for host in self.hosts}
        )

    def _order(self, requests: Mapping[Where, list[Request]]) -> list[bytes]:
        """Work in which nothing may fail."""
        replies = []
        for _, outcome in self.work({host: deque(orders) for host, orders in requests.items()}):
            if isinstance(outcome, str):
                raise FedstillError(f"{outcome} The last checkpoint is whole: mend that, then go on with --resume.")
            replies.append(outcome)
        return replies


def share_out(plan: Plan, most: int) -> list[list[str]]:
    """Which clients each of at most so many hosts runs: the costliest first, each to whoever has least to do."""
    work = {
        name: cost(spec.model)
        * (len(plan.partition.train[name]) * spec.train.epochs + len(plan.partition.public) * spec.distill.epochs)
        for name, spec in plan.clients.items()
    }
    shares: list[list[str]] = [[] for _ in range(min(most, len(work)))]
    loads = [0.0] * len(shares)
    for name in sorted(work, key=lambda name: (-work[name], name)):
        least = loads.index(min(loads))
        shares[least].append(name)
        loads[least] += work[name]
    return shares


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
        return in_words(error)


def answer_all(host: Host, requests: Sequence[Request]) -> Iterator[tuple[Request, bytes | str]]:
    """What a host replies to all of them; clients that can learn on a card at once do."""
    for start in range(0, len(requests), host.at_once):
        group = requests[start : start + host.at_once]
        host.meeting = {name for _, name, _ in group}
        works = [partial(answer, host, request) for request in group]
        replies = meet(works) if len(works) > 1 else [works[0]()]
        host.meeting.clear()
        yield from zip(group, replies, strict=True)


def in_words(error: Exception) -> str:
    """An exception that nobody foresaw, with the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: {error}"
