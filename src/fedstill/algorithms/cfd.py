"""CFD: federated distillation in few bits; opinions are rounded, sent as differences, and entropy-coded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstill.algorithms.base import Algorithm, Federation, Role
from fedstill.common.errors import FedstillError
from fedstill.learning.losses import probability_ce
from fedstill.parties.client import Client
from fedstill.parties.party import Party
from fedstill.parties.server import Server
from fedstill.wire.codecs import Codecs
from fedstill.wire.codecs.quantised import Quantised
from fedstill.wire.messages import Answer, Done, Message, Opinion, Parameters
from fedstill.wire.replies import Replies


@dataclass(frozen=True)
class CFD(Algorithm):
    """Clients restart from theta_0, distil the last labels, train with CE, send Q(p^k); the server distils the mean.

    Q is the codec `quantised` with one bit per class up and down (`wire: {opinions: {name: quantised, up: 4, down: 8}}`
    changes that). The server minimises KL(mean_k Q(p^k) || f) from its last model (`restart: true`: from theta_0, as
    clients do), and sends its own Q(p) down. Sizes are those of our own coder, not CABAC's.
    Messages hold probabilities.
    """

    restart: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"public", "parameters"})
    messages: ClassVar[tuple[type[Message], ...]] = (Parameters, Opinion, Answer, Done)
    codecs: ClassVar[Codecs] = Codecs(opinions=Quantised())
    paper: ClassVar[str] = "CFD (Sattler 2021)"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "NC(K+1) codes, entropy-coded; P once"

    def start(self, fed: Federation) -> None:
        theta = fed.server.parameters()
        if self.restart:
            fed.server.memory.mappings["theta_0"] = theta
        fed.call("begin", Parameters(theta), clients=list(fed.clients))

    def begin(self, me: Client, first: Parameters) -> Done:
        """Keep theta_0: every round starts there."""
        me.memory.mappings["theta_0"] = dict(first.parameters)
        _restart(me)
        return Done()

    def digest(self, me: Client, answer: Answer) -> None:
        _restart(me)
        me.distill(answer.logits, probability_ce)

    def opine(self, me: Client) -> Opinion:
        _refuse_other_starts(me)
        me.train()
        return Opinion(me.predict().softmax(-1))

    def server(self, me: Server, ups: Replies[Opinion]) -> Answer:
        if self.restart:
            _restart(me)
        labels = ups.mean("logits", "probabilities")
        me.distill(labels, probability_ce)  # KL plus the labels' entropy, which is constant
        return Answer(me.predict().softmax(-1))


def _refuse_other_starts(me: Party) -> None:
    if "theta_0" not in me.memory.mappings:
        raise FedstillError("it did not take the model that everybody starts from.")


def _restart(me: Party) -> None:
    _refuse_other_starts(me)
    me.set_parameters(me.memory.mappings["theta_0"])
