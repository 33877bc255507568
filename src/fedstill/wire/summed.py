"""Replies under masks: a method gets their weighted mean, and nothing that would need a single one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.wire.blends import Holds, Models
from fedstill.wire.messages import M
from fedstill.wire.replies import Replies, Weights, uniform

CLOSE = 1e-6
"""Weights that differ by less are the same."""


@dataclass(frozen=True)
class MaskedReplies(Replies[M]):
    """The replies of which only the mean is known; `messages` says who answered."""

    means: Mapping[str, Tensor] = field(default_factory=dict)
    """By `field`, or `field/key`."""
    weighed: Weights = "uniform"

    def blend(self, name: str, weights: Tensor, holds: Holds = "logits") -> Tensor:
        """The weighted mean of an array field, with the weights that clients have used."""
        self._refuse_other(weights)
        return self.means[name]

    def average(self, name: str, weights: Tensor) -> dict[str, Tensor]:
        """The weighted mean of a mapping of arrays, with the weights that clients have used."""
        self._refuse_other(weights)
        return {key.partition("/")[2]: mean for key, mean in self.means.items() if key.startswith(f"{name}/")}

    def _refuse_other(self, weights: Tensor) -> None:
        used = counted(self, self.weighed)
        if weights.shape != used.shape or not torch.allclose(weights.double(), used, rtol=0, atol=CLOSE):
            raise FedstillError("under masks clients weigh themselves, and the method asks for other weights.")

    # Whatever looks at a single reply

    def __getitem__(self, client: str) -> NoReturn:
        raise _hidden()

    def column(self, name: str) -> NoReturn:
        """Refused."""
        raise _hidden()

    def change(self, name: str, function: Callable[[Tensor], Tensor]) -> NoReturn:
        """Refused."""
        raise _hidden()

    def only(self, clients: Iterable[str]) -> NoReturn:
        """Refused."""
        raise _hidden()

    def blended(self, values: Tensor, weights: Tensor, holds: Holds = "logits") -> NoReturn:
        """Refused."""
        raise _hidden()

    def averaged(self, models: Models, weights: Tensor) -> NoReturn:
        """Refused."""
        raise _hidden()


def counted(replies: Replies[M], weighed: Weights) -> Tensor:
    """The weights of the clients that answered: 1/K, or n_k/n with none above `max_share`."""
    return uniform(len(replies)) if weighed == "uniform" else replies.shares


def level(replies: Replies[M], weighed: Weights) -> tuple[float, float]:
    """The rows that a client counts for at most, so that its weight is right, and the rows of all together.

    A limit to shares is a limit to rows: who is below it counts by its rows, who is above by the limit.
    """
    if weighed == "uniform":
        return 1.0, float(len(replies))
    sizes, shares = replies.sizes, replies.shares
    smallest = int(sizes.argmin())
    most = float(sizes[smallest] / shares[smallest] * shares.max())
    return most, float(sizes.clamp(max=most).sum())


def _hidden() -> FedstillError:
    return FedstillError(
        "the replies are masked: only their weighted sum is known, and the method asks for single ones."
    )
