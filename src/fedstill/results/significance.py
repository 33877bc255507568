"""Whether a difference is more than chance: tests over seeds and over test rows."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from fedstill.learning.metrics import Floats, Integers, Measure, resampled, weighted_f1

FEWEST_SEEDS = 3
RESAMPLES = 10_000
COUNTS_AT_ONCE = 4_000_000


class Bootstrap(NamedTuple):
    """A difference between scores, its 95% percentile interval, and a two-sided p."""

    difference: float
    low: float
    high: float
    p: float


class _Block(NamedTuple):
    """Test rows that are resampled together; the result adds up `weights[k]` times the score of `predictions[k]`."""

    labels: Integers
    predictions: Integers
    weights: Floats


def paired_over_seeds(a: Sequence[float], b: Sequence[float]) -> float | None:
    """The two-sided p of a paired t-test, one pair per seed; None for fewer than three, 1 if all pairs are equal."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values cannot be paired")
    if len(a) < FEWEST_SEEDS:
        return None
    if np.array_equal(a, b):
        return 1.0
    with warnings.catch_warnings():
        # If all differences are equal, p is 0 and scipy warns that it may be imprecise.
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(stats.ttest_rel(a, b).pvalue)


def interval_over_seeds(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Student's t interval of the mean, one value per seed; of paired differences, that of the mean difference.

    None for fewer than three values.
    """
    if len(values) < FEWEST_SEEDS:
        return None
    half = stats.t.ppf((1 + level) / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)


def paired_bootstrap(
    labels: Sequence[Integers],
    first: Sequence[Sequence[Integers]],
    second: Sequence[Sequence[Integers]],
    classes: int,
    resamples: int = RESAMPLES,
    seed: int = 0,
    *,
    same_rows: bool = False,
    measure: Measure = weighted_f1,
) -> Bootstrap:
    """The mean over seeds of the first's score minus the second's, both on the same resampled test rows.

    A seed has several prediction vectors if its score is the mean over several models. With `same_rows`, all seeds were
    tested on the same rows in the same order, and are resampled together.
    """
    blocks = _blocks(labels, first, second)
    if same_rows:
        blocks = [_merge(blocks)]
    generator = np.random.default_rng(seed)
    # Rounded, because a tie that is off by the last bit would count as a win in every resample.
    observed = round(sum(_observed(block, classes, measure) for block in blocks), 12)
    each = (_resample(block, classes, measure, resamples, generator) for block in blocks)
    drawn = np.round(sum(each, start=np.zeros(resamples)), 12)
    low, high = np.quantile(drawn, [0.025, 0.975])
    p = 2 * min(np.mean(drawn <= 0), np.mean(drawn >= 0))
    return Bootstrap(observed, float(low), float(high), float(np.clip(p, 1 / resamples, 1.0)))


def interval_over_rows(
    labels: Integers,
    predictions: Integers,
    classes: int,
    measure: Measure = weighted_f1,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """The 95% percentile interval of one model's score, over resampled test rows."""
    block = _Block(labels, predictions[None], np.ones(1))
    low, high = np.quantile(_resample(block, classes, measure, resamples, np.random.default_rng(seed)), [0.025, 0.975])
    return float(low), float(high)


def p_text(value: float) -> str:
    """A p value as text."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _blocks(
    labels: Sequence[Integers], first: Sequence[Sequence[Integers]], second: Sequence[Sequence[Integers]]
) -> list[_Block]:
    if not labels:
        raise ValueError("no seeds to compare")
    share = 1 / len(labels)
    return [
        _Block(
            own,
            np.stack([*ours, *theirs]),
            np.repeat([share / len(ours), -share / len(theirs)], [len(ours), len(theirs)]),
        )
        for own, ours, theirs in zip(labels, first, second, strict=True)
    ]


def _merge(blocks: Sequence[_Block]) -> _Block:
    labels, predictions, weights = zip(*blocks, strict=True)
    if not all(np.array_equal(labels[0], other) for other in labels):
        raise ValueError("same_rows: the labels differ between seeds")
    return _Block(labels[0], np.concatenate(predictions), np.concatenate(weights))


def _observed(block: _Block, classes: int, measure: Measure) -> float:
    once = np.ones((1, len(block.labels)))
    return sum(
        float(weight) * float(resampled(measure, block.labels, predictions, classes, once)[0])
        for weight, predictions in zip(block.weights, block.predictions, strict=True)
    )


def _resample(block: _Block, classes: int, measure: Measure, resamples: int, generator: np.random.Generator) -> Floats:
    # Rows with one label and the same predictions are interchangeable: counting the kinds drawn instead of the rows
    # gives the same distribution from tens of counts a resample, not thousands.
    kinds, times = np.unique(np.vstack([block.labels, block.predictions]), axis=1, return_counts=True)
    rows = len(block.labels)
    chunk = max(1, COUNTS_AT_ONCE // max(len(times), classes**2))
    drawn = np.zeros(resamples)
    for start in range(0, resamples, chunk):
        part = drawn[start : start + chunk]
        counts = generator.multinomial(rows, times / rows, size=len(part)).astype(np.float64)
        for weight, predictions in zip(block.weights, kinds[1:], strict=True):
            part += weight * resampled(measure, kinds[0], predictions, classes, counts)
    return drawn
