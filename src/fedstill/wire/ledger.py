"""The ledger: how many bytes were sent, in which direction and for what, and what codecs changed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedstill.wire.codecs import Direction
from fedstill.wire.codecs.error import Error
from fedstill.wire.encoding import Sizes


@dataclass
class Sums:
    """What went the same way for the same purpose."""

    messages: int = 0
    payload: int = 0
    indices: int = 0
    header: int = 0
    bytes: int = 0
    encoded: int = 0
    error: Error | None = None


@dataclass
class Ledger:
    """The bytes of one round, summed by direction, verb, type of message and number of recipients."""

    round: int = 0
    sums: dict[tuple[Direction, str, str, int], Sums] = field(default_factory=lambda: defaultdict(Sums))
    totals: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})

    def count(
        self,
        direction: Direction,
        verb: str,
        kind: str,
        sizes: Sizes,
        encoded: int,
        recipients: int = 1,
        error: Error | None = None,
    ) -> None:
        """Count one message; its bytes are written once, and `recipients` says how often it was sent.

        `sizes` are those before the codec, `encoded` is the number of bytes that were really sent, and `error` is what
        the codec changed.
        """
        sums = self.sums[direction, verb, kind, recipients]
        sums.messages += 1
        sums.payload += sizes.payload
        sums.indices += sizes.indices
        sums.header += sizes.header
        sums.bytes += sizes.total
        sums.encoded += encoded
        if error is not None:
            sums.error = error if sums.error is None else sums.error + error
        self.totals[direction] += encoded * recipients

    def lines(self) -> Iterable[dict[str, Any]]:
        """The round's lines for the record; the sums are then cleared."""
        for (direction, verb, kind, recipients), sums in self.sums.items():
            yield {
                "round": self.round,
                "direction": direction,
                "verb": verb,
                "message": kind,
                "messages": sums.messages,
                "recipients": recipients,
                "payload": sums.payload,
                "indices": sums.indices,
                "header": sums.header,
                "bytes": sums.bytes,
                "encoded": sums.encoded,
                **({} if sums.error is None else sums.error.as_json()),
            }
        self.sums.clear()

    def reset(self, totals: Mapping[str, int]) -> None:
        """Begin a round again, with the totals of the rounds before."""
        self.sums.clear()
        self.totals.update(totals)

    @property
    def total(self) -> int:
        """Bytes sent so far, in both directions."""
        return sum(self.totals.values())


def condensed(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """A ledger's lines by direction: bytes before and after codecs, for all recipients, and the codecs' error."""
    found: dict[str, dict[str, float]] = {}
    weights: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for line in lines:
        sums = found.setdefault(line["direction"], {"before": 0, "after": 0})
        sums["before"] += line["bytes"] * line["recipients"]
        sums["after"] += line["encoded"] * line["recipients"]
        if "rms" in line:
            weights[line["direction"]].append((line["messages"], line["rms"]))
        if "change" in line:
            sums["change"] = max(sums.get("change", 0.0), line["change"])
    for direction, errors in weights.items():
        squares = sum(many * rms**2 for many, rms in errors)
        found[direction]["rms"] = math.sqrt(squares / sum(many for many, _ in errors))
    return found
