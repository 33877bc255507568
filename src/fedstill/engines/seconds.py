"""Where a round's time goes: the learning, the clients' states, and the rest, which is the framework's own."""

from __future__ import annotations

import math
import struct
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fedstill.wire.messages import BadMessage

FORM = struct.Struct("<ddQd")


@dataclass(frozen=True)
class Slip:
    """The seconds of a call inside a host: for the method's verb, and for loading its client and moving others away.

    It is appended to the reply but is not part of it: the ledger does not count it.
    """

    phases_s: float
    state_s: float
    host: int
    """The host's number: calls of one host run one after the other."""
    digest_s: float = 0.0
    """Of `phases_s`: for learning from the last answer."""

    def stick(self, reply: bytes) -> bytes:
        """The reply with the slip appended."""
        return reply + FORM.pack(self.phases_s, self.state_s, self.host, self.digest_s)

    @classmethod
    def take_off(cls, raw: bytes) -> tuple[bytes, Slip]:
        """The reply without its slip, and the slip."""
        if len(raw) < FORM.size:
            raise BadMessage(f"a reply of {len(raw)} bytes.")
        slip = cls(*FORM.unpack(raw[-FORM.size :]))
        if not math.isfinite(slip.phases_s + slip.state_s + slip.digest_s):
            raise BadMessage("a reply whose time is not a finite number.")
        return raw[: -FORM.size], slip


class Seconds:
    """The seconds of one round, counted from the end of the one before."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.sums: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def spent(self, what: str) -> Iterator[None]:
        """Add the time inside to a name, without that of calls, which is in their slips."""
        started, called = time.perf_counter(), self.sums["calls"]
        try:
            yield
        finally:
            self.sums[what] += time.perf_counter() - started - (self.sums["calls"] - called)

    def add(self, what: str, seconds: float) -> None:
        """Add time to a name."""
        self.sums[what] += seconds

    def account(self, slips: Sequence[Slip]) -> None:
        """Add a call's time, which is the busiest host's; `idle` is how long the hosts wait for that one on average."""
        busy: dict[int, tuple[float, float]] = {}
        digests: defaultdict[int, float] = defaultdict(float)
        for slip in slips:
            phases_s, state_s = busy.get(slip.host, (0.0, 0.0))
            busy[slip.host] = (phases_s + slip.phases_s, state_s + slip.state_s)
            digests[slip.host] += slip.digest_s
        if busy:
            most = max(busy.values(), key=sum)
            self.sums["phases"] += most[0]
            self.sums["state"] += most[1]
            self.sums["digest"] += max(digests.values())
            self.sums["idle"] += sum(most) - sum(map(sum, busy.values())) / len(busy)

    def end(self, server: Mapping[str, float]) -> dict[str, float]:
        """The round's line: `phases`, `state` and `rest` make up the `total`; the other values are details."""
        now, sums = time.perf_counter(), self.sums
        building = server.get("building", 0.0)
        phases, state, total = sums["phases"] - building, sums["state"] + building, now - self.began
        parts = {"total": total, "phases": phases, "state": state, "rest": total - phases - state}
        self.began, self.sums = now, defaultdict(float)
        more = {"clients": sums["clients"], "idle": sums["idle"], "digest": sums["digest"], **server}
        return {name: round(value, 3) for name, value in (parts | more).items()}
