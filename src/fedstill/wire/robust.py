"""Robust means: many opinions on each sample into one that a minority of liars cannot bend.

Opinions are probabilities [K, N, C]; the mean is a distribution a sample [N, C]. Everything is vectorised over samples
and computed in float64 on ordered values, so that the order of the clients changes not even a rounding.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from fedstill.common.errors import FedstillError

RobustMean = Literal["filter", "median", "trimmed"]

EXCESS = 2.0
"""The largest variance, in honest ones, that is left alone: a fifth of the clients, hidden below it, moves the mean by
half an honest standard deviation or so; opinions that go though all are honest, by a sixth (measured, K = 5)."""
NORMAL = 1.4826
"""From the median distance to the standard deviation of a normal distribution."""
ROUNDING = 1e-12
"""Variance that is none: standard deviations of a millionth."""


def robust_mean(kind: RobustMean, opinions: Tensor, share: float) -> Tensor:
    """The mean of that kind; `share` is read by `trimmed` and `filter`."""
    if kind == "median":
        return median(opinions)
    return trimmed(opinions, share) if kind == "trimmed" else filtered(opinions, share)


def median(opinions: Tensor) -> Tensor:
    """The median of each class, made a distribution; it stands while fewer than half of the clients lie."""
    return _middle(opinions, (len(opinions) - 1) // 2)


def trimmed(opinions: Tensor, share: float) -> Tensor:
    """The mean of each class without that share of the clients at each end, made a distribution."""
    return _middle(opinions, most(share, len(opinions)))


def filtered(opinions: Tensor, share: float) -> Tensor:
    """Spectral filtering (Diakonikolas 2017, one point at a time): the mean without at most that share of the clients.

    For each sample: while the largest variance over directions exceeds what honest opinions would show along that
    direction, judged by their median distance from their median, the opinion farthest from the median goes.
    """
    points = _ordered(_probabilities(opinions).transpose(0, 1))
    kept = torch.ones(points.shape[:2], dtype=torch.bool)
    for _ in range(most(share, len(opinions))):
        # A sample that needs no more filtering comes out of further turns as it went in.
        centred = (points - _mean(points, kept)[:, None]) * kept[..., None]
        covariance = centred.mT @ centred / kept.sum(1)[:, None, None]
        variances, directions = torch.linalg.eigh(covariance)
        along = (points @ directions[..., -1:]).squeeze(-1)
        distance = (along - _masked_median(along, kept)).abs()
        honest = (NORMAL * _masked_median(distance, kept)) ** 2
        too_wide = variances[:, -1:] > EXCESS * honest + ROUNDING
        farthest = distance.where(kept, -torch.inf).argmax(1, keepdim=True)
        kept &= ~(too_wide & torch.zeros_like(kept).scatter(1, farthest, True))
    return _distribution(_mean(points, kept)).to(opinions.dtype)


def most(share: float, clients: int) -> int:
    """How many of the clients that share is at most; 0.29 of 100 is 29, whatever floating point says."""
    return math.floor(share * clients + 1e-9)


def _middle(opinions: Tensor, cut: int) -> Tensor:
    """The mean of each class without the `cut` smallest and largest, made a distribution."""
    clients = len(opinions)
    if 2 * cut >= clients:
        raise FedstillError(f"trimming {cut} of {clients} opinions at each end leaves none: choose `share` below 0.5.")
    return _distribution(_probabilities(opinions).sort(0).values[cut : clients - cut].mean(0)).to(opinions.dtype)


def _probabilities(opinions: Tensor) -> Tensor:
    """What is no probability is garbage: cut to [0, 1], it can neither overflow nor weigh more than a vote."""
    return opinions.double().clamp(0.0, 1.0)


def _distribution(values: Tensor) -> Tensor:
    """Divided by their sum; uniform where all is zero."""
    total = values.sum(-1, keepdim=True)
    return torch.where(total > 0, values / total, 1.0 / values.shape[-1])


def _ordered(points: Tensor) -> Tensor:
    """The points [N, K, C] of each sample in lexicographic order: who is who can then decide no tie."""
    for column in reversed(range(points.shape[-1])):
        order = points[..., column].argsort(dim=1, stable=True)
        points = points.gather(1, order[..., None].expand_as(points))
    return points


def _mean(points: Tensor, kept: Tensor) -> Tensor:
    """Of the points that are kept, [N, C]."""
    return (points * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)


def _masked_median(values: Tensor, kept: Tensor) -> Tensor:
    """Of the values [N, K] that are kept, [N, 1]."""
    ordered = values.where(kept, torch.inf).sort(1).values
    count = kept.sum(1, keepdim=True)
    return (ordered.gather(1, (count - 1) // 2) + ordered.gather(1, count // 2)) / 2
