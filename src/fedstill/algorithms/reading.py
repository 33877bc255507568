"""AdaFD's readings: which of its options the paper, its released code, and fedstill's default choose."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from fedstill.learning.losses import Distillation

Opinions = Literal["logits", "probabilities", "unit_spread"]
LossOf = Literal["training", "validation"]
LossScale = Literal["none", "label_entropy"]
AnswerOf = Literal["server", "blend"]
Apart = Literal["alike", "apart"]


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
    sharpen: float | None = 0.0
    """None: by the number of classes."""
    server_sharpen: float | None = None
    """For what the server itself learns from; None: as `sharpen`."""
    rehearsal: bool = False
    settling: float = 0.0
    """The share of its rate at which a client learns its own rows once more after the last answer; 0: it does not."""
    linear: Apart = "alike"
    """Whether linear models learn from an answer in a way of their own: see `LINEAR_SHARPEN`."""
    foreign: Apart = "alike"
    """`apart`: a client with rows unlike the public ones learns from the last answer only, if that helps it."""
    wary: bool = False
    """Whether clients learn their own rows instead of an answer that names one class for nearly all public rows."""
    veto: float = 0.0
    """A client goes on without the last answer if its validation rows are better for that, with p below this."""


READINGS = {
    "paper": Reading(),
    "released": Reading(),
    "comparable": Reading(
        beta=1.0,
        opinions="probabilities",
        loss_scale="label_entropy",
        server_loss="kl",
        answer="blend",
        sharpen=None,
        rehearsal=True,
        settling=0.5,
        linear="apart",
        foreign="apart",
        wary=True,
        veto=0.05,
    ),
}

SOFT, SURE = 0.3, 0.9
LINEAR_SHARPEN, LINEAR_SETTLING = 0.1, 1.0
"""With `linear: apart`, a linear model learns from labels this sharp, and own rows afterwards instead of beside them.

Soft labels keep its weights small, and among public rows it learns its own by heart."""


def sharpness(classes: int) -> float:
    """What divides blended probabilities: 0.3, and for more than four classes so little that a sure blend stays sure.

    Probabilities divided by s are the logits of a softmax whose largest value is 1 / (1 + (C - 1) exp(-1/s)).
    """
    return min(SOFT, 1 / math.log((classes - 1) * SURE / (1 - SURE))) if classes > 2 else SOFT


OPTIONS = tuple(option.name for option in fields(Reading) if option.name != "beta")
