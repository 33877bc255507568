"""FedID's feedbacks: what the server measures at a step, what of it is sent, and what a client adds to its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from fedstill.algorithms.mhat import one_hot
from fedstill.common.errors import FedstillError
from fedstill.data.examples import Labelled
from fedstill.learning.influence import Moment, differentiable, gradient
from fedstill.learning.losses import hard, probability_ce
from fedstill.learning.phases import Phase
from fedstill.wire.messages import MOST_ROWS, BadMessage, Message, array, number, opinions

LARGEST = float(torch.finfo(torch.float32).max)

Ensemble = Literal["hard", "probabilities", "logits"]
LABELS: dict[Ensemble, Callable[[Tensor], Tensor]] = {
    "hard": one_hot,
    "probabilities": lambda z: z.softmax(-1),
    "logits": lambda z: z,
}
"""The form in which a client's logits enter the ensemble."""
NOTHING = torch.empty(0, dtype=torch.int32)
T = TypeVar("T")


@dataclass(frozen=True)
class Lesson(Message):
    """What the server made of the last opinions, and the public rows that it asks about next."""

    batch: int = number(1, MOST_ROWS)
    steps: int = number(1, MOST_ROWS**2)
    """Of the whole conversation, which the learning-rate schedule covers."""
    total: int = number(1, MOST_ROWS**2)
    """n, the private rows of all clients that take part."""
    rows: Tensor = array("next", below="public")
    ensemble: Tensor | None = opinions("last", "labels", optional=True)
    """Logits of y for the rows asked about last."""
    feedback: Tensor | None = array("batches", optional=True, holds="floats", least=-LARGEST, most=LARGEST)
    """loss_diff: h of each batch; of models that diverge it may be anything finite, and the client says what to do."""
    credits: Mapping[str, Tensor] | None = None
    """per_client: h_k of each batch."""
    gradient: Tensor | None = array("last", "labels", optional=True, holds="floats")
    """exact: of L_val, with respect to y or to the logits of y."""


@dataclass(frozen=True)
class Step:
    """One batch at the server: what it learns, from whom, and the labelled rows that judge the step."""

    phase: Phase
    rows: Tensor
    y: Tensor
    parts: Tensor
    """Each client's part of y [K, B, C], which is their weighted mean."""
    shares: Tensor
    """n_k/n of these clients."""
    labelled: Labelled
    train_mode: bool = False
    """Whether the loss on the labelled rows is measured with dropout."""

    def take(self) -> None:
        """Eq. 11; for votes it is sum_k (n_k/n) CE(f, argmax z^k)."""
        self.phase.step(self.rows, lambda logits: probability_ce(logits, self.y.to(logits)).mean())

    def loss(self) -> Tensor:
        """L_val of the server as it is now."""
        return self.phase.loss(self.labelled, self.train_mode)

    def slope(self) -> Tensor:
        """Take the step; returns dL_val/dy [B, C] through Eq. 12 as printed: a plain SGD step with the current rate."""
        moment = Moment.of(self.phase)
        with differentiable():
            self.take()
        v = gradient(self.phase.model, self.labelled, self.phase.device)
        return moment.rate / len(self.rows) * moment.influence(self.rows, v)


@dataclass(frozen=True)
class Heard:
    """One batch at a client: the logits that it sent, and the lesson that followed."""

    client: str
    share: float
    """n_k/n."""
    lesson: Lesson
    number: int
    """Of the batch in the lesson."""
    rows: slice
    """The positions of the batch in the lesson."""
    said: Tensor

    @property
    def ensemble(self) -> Tensor:
        """Logits of y."""
        return _sent(self.lesson.ensemble)[self.rows]


@dataclass(frozen=True)
class Feedback:
    """No feedback (Table 4, "w/o feedback"): the server steps, and clients are not told. The others derive from it."""

    ensemble: Ensemble

    impossible: ClassVar[Mapping[Ensemble, str]] = {}
    """Ensembles that it does not work with, and why."""

    def __post_init__(self) -> None:
        if self.ensemble in self.impossible:
            raise FedstillError(self.impossible[self.ensemble])

    def measure(self, step: Step) -> Tensor:
        """Take the step; returns how much it helped."""
        step.take()
        return torch.zeros(())

    def told(self, worth: list[Tensor], clients: Iterable[str]) -> dict[str, Any]:
        """The fields of a lesson that tell how much every batch helped."""
        return {}

    def loss(self, heard: Heard, logits: Tensor) -> Tensor:
        """What a client adds to its loss (Eq. 14)."""
        return torch.zeros(())


class LossDifference(Feedback):
    """h = L_val before the step - after it, one number for all; labels that helped are reinforced."""

    def measure(self, step: Step) -> Tensor:
        before = step.loss()
        step.take()
        return before - step.loss()

    def told(self, worth: list[Tensor], clients: Iterable[str]) -> dict[str, Any]:
        return {"feedback": torch.stack(worth)}

    def loss(self, heard: Heard, logits: Tensor) -> Tensor:
        h = heard.share * _sent(heard.lesson.feedback)[heard.number]
        return h.to(logits) * hard(logits, heard.said.to(logits)).mean()


class PerClient(Feedback):
    """h_k = -(n_k/n) sum_bc p^k_bc dL_val/dy_bc: the effect of each client's labels."""

    impossible: ClassVar[Mapping[Ensemble, str]] = {
        "logits": "feedback: per_client needs `ensemble: hard` or `probabilities`, which are sums over clients."
    }

    def measure(self, step: Step) -> Tensor:
        slope = step.slope()
        return -step.shares.to(slope) * (step.parts.to(slope) * slope).sum((1, 2))

    def told(self, worth: list[Tensor], clients: Iterable[str]) -> dict[str, Any]:
        return {"credits": dict(zip(clients, torch.stack(worth, 1), strict=True))}

    def loss(self, heard: Heard, logits: Tensor) -> Tensor:
        h = _sent(heard.lesson.credits)[heard.client][heard.number]
        return h.to(logits) * hard(logits, heard.said.to(logits)).mean()


class Exact(Feedback):
    """The gradient of L_val with respect to what the client put into y: p^k, or z^k."""

    impossible: ClassVar[Mapping[Ensemble, str]] = {
        "hard": "feedback: exact needs `ensemble: probabilities` or `logits`: a hard vote (argmax) has no gradient."
    }

    def measure(self, step: Step) -> Tensor:
        slope, y = step.slope(), step.y
        return y * (slope - (slope * y).sum(-1, keepdim=True)) if self.ensemble == "logits" else slope

    def told(self, worth: list[Tensor], clients: Iterable[str]) -> dict[str, Any]:
        return {"gradient": torch.cat(worth)}

    def loss(self, heard: Heard, logits: Tensor) -> Tensor:
        moved = logits.softmax(-1) if self.ensemble == "probabilities" else logits
        return heard.share * (_sent(heard.lesson.gradient)[heard.rows].to(logits) * moved).sum()


FEEDBACKS = {"loss_diff": LossDifference, "per_client": PerClient, "exact": Exact, "none": Feedback}


def _sent(value: T | None) -> T:
    if value is None:
        raise BadMessage("the lesson lacks a field that its feedback needs.")
    return value
