"""Losses, each with one value per sample: the training loop takes means, reports them by class, and weights them.

A distillation loss compares the student's logits with a teacher's logits. Note that `mse` equals the
infinite-temperature limit of `kl` only for logits with zero mean over classes (`center_logits`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]
"""(student logits [B, C], targets [B] or [B, C]) -> one loss per sample [B]."""

Distillation = Literal["kl", "soft_ce", "mse", "l1", "hard"]


def ce(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy with class numbers."""
    return F.cross_entropy(logits, labels, reduction="none")


def task_ce(logits: Tensor, labels: Tensor, label_tasks: Tensor) -> Tensor:
    """Cross-entropy among the labels of the row's own task, as if every task had its own head."""
    return ce(within_task(logits, label_tasks[labels], label_tasks), labels)


def within_task(logits: Tensor, tasks: Tensor, label_tasks: Tensor) -> Tensor:
    """The logits with those of every other task's labels at minus infinity."""
    return logits.masked_fill(label_tasks != tasks[..., None], -torch.inf)


def likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """Minus the log-likelihood of the label, where logits are log-likelihoods already (text-to-text models)."""
    return -logits.gather(-1, labels[:, None])[:, 0]


def probability_ce(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Cross-entropy with probabilities."""
    return -(probabilities * logits.log_softmax(-1)).sum(-1)


def soft_ce(logits: Tensor, teacher: Tensor) -> Tensor:
    """Cross-entropy with the teacher's probabilities: `kl` plus the teacher's entropy."""
    return probability_ce(logits, teacher.softmax(-1))


def kl(logits: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(s(teacher/T) || s(logits/T)) T^2, where s is softmax."""
    student, target = (logits / temperature).log_softmax(-1), (teacher / temperature).log_softmax(-1)
    return F.kl_div(student, target, reduction="none", log_target=True).sum(-1) * temperature**2


def mse(logits: Tensor, teacher: Tensor, center_logits: bool = False) -> Tensor:
    """Mean squared difference of raw logits over the classes."""
    if center_logits:
        logits, teacher = logits - logits.mean(-1, keepdim=True), teacher - teacher.mean(-1, keepdim=True)
    return F.mse_loss(logits, teacher, reduction="none").mean(-1)


def l1(logits: Tensor, teacher: Tensor) -> Tensor:
    """Mean absolute difference of raw logits over the classes."""
    return F.l1_loss(logits, teacher, reduction="none").mean(-1)


def hard(logits: Tensor, teacher: Tensor) -> Tensor:
    """Cross-entropy with the teacher's most likely class."""
    return ce(logits, teacher.argmax(-1))


def distillation(name: Distillation, temperature: float = 1.0, center_logits: bool = False) -> Loss:
    """The distillation loss of that name."""
    if name == "kl":
        return partial(kl, temperature=temperature)
    if name == "mse":
        return partial(mse, center_logits=center_logits)
    return {"soft_ce": soft_ce, "l1": l1, "hard": hard}[name]


def joint(loss: Loss) -> Loss:
    """A loss for learning from a teacher and from labels in one phase.

    Targets are the teacher's logits and, in a last column, the label or -1. A sample with a label has the cross-entropy
    with it as its loss, the others have `loss` to the teacher.
    """
    return partial(_joint, loss=loss)


def _joint(logits: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    labels = targets[:, -1].long()
    return torch.where(labels < 0, loss(logits, targets[:, :-1]), ce(logits, labels.clamp(min=0)))


def entropy(probabilities: Tensor) -> Tensor:
    """Shannon entropy of each row, in nats."""
    entropies: Tensor = torch.special.entr(probabilities).sum(-1)
    return entropies
