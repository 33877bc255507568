"""What a call returns: the messages of the clients that answered, in order, and which clients failed and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Literal

import torch
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.wire.blends import Blending, Holds, Models
from fedstill.wire.messages import Hello, M

Weights = Literal["uniform", "size"]
"""Clients count the same, or by n_k."""


@dataclass(frozen=True)
class Failure:
    """A client that gave no usable reply, and why."""

    client: str
    reason: str


@dataclass(frozen=True)
class Replies(Mapping[str, M], Generic[M]):
    """Messages by client, ordered by client id."""

    messages: dict[str, M]
    clients: Mapping[str, Hello] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    blending: Blending = field(default_factory=Blending)

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
        """n_k of the clients that answered."""
        return torch.tensor([self.clients[name].size for name in self], dtype=torch.float64)

    @property
    def label_counts(self) -> Tensor:
        """How many rows of each class the clients that answered have, as [K, C]."""
        return label_counts({name: self.clients[name] for name in self})

    def only(self, clients: Iterable[str]) -> Replies[M]:
        """The replies of these clients."""
        return replace(self, messages={name: self.messages[name] for name in clients})

    @property
    def shares(self) -> Tensor:
        """n_k/n of the clients that answered, none above the experiment's `max_share`."""
        sizes = self.sizes
        return self.cap(sizes / sizes.sum())

    def cap(self, weights: Tensor) -> Tensor:
        """Weights [K, ...] with none above the experiment's `max_share`; blends do this themselves."""
        return self.blending.cap(weights)

    def change(self, name: str, function: Callable[[Tensor], Tensor]) -> Replies[M]:
        """The same replies with one array field changed in each."""
        changed = {client: replace(m, **{name: function(getattr(m, name))}) for client, m in self.messages.items()}
        return replace(self, messages=changed)

    def rows(self, name: str, numbers: Tensor) -> Replies[M]:
        """The same replies with only these rows of one array field."""
        return self.change(name, lambda values: values[numbers])

    def blend(self, name: str, weights: Tensor, holds: Holds = "logits") -> Tensor:
        """The experiment's blend of an array field: by default the weighted sum over clients.

        Weights are [K], or [K, N or 1, C or 1], and sum to one. `holds` says what the field holds.
        """
        return self.blended(self.column(name), weights, holds)

    def blended(self, values: Tensor, weights: Tensor, holds: Holds = "logits") -> Tensor:
        """The same of opinions [K, N, C] that the server computed itself for these clients."""
        return self.blending.opinions(tuple(self), values, weights, holds)

    def average(self, name: str, weights: Tensor) -> dict[str, Tensor]:
        """The experiment's blend of a mapping of arrays, such as parameters: by default the weighted mean."""
        return self.averaged({client: getattr(message, name) for client, message in self.messages.items()}, weights)

    def averaged(self, models: Models, weights: Tensor) -> dict[str, Tensor]:
        """The same of models that the server made itself for these clients."""
        return self.blending.models(models, weights)

    def mean(self, name: str, holds: Holds = "logits") -> Tensor:
        """The blend with equal weights."""
        return self.blend(name, uniform(len(self)), holds)


def label_counts(clients: Mapping[str, Hello]) -> Tensor:
    """How many rows of each class these clients have, as [K, C]; raises if one withholds them."""
    counts = {name: hello.label_counts for name, hello in clients.items()}
    if silent := [name for name, count in counts.items() if count is None]:
        raise FedstillError(f"this method needs label counts, and {', '.join(silent)} withholds them.")
    return torch.stack([count for count in counts.values() if count is not None]).double()


def uniform(clients: int) -> Tensor:
    """The weight 1/K for every client."""
    return torch.full((clients,), 1.0 / clients, dtype=torch.float64)
