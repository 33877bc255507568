"""Mutual learning: two models that learn from the same batches and from each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.common.errors import FedstillError
from fedstill.learning.losses import Loss, kl
from fedstill.learning.phases import WATCH_EVERY, Phase, Watch
from fedstill.learning.precision import autocast, full


@dataclass(frozen=True)
class Outputs:
    """A model's logits for a batch and, where it returns them, its layers' hidden states and attentions."""

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    attentions: tuple[Tensor, ...] = ()

    def held(self) -> Outputs:
        """The same values as constants, without gradients."""
        hidden, attentions = (tuple(x.detach() for x in values) for values in (self.hidden, self.attentions))
        return Outputs(self.logits.detach(), hidden, attentions)


@dataclass(frozen=True)
class Learner:
    """A phase, which has the model, and the loss on labelled rows."""

    phase: Phase
    loss: Loss


def shows_layers(module: nn.Module) -> bool:
    """Whether the model can return hidden states and attentions: Hugging Face's encoders can."""
    return hasattr(module, "set_attn_implementation")


def learn_mutually(
    teacher: Learner, student: Learner, labels: Tensor, weights: Tensor | None = None, watch: Watch | None = None
) -> list[tuple[float, float]]:
    """Run all epochs of both phases on the student's batches; the mean losses (teacher's, student's) of every epoch."""
    phase, means = student.phase, list[tuple[float, float]]()
    labels = labels.to(phase.device)
    weights = None if weights is None else weights.to(phase.device)
    with ExitStack() as stack:
        if compares_layers := all(shows_layers(each.phase.model) for each in (teacher, student)):
            for each in (teacher, student):
                stack.enter_context(_eager(each.phase.model))
        for _ in range(phase.settings.epochs):
            total = torch.zeros(2, dtype=torch.float64, device=phase.device)
            for rows in torch.split(torch.randperm(len(phase.data), generator=phase.order), phase.settings.batch):
                wanted = labels[rows.to(phase.device)]
                total += _step(teacher, student, rows, wanted, weights, compares_layers) * len(rows)
                if watch and phase.taken % WATCH_EVERY == 0:
                    watch(phase.taken, phase.steps, means[-1][1] if means else math.nan)
            means.append(tuple((total / len(phase.data)).tolist()))
            if not all(map(math.isfinite, means[-1])):
                raise FedstillError(
                    f"the losses became {means[-1]} in epoch {len(means)}: lower the rate ({phase.rate:g}), or set "
                    "`clip`."
                )
            if watch:
                watch(phase.taken, phase.steps, means[-1][1])
    return means


def _step(
    teacher: Learner, student: Learner, rows: Tensor, wanted: Tensor, weights: Tensor | None, compares_layers: bool
) -> Tensor:
    with student.phase.stream():
        batch = student.phase.data.batch(rows, student.phase.device, training=True)
    t, s = (_outputs(each.phase, batch, compares_layers) for each in (teacher, student))
    values = mutual_losses(
        t, s, teacher.loss(t.logits, wanted), student.loss(s.logits, wanted), batch.get("attention_mask"),
        None if weights is None else weights[wanted],
    )  # fmt: skip
    for each, value in zip((teacher, student), values, strict=True):
        each.phase.descend(value)
    return torch.stack([value.detach() for value in values]).double()


def mutual_losses(
    teacher: Outputs,
    student: Outputs,
    teacher_ce: Tensor,
    student_ce: Tensor,
    mask: Tensor | None = None,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """CE_t + [KL(p_s || p_t) + layers]/(CE_t + CE_s), and the same with the roles exchanged (FedKD, Wu 2022).

    For each model the other's outputs and the denominator are constants: that is our interpretation.
    """
    own = [_mean(each, weights) for each in (teacher_ce, student_ce)]
    denominator = (own[0] + own[1]).detach().clamp(min=torch.finfo(torch.float32).tiny)
    constants = teacher.held(), student.held()
    values = [
        ce + (kl(me.logits, other.logits).mean() + layer_distance(me, other, number == 0, mask)) / denominator
        for number, (ce, me, other) in enumerate(zip(own, (teacher, student), constants[::-1], strict=True))
    ]
    return values[0], values[1]


def layer_distance(one: Outputs, other: Outputs, one_is_teacher: bool, mask: Tensor | None) -> Tensor:
    """Mean squared distance of hidden states plus that of attentions, averaged over layers, without padding.

    The student's layer i of L_s is compared with the teacher's layer ceil(i L_t / L_s) of L_t.
    """
    teacher, student = (one, other) if one_is_teacher else (other, one)
    total = one.logits.new_zeros(())
    for theirs, ours, distance in (
        (teacher.hidden, student.hidden, _hidden_distance),
        (teacher.attentions, student.attentions, _attention_distance),
    ):
        if theirs and ours:
            chosen = [theirs[math.ceil((i + 1) * len(theirs) / len(ours)) - 1] for i in range(len(ours))]
            real = mask if mask is not None else ours[0].new_ones(ours[0].shape[0], ours[0].shape[-2])
            pairs = zip(chosen, ours, strict=True)
            total = total + torch.stack([distance(a.to(total), b.to(total), real.to(total)) for a, b in pairs]).mean()
    return total


def _hidden_distance(one: Tensor, other: Tensor, mask: Tensor) -> Tensor:
    return ((one - other) ** 2).mean(-1).mul(mask).sum() / mask.sum()


def _attention_distance(one: Tensor, other: Tensor, mask: Tensor) -> Tensor:
    both = mask[:, :, None] * mask[:, None, :]
    return ((one - other) ** 2).mean(1).mul(both).sum() / both.sum()


def _outputs(phase: Phase, batch: dict[str, Tensor], with_layers: bool) -> Outputs:
    phase.model.train()
    more = {"output_hidden_states": True, "output_attentions": True} if with_layers else {}
    with phase.stream(), autocast(phase.device, phase.precision):
        output: Any = phase.model(**batch, **more)
    if isinstance(output, Tensor):
        return Outputs(full(output))
    if not with_layers:
        return Outputs(full(output.logits))
    # The first hidden state is the embedding's output, not a layer's.
    return Outputs(full(output.logits), tuple(output.hidden_states[1:]), tuple(output.attentions or ()))


def _mean(each: Tensor, weights: Tensor | None) -> Tensor:
    return each.mean() if weights is None else (each * weights).sum() / weights.sum()


@contextmanager
def _eager(module: Any) -> Iterator[None]:
    """Inside, the model uses its slower attention, which can return the attention weights."""
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        yield
    finally:
        module.set_attn_implementation(before)
