"""FD: clients exchange the means of their outputs for the rows of each label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedstill.algorithms.base import Algorithm, NotNegative, Role
from fedstill.learning.losses import Loss, entropy, probability_ce
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.messages import MOST_LOGIT, MOST_ROWS, Done, Message, array
from fedstill.wire.replies import Replies


@dataclass(frozen=True)
class LabelMeans(Message):
    """A mean output for every label, and of how many outputs: 0 marks a label without any, whose mean is zero."""

    means: Tensor = array("labels", "labels", holds="floats", least=-MOST_LOGIT, most=MOST_LOGIT)
    counts: Tensor = array("labels", holds="integers", least=0, most=MOST_ROWS)


@dataclass(frozen=True)
class FD(Algorithm):
    """Up: F^k_y, the mean output for rows of label y; clients minimise CE + `strength` KL(G^k_y || p) on their rows.

    G^k_y is the mean of F^j_y over the others that have rows of y, with equal weights; labels that no other has are
    skipped. Outputs are computed in eval mode after training (the paper sums them up during training). For a client
    that was not active in a round, G is the mean of all that were; one that is not active in the next keeps its old G.
    """

    strength: NotNegative = 0.1

    has_server_model: ClassVar[bool] = False
    messages: ClassVar[tuple[type[Message], ...]] = (LabelMeans, Done)
    blends: ClassVar[bool] = False
    paper: ClassVar[str] = "FD (Jeong 2018)"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "2C^2 K"

    def digest(self, me: Client, answer: LabelMeans) -> None:
        remember(me, answer)

    def opine(self, me: Client) -> LabelMeans:
        me.train(loss=with_label_means(me, self.strength, _divergence))
        return label_means(me, me.predict(me.data.train).softmax(-1))

    def leaks(self) -> str | None:
        return "tells what a client's model says of its own rows, by label"

    def server(self, me: Server, ups: Replies[LabelMeans]) -> Mapping[str, Message]:
        means, seen = ups.column("means").double(), ups.column("counts") > 0
        answers: dict[str, Message] = {}
        for name in ups.clients:
            others = seen & torch.tensor([other != name for other in ups])[:, None]
            many = others.sum(0)
            mean = (means * others[:, :, None]).sum(0) / many.clamp(min=1)[:, None]
            answers[name] = LabelMeans(mean.float(), many.int())
        return answers


def _divergence(logits: Tensor, probabilities: Tensor) -> Tensor:
    """KL(probabilities || s(logits)), where probabilities may be zero."""
    return probability_ce(logits, probabilities) - entropy(probabilities)


def label_means(me: Client, outputs: Tensor) -> LabelMeans:
    """The mean of a client's outputs for its rows of each label."""
    labels, classes = me.data.train.labels, outputs.shape[1]
    counts = torch.bincount(labels, minlength=classes)
    sums = torch.zeros(classes, classes, dtype=torch.float64).index_add_(0, labels, outputs.double())
    return LabelMeans((sums / counts.clamp(min=1)[:, None]).float(), counts.int())


def remember(me: Client, answer: LabelMeans) -> None:
    """Keep an answer for the next training."""
    me.memory.arrays |= {"means": answer.means, "counts": answer.counts}


def with_label_means(me: Client, strength: float, distance: Loss) -> Loss:
    """The client's own loss plus, on rows whose label has a remembered mean, `strength` times the distance to it."""
    own = me.label_loss()
    means, counts = me.memory.arrays.get("means"), me.memory.arrays.get("counts")
    if means is None or counts is None:  # there is no answer yet
        return own
    goals, weights = means.to(me.around.device), strength * (counts > 0).to(me.around.device, torch.float32)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return own(logits, labels) + weights[labels] * distance(logits, goals[labels])

    return loss
