"""FedAvg: the mean of everybody's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstill.algorithms.averaging import Averaging, Limit
from fedstill.algorithms.base import Algorithm, Answers, Federation, Role
from fedstill.common.errors import FedstillError
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.messages import Done, Message, Parameters
from fedstill.wire.replies import Replies, Weights


@dataclass(frozen=True)
class FedAvg(Averaging, Algorithm):
    """theta = sum_k (n_k/n) theta^k after E epochs of cross-entropy at every client (FedID Eqs. 1-3).

    Everybody starts from the server's theta_0: the mean of heads that were initialised differently is useless. n_k are
    the rows that a client trains on in a round (`train.rows` at most); `weights: uniform` counts clients the same.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"parameters"})
    messages: ClassVar[tuple[type[Message], ...]] = (Parameters, Limit, Done)
    paper: ClassVar[str] = "FedAvg (McMahan 2017), as in FedID"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "P(K+1)"

    def start(self, fed: Federation) -> Answers:
        return Parameters(fed.server.parameters())

    def round(self, fed: Federation, answer: Answers) -> Answers:
        self.even_out(fed)
        return super().round(fed, answer)

    def digest(self, me: Client, answer: Parameters) -> None:
        me.set_parameters(answer.parameters)  # Eq. 1

    def opine(self, me: Client) -> Parameters:
        me.train(self.rows(me))  # Eq. 2
        return Parameters(me.parameters())

    def server(self, me: Server, ups: Replies[Parameters]) -> Parameters:
        me.set_parameters(ups.average("parameters", self.shares(ups)))  # Eq. 3
        return Parameters(me.parameters())

    def masked_weights(self) -> Weights:
        """As the option says."""
        if self.balance:
            raise FedstillError(
                "`balance` weighs clients by the smallest of them, which no client knows: not under masks."
            )
        return self.weights
