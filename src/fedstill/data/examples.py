"""Examples: some rows of a store of texts, images or numbers, from which batches are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedstill.data.corpus import Ints


class Store(Protocol):
    """All data of a party, in the form that its model reads."""

    @property
    def lengths(self) -> Ints:
        """A measure of how much there is to compute for every row."""

    def batch(self, rows: Ints, training: bool = False) -> Mapping[str, Any]:
        """The model's input for those rows, as arrays or tensors; in training it may be varied at random."""


@dataclass(frozen=True)
class TensorStore:
    """Inputs that were computed, such as noise; `name` is their name in the model's `forward`."""

    name: str
    values: Tensor

    @cached_property
    def lengths(self) -> Ints:
        """The same for all rows."""
        return np.ones(len(self.values), np.int64)

    def batch(self, rows: Ints, training: bool = False) -> dict[str, Tensor]:
        """The values of these rows."""
        return {self.name: self.values[torch.from_numpy(rows)]}


@dataclass(frozen=True)
class Examples:
    """Some rows of a store, with their labels where the holder may know them."""

    store: Store
    rows: Ints
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, numbers: Ints) -> Examples:
        """Those of them, in that order."""
        return Examples(self.store, self.rows[numbers], None if self.labels is None else self.labels[numbers])

    @cached_property
    def lengths(self) -> Ints:
        """How much there is to compute for every example."""
        return self.store.lengths[self.rows]

    def batch(self, picked: Tensor, device: torch.device, training: bool = False) -> dict[str, Tensor]:
        """The model's input for these examples (numbers count within `rows`)."""
        arrays = self.store.batch(self.rows[picked.numpy()], training)
        return {name: torch.as_tensor(array).to(device, non_blocking=True) for name, array in arrays.items()}
