"""The ledger: how many bytes crossed, in which direction, for what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedstill.wire.codecs import Direction
from fedstill.wire.encoding import Sizes


@dataclass
class Ledger:
    """Bytes of one round, summed by direction, verb and kind of message; lines for the record."""

    round: int = 0
    sums: dict[tuple[Direction, str, str, int], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0] * 6))
    totals: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})

    def count(
        self, direction: Direction, verb: str, kind: str, sizes: Sizes, encoded: int, recipients: int = 1
    ) -> None:
        """One message, to so many recipients; its bytes are written once, `recipients` says how often it was sent.

        `sizes` are those before the codec, `encoded` the bytes that really crossed.
        """
        sums = self.sums[direction, verb, kind, recipients]
        for place, value in enumerate((1, sizes.payload, sizes.indices, sizes.header, sizes.total, encoded)):
            sums[place] += value
        self.totals[direction] += encoded * recipients

    def lines(self) -> Iterable[dict[str, Any]]:
        """The round's lines; forgets them."""
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
        """Begin a round anew after so many bytes."""
        self.sums.clear()
        self.totals.update(totals)

    @property
    def total(self) -> int:
        """Bytes that crossed so far, both ways."""
        return sum(self.totals.values())
