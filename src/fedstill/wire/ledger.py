"""The ledger: how many bytes were sent, in which direction and for what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedstill.wire.codecs import Direction
from fedstill.wire.encoding import Sizes


@dataclass
class Ledger:
    """The bytes of one round, summed by direction, verb, type of message and number of recipients."""

    round: int = 0
    sums: dict[tuple[Direction, str, str, int], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0] * 6))
    totals: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})

    def count(
        self, direction: Direction, verb: str, kind: str, sizes: Sizes, encoded: int, recipients: int = 1
    ) -> None:
        """Count one message; its bytes are written once, and `recipients` says how often it was sent.

        `sizes` are those before the codec, `encoded` is the number of bytes that were really sent.
        """
        sums = self.sums[direction, verb, kind, recipients]
        for place, value in enumerate((1, sizes.payload, sizes.indices, sizes.header, sizes.total, encoded)):
            sums[place] += value
        self.totals[direction] += encoded * recipients

    def lines(self) -> Iterable[dict[str, Any]]:
        """The round's lines for the record; the sums are then cleared."""
        for (direction, verb, kind, recipients), sums in self.sums.items():
            messages, payload, indices, header, total, encoded = sums
            yield {
                "round": self.round,
                "direction": direction,
                "verb": verb,
                "message": kind,
                "messages": messages,
                "recipients": recipients,
                "payload": payload,
                "indices": indices,
                "header": header,
                "bytes": total,
                "encoded": encoded,
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
