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

FORM = struct.Struct("<ddQ")


@dataclass(frozen=True)
class Slip:
    """What a call took inside a host: in the method's own verb, and in waking its client and putting others to sleep.

    It is stuck to the end of the reply and is no part of it: the ledger does not count it.
    """

    phases_s: float
    state_s: float
    host: int
    """Equal for calls that waited for each other."""

    def stick(self, reply: bytes) -> bytes:
        """The reply with the slip on it."""
        return reply + FORM.pack(self.phases_s, self.state_s, self.host)

    @classmethod
    def take_off(cls, raw: bytes) -> tuple[bytes, Slip]:
        """The reply, and the slip that was on it."""
        if len(raw) < FORM.size:
            raise BadMessage(f"a reply of {len(raw)} bytes.")
        slip = cls(*FORM.unpack(raw[-FORM.size :]))
        if not math.isfinite(slip.phases_s + slip.state_s):
            raise BadMessage("a reply that took no finite time.")
        return raw[: -FORM.size], slip


class Seconds:
    """Of one round, from the end of the one before."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.sums: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def spent(self, what: str) -> Iterator[None]:
        """Count the time inside under a name; not that of calls, which their slips tell."""
        started, called = time.perf_counter(), self.sums["calls"]
        try:
            yield
        finally:
            self.sums[what] += time.perf_counter() - started - (self.sums["calls"] - called)

    def account(self, slips: Sequence[Slip]) -> None:
        """A call takes as long as the busiest host works; the hosts wait for it, `idle` seconds in the mean."""
        busy: dict[int, tuple[float, float]] = {}
        for slip in slips:
            phases_s, state_s = busy.get(slip.host, (0.0, 0.0))
            busy[slip.host] = (phases_s + slip.phases_s, state_s + slip.state_s)
        if busy:
            most = max(busy.values(), key=sum)
            self.sums["phases"] += most[0]
            self.sums["state"] += most[1]
            self.sums["idle"] += sum(most) - sum(map(sum, busy.values())) / len(busy)

    def end(self, server: Mapping[str, float]) -> dict[str, float]:
        """The round's line: `phases`, `state` and `rest` make up the `total`; the others say more of them."""
        now, sums = time.perf_counter(), self.sums
        building = server.get("building", 0.0)
        phases, state, total = sums["phases"] - building, sums["state"] + building, now - self.began
        parts = {"total": total, "phases": phases, "state": state, "rest": total - phases - state}
        self.began, self.sums = now, defaultdict(float)
        more = {"clients": sums["clients"], "idle": sums["idle"], **server}
        return {name: round(value, 3) for name, value in (parts | more).items()}
