"""The batch, rate and weights of every step of a phase on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedstill.learning.fast.anatomy import Anatomy, dissect
from fedstill.learning.fast.gpu.packing import Packed
from fedstill.learning.fast.gpu.stack import loss_key, parameters

if TYPE_CHECKING:
    from fedstill.learning.phases import Phase

Loss = Callable[[Tensor, Tensor], Tensor]


def architecture(module: nn.Module) -> Any:
    """Equal for models that can be stacked."""
    anatomy = dissect(module)
    assert anatomy is not None
    shapes = tuple(tuple(p.shape) for p in parameters(anatomy))
    numbers = (anatomy.heads, anatomy.activation_name, anatomy.dropout, anatomy.attention_dropout, anatomy.norm.eps)
    return type(module), shapes, numbers, tuple(getattr(part, "p", None) for part in anatomy.head)


@dataclass(frozen=True)
class Job:
    """A phase to run, with its targets and its loss."""

    phase: Phase
    targets: Tensor
    loss: Loss
    class_weights: Tensor | None = None

    @property
    def kind(self) -> Any:
        """Equal for jobs that can be run together."""
        settings = self.phase.settings
        rest = (settings.batch, settings.weight_decay, settings.clip, tuple(self.targets.shape[1:]), self.targets.dtype)
        return self.architecture, rest, loss_key(self.loss), self.phase.device

    @property
    def architecture(self) -> Any:
        return architecture(self.phase.model)

    @cached_property
    def anatomy(self) -> Anatomy:
        """The anatomy of the phase's model."""
        found = dissect(self.phase.model)
        assert found is not None
        return found


@dataclass
class Schedule:
    """All steps of one client's phase; the first dimension of every array is the step."""

    rows: npt.NDArray[np.int64]
    """[steps, batch]: the numbers of the examples; 0 for absent ones."""
    weights: npt.NDArray[np.float32]
    """[steps, batch]: the weight of each example in the loss; 0 for absent ones."""
    lengths: npt.NDArray[np.int64]
    """[steps, batch]: the tokens of each text; an absent text is one token of padding."""
    present: npt.NDArray[np.int64]
    """[steps]: how many examples are not absent."""
    epoch: npt.NDArray[np.int64]
    rates: npt.NDArray[np.float64]
    """0 for steps beyond the end of the phase."""

    @classmethod
    def of(cls, job: Job, packed: Packed, like: Schedule | None) -> Schedule:
        """The phase's batches in random order; with `like`, long batches come where that schedule has long ones.

        The order of batches is random either way, so another phase's order of lengths is as good as the phase's own;
        and steps that are stacked then have similar sizes.
        """
        from fedstill.learning.phases import share_of_rate

        phase, lengths = job.phase, packed.lengths
        batch, many = phase.settings.batch, len(packed.lengths)
        each = math.ceil(many / batch)
        steps = each * phase.settings.epochs
        weights = (
            np.ones(many, np.float32) if job.class_weights is None else job.class_weights[job.targets].cpu().numpy()
        )
        found = cls(
            np.zeros((steps, batch), np.int64), np.zeros((steps, batch), np.float32),
            np.ones((steps, batch), np.int64), np.zeros(steps, np.int64),
            np.repeat(np.arange(phase.settings.epochs), each),
            np.array([phase.rate * share_of_rate(phase.settings, step, phase.steps) for step in range(steps)]),
        )  # fmt: skip
        for epoch in range(phase.settings.epochs):
            order = torch.randperm(many, generator=phase.order).numpy()
            batches = [order[start : start + batch] for start in range(0, many, batch)]
            if like is not None:
                batches = _like(batches, lengths, like.tokens[epoch * each :])
            for step, rows in enumerate(batches, epoch * each):
                found.rows[step, : len(rows)] = rows
                found.weights[step, : len(rows)] = weights[rows]
                found.lengths[step, : len(rows)] = lengths[rows]
                found.present[step] = len(rows)
        return found

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """The number of tokens of every step, including absent texts."""
        return np.asarray(self.lengths.sum(1))

    def extend(self, steps: int) -> None:
        """Add steps that change nothing, up to `steps` in all."""
        more = steps - len(self.rows)
        for name, value in (("rows", 0), ("weights", 0), ("lengths", 1), ("present", 0), ("epoch", 0), ("rates", 0)):
            array = getattr(self, name)
            setattr(self, name, np.pad(array, [(0, more)] + [(0, 0)] * (array.ndim - 1), constant_values=value))


def _like(batches: list[Any], lengths: Any, tokens: Any) -> list[Any]:
    """The full batches in an order that puts the n-th longest where the n-th highest of `tokens` is."""
    whole = len(batches) - 1  # the last one may be smaller, and stays where it is
    if len(tokens) < whole:
        return batches
    longest = np.argsort([-lengths[rows].sum() for rows in batches[:whole]], kind="stable")
    places = np.argsort(-np.asarray(tokens[:whole]), kind="stable")
    ordered: list[Any] = [None] * whole
    for place, number in zip(places, longest, strict=True):
        ordered[place] = batches[number]
    return [*ordered, *batches[whole:]]
