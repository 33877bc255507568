"""Learning with noise: every row's gradient is clipped, and their sum is covered by Gaussian noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedstill.common.errors import FedstillError
from fedstill.common.randomness import Noise
from fedstill.common.settings import Settings
from fedstill.data.examples import Labelled
from fedstill.learning.epsilon import Budget
from fedstill.learning.losses import Loss
from fedstill.learning.precision import Precision, autocast, full
from fedstill.learning.predict import forward

Kind = Literal["head", "sgd", "votes", "probabilities"]
MOMENTUM = 0.9
STEPS, RATES = {"head": 20, "sgd": 300}, {"head": 3.0, "sgd": 0.5}


class PrivacySettings(Settings):
    """What a client's messages may tell about any one of its private rows, over a whole run: epsilon and delta.

    `head`: a softmax head on the frozen encoder learns from private rows, and teaches the model on public ones;
    `sgd`: the whole model learns with noise; `votes` and `probabilities`: the noise is on the opinions that leave.
    """

    kind: Kind = "head"
    epsilon: float = Field(3.0, gt=0, allow_inf_nan=False)
    delta: float = Field(1e-5, gt=0, lt=1)
    clip: float = Field(1.0, gt=0, allow_inf_nan=False)
    """The longest gradient of a row; longer ones are shortened."""
    steps: int | None = Field(None, ge=1)
    """Noisy steps of a client in the whole run; for `votes` and `probabilities` the public samples that it may give an
    opinion on, counted every time. Null: 20 for `head`, 300 for `sgd`, one opinion a sample and round."""
    rate: float | None = Field(None, gt=0)
    """The rate of these steps. Null: 3 for `head`, 0.5 for `sgd`."""
    batch: int = Field(64, ge=1)
    """`sgd`: how many rows a step sees on average."""
    dimensions: int = Field(24, ge=1)
    """`head`: the number of public principal components that it sees; noise grows with them."""

    @property
    def is_learning(self) -> bool:
        """Whether the noise is in learning, so that whatever leaves has it already."""
        return self.kind in ("head", "sgd")

    def budget(self, rows: int, releases: int) -> Budget:
        """What a client with so many rows may spend; `releases`: one opinion a public sample and round."""
        steps = self.steps or STEPS.get(self.kind, releases)
        rate = min(1.0, self.batch / rows) if self.kind == "sgd" else 1.0
        return Budget(self.epsilon, self.delta, steps, rate)


@dataclass(frozen=True)
class Descent:
    """Noisy gradient descent: rows clipped to `clip`, a step's sum covered by `deviation`."""

    clip: float
    steps: int
    rate: float
    deviation: float
    noise: Noise

    @classmethod
    def of(cls, settings: PrivacySettings, budget: Budget, steps: int, noise: Noise) -> Descent:
        """So many of the budget's steps; without sampling, another row moves a sum by 2 clip."""
        sensitivity = settings.clip if budget.rate < 1 else 2 * settings.clip
        rate = settings.rate if settings.rate is not None else RATES[settings.kind]
        return cls(settings.clip, steps, rate, budget.noise() * sensitivity, noise)

    def cover(self, total: Tensor) -> Tensor:
        """A sum with its noise."""
        drawn = self.noise.normal(scale=self.deviation, size=tuple(total.shape))
        return total + torch.from_numpy(np.asarray(drawn)).to(total)


Projection = Callable[[Tensor], Tensor]


def public_components(public: Tensor, many: int) -> Projection:
    """From features to their first components by the public rows' covariance, at a public scale, and a constant 1."""
    middle = public.double().mean(0)
    _, _, axes = torch.linalg.svd(public.double() - middle, full_matrices=False)
    kept = axes[:many].T
    scale = ((public.double() - middle) @ kept).norm(dim=1).mean().clamp(min=1e-9)
    return lambda rows: F.pad((rows.double() - middle) @ kept / scale, (0, 1), value=1.0)


def noisy_head(rows: Tensor, labels: Tensor, classes: int, how: Descent) -> Tensor:
    """The weights [C, D] of a softmax head: noisy descent on all rows from 0; the mean of the second half of it."""
    wanted = F.one_hot(labels, classes).to(rows)
    weights, speed, total = (torch.zeros(classes, rows.shape[1], dtype=rows.dtype) for _ in range(3))
    lengths, late = rows.norm(dim=1), how.steps // 2
    for step in range(how.steps):
        errors = (rows @ weights.T).softmax(-1) - wanted
        norms = errors.norm(dim=1) * lengths  # of the gradients: each is the outer product of error and row
        errors = errors * (how.clip / norms.clamp(min=how.clip))[:, None]
        speed = MOMENTUM * speed + how.cover(errors.T @ rows) / len(rows)
        weights = weights - how.rate * speed
        total += weights if step >= late else 0
    return total / (how.steps - late)


def noisy_descent(
    module: nn.Module, data: Labelled, loss: Loss, how: Descent, share: float, precision: Precision
) -> None:
    """DP-SGD on the whole model, with a Poisson sample of that share of the rows at every step.

    One row at a time: slow, but right for every model whose rows do not see each other.
    """
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
        raise FedstillError("privacy: batch norm mixes rows, whose gradients cannot be clipped; choose another model.")
    device = next(module.parameters()).device
    parameters = [p for p in module.parameters() if p.requires_grad]
    labels = data.labels.to(device)
    module.train()
    for _ in range(how.steps):
        sample = np.flatnonzero(how.noise.random(len(data)) < share) if share < 1 else np.arange(len(data))
        totals = [torch.zeros_like(p) for p in parameters]
        for row in torch.from_numpy(sample)[:, None]:
            with autocast(device, precision):
                logits = forward(module, data.batch(row, device, training=True))
            value = loss(full(logits), labels[row.to(device)]).sum()
            slopes = torch.autograd.grad(value, parameters, allow_unused=True)
            add_clipped(totals, slopes, how.clip)
        with torch.no_grad():
            for parameter, total in zip(parameters, totals, strict=True):
                parameter.sub_(how.cover(total), alpha=how.rate / (share * len(data)))


def add_clipped(totals: list[Tensor], slopes: tuple[Tensor | None, ...], clip: float) -> None:
    """Add one row's gradient, shortened to `clip` as a whole, to the sums."""
    known = [slope for slope in slopes if slope is not None]
    factor = clip / torch.stack([slope.norm() for slope in known]).norm().clamp(min=clip)
    for total, slope in zip(totals, slopes, strict=True):
        if slope is not None:
            total.add_(slope * factor)


def noisy_opinions(logits: Tensor, kind: Kind, deviation: float, noise: Noise) -> Tensor:
    """One-hot votes or probabilities with noise; where probabilities came, probabilities again."""
    logits = logits.double()
    are_probabilities = bool((logits >= 0).all()) and bool(((logits.sum(-1) - 1).abs() < 1e-3).all())
    said = logits if are_probabilities else logits.softmax(-1)
    if kind == "votes":
        said = F.one_hot(said.argmax(-1), said.shape[-1]).to(said)
    said = said + torch.from_numpy(np.asarray(noise.normal(scale=deviation, size=tuple(said.shape))))
    if are_probabilities:
        said = said.clamp(min=1e-6)
        said = said / said.sum(-1, keepdim=True)
    return said.float()
