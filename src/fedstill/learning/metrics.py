"""Task metrics, one function each, of confusion matrices only, so that a bootstrap scores all resamples at once."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Confusion = NDArray[np.number]
"""[..., C, C] counts: rows are true classes, columns are predicted classes."""

Measure = Callable[[Confusion], Floats]


@dataclass(frozen=True)
class Metric:
    """How predictions are scored, and what the score is called."""

    measure: Measure
    title: str
    """In front of a number, and over a column of them."""
    caption: str
    """What the numbers of a table are."""
    classes: int | None = None
    """Measured only where there are so many."""
    is_of_classes: bool = True
    """Whether it follows from predicted classes; what a model writes does not, so it has no resamples."""


def weighted_f1(confusion: Confusion) -> Floats:
    """The mean of the classes' F1, weighted by their true rows; a class without rows and predictions has F1 0."""
    true = confusion.sum(-1)
    weighted: Floats = (_f1_by_class(confusion) * true).sum(-1) / true.sum(-1)
    return weighted


def macro_f1(confusion: Confusion) -> Floats:
    """The unweighted mean of the classes' F1, over all classes, also those without rows and predictions."""
    mean: Floats = _f1_by_class(confusion).mean(-1)
    return mean


def accuracy(confusion: Confusion) -> Floats:
    """The share of rows that are predicted right."""
    share: Floats = _hits(confusion).sum(-1) / confusion.sum((-2, -1))
    return share


def matthews(confusion: Confusion) -> Floats:
    """Matthews correlation over any number of classes; 0 where all rows, or all predictions, are of one class."""
    # As floats: from 55,000 rows on, a product of four counts is beyond the integers.
    true, predicted = confusion.sum(-1, dtype=np.float64), confusion.sum(-2, dtype=np.float64)
    rows = true.sum(-1)
    together = _hits(confusion).sum(-1) * rows - (true * predicted).sum(-1)
    apart = (rows**2 - (true**2).sum(-1)) * (rows**2 - (predicted**2).sum(-1))
    correlation: Floats = np.where(apart > 0, together / np.sqrt(np.where(apart > 0, apart, 1.0)), 0.0)
    return correlation


def positive_f1(confusion: Confusion) -> Floats:
    """F1 of class 1 of two classes, which is GLUE's F1; 0 where class 1 has no rows and no predictions."""
    if confusion.shape[-1] != 2:
        raise ValueError(f"F1 of the positive class is for two classes, not for {confusion.shape[-1]}")
    return _f1_by_class(confusion)[..., 1]


METRICS = {
    "f1": Metric(weighted_f1, "F1", "Weighted F1 in points"),
    "macro_f1": Metric(macro_f1, "macro F1", "Macro F1 in points"),
    "accuracy": Metric(accuracy, "accuracy", "Accuracy in points"),
    "matthews": Metric(matthews, "Matthews", "Matthews correlation times 100"),
    "positive_f1": Metric(positive_f1, "F1", "F1 of the positive class in points", classes=2),
    "generated_accuracy": Metric(accuracy, "accuracy", "Share of labels written, in points", is_of_classes=False),
}
"""Everything about a metric; whoever measures, prints or compares reads it here."""


def scores(labels: Integers, predictions: Integers, classes: int) -> dict[str, float]:
    """Every metric for so many classes by name, equal to scikit-learn's over `range(classes)`."""
    _check(labels, predictions, classes)
    counts = np.bincount(labels * classes + predictions, minlength=classes * classes)
    confusion = counts.reshape(classes, classes)
    fitting = {name: own for name, own in METRICS.items() if own.is_of_classes and own.classes in (None, classes)}
    return {name: float(metric.measure(confusion)) for name, metric in fitting.items()}


def resampled(
    measure: Measure, labels: Integers, predictions: Integers, classes: int, counts: NDArray[np.number]
) -> Floats:
    """The metric of every resample; `counts[r, i]` says how often row i was drawn in resample r."""
    _check(labels, predictions, classes)
    cells = labels * classes + predictions
    # Sparse, because each row is counted in only one of the C * C cells.
    indicators = csr_array((np.ones(len(cells)), cells, np.arange(len(cells) + 1)), (len(cells), classes * classes))
    confusions: Floats = np.asarray(counts, dtype=np.float64) @ indicators
    return measure(confusions.reshape(-1, classes, classes))


def _hits(confusion: Confusion) -> Confusion:
    return np.diagonal(confusion, axis1=-2, axis2=-1)


def _f1_by_class(confusion: Confusion) -> Floats:
    # Where the sum is zero the hits are zero too, so dividing by one there gives scikit-learn's zero_division=0.
    f1: Floats = 2.0 * _hits(confusion) / np.maximum(confusion.sum(-1) + confusion.sum(-2), 1)
    return f1


def _check(labels: Integers, predictions: Integers, classes: int) -> None:
    if labels.ndim != 1 or labels.shape != predictions.shape:
        raise ValueError(f"labels {labels.shape} and predictions {predictions.shape} must be vectors of one length")
    if not len(labels):
        raise ValueError("no rows to score")
    lowest, highest = min(labels.min(), predictions.min()), max(labels.max(), predictions.max())
    if lowest < 0 or highest >= classes:
        raise ValueError(f"class {lowest if lowest < 0 else highest} is not one of 0..{classes - 1}")
