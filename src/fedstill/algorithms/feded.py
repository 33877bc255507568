"""FedED: predictions up, the distilled server's parameters down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstill.algorithms.base import Algorithm, Federation, Role
from fedstill.learning.losses import Distillation, distillation
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.messages import Done, Message, Opinion, Parameters
from fedstill.wire.replies import Replies, Weights


@dataclass(frozen=True)
class FedED(Algorithm):
    """The server minimises KL(s(sum_k (n_k/n) z^k) || f); clients begin every round from its parameters.

    The original also uses the labels of the public set: `labelled: true` mixes the server's labelled rows in. FedID's
    tables do not use them, which is the default here.
    """

    server_loss: Distillation = "kl"
    labelled: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"public", "parameters"})
    messages: ClassVar[tuple[type[Message], ...]] = (Opinion, Parameters, Done)
    paper: ClassVar[str] = "FedED (Sui 2020), as in FedID"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "P+NCK"

    def start(self, fed: Federation) -> Parameters:
        return Parameters(fed.server.parameters())

    def digest(self, me: Client, answer: Parameters) -> None:
        me.set_parameters(answer.parameters)

    def opine(self, me: Client) -> Opinion:
        me.train()
        return Opinion(me.predict())

    def server(self, me: Server, ups: Replies[Opinion]) -> Parameters:
        ensemble = ups.blend("logits", ups.shares)
        me.distill(ensemble, distillation(self.server_loss), also=me.labelled_rows() if self.labelled else None)
        return Parameters(me.parameters())

    def masked_weights(self) -> Weights:
        """By n_k."""
        return "size"
