"""Weighted F1, macro F1 and accuracy, from counts alone."""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def scores(labels: Integers, predictions: Integers, classes: int) -> dict[str, float]:
    """Fractions `f1` (weighted), `macro_f1` and `accuracy`, equal to scikit-learn's over `range(classes)`."""
    _check(labels, predictions, classes)
    confusion = np.bincount(labels * classes + predictions, minlength=classes * classes).reshape(classes, classes)
    hits, true, predicted = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
    f1 = _f1(hits, true, predicted)
    return {
        "f1": float(f1 @ true / len(labels)),
        "macro_f1": float(f1.mean()),
        "accuracy": float(hits.sum() / len(labels)),
    }


def resampled_f1(labels: Integers, predictions: Integers, classes: int, counts: NDArray[np.number]) -> Floats:
    """Weighted F1 of every resample; `counts[r, i]` says how often row i was drawn in resample r."""
    _check(labels, predictions, classes)
    every = np.arange(classes)
    is_true, is_predicted = labels[:, None] == every, predictions[:, None] == every
    indicators = np.hstack([is_true & is_predicted, is_true, is_predicted]).astype(np.float64)
    hits, true, predicted = np.split(np.asarray(counts, dtype=np.float64) @ indicators, 3, axis=1)
    weighted: Floats = (_f1(hits, true, predicted) * true).sum(axis=1) / true.sum(axis=1)
    return weighted


def _f1(hits: NDArray[np.number], true: NDArray[np.number], predicted: NDArray[np.number]) -> Floats:
    # hits is zero wherever the sum is, so dividing by one there is scikit-learn's zero_division=0
    f1: Floats = 2.0 * hits / np.maximum(true + predicted, 1)
    return f1


def _check(labels: Integers, predictions: Integers, classes: int) -> None:
    if labels.ndim != 1 or labels.shape != predictions.shape:
        raise ValueError(f"labels {labels.shape} and predictions {predictions.shape} must be vectors of one length")
    if not len(labels):
        raise ValueError("no rows to score")
    lowest, highest = min(labels.min(), predictions.min()), max(labels.max(), predictions.max())
    if lowest < 0 or highest >= classes:
        raise ValueError(f"class {lowest if lowest < 0 else highest} is not one of 0..{classes - 1}")
