"""FedID: the server tells its teachers, after every small step, whether their labels helped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedstill.algorithms.base import Algorithm, Answers, Federation, NotNegative, Positive
from fedstill.algorithms.mhat import one_hot
from fedstill.common.errors import FedstillError
from fedstill.data.examples import Labelled
from fedstill.learning.influence import Moment, differentiable, gradient
from fedstill.learning.losses import Distillation, distillation, hard, probability_ce
from fedstill.learning.phases import Phase
from fedstill.parties.client import Client
from fedstill.parties.party import Party
from fedstill.parties.server import Server
from fedstill.wire.messages import Done, Message, Scores, array, opinions
from fedstill.wire.replies import Replies

NOTHING = torch.empty(0, dtype=torch.int32)
TINY = 1e-30
MEASURE_EVERY = 50
"""Steps from one measurement of a client's gradient norms to the next: each costs two more backward passes."""


@dataclass(frozen=True)
class Lesson(Message):
    """What came of the last opinions, and the public rows that the server asks about next."""

    batch: int
    steps: int
    """Of the whole conversation: the schedule is laid over them."""
    total: int
    """n, the private rows of all who take part."""
    rows: Tensor = array("next")
    ensemble: Tensor | None = opinions("last", "labels", optional=True)
    """Logits of y for the rows asked about last."""
    feedback: Tensor | None = array("batches", optional=True)
    """loss_diff: h of each batch."""
    credits: Mapping[str, Tensor] | None = None
    """per_client: h_k of each batch."""
    gradient: Tensor | None = array("last", "labels", optional=True)
    """exact: of L_val, with respect to y or to the logits of y."""


