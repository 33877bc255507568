"""Cronus: a robust mean of everybody's probabilities; private and public rows are learnt together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedstill.algorithms.base import Algorithm, Role
from fedstill.learning.losses import Distillation, distillation
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.messages import Answer, Opinion
from fedstill.wire.replies import Replies
from fedstill.wire.robust import RobustMean, most, robust_mean

TINY = 1e-8
"""The smallest probability: its logarithm is a logit that models can reach."""


@dataclass(frozen=True)
class Cronus(Algorithm):
    """p^k up, their robust mean down; a client trains on its labels and on the public rows' soft labels in one phase.

    That phase has the settings `distill`. `mean: filter` (as in the paper) drops at most `share` of the clients on each
    sample, `trimmed` drops `share` of them at each end of each class, `median` needs no share. An
    experiment's `blend` other than `mean` takes the place of `mean` here. Messages hold probabilities.
    """

    mean: RobustMean = "filter"
    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    client_loss: Distillation = "soft_ce"

    needs: ClassVar[frozenset[str]] = frozenset({"public"})
    has_server_model: ClassVar[bool] = False
    paper: ClassVar[str] = "Cronus (Chang 2019)"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "NC(K+1)"

    def digest(self, me: Client, answer: Answer) -> None:
        soft_labels = answer.logits.clamp(min=TINY).log()
        me.distill(soft_labels, distillation(self.client_loss), also=me.data.train)

    def opine(self, me: Client) -> Opinion:
        if me.round <= 1:  # there is no answer yet; in later rounds `digest` trains
            me.train()
        return Opinion(me.predict().softmax(-1))

    def server(self, me: Server, ups: Replies[Opinion]) -> Answer:
        if ups.blending.is_chosen:
            return Answer(ups.mean("logits", "probabilities"))
        if me.round <= 1 and self.mean != "median" and not most(self.share, len(ups)):
            me.notes.append(
                f"{self.share:g} of {len(ups)} clients is less than one: none is dropped, and the mean is not robust."
            )
        return Answer(robust_mean(self.mean, ups.column("logits"), self.share).float())

    @property
    def title(self) -> str:
        """The mean is named where it is not the default."""
        return "Cronus" if self.mean == "filter" else f"Cronus ({self.mean})"
