"""MHAT: opinions become votes, weighted by how much data each client has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedstill.algorithms.base import Algorithm, Role
from fedstill.learning.losses import Distillation, distillation, probability_ce
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.messages import Answer, Opinion
from fedstill.wire.replies import Replies, Weights


@dataclass(frozen=True)
class MHAT(Algorithm):
    """The server minimises sum_k (n_k/n) CE(f, argmax z^k); clients CE to the argmax of its prediction.

    Options: `server_loss: kl` (towards sum_k (n_k/n) z^k), `client_loss: kl`, and `labelled: true`: the server also
    learns from the rows whose labels it keeps (FedID, Fig. 3).
    """

    server_loss: Distillation = "hard"
    client_loss: Distillation = "hard"
    labelled: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"public"})
    paper: ClassVar[str] = "MHAT (Hu 2021), as in AdaFD"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "NC(K+1)"

    def digest(self, me: Client, answer: Answer) -> None:
        me.distill(answer.logits, distillation(self.client_loss))

    def opine(self, me: Client) -> Opinion:
        me.train()
        return Opinion(me.predict())

    def server(self, me: Server, ups: Replies[Opinion]) -> Answer:
        weights, also = ups.shares, me.labelled_rows() if self.labelled else None
        if self.server_loss == "hard":
            # sum_k w_k CE(f, y_k) is the cross-entropy with the share of votes of each class.
            votes = ups.change("logits", one_hot)
            me.distill(votes.blend("logits", weights, "probabilities"), probability_ce, also=also)
        else:
            me.distill(ups.blend("logits", weights), distillation(self.server_loss), also=also)
        return Answer(me.predict())

    def masked_weights(self) -> Weights:
        """By n_k; votes are counted one by one."""
        return super().masked_weights() if self.server_loss == "hard" else "size"

    @property
    def blends_raw_logits(self) -> bool:
        """The weighted mean of the clients' logits is what is distilled."""
        return self.server_loss != "hard"


def one_hot(logits: Tensor) -> Tensor:
    """1 for the most likely class, 0 for the others."""
    return F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
