"""What a codec changed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from fedstill.wire.codecs.packing import are_probabilities
from fedstill.wire.messages import BadMessage, Kind


@dataclass(frozen=True)
class Error:
    """The differences between what was sent and what arrives."""

    square: float
    """The sum of (value - decoded value)^2: of class probabilities, or of parameters."""
    numbers: int
    change: float | None = None
    """The largest change of a class probability."""

    @classmethod
    def of(cls, kind: Kind | None, value: Tensor, arrived: Tensor) -> Error:
        """Of one array."""
        value, arrived = value.detach().cpu().double(), arrived.detach().cpu().double()
        if kind == "opinions" and not are_probabilities(value):
            # Logits may arrive as log-probabilities, where a constant means nothing and log 0 means too much.
            value, arrived = value.softmax(-1), arrived.softmax(-1)
        off = (value - arrived).abs()
        change = float(off.max()) if kind == "opinions" and off.numel() else None
        return cls(float(off.square().sum()), off.numel(), change)

    def __add__(self, other: Error) -> Error:
        changes = [change for change in (self.change, other.change) if change is not None]
        return Error(self.square + other.square, self.numbers + other.numbers, max(changes, default=None))

    @property
    def rms(self) -> float:
        """The root of the mean square."""
        return math.sqrt(self.square / max(1, self.numbers))

    def as_json(self) -> dict[str, float]:
        """For a line of the ledger, or an envelope."""
        return {"rms": _short(self.rms)} | ({} if self.change is None else {"change": _short(self.change)})

    @classmethod
    def from_json(cls, said: object) -> Error:
        """As a client says it; raises BadMessage if it is none."""
        if not isinstance(said, dict) or {"rms"} - said.keys() or said.keys() - {"rms", "change"}:
            raise BadMessage("an error of a codec without its numbers.")
        if not all(_is_error(value) for value in said.values()):
            raise BadMessage("an error of a codec that is no number.")
        return cls(float(said["rms"]) ** 2, 1, said.get("change"))


def _is_error(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value < 1e30


def _short(value: float) -> float:
    """Three digits: it travels."""
    return float(f"{value:.3g}")
