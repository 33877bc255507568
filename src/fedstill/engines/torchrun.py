"""The torchrun engine: every rank hosts a share of the clients; rank 0 is the server and keeps the record."""

from __future__ import annotations

import json
import math
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedstill.common.errors import FedstillError
from fedstill.common.events import Tell, tell_nobody
from fedstill.common.files import write_whole
from fedstill.engines.host import Host
from fedstill.engines.journal import Journal
from fedstill.engines.ranks import Conductor, Follower, Place
from fedstill.engines.sharing import Request, SharingEngine, answer, in_words, share_out
from fedstill.plan.plan import Plan

SHARED = ".writing-shared"
"""A file that every rank must find in the run folder."""
TURNS = ("begin as the first of a machine", "begin")
LOOK_S = 10.0
"""How long a file may take to appear on another machine of a shared disk."""


class TorchrunEngine(SharingEngine[int]):
    """Clients on ranks, by their numbers; this is rank 0."""

    def __init__(self, plan: Plan, journal: Journal, tell: Tell, conductor: Conductor) -> None:
        self.conductor = conductor
        conductor.tell = tell
        plan = _for_rank(plan, conductor.place)
        super().__init__(plan, journal, tell)
        self.host = Host(plan, plan.host_bytes, tell)
        self.hosts = range(conductor.place.ranks)
        self.host_of = {name: rank for rank, names in enumerate(share_out(plan, len(self.hosts))) for name in names}
        self._begin()

    def work(self, requests: Mapping[int, deque[Request]]) -> Iterator[tuple[Request, bytes | str]]:
        return self.conductor.work(requests, lambda request: answer(self.host, request))

    def close(self) -> None:
        self.conductor.tell = tell_nobody

    def _begin(self) -> None:
        """Every rank reads the experiment from the run folder; one a machine first, so that it tokenises only once."""
        token = secrets.token_hex(16)
        shared = self.plan.folder / SHARED
        write_whole(shared, token.encode())
        same = {"corpus": self.plan.corpus_fingerprint, "public": self.plan.public_fingerprint}
        raw = json.dumps({"folder": str(self.plan.folder), "token": token, **same}).encode()
        try:
            for kind in TURNS:
                requests = {rank: deque([(kind, "", raw)]) for rank in self.hosts if rank}
                for _, outcome in self.work(requests):
                    if isinstance(outcome, str):
                        raise FedstillError(outcome)
        finally:
            shared.unlink(missing_ok=True)


def follow(place: Place, plan_of: Callable[[Path], Plan]) -> None:
    """The life of every rank but 0."""
    follower = Follower(place)
    host: Host | None = None

    def reply(request: Request) -> bytes | str:
        nonlocal host
        kind, _, raw = request
        try:
            if kind in TURNS:
                if kind != TURNS[min(place.local_rank, 1)]:
                    return b""
                host = None  # before the next one's models come
                about = json.loads(raw)
                folder = Path(about["folder"])
                again = place.command(f"run --resume {folder}")
                follower.advice = f"The last checkpoint is whole; go on with: {again}"
                plan = _for_rank(_same_plan(folder, about, plan_of), place)
                host = Host(plan, plan.host_bytes, follower.tell)
                return b""
            assert host is not None
            return answer(host, request)
        except FedstillError as error:
            reason = str(error)
        except OSError as error:
            reason = f"{error.filename} cannot be used ({os.strerror(error.errno or 0)})."
        except Exception as error:  # rank 0 says it
            reason = in_words(error)
        return f"rank {place.rank} on {socket.gethostname()}: {reason}"

    follower.serve(reply)


def see_shared(folder: Path, token: str, wait_s: float = LOOK_S) -> None:
    """Refuse a folder that is not the one which rank 0 has written to."""
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
        raise FedstillError("the corpus on this machine is another one than rank 0's; bring the same file to all.")
    return plan


def _for_rank(plan: Plan, place: Place) -> Plan:
    """The plan with this rank's device, and its part of the machine's memory and of a GPU's that ranks share."""
    torch.set_num_threads(plan.threads)
    device = place.device(plan.device)
    if device.startswith("cuda:") and torch.cuda.is_available():
        torch.cuda.set_device(device)  # nothing of it on the first GPU, which belongs to another rank
    host_bytes = None if plan.host_bytes is None else plan.host_bytes // place.local_ranks
    together = math.ceil(place.local_ranks / max(1, torch.cuda.device_count()))
    device_bytes = None if plan.device_bytes is None else plan.device_bytes // together
    return replace(plan, device=device, host_bytes=host_bytes, device_bytes=device_bytes)
