"""Pseudo-samples made from models: inputs to which a teacher gives a chosen label and a student does not (FedDRS).

A model's answer is a distribution at each target position: one over labels for a classifier, one over words at every
token of the label's text for a text-to-text model. Sampling descends sums over samples, by plain gradient steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedstill.common.randomness import Stream
from fedstill.learning.fast import fast_of
from fedstill.learning.fast.repeated import Repeated, short_products
from fedstill.learning.losses import within_task
from fedstill.learning.phases import OptimiserName, PhaseSettings, optimiser
from fedstill.learning.precision import input_gradients
from fedstill.learning.predict import forward

Kind = Literal["random", "target", "adversary"]
KINDS: tuple[Kind, ...] = ("random", "target", "adversary")

TRACED = 4
"""Into how many pieces a descent is cut to show its quality."""


@dataclass(frozen=True)
class ModelAnswer:
    """Log-probabilities [B, T, V] at T target positions, the targets [B, T], and which positions count [B, T]."""

    log_probabilities: Tensor
    targets: Tensor
    mask: Tensor

    def cross_entropy(self) -> Tensor:
        """-log p(target), summed over positions: one value per sample."""
        found = self.log_probabilities.gather(-1, self.targets[..., None])[..., 0]
        return -(found * self.mask).sum(1)

    def divergence(self, student: ModelAnswer) -> Tensor:
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

    def __call__(self, module: Any, inputs: Tensor, labels: Tensor) -> ModelAnswer:
        """The module's answer to inputs, with these labels as the targets."""
        if hasattr(module, "target_logits"):  # a text-to-text model
            logits, mask = module.target_logits(labels, **{self.name: inputs})
            return ModelAnswer(logits.log_softmax(-1), module.words[labels], mask)
        logits = forward(module, {self.name: inputs})
        if self.label_tasks is not None:
            logits = within_task(logits, self.label_tasks[labels], self.label_tasks)
        return ModelAnswer(
            logits.log_softmax(-1)[:, None], labels[:, None], torch.ones_like(labels, dtype=torch.bool)[:, None]
        )


@dataclass(frozen=True)
class Pseudo:
    """A batch of pseudo-samples of one client, and what its model says of them."""

    inputs: Tensor
    labels: Tensor
    teacher: ModelAnswer


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
    models: Sequence[nn.Module] = (),
) -> Tensor:
    """The inputs after the steps; `moves` is 0 where an input must stay as it is (special tokens), 1 elsewhere.

    `models` are those that the loss asks.
    """
    inputs = start.detach().clone()

    def step() -> None:
        leaf = inputs.detach().requires_grad_()
        with torch.enable_grad():
            total = loss(leaf, labels).sum()
        inputs.sub_(how.rate * moves * torch.autograd.grad(total, leaf)[0])

    repeated = Repeated(step, inputs.device, *models)
    with short_products(inputs.device):
        for number in range(how.steps):
            watch(number, inputs)
            repeated()
    watch(how.steps, inputs)
    return inputs


@dataclass(frozen=True)
class Sampler:
    """Pseudo-samples of teachers for one student: a batch of every kind, each from a fresh start."""

    student: nn.Module
    read: Reader
    kinds: Sequence[Kind]
    how: Sampling
    draw: Callable[[], tuple[Tensor, Tensor]]
    """Inputs to start from, and where they may move (as `descend` wants it)."""
    random: torch.Generator
    tell: Callable[[str, Mapping[str, float]], None]
    """Hears of a few points of every descent."""

    def __call__(self, teacher: nn.Module, label_counts: Tensor) -> Iterator[Pseudo]:
        """theta_rd, theta_tr and theta_ad; their labels are distributed as the teacher's own rows."""
        self.student.eval()
        teacher.eval()
        for kind in self.kinds:
            inputs, moves = self.draw()
            labels = torch.multinomial(label_counts, len(inputs), replacement=True, generator=self.random)
            labels = labels.to(inputs.device)
            if kind != "random":
                how = self.how if kind == "adversary" else replace(self.how, strength=0.0)
                loss = sampling_loss(self.read, teacher, self.student, how)
                with input_gradients(teacher, self.student):
                    watch = partial(self._watch, kind, teacher, labels)
                    inputs = descend(loss, inputs, labels, moves, how, watch, [teacher, self.student])
            with torch.no_grad():
                yield Pseudo(inputs, labels, self.read(teacher, inputs, labels))

    @torch.no_grad()
    def _watch(self, kind: Kind, teacher: nn.Module, labels: Tensor, step: int, inputs: Tensor) -> None:
        """How far both models are from the labels on the way (Figure 4a and b)."""
        if step % max(1, self.how.steps // TRACED) == 0:
            both = {"teacher": teacher, "student": self.student}
            losses = {who: float(self.read(own, inputs, labels).cross_entropy().mean()) for who, own in both.items()}
            self.tell(f"{kind} sampling", {"step": float(step), **losses})


class Refinement:
    """A student that learns teachers' answers to pseudo-samples, with one optimiser and one stream of randomness."""

    def __init__(self, student: nn.Module, read: Reader, descent: OptimiserName, rate: float, seed: int) -> None:
        self.student, self.read = student, read
        learnt = [p for p in student.parameters() if p.requires_grad]
        self.optimiser = optimiser(PhaseSettings(optimiser=descent), rate, learnt, fast_of(student).optimiser)
        self.stream = Stream(seed, next(student.parameters()).device)

    def learn(self, batches: Sequence[Pseudo], step_a_batch: bool) -> None:
        """Descend KL(p_k || p_S) (Eq. 8) in one step a batch, or in one on the sum of all."""
        self.student.train()
        with self.stream():
            for number, batch in enumerate(batches, 1):
                loss = batch.teacher.divergence(self.read(self.student, batch.inputs, batch.labels)).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                if step_a_batch or number == len(batches):
                    self.optimiser.step()
                    self.optimiser.zero_grad(set_to_none=True)
