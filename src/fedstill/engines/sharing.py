"""Clients spread over hosts: what the engines of a simulation have in common."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Generic, TypeVar

from fedstill.common.errors import Unsaved
from fedstill.common.files import FileReference
from fedstill.engines.engine import Engine
from fedstill.engines.host import Host
from fedstill.engines.hosting import Outcome, Reason, Request, outcome
from fedstill.learning.fast.card import meet
from fedstill.models.build import cost
from fedstill.plan.plan import Plan
from fedstill.wire.replies import Failure

Where = TypeVar("Where")
"""How an engine identifies a host: a worker, a rank."""


class SharingEngine(Engine, Generic[Where]):
    """Every host runs a share of the clients; subclasses say how requests reach a host."""

    hosts: Sequence[Where]
    host_of: Mapping[str, Where]

    @abstractmethod
    def work(self, requests: Mapping[Where, deque[Request]]) -> Iterator[tuple[Request, Outcome]]:
        """Keep every host busy until its queue is empty; yields requests with their outcomes."""

    def deliver(self, calls: Mapping[str, bytes], round: int) -> Mapping[str, bytes | Failure]:
        requests: dict[Where, deque[Request]] = {host: deque() for host in self.hosts}
        for name, raw in calls.items():
            requests[self.host_of[name]].append(Request("call", name, round, raw))
        return {
            request.client: Failure(request.client, came.sentence) if isinstance(came, Reason) else came
            for request, came in self.work(requests)
        }

    def save(self, round: int) -> Mapping[str, FileReference]:
        files: dict[str, FileReference] = {}
        for reply in self._order({host: [Request("save", round=round)] for host in self.hosts}):
            files |= {name: FileReference(**reference) for name, reference in json.loads(reply).items()}
        return files

    def restore(self, files: Mapping[str, FileReference], round: int) -> None:
        own: dict[Where, dict[str, Any]] = {host: {} for host in self.hosts}
        for name, reference in files.items():
            own[self.host_of[name]][name] = asdict(reference)
        self._order(
            {host: [Request("restore", round=round, payload=json.dumps(own[host]).encode())] for host in self.hosts}
        )

    def export(self) -> None:
        orders: dict[Where, list[Request]] = {host: [] for host in self.hosts}
        for name, host in self.host_of.items():
            orders[host].append(Request("export", name))
        self._order(orders)

    def _order(self, requests: Mapping[Where, list[Request]]) -> list[bytes]:
        """Send requests that must all succeed; returns their replies."""
        replies = []
        for _, came in self.work({host: deque(orders) for host, orders in requests.items()}):
            replies.append(raise_if_failed(came))
        return replies


def raise_if_failed(came: Outcome) -> bytes:
    """The reply to a request that must succeed."""
    if isinstance(came, Reason):
        raise Unsaved(came.sentence)
    return came


def share_out(plan: Plan, most: int) -> list[list[str]]:
    """The clients of each of at most `most` hosts: the costliest client first, each to the host with the least work."""
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


def answer_all(host: Host, requests: Sequence[Request]) -> Iterator[tuple[Request, Outcome]]:
    """Requests with a host's outcomes; clients that can learn on a GPU at the same time do."""
    many = host.at_once
    for start in range(0, len(requests), many):
        group = requests[start : start + many]
        host.meeting = {request.client for request in group}
        works = [partial(outcome, host.answer, request) for request in group]
        replies = meet(works) if len(works) > 1 else [works[0]()]
        host.meeting.clear()
        yield from zip(group, replies, strict=True)
