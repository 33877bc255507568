"""A client: a party with private rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from fedstill.common.errors import FedstillError
from fedstill.data.examples import Examples, Labelled
from fedstill.data.likeness import unlikeness
from fedstill.data.tokens import TokenStore
from fedstill.learning.losses import Loss
from fedstill.learning.metrics import scores
from fedstill.learning.phases import EpochLosses, Passes
from fedstill.models import Model
from fedstill.parties.party import Party, TrainSettings
from fedstill.parties.private import Privacy, Sealed
from fedstill.wire.messages import Message


@dataclass
class Client(Party):
    """An organisation: its rows never leave, its opinions do."""

    public_fingerprint: str = ""
    sample: Model | None = None
    """A model of the same architecture without weights, which is enough to say hello."""
    tells_label_counts: bool = True
    privacy: Privacy | None = None
    """What may become known of its rows; None: nothing is promised."""

    @property
    def is_private(self) -> bool:
        """Whether a budget says what may become known of its rows."""
        return self.privacy is not None

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

    @cached_property
    def unlike_public(self) -> float | None:
        """How well words alone tell its rows from the public ones, 0.5 to 1; None without enough texts of both."""
        store = self.data.public.store
        if not isinstance(store, TokenStore) or self.is_private:
            return None
        return unlikeness(store, self.data.train.rows, self.data.public.rows)

    def train(
        self,
        data: Examples | None = None,
        loss: Loss | None = None,
        passes: Passes | None = None,
        settings: TrainSettings | None = None,
    ) -> EpochLosses:
        """As any party; from private rows that are sealed, with noise and within the budget."""
        rows = self.data.train if data is None else data
        if self.privacy is None or not isinstance(rows, Sealed):
            return super().train(data, loss, passes, settings)
        if loss is not None or passes is not None:
            raise FedstillError("the method trains with a loss of its own, which `privacy` cannot cover with noise.")
        return self.privacy.train(self, rows.unsealed)

    def released(self, message: Message | None) -> Message | None:
        """A message as it may leave."""
        return message if self.privacy is None else self.privacy.released(self, message)

    def held_out(self) -> Labelled:
        """Its own validation rows, or its training rows if it has none."""
        return self.data.validation if len(self.data.validation) else self.data.train

    def held_out_f1(self) -> float:
        """Weighted F1 on the rows that it held out."""
        data = self.held_out()
        predicted = self.predict(data).argmax(-1).numpy()
        return scores(data.labels.numpy(), predicted, len(self.model.labels))["f1"]

    def held_out_right(self) -> torch.Tensor:
        """For every row that it held out, whether its model names the label."""
        data = self.held_out()
        return self.predict(data).argmax(-1) == data.labels
