"""DS-FL: probabilities averaged and sharpened."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from fedstill.algorithms.base import Algorithm, Positive, Role
from fedstill.learning.losses import Distillation, Loss, distillation
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.blends import Holds
from fedstill.wire.messages import Answer, Opinion
from fedstill.wire.replies import Replies, Weights, uniform


@dataclass(frozen=True)
class DSFL(Algorithm):
    """Entropy reduction aggregation: q = s(mean p^k / T) on probabilities, T = 0.1; all minimise KL(q||p).

    Messages hold the inputs of a softmax: opinions are probabilities p^k, the answer is mean p^k / T. `weights: size`
    weights clients by n_k, as AdaFD describes it. `labelled: true`: the server also learns from the rows whose labels
    it keeps (FedID, Fig. 3). `reading: released` does as the code of FedID and AdaFD: opinions are logits, and all
    minimise CE(f, argmax of their mean), whatever the losses say; sharpening changes no argmax. Their weights
    differ: `size` in FedID's, `uniform` in AdaFD's.
    """

    reading: Literal["paper", "released"] = "paper"
    temperature: Positive = 0.1
    weights: Literal["uniform", "size"] = "uniform"
    server_loss: Distillation = "kl"
    client_loss: Distillation = "kl"
    labelled: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"public"})
    paper: ClassVar[str] = "DS-FL (Itahara 2021), as in AdaFD"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "NC(K+1)"

    def digest(self, me: Client, answer: Answer) -> None:
        me.distill(answer.logits, self._loss(self.client_loss))

    def opine(self, me: Client) -> Opinion:
        me.train()
        return Opinion(me.predict() if self.reading == "released" else me.predict().softmax(-1))

    def server(self, me: Server, ups: Replies[Opinion]) -> Answer:
        weights = ups.shares if self.weights == "size" else uniform(len(ups))
        holds: Holds = "logits" if self.reading == "released" else "probabilities"
        sharpened = ups.blend("logits", weights, holds) / self.temperature
        also = me.labelled_rows() if self.labelled else None
        me.meanwhile(partial(me.distill, sharpened, self._loss(self.server_loss), also=also))
        return Answer(sharpened)

    def masked_weights(self) -> Weights:
        """As the option says."""
        return self.weights

    def _loss(self, chosen: Distillation) -> Loss:
        return distillation("hard" if self.reading == "released" else chosen)

    @property
    def title(self) -> str:
        """Says `as released` where it is."""
        if self.reading == "paper":
            return super().title
        return "DS-FL (released) w/ labelled rows" if self.labelled else "DS-FL as released"
