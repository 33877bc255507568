"""Pseudo-samples made from models: inputs to which a teacher gives a chosen label and a student does not (FedDRS).

A model's answer is a distribution at each target position: one over labels for a classifier, one over words at every
token of the label's text for a text-to-text model. Sampling descends sums over samples, by plain gradient steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedstill.learning.losses import within_task
from fedstill.learning.predict import forward


@dataclass(frozen=True)
class Answer:
    """Log-probabilities [B, T, V] at T target positions, the targets [B, T], and which positions count [B, T]."""

    log_probabilities: Tensor
    targets: Tensor
    mask: Tensor

    def cross_entropy(self) -> Tensor:
        """-log p(target), summed over positions: one value per sample."""
        found = self.log_probabilities.gather(-1, self.targets[..., None])[..., 0]
        return -(found * self.mask).sum(1)

    def divergence(self, student: Answer) -> Tensor:
        """KL(self || student), summed over positions: one value per sample."""
        own, other = self.log_probabilities, student.log_probabilities
        # Labels of another task have probability 0 in both: no difference. Their log is replaced by 0 before the
        # subtraction, because otherwise their gradient would be 0 times infinity.
        is_own = own > -torch.inf
        difference = torch.where(is_own, own, 0.0) - torch.where(is_own, other, 0.0)
        return ((own.exp() * difference).sum(-1) * self.mask).sum(1)


@dataclass(frozen=True)
class Reader:
    """Computes the answers of models of one kind."""

    name: str
    """The name of the input in the model's `forward`."""
    label_tasks: Tensor | None = None
    """Where every task has a head of its own: the task of each label."""

    def __call__(self, module: Any, inputs: Tensor, labels: Tensor) -> Answer:
        """The module's answer to inputs, with these labels as the targets."""
        if hasattr(module, "target_logits"):  # a text-to-text model
            logits, mask = module.target_logits(labels, **{self.name: inputs})
            return Answer(logits.log_softmax(-1), module.words[labels], mask)
        logits = forward(module, {self.name: inputs})
        if self.label_tasks is not None:
            logits = within_task(logits, self.label_tasks[labels], self.label_tasks)
        return Answer(
            logits.log_softmax(-1)[:, None], labels[:, None], torch.ones_like(labels, dtype=torch.bool)[:, None]
        )


@dataclass(frozen=True)
class Sampling:
    """How pseudo-samples are found."""

    steps: int = 100
    rate: float = 0.1
    strength: float = 0.1
    """lambda: how much the student's failure counts; 0 is target sampling."""
    bound: float = 10.0
    """The student's loss is cut off here, because a larger one would outweigh the teacher's."""
    adversary: Literal["ce", "kl"] = "ce"


def sampling_loss(read: Reader, teacher: nn.Module, student: nn.Module, how: Sampling) -> Callable[..., Tensor]:
    """(inputs, labels) -> CE(f_k(theta), y) - lambda CE(f_S(theta), y), one value per sample (Eqs. 6 and 7)."""

    def each(inputs: Tensor, labels: Tensor) -> Tensor:
        wanted = read(teacher, inputs, labels)
        if how.strength == 0:
            return wanted.cross_entropy()
        other = read(student, inputs, labels)
        against = other.cross_entropy() if how.adversary == "ce" else wanted.divergence(other)
        return wanted.cross_entropy() - how.strength * against.clamp(max=how.bound)

    return each


def descend(
    loss: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    labels: Tensor,
    moves: Tensor,
    how: Sampling,
    watch: Callable[[int, Tensor], None] = lambda step, inputs: None,
) -> Tensor:
    """The inputs after the steps; `moves` is 0 where an input must stay as it is (special tokens), 1 elsewhere."""
    inputs = start
    for step in range(how.steps):
        watch(step, inputs)
        leaf = inputs.detach().requires_grad_()
        with torch.enable_grad():
            total = loss(leaf, labels).sum()
        inputs = inputs - how.rate * moves * torch.autograd.grad(total, leaf)[0]
    watch(how.steps, inputs)
    return inputs.detach()
