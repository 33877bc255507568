"""AdaFD: teachers weighted by how well they fit; server and clients distil from each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedstill.algorithms.base import Algorithm, Positive
from fedstill.algorithms.weightings import ENWC, Weighting
from fedstill.common.errors import FedstillError
from fedstill.learning.losses import Distillation, distillation, entropy
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.messages import Answer, Opinion
from fedstill.wire.replies import Replies


@dataclass(frozen=True)
class AdaFD(Algorithm):
    """Adaptive federated distillation (paper: adafd; the client's target is the server's prediction after distilling).

    Beyond the paper, off by default: `per_sample` and `per_class` (finer weights, its future work), and
    `loss_scale: label_entropy`: without it, a client with rows of almost only one class looks like the best teacher.
    """

    weighting: Weighting = ENWC(beta=5.0)
    server_loss: Distillation = "mse"
    client_loss: Distillation = "kl"
    temperature: Positive = 1.0
    center_logits: bool = False
    per_sample: bool = False
    per_class: bool = False
    loss_scale: Literal["none", "label_entropy"] = "none"

    needs: ClassVar[frozenset[str]] = frozenset({"public"})
    paper: ClassVar[str] = "AdaFD (Xiao and Liu 2025)"
    cost: ClassVar[str] = "NC(K+1)+K"

    def __post_init__(self) -> None:
        if self.per_class and not isinstance(self.weighting, ENWC):
            raise FedstillError("per_class weights are exponential in the loss: they need `weighting: ENWC`.")

    def digest(self, me: Client, answer: Answer) -> None:
        me.distill(answer.logits, distillation(self.client_loss, self.temperature))  # Eq. 5

    def opine(self, me: Client) -> Opinion:
        losses = me.train()  # Eq. 1
        best = losses.best()  # l_min: the smallest epoch mean of this round
        return Opinion(
            logits=me.predict(),  # Eq. 2
            loss=losses.mean[best],
            class_losses=_seen(losses.by_class[best]) if self.per_class else None,
            f1=me.validation_f1() if self.weighting.wants_f1 else None,
            labelled_logits=me.predict(me.data.labelled) if self.weighting.wants_labelled else None,
        )

    def server(self, me: Server, ups: Replies[Opinion]) -> Answer:
        weights = self.weights(me, ups)
        me.distill(
            self.teachers(ups).blend("logits", weights),  # Eq. 8
            distillation(self.server_loss, self.temperature, self.center_logits),  # Eqs. 9, 10
        )
        return Answer(me.predict())

    def teachers(self, ups: Replies[Opinion]) -> Replies[Opinion]:
        """The opinions to blend: centred if each class has its own weights."""
        return ups.change("logits", lambda z: z - z.mean(-1, keepdim=True)) if self.per_class else ups

    def weights(self, me: Server, ups: Replies[Opinion]) -> Tensor:
        """w_k as [K], or finer as [K, N or 1, C or 1]; they sum to one over the clients."""
        losses = ups.column("loss")
        if self.loss_scale == "label_entropy":
            losses = losses / _label_entropy(ups)
        weights = self.weighting(me, ups, losses)  # Eq. 6 or 7
        me.observe("weights", dict(zip(ups, weights.tolist(), strict=True)))
        if not (self.per_class or self.per_sample):
            return weights
        fine = weights[:, None, None]
        if self.per_class and isinstance(self.weighting, ENWC):
            fine = _by_class(self.weighting.current(me), ups.column("class_losses").double(), fine)
        if self.per_sample:
            logits = ups.column("logits").double()
            uncertainty = entropy(logits.softmax(-1)) / math.log(logits.shape[-1])
            fine = fine * torch.exp(-uncertainty)[:, :, None]  # w_ki ~ w_k exp(-H(p^k_i) / ln C)
            fine = fine / fine.sum(0)
        return fine

    @property
    def title(self) -> str:
        """The paper's name of the variant."""
        finer = "".join(f" {name}" for name in ("per_sample", "per_class") if getattr(self, name))
        scaled = " label_entropy" if self.loss_scale != "none" else ""
        return f"AdaFD w/ {self.weighting.title}{finer}{scaled}"

    def requires(self) -> frozenset[str]:
        """The public set, and what the chosen options need."""
        labelled = {"labelled"} if self.weighting.wants_labelled else set()
        counts = {"label_counts"} if self.loss_scale == "label_entropy" else set()
        return self.needs | self.weighting.needs | labelled | counts


UNSEEN = -1.0
"""Stands for the loss of a class that a client has no rows of: messages hold finite numbers only."""


def _seen(class_losses: list[float]) -> Tensor:
    return torch.tensor([UNSEEN if math.isnan(loss) else loss for loss in class_losses])


def _by_class(beta: float, class_losses: Tensor, otherwise: Tensor) -> Tensor:
    """w_kc ~ exp(-beta l_kc) over the clients that have the class; classes that no client has keep w_k."""
    seen = class_losses >= 0
    scaled = torch.where(seen, -beta * class_losses, -torch.inf)
    weights = torch.where(seen.any(0), torch.softmax(scaled, 0), torch.zeros(()))
    return torch.where(seen.any(0), weights, otherwise[:, :, 0])[:, None, :]


def _label_entropy(ups: Replies[Opinion]) -> Tensor:
    """The entropy H_k of each client's own labels, but at least a tenth of the largest possible entropy."""
    counts = ups.label_counts
    shares = counts / counts.sum(-1, keepdim=True)
    return entropy(shares).clamp(min=0.1 * math.log(counts.shape[-1]))
