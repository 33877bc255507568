"""Scales on which the opinions and losses of different models can be compared."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedstill.learning.losses import ce, entropy

NEARLY_ALL = 0.95
"""The share of rows from which on all of them are said to be of one class."""


def unit_spread(logits: Tensor) -> Tensor:
    """Logits with zero mean over the classes and a standard deviation of one over all samples."""
    return centred(logits) / centred(logits).std().clamp(min=1e-6)


def centred(logits: Tensor) -> Tensor:
    """Logits with zero mean over the classes."""
    return logits - logits.mean(-1, keepdim=True)


def label_entropy(counts: Tensor) -> float:
    """The entropy of the labels with these counts, but at least a tenth of the largest possible entropy."""
    own = entropy(counts.double() / counts.sum())
    return float(own.clamp(min=0.1 * math.log(len(counts))))


def fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature, from 0.1 to 20, that gives these labels the smallest cross-entropy."""
    choices = torch.logspace(-1, math.log10(20), 70, dtype=torch.float64)
    losses = torch.stack([ce(logits.double() / choice, labels).mean() for choice in choices])
    return float(choices[losses.argmin()])


def one_class(logits: Tensor) -> int | None:
    """The class that nearly all of these rows are given, if there is such a class."""
    counts = logits.argmax(-1).bincount(minlength=logits.shape[1])
    return int(counts.argmax()) if counts.max() >= NEARLY_ALL * counts.sum() else None
