"""The server: a party that holds no private rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.data.examples import NO_ROWS, Labelled
from fedstill.models import Model
from fedstill.parties.party import Party

MOST_OF_THE_WEIGHT = 0.6


def _lends_nothing(architecture: str) -> Party:
    raise FedstillError(f"this server knows no model of architecture {architecture}.")


@dataclass
class Server(Party):
    """The party that receives the messages of all clients."""

    pooled: Labelled = NO_ROWS
    """All private training rows together: simulation only, for the upper bound."""
    lend: Callable[[str], Party] = _lends_nothing
    """Makes a party over the server's rows with a model of this architecture."""

    may_owe: bool = False
    """Whether somebody calls `catch_up` after the answer is known."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._guests: dict[str, Party] = {}
        self._owed: list[Callable[[], object]] = []

    @property
    def model(self) -> Model:
        """The model after what is owed: a method that looks at it too early has the same numbers, but has to wait."""
        self.catch_up()
        return super().model

    def meanwhile(self, work: Callable[[], object]) -> None:
        """Do work that the answer does not depend on: now, or while clients already learn from the answer."""
        if self.may_owe:
            self._owed.append(work)
        else:
            work()

    def catch_up(self) -> None:
        """Do what is still owed."""
        owed, self._owed = self._owed, []
        for work in owed:
            work()

    def observe_weights(self, weights: Mapping[str, float]) -> None:
        """Put the clients' weights into the record; a note says where one client decides nearly alone."""
        self.observe("weights", weights)
        most = max(weights, key=lambda name: weights[name])
        if len(weights) > 2 and weights[most] > MOST_OF_THE_WEIGHT:
            self.notes.append(f"{most} has most of the weight among {len(weights)} clients.")

    def model_from(self, parameters: Mapping[str, Tensor] | None, architecture: str | None = None) -> Party:
        """A scratch model with these parameters, as a party over the server's rows; the next call may overwrite it."""
        architecture = architecture or self.model.architecture
        if architecture not in self._guests:
            self._guests[architecture] = self.lend(architecture)
        guest = self._guests[architecture]
        guest.enter(self.round)
        if parameters is not None:
            guest.set_parameters(parameters)
        return guest
