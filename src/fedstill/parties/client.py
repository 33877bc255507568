"""A client: a party with private rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedstill.data.examples import Labelled
from fedstill.data.likeness import unlikeness
from fedstill.data.tokens import TokenStore
from fedstill.learning.metrics import scores
from fedstill.models import Model
from fedstill.parties.party import Party


@dataclass
class Client(Party):
    """An organisation: its rows never leave, its opinions do."""

    public_fingerprint: str = ""
    sample: Model | None = None
    """A model of the same architecture without weights, which is enough to say hello."""
    tells_label_counts: bool = True

    @property
    def kind(self) -> Model:
        """A model with the architecture and labels of its own; it may have no weights, so do not compute with it."""
        return self.sample if self.sample is not None else self.model

    @property
    def size(self) -> int:
        """n_k, the number of rows that it trains on in a round."""
        return min(len(self.data.train), self.spec.train.rows or len(self.data.train))

    def label_counts(self) -> torch.Tensor:
        """How many training rows it has of each class."""
        return torch.bincount(self.data.train.labels, minlength=len(self.kind.labels))

    def unlike_public(self) -> float | None:
        """How well words alone tell its rows from the public ones, 0.5 to 1; None without enough texts of both."""
        store = self.data.public.store
        if not isinstance(store, TokenStore):
            return None
        return unlikeness(store, self.data.train.rows, self.data.public.rows)

    def held_out(self) -> Labelled:
        """Its own validation rows, or its training rows if it has none."""
        return self.data.validation if len(self.data.validation) else self.data.train

    def held_out_f1(self) -> float:
        """Weighted F1 on the rows that it held out."""
        data = self.held_out()
        predicted = self.predict(data).argmax(-1).numpy()
        return scores(data.labels.numpy(), predicted, len(self.model.labels))["f1"]
