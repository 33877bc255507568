"""What comes back from a call: the messages of those who answered, in order, and who failed and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic

import torch
from torch import Tensor

from fedstill.errors import FedstillError
from fedstill.wire.messages import Hello, M


@dataclass(frozen=True)
class Failure:
    """A client that did not answer usably, as data."""

    client: str
    reason: str


@dataclass(frozen=True)
class Replies(Mapping[str, M], Generic[M]):
    """Messages by client, ordered by client id."""

    messages: dict[str, M]
    clients: Mapping[str, Hello] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", dict(sorted(self.messages.items())))

    def __getitem__(self, client: str) -> M:
        return self.messages[client]

    def __iter__(self) -> Iterator[str]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def column(self, name: str) -> Tensor:
        """A field of every message: numbers as [K], arrays stacked to [K, ...]."""
        values = [getattr(message, name) for message in self.messages.values()]
        if isinstance(values[0], Tensor):
            return torch.stack(values)
        return torch.tensor(values, dtype=torch.float64)

    @property
    def sizes(self) -> Tensor:
        """n_k of those who answered."""
        return torch.tensor([self.clients[name].size for name in self], dtype=torch.float64)

    @property
    def label_counts(self) -> Tensor:
        """How many rows of each class those who answered have, as [K, C]."""
        counts = {name: self.clients[name].label_counts for name in self}
        if silent := [name for name, count in counts.items() if count is None]:
            raise FedstillError(f"this method needs label counts, and {', '.join(silent)} withholds them.")
        return torch.stack([count for count in counts.values() if count is not None]).double()

    def change(self, name: str, function: Callable[[Tensor], Tensor]) -> Replies[M]:
        """The same replies with one array field changed in each."""
        changed = {client: replace(m, **{name: function(getattr(m, name))}) for client, m in self.messages.items()}
        return replace(self, messages=changed)

    def blend(self, name: str, weights: Tensor) -> Tensor:
        """The weighted sum over clients of an array field; weights are [K], or [K, N or 1, C or 1], and sum to one."""
        values = self.column(name)
        while weights.ndim < values.ndim:
            weights = weights.unsqueeze(-1)
        return (values.double() * weights.double()).sum(0).to(values.dtype)

    def mean(self, name: str) -> Tensor:
        """The blend in which everybody counts the same."""
        return self.blend(name, uniform(len(self)))


def uniform(clients: int) -> Tensor:
    """1/K for everybody."""
    return torch.full((clients,), 1.0 / clients, dtype=torch.float64)
