"""The torchrun engine: every rank hosts a share of the clients; rank 0 is the server and keeps the record."""

from __future__ import annotations

import json
import math
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedstill.common.errors import FedstillError
from fedstill.common.events import tell_nobody
from fedstill.common.files import unusable, write_whole
from fedstill.engines.books import Books
from fedstill.engines.host import Host
from fedstill.engines.hosting import Outcome, Reason, Request, What, outcome
from fedstill.engines.ranks import FirstRank, Follower, Place
from fedstill.engines.sharing import SharingEngine, answer_all, share_out
from fedstill.plan.plan import Plan

SHARED = ".writing-shared"
"""A file that every rank must find in the run folder."""
TURNS: tuple[What, ...] = ("begin as the first of a machine", "begin")
LOOK_S = 10.0
"""How long a file on a shared disk may take to appear on another machine."""


class TorchrunEngine(SharingEngine[int]):
    """The engine in rank 0; ranks, which host the clients, are known by their numbers."""

    def __init__(self, plan: Plan, books: Books, first: FirstRank) -> None:
        self.first = first
        first.tell = books.tell
        plan = _for_rank(plan, first.place)
        super().__init__(plan, books)
        self.host = Host(plan, books.tell)
        self.hosts = range(first.place.ranks)
        self.host_of = {name: rank for rank, names in enumerate(share_out(plan, len(self.hosts))) for name in names}
        self._begin()

    def work(self, requests: Mapping[int, deque[Request]]) -> Iterator[tuple[Request, Outcome]]:
        return self.first.work(requests, partial(answer_all, self.host))

    def close(self) -> None:
        self.first.tell = tell_nobody

    def _begin(self) -> None:
        """Every rank reads the experiment from the run folder; first one per machine, which tokenises for all."""
        token = secrets.token_hex(16)
        shared = self.plan.folder / SHARED
        write_whole(shared, token.encode())
        same = {"corpus": self.plan.corpus_fingerprint, "public": self.plan.public_fingerprint}
        raw = json.dumps({"folder": str(self.plan.folder), "token": token, **same}).encode()
        try:
            for what in TURNS:
                requests = {rank: deque([Request(what, payload=raw)]) for rank in self.hosts if rank}
                rank_of = {id(queue[0]): rank for rank, queue in requests.items()}
                for request, came in self.work(requests):
                    if isinstance(came, Reason):
                        raise FedstillError(came.sentence)
                    if came:
                        self.first.at_once[rank_of[id(request)]] = int(came)
        finally:
            shared.unlink(missing_ok=True)


def follow(place: Place, plan_of: Callable[[Path], Plan]) -> None:
    """What every rank except 0 runs."""
    follower = Follower(place)
    host: Host | None = None

    def reply(request: Request) -> bytes:
        nonlocal host
        if request.what not in TURNS:
            assert host is not None
            return host.answer(request)
        if request.what != TURNS[min(place.local_rank, 1)]:
            return b""
        host = None  # frees its memory before the next one is made
        about = json.loads(request.payload)
        folder = Path(about["folder"])
        again = place.command(f"run --resume {folder}")
        follower.advice = f"The last checkpoint is whole; go on with: {again}"
        host = Host(_for_rank(_same_plan(folder, about, plan_of), place), follower.tell)
        return str(host.at_once).encode()

    def answer(requests: Sequence[Request]) -> Sequence[Outcome]:
        if requests[0].what == "call" and host is not None:
            return [came for _, came in answer_all(host, requests)]
        return list(map(order, requests))

    def order(request: Request) -> Outcome:
        try:
            came = outcome(reply, request)
        except OSError as error:
            came = Reason(unusable(error))
        return (
            Reason(f"rank {place.rank} on {socket.gethostname()}: {came.sentence}")
            if isinstance(came, Reason)
            else came
        )

    follower.serve(answer)


def see_shared(folder: Path, token: str, wait_s: float = LOOK_S) -> None:
    """Refuse a folder that is not the run folder of rank 0."""
    until = time.monotonic() + wait_s
    while True:
        try:
            if (folder / SHARED).read_text() == token:
                return
        except OSError:
            pass
        if time.monotonic() > until:
            raise FedstillError(
                f"{folder} is not the folder that rank 0 has under this name: the run folder must be on a disk that "
                "all machines share. Choose one with --out."
            )
        time.sleep(0.1)


def _same_plan(folder: Path, about: Mapping[str, Any], plan_of: Callable[[Path], Plan]) -> Plan:
    see_shared(folder, about["token"])
    plan = plan_of(folder)
    if (plan.corpus_fingerprint, plan.public_fingerprint) != (about["corpus"], about["public"]):
        raise FedstillError("the corpus on this machine differs from rank 0's; copy the same file to all machines.")
    return plan


def _for_rank(plan: Plan, place: Place) -> Plan:
    """The plan with this rank's device, and its share of the machine's memory and of its GPU's."""
    torch.set_num_threads(plan.experiment.threads)
    device = place.device(plan.experiment.device)
    if device.startswith("cuda:") and torch.cuda.is_available():
        torch.cuda.set_device(device)  # otherwise some memory of the first GPU, another rank's, would be used
    host_bytes = None if plan.host_bytes is None else plan.host_bytes // place.local_ranks
    together = math.ceil(place.local_ranks / max(1, torch.cuda.device_count()))
    device_bytes = None if plan.device_bytes is None else plan.device_bytes // together
    experiment = plan.experiment.model_copy(update={"device": device})
    return replace(plan, experiment=experiment, host_bytes=host_bytes, device_bytes=device_bytes)
