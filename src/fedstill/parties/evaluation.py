"""What a party is measured on: rows that are predicted once, splits of these rows, and means over tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedstill.data.corpus import Ints
from fedstill.data.examples import NO_ROWS, Labelled
from fedstill.learning.losses import within_task
from fedstill.learning.metrics import scores
from fedstill.learning.scales import NEARLY_ALL

MANY_CLASSES_TO, FEWEST_ROWS = 0.8, 20
"""A model has fallen into one class if it predicts nearly all of at least so many rows as one class, where no class has
more than the first share of them."""


@dataclass(frozen=True)
class Evaluation:
    """The labelled rows that a party is measured on, and the splits, which are subsets of them."""

    data: Labelled
    splits: Mapping[str, Ints]
    means: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Splits whose scores are the unweighted mean over other splits, such as the tasks."""
    label_tasks: Tensor | None = None
    """The task of each label, if there are several tasks: a row is predicted among the labels of its own task."""

    @property
    def labels(self) -> Ints:
        """The true classes."""
        return self.data.labels.numpy()

    def decide(self, logits: Tensor) -> Ints:
        """The predicted classes."""
        if self.label_tasks is not None:
            logits = within_task(logits, self.label_tasks[torch.from_numpy(self.labels)], self.label_tasks)
        return logits.argmax(-1).numpy()

    def only_class(self, logits: Tensor) -> int | None:
        """The class that nearly all rows are predicted as, where the rows themselves are not nearly all of it."""
        predicted, true = (np.bincount(rows, minlength=logits.shape[1]) for rows in (self.decide(logits), self.labels))
        most = int(predicted.argmax())
        fallen = predicted[most] >= NEARLY_ALL * predicted.sum() and true.max() <= MANY_CLASSES_TO * true.sum()
        return most if fallen and self.label_tasks is None and len(self.labels) >= FEWEST_ROWS else None

    def measure(self, logits: Tensor, more: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, dict[str, Any]]:
        """Every metric by split; `more` has further values for every row, which are averaged."""
        predicted = self.decide(logits)
        measured = {
            split: scores(self.labels[rows], predicted[rows], logits.shape[1])
            | {name: float(values[rows].mean()) for name, values in more.items()}
            | {"rows": len(rows)}
            for split, rows in self.splits.items()
            if len(rows)
        }
        for split, others in self.means.items():
            if known := [measured[other] for other in others if other in measured]:
                means = {name: float(np.mean([values[name] for values in known])) for name in known[0]}
                measured[split] = means | {"rows": sum(int(values["rows"]) for values in known)}
        return measured


NOT_MEASURED = Evaluation(NO_ROWS, {})