@dataclass(frozen=True)
class FedID(Algorithm):
    """Interactive distillation (paper: fedid, Algorithm 1): a conversation over the public set, a batch at a time.

    As released: the server minimises sum_k (n_k/n) CE(f, argmax z^k) (`ensemble: hard`), and its h = L_val before -
    after the step reinforces labels that helped (`feedback: loss_diff`). Eq. 11's soft y is sum_k (n_k/n) p^k
    (`probabilities`) or s(sum_k (n_k/n) z^k) (`logits`). `exact` sends the gradient of Eq. 14; `per_client` divides the
    credit by what each client's labels did; both look at Eq. 12 as printed, a plain step with the current rate.
    `feedback: none` and `transfer: false` are Table 4's ablations. With `chunk`, so many batches go in one exchange.
    `client_rate` is a factor on the clients' rates: weak clients run after their own votes, until all say one class.
    """

    feedback: Literal["loss_diff", "per_client", "exact", "none"] = "loss_diff"
    transfer: bool = True
    strength: NotNegative = 1.0
    ensemble: Literal["hard", "probabilities", "logits"] = "hard"
    client_loss: Distillation = "hard"
    client_rate: Positive = 1.0
    chunk: Annotated[int, Field(ge=1)] = 1

    needs: ClassVar[frozenset[str]] = frozenset({"public", "labelled"})
    messages: ClassVar[tuple[type[Message], ...]] = (Scores, Lesson, Done)
    paper: ClassVar[str] = "FedID (Ma 2023)"
    cost: ClassVar[str] = "NC(K+1) a public pass"

    def __post_init__(self) -> None:
        if self.feedback == "exact" and self.ensemble == "hard":
            raise FedstillError(
                "feedback: exact goes with `ensemble: probabilities` or `logits`: a hard vote (argmax) has no gradient."
            )
        if self.feedback == "per_client" and self.ensemble == "logits":
            raise FedstillError(
                "feedback: per_client goes with `ensemble: hard` or `probabilities`, which are sums over clients."
            )
        if self.feedback == "none" and not self.transfer:
            raise FedstillError("without feedback and without transfer clients learn nothing: leave one of them on.")

    def round(self, fed: Federation, answer: Answers) -> None:
        me, settings = fed.server, fed.server.spec.distill
        public = len(me.data.public)
        if public < settings.batch:
            me.notes.append(f"the public set ({public} rows) is smaller than a batch ({settings.batch}).")
        steps = settings.epochs * math.ceil(public / settings.batch)
        random = me.generator("conversation")
        ups: Replies[Any] = fed.call("practise")
        lesson = Lesson(settings.batch, steps, int(ups.sizes.sum()), NOTHING)
        for rows in self._exchanges(random, public, settings.epochs, settings.batch):
            # Learning from one batch and speaking of the next are one call: half as many as the paper's two a batch.
            # Who does not answer has left the conversation until the next round.
            ups = fed.call("converse", replace(lesson, rows=rows.int()), clients=list(ups))
            lesson = self.teach(me, lesson, rows, ups, random)
        fed.call("converse", lesson, clients=list(ups))

    def _exchanges(self, random: np.random.Generator, public: int, epochs: int, batch: int) -> Iterator[Tensor]:
        """Public rows, a chunk of batches at a time, in an order drawn anew every epoch."""
        for _ in range(epochs):
            yield from torch.split(torch.from_numpy(random.permutation(public)), self.chunk * batch)

    # The server

    def teach(
        self, me: Server, plain: Lesson, rows: Tensor, ups: Replies[Scores], random: np.random.Generator
    ) -> Lesson:
        """A step on the ensemble of every batch of the exchange, and what each was worth."""
        own = ups.change("logits", LABELS[self.ensemble])
        y = own.blend("logits", ups.shares)  # Eq. 10
        y = y.softmax(-1) if self.ensemble == "logits" else y
        labelled = me.labelled_rows()
        worth = []
        for batch in torch.split(torch.arange(len(rows)), plain.batch):
            chosen = random.choice(len(labelled), min(plain.batch, len(labelled)), replace=False)
            phase = me.phase("converse", plain.steps)
            worth.append(self._step(phase, rows[batch], y[batch], own.rows("logits", batch), labelled.pick(chosen)))
        me.tell("converse", me.spec.distill.epochs, phase.taken, phase.steps, math.nan)
        _refuse_divergence(me, torch.cat([value.flatten() for value in worth]))
        ensemble = ups.blend("logits", ups.shares) if self.ensemble != "probabilities" else y.clamp(min=TINY).log()
        return replace(
            plain,
            total=int(ups.sizes.sum()),
            ensemble=ensemble,
            feedback=torch.stack(worth) if self.feedback == "loss_diff" else None,
            credits=dict(zip(ups, torch.stack(worth, 1), strict=True)) if self.feedback == "per_client" else None,
            gradient=torch.cat(worth) if self.feedback == "exact" else None,
        )

    def _step(self, phase: Phase, rows: Tensor, y: Tensor, own: Replies[Scores], labelled: Labelled) -> Tensor:
        """One step of the server (Eq. 11), and its feedback: h [], h_k [K], or a gradient [B, C]."""

        def loss(logits: Tensor) -> Tensor:
            return probability_ce(logits, y.to(logits)).mean()  # for votes: sum_k (n_k/n) CE(f, argmax z^k)

        if self.feedback in ("loss_diff", "none"):
            before = phase.loss(labelled) if self.feedback == "loss_diff" else torch.zeros(())
            phase.step(rows, loss)
            return before - phase.loss(labelled) if self.feedback == "loss_diff" else before
        moment = Moment.of(phase)
        with differentiable():
            phase.step(rows, loss)
        v = gradient(phase.model, labelled, phase.device)
        g = moment.rate / len(rows) * moment.influence(rows, v)  # dL_val/dy, through Eq. 12
        if self.feedback == "per_client":
            return -own.shares.to(g) * (own.column("logits").to(g) * g).sum((1, 2))
        return y * (g - (g * y).sum(-1, keepdim=True)) if self.ensemble == "logits" else g

    # A client

    def practise(self, me: Client, nothing: None) -> Done:
        """Eq. 4."""
        me.train()
        me.evaluate("trained")
        return Done()

    def converse(self, me: Client, lesson: Lesson) -> Scores | Done:
        """Learn from what was made of the last opinions, then give the next."""
        if lesson.ensemble is not None:
            self.learn(me, lesson)
        if not len(lesson.rows):
            _report(me)
            me.evaluate("distilled")
            return Done()
        logits = me.predict(me.data.public.pick(lesson.rows.numpy()))  # Eq. 9
        _refuse_divergence(me, logits)
        me.memory.arrays |= {"asked": lesson.rows.long(), "said": logits}
        return Scores(logits)

    def learn(self, me: Client, lesson: Lesson) -> None:
        """Eq. 15, a step a batch."""
        asked, said = me.memory.arrays["asked"], me.memory.arrays["said"]
        rate = self.client_rate * (me.spec.distill.rate or me.model.rate)
        settings = me.spec.distill.model_copy(update={"rate": rate})
        for number, batch in enumerate(torch.split(torch.arange(len(asked)), lesson.batch)):
            phase = me.phase("converse", lesson.steps, settings)
            phase.step(asked[batch], partial(self.client_step, me, phase, lesson, number, batch, said[batch]))

    def client_step(
        self, me: Client, phase: Phase, lesson: Lesson, number: int, batch: Tensor, said: Tensor, logits: Tensor
    ) -> Tensor:
        """Towards the ensemble (Eq. 13), and away from or towards its own labels as the feedback says (Eq. 14)."""
        assert lesson.ensemble is not None
        transfer = distillation(self.client_loss)(logits, lesson.ensemble[batch].to(logits)).mean()
        if self.feedback == "none":
            return transfer
        share = me.size / lesson.total
        if lesson.gradient is not None:
            moved = logits.softmax(-1) if self.ensemble == "probabilities" else logits
            feedback = share * (lesson.gradient[batch].to(logits) * moved).sum()
        else:
            credit = share * lesson.feedback if lesson.feedback is not None else (lesson.credits or {})[me.name]
            feedback = credit[number].to(logits) * hard(logits, said.to(logits)).mean()
        feedback = self.strength * feedback
        if phase.taken % MEASURE_EVERY == 0:
            _measure(me, phase, transfer, feedback)
        return transfer + feedback if self.transfer else feedback


LABELS: dict[str, Callable[[Tensor], Tensor]] = {
    "hard": one_hot,
    "probabilities": lambda z: z.softmax(-1),
    "logits": lambda z: z,
}
"""What of a client's logits goes into the ensemble."""


def _refuse_divergence(me: Party, values: Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise FedstillError(f"{me.name} diverged while it conversed: lower distill.rate, or set distill.clip.")


def _measure(me: Client, phase: Phase, transfer: Tensor, feedback: Tensor) -> None:
    """Add up the norms of the two gradients, so that a feedback too small to matter can be seen in the record."""
    for name, loss in (("transfer norm", transfer), ("feedback norm", feedback)):
        parts = torch.autograd.grad(loss, phase.parameters, retain_graph=True, allow_unused=True)
        norm = torch.stack([part.norm() for part in parts if part is not None]).norm()
        me.memory.numbers[name] = me.memory.numbers.get(name, 0.0) + float(norm)


def _report(me: Client) -> None:
    """The conversation is over: what it remembered goes, the ratio of the norms into the record."""
    for name in ("asked", "said"):
        me.memory.arrays.pop(name, None)
    transfer, feedback = (me.memory.numbers.pop(f"{part} norm", 0.0) for part in ("transfer", "feedback"))
    if transfer > 0:
        me.observe("gradient norms", {"feedback / transfer": feedback / transfer})
