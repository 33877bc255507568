"""AdaFD's readings: which of its options the paper, its released code, and fedstill's default choose."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from fedstill.learning.losses import Distillation

Opinions = Literal["logits", "probabilities", "unit_spread"]
LossOf = Literal["training", "validation"]
LossScale = Literal["none", "label_entropy"]
AnswerOf = Literal["server", "blend"]


@dataclass(frozen=True)
class Reading:
    """What the options are unless the experiment sets them."""

    beta: float = 5.0
    """Of ENWC, where it gives none."""
    opinions: Opinions = "logits"
    calibrate: bool = False
    loss: LossOf = "training"
    loss_scale: LossScale = "none"
    server_loss: Distillation = "mse"
    answer: AnswerOf = "server"
    sharpen: float = 0.0
    server_sharpen: float | None = None
    """For what the server itself learns from; None: as `sharpen`."""
    rehearsal: bool = False


READINGS = {
    "paper": Reading(),
    "released": Reading(),
    "comparable": Reading(
        beta=1.0,
        opinions="probabilities",
        loss_scale="label_entropy",
        server_loss="kl",
        answer="blend",
        sharpen=0.3,
        rehearsal=True,
    ),
}

OPTIONS = tuple(option.name for option in fields(Reading) if option.name != "beta")
