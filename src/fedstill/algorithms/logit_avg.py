"""LogitAvg: the plain federated distillation that AdaFD's tables call "FedAvg"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstill.algorithms.base import Algorithm, Positive, Role
from fedstill.learning.losses import Distillation, distillation
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.messages import Answer, Opinion
from fedstill.wire.replies import Replies, Weights


@dataclass(frozen=True)
class LogitAvg(Algorithm):
    """Clients have equal weights; server and clients distil by KL (AdaFD Eqs. 3-5).

    The authors' released code gives clients the argmax of the server's prediction instead: `client_loss: hard`.
    """

    server_loss: Distillation = "kl"
    client_loss: Distillation = "kl"
    temperature: Positive = 1.0

    needs: ClassVar[frozenset[str]] = frozenset({"public"})
    paper: ClassVar[str] = "AdaFD (there: FedAvg)"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "NC(K+1)"

    def digest(self, me: Client, answer: Answer) -> None:
        me.distill(answer.logits, distillation(self.client_loss, self.temperature))  # Eq. 5

    def opine(self, me: Client) -> Opinion:
        me.train()  # Eq. 1
        return Opinion(me.predict())  # Eq. 2

    def server(self, me: Server, ups: Replies[Opinion]) -> Answer:
        me.distill(ups.mean("logits"), distillation(self.server_loss, self.temperature))  # Eqs. 3, 4
        return Answer(me.predict())

    def masked_weights(self) -> Weights:
        """Equal weights."""
        return "uniform"

    @property
    def blends_raw_logits(self) -> bool:
        """The mean of the clients' logits is what is distilled."""
        return True
