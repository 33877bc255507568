"""Robust means: combine the opinions on each sample so that a minority of dishonest clients has little influence.

Opinions are probabilities [K, N, C]; the mean is one distribution per sample, [N, C]. Everything is vectorised over
samples and computed in float64 on sorted values, so that the order of the clients does not even change the rounding.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from fedstill.common.errors import FedstillError

RobustMean = Literal["filter", "median", "trimmed"]

EXCESS = 2.0
"""The largest variance, as a multiple of the honest one, that is not filtered. Measured for K = 5: a fifth of the
clients that stays below it moves the mean by about half an honest standard deviation; if all clients are honest, the
opinions that are dropped nevertheless move it by a sixth."""
NORMAL = 1.4826
"""Turns the median distance from the median into the standard deviation, for a normal distribution."""
DUST = 1e-9
"""Differences of weights up to this are rounding errors."""
DEVIATIONS = 2.0
"""How many standard deviations of a correlation by chance a client must be off."""
COPY = 0.999
"""Opinions with a higher correlation are copies: models that were trained apart never agree so closely."""
ROUNDING = 1e-12
"""Variances up to this count as zero: standard deviations of a millionth."""


def robust_mean(kind: RobustMean, opinions: Tensor, share: float) -> Tensor:
    """The mean of this kind; `share` is for `trimmed` and `filter`."""
    if kind == "median":
        return median(opinions)
    return trimmed(opinions, share) if kind == "trimmed" else filtered(opinions, share)


def median(opinions: Tensor) -> Tensor:
    """The median of each class, normalised; robust while fewer than half of the clients are dishonest."""
    return _middle(opinions, (len(opinions) - 1) // 2)


def trimmed(opinions: Tensor, share: float) -> Tensor:
    """The mean of each class without this share of the clients at each end, normalised."""
    return _middle(opinions, most(share, len(opinions)))


def filtered(opinions: Tensor, share: float) -> Tensor:
    """Spectral filtering (Diakonikolas 2017, one point at a time): the mean without at most this share of the clients.

    For each sample, in the direction of largest variance: while the variance is larger than honest opinions would have
    (estimated by the median distance from the median), the opinion farthest from the median is dropped.
    """
    points = _ordered(_probabilities(opinions).transpose(0, 1))
    kept = torch.ones(points.shape[:2], dtype=torch.bool)
    for _ in range(most(share, len(opinions))):
        # Once a sample needs no more filtering, further iterations do not change it.
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


def weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """The value with half of the weight on either side, over clients [K, ...]; the mean of two where both are."""
    ordered, _, above = _by_weight(values, weights)
    low, high = (above < 0.5 - DUST).sum(0, keepdim=True), (above <= 0.5 + DUST).sum(0, keepdim=True)
    last = len(values) - 1
    return (ordered.gather(0, low.clamp(max=last)) + ordered.gather(0, high.clamp(max=last)))[0] / 2


def weighted_trimmed(values: Tensor, weights: Tensor, share: float) -> Tensor:
    """The weighted mean over clients [K, ...] without this share of the weight at each end."""
    ordered, below, above = _by_weight(values, weights)
    kept = (above.clamp(max=1 - share) - below.clamp(min=share)).clamp(min=0)
    kept = torch.where(kept > DUST, kept, 0.0)  # a rounding error times a huge value would be felt
    return (kept * ordered).sum(0) / kept.sum(0)


def _by_weight(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The values in ascending order, and the share of the weight below each, without and with its own."""
    order = values.argsort(dim=0, stable=True)
    own = weights.double().expand_as(values).gather(0, order)
    above = (own / own.sum(0)).cumsum(0)
    return values.gather(0, order), above - own / own.sum(0), above


def capped(weights: Tensor, most: float) -> Tensor:
    """Weights [K, ...] of which none is above `most`; what is above goes to the others, in proportion to theirs."""
    most, result = max(most, 1 / len(weights)), weights
    over = found = result > most + DUST
    while bool(found.any()):
        over = over | found
        others = weights.where(~over, 0.0)
        total, many = others.sum(0), (~over).double().sum(0).clamp(min=1)
        # Others that weigh nothing at all, as beside a loss of minus infinity, share alike.
        shares = torch.where(total > 1e-200, others / total.clamp(min=1e-200), 1.0 / many)
        spread = torch.where(over, most, (1 - most * over.double().sum(0)).clamp(min=0) * shares)
        result = torch.where(over.any(0), spread, result)
        found = result > most + DUST
    return result


