"""Attacks on what clients send, and how well they do: who was a training row, which tokens, which shares of labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from torch import Tensor

from fedstill.data.corpus import Ints

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

RESAMPLES = 1000
FALSE_POSITIVES = 0.001
"""The share of rows that were never trained on and may be called training rows."""
ENOUGH = math.ceil(1 / FALSE_POSITIVES)
"""With fewer rows that were not trained on, that share is less than one row."""
MOVED = 1e-4
"""A row of a table has moved if it did by more than this share of the largest move."""


@dataclass(frozen=True)
class Measured:
    """A number and its 95% bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Membership:
    """How well scores tell training rows from others: the area under the curve, and how many at few false alarms."""

    members: int
    others: int
    auc: Measured
    tpr: Measured
    """The share of training rows found where at most FALSE_POSITIVES of the others are called training rows."""

    @classmethod
    def of(cls, members: Floats, others: Floats, seed: int) -> Membership:
        """From the scores of training rows and of others; a larger score says: a training row."""
        random = np.random.default_rng(seed)
        counts = _counts(members, others)
        drawn = [_drawn(count[0], random) for count in counts]
        found = (_measured(measure(*counts), measure(*drawn)) for measure in (auc_of, tpr_of))
        return cls(len(members), len(others), *found)


def auc(members: Floats, others: Floats) -> float:
    """The chance that a training row scores higher than another row; ties count one half."""
    return float(auc_of(*_counts(members, others))[0])


def tpr(members: Floats, others: Floats) -> float:
    """The share of training rows above the threshold that at most FALSE_POSITIVES of the others exceed."""
    return float(tpr_of(*_counts(members, others))[0])


def auc_of(members: Ints, others: Ints) -> Floats:
    """The same from how often [R, V] each of the scores, in ascending order, occurs."""
    below = others.cumsum(1) - others
    pairs = members.sum(1) * others.sum(1)
    return np.asarray((members * (below + others / 2)).sum(1) / pairs)


def tpr_of(members: Ints, others: Ints) -> Floats:
    """The same from how often [R, V] each of the scores, in ascending order, occurs."""
    above = [counts.sum(1, keepdims=True) - counts.cumsum(1) for counts in (members, others)]
    allowed = math.floor(FALSE_POSITIVES * int(others[0].sum()) + 1e-9)
    threshold = (above[1] <= allowed).argmax(1)
    return np.asarray(above[0][np.arange(len(members)), threshold] / members.sum(1))


def _counts(members: Floats, others: Floats) -> tuple[Ints, Ints]:
    """How often each score occurs among the ones and the others, as [1, V]."""
    kinds, number = np.unique(np.concatenate([members, others]), return_inverse=True)
    parts = number[: len(members)], number[len(members) :]
    first, second = (np.bincount(part, minlength=len(kinds))[None] for part in parts)
    return first, second


def _drawn(counts: Ints, random: np.random.Generator) -> Ints:
    """Counts of rows drawn again with replacement, [RESAMPLES, V]."""
    many = int(counts.sum())
    return random.multinomial(many, counts / many, size=RESAMPLES)


def _measured(value: Floats, drawn: Floats) -> Measured:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Measured(float(value[0]), float(low), float(high))


def confidence(logits: Tensor, labels: Tensor) -> Floats:
    """log p/(1 - p) of each row's label: over the rows of one model nearly normal, which a probability is not."""
    own = logits.double().gather(1, labels[:, None]).squeeze(1)
    others = logits.double().scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return (own - others).numpy()


def loss_scores(logits: Tensor, labels: Tensor) -> Floats:
    """The loss threshold: the smaller a row's loss, the more likely it was trained on."""
    return -torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none").numpy()


def halves(shadows: int, rows: int, seed: int) -> Bools:
    """Which rows [S, N] each shadow model is trained on: every row by exactly half of them."""
    order = np.random.default_rng(seed).random((shadows, rows)).argsort(0)
    return order < shadows // 2


def lira(target: Floats, shadows: Floats, inside: Bools) -> Floats:
    """LiRA's score of every row: the log likelihood ratio of the target's confidence, trained on the row or not.

    `shadows` [S, N] are the confidences of models that were trained on the row where `inside` is true. Every row has
    its own two means; the two variances are those of all rows, since a few shadow models cannot give each its own. The
    confidences of every model are first put on one scale: the target may have learnt for longer than shadows do.
    """
    target, shadows = _standard(target), _standard(shadows)
    ratio = np.zeros(len(target))
    for sign, are in ((1, inside), (-1, ~inside)):
        mean = np.where(are, shadows, 0.0).sum(0) / are.sum(0)
        # Each mean was estimated from these values, which takes one degree of freedom a row.
        freedom = max(1, int(are.sum()) - len(target))
        deviation = math.sqrt(float(np.where(are, (shadows - mean) ** 2, 0.0).sum()) / freedom)
        ratio += sign * stats.norm.logpdf(target, mean, max(deviation, 1e-6))
    return ratio


def _standard(values: Floats) -> Floats:
    """With mean 0 and deviation 1 over the rows of every model."""
    spread = values.std(-1, keepdims=True)
    return np.asarray((values - values.mean(-1, keepdims=True)) / np.where(spread > 0, spread, 1.0))


def named_tokens(before: Tensor, after: Tensor) -> Ints:
    """The rows of an embedding table that training has moved: the tokens that occur in what was trained on.

    Weight decay shrinks every row alike, so what all rows have in common is taken off first.
    """
    was, now = before.double(), after.double()
    lengths = was.square().sum(1)
    shrunk = ((now - was) * was).sum(1) / lengths.clamp(min=1e-30)
    common = shrunk[lengths > 0].median() if bool((lengths > 0).any()) else torch.tensor(0.0)
    moved = (now - was - common * was).abs().amax(1)
    return torch.nonzero(moved > MOVED * moved.max().clamp(min=1e-12)).squeeze(1).numpy()


def found(named: Ints, private: Ints) -> tuple[float, float]:
    """Precision and recall of the tokens named; 0 where nothing is named."""
    right = len(np.intersect1d(named, private))
    return right / max(1, len(named)), right / max(1, len(private))


def label_shares(opinions: Tensor) -> Floats:
    """What a client's opinions tell about its labels: the mean probability of each class over the public rows."""
    return logits_of(opinions).softmax(-1).mean(0).numpy()


def logits_of(opinions: Tensor) -> Tensor:
    """Opinions as logits, whatever they hold: some methods send probabilities."""
    values = opinions.double()
    if bool((values >= 0).all()) and bool(((values.sum(-1) - 1).abs() < 1e-2).all()):
        return values.clamp(min=1e-12).log()
    return values
