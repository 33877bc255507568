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
    """Some rows of a store."""

    store: Store
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, numbers: Ints) -> Examples:
        """Those of them, in that order."""
        return Examples(self.store, self.rows[numbers])

    @cached_property
    def lengths(self) -> Ints:
        """How much there is to compute for every example."""
        return self.store.lengths[self.rows]

    def batch(self, picked: Tensor, device: torch.device, training: bool = False) -> dict[str, Tensor]:
        """The model's input for these examples (numbers count within `rows`)."""
        arrays = self.store.batch(self.rows[picked.numpy()], training)
        return {name: torch.as_tensor(array).to(device, non_blocking=True) for name, array in arrays.items()}


@dataclass(frozen=True)
class Labelled(Examples):
    """Rows whose labels the holder knows."""

    labels: Tensor

    def pick(self, numbers: Ints) -> Labelled:
        """Those of them, in that order."""
        return Labelled(self.store, self.rows[numbers], self.labels[numbers])


NO_ROWS = Labelled(TensorStore("nothing", torch.empty(0)), np.empty(0, np.int64), torch.empty(0, dtype=torch.int64))