def agreement(opinions: Tensor, correlations: Tensor, share: float) -> Tensor:
    """How far each client's agreement with the majority is above what is needed, [K]; the unit is the standard
    deviation of a correlation by chance.

    Two clients agree as their probabilities correlate over samples, each class around its own mean, so that a thousand
    samples tell a weak model from a liar. Of K clients more than half are honest, so every honest one has K // 2
    others that agree with it: the majority are those whose K // 2-th largest correlation is large enough. What a
    client says is then compared with all of them: its mean correlation needs to be `share` of their median.
    """
    clients, samples, classes = opinions.shape
    if clients < 3:
        return torch.zeros(clients, dtype=torch.float64)
    deviation = 1 / math.sqrt(samples * max(classes - 1, 1))
    itself = torch.eye(clients, dtype=torch.bool)
    agrees = correlations.masked_fill(itself, -torch.inf).sort(1, descending=True).values[:, clients // 2 - 1]
    median = agrees.sort(descending=True).values[: clients // 2 + 1].median()
    if median <= DEVIATIONS * deviation:
        return torch.zeros(clients, dtype=torch.float64)  # nobody agrees with anybody: there is no majority yet
    for _ in range(clients):
        majority = agrees >= share * median - DEVIATIONS * deviation
        others = majority & ~itself
        agrees = correlations.where(others, 0.0).sum(1) / others.sum(1).clamp(min=1)
        median = agrees[majority].median()
        if bool((majority == (agrees >= share * median - DEVIATIONS * deviation)).all()):
            break
    return (agrees - share * median) / deviation


def copies(opinions: Tensor, correlations: Tensor) -> Tensor:
    """How many clients say the same as each; 1 where honest ones may, too: the majority, and votes of 0 or 1."""
    found = (correlations > COPY).sum(1).clamp(min=1)
    if int(found.max()) == 1:
        return found
    are_votes = (opinions.amax(-1) > COPY).all(1)
    return torch.where(are_votes | (2 * found > len(opinions)), 1, found)


def correlations_of(opinions: Tensor) -> Tensor:
    """Of every two clients, [K, K]."""
    values = opinions.double()
    centred = (values - values.mean(1, keepdim=True)).flatten(1)
    unit = centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-300)
    return torch.as_tensor(unit @ unit.T)


def most(share: float, clients: int) -> int:
    """This share of the clients as a number, rounded down; 0.29 of 100 is 29, despite floating-point errors."""
    return math.floor(share * clients + 1e-9)


def _middle(opinions: Tensor, cut: int) -> Tensor:
    """The mean of each class without the `cut` smallest and largest values, normalised."""
    clients = len(opinions)
    if 2 * cut >= clients:
        raise FedstillError(f"trimming {cut} of {clients} opinions at each end leaves none: choose `share` below 0.5.")
    return _distribution(_probabilities(opinions).sort(0).values[cut : clients - cut].mean(0)).to(opinions.dtype)


def _probabilities(opinions: Tensor) -> Tensor:
    """The opinions clamped to [0, 1], so that garbage can neither overflow nor weigh more than a full vote."""
    return opinions.double().clamp(0.0, 1.0)


def _distribution(values: Tensor) -> Tensor:
    """The values divided by their sum; uniform where all are zero."""
    total = values.sum(-1, keepdim=True)
    return torch.where(total > 0, values / total, 1.0 / values.shape[-1])


def _ordered(points: Tensor) -> Tensor:
    """The points [N, K, C] of each sample in lexicographic order, so that ties do not depend on the clients' order."""
    for column in reversed(range(points.shape[-1])):
        order = points[..., column].argsort(dim=1, stable=True)
        points = points.gather(1, order[..., None].expand_as(points))
    return points


def _mean(points: Tensor, kept: Tensor) -> Tensor:
    """The mean of the kept points, [N, C]."""
    return (points * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)


def _masked_median(values: Tensor, kept: Tensor) -> Tensor:
    """The median of the kept values [N, K], as [N, 1]."""
    ordered = values.where(kept, torch.inf).sort(1).values
    count = kept.sum(1, keepdim=True)
    return (ordered.gather(1, (count - 1) // 2) + ordered.gather(1, count // 2)) / 2
