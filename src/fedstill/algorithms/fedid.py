"""FedID: after every step on a public batch, the server tells its teachers whether their labels helped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.random import Generator
from pydantic import Field
from torch import Tensor

from fedstill.algorithms.base import Algorithm, Answers, Federation, NotNegative, Positive
from fedstill.algorithms.feedbacks import FEEDBACKS, LABELS, NOTHING, Ensemble, Feedback, Heard, Lesson, Step
from fedstill.common.errors import FedstillError
from fedstill.data.corpus import Ints
from fedstill.data.examples import Labelled
from fedstill.learning.health import add_gradient_norms, norm_ratio, refuse_divergence
from fedstill.learning.losses import Distillation, distillation
from fedstill.learning.phases import Phase
from fedstill.parties.client import Client
from fedstill.parties.party import Party
from fedstill.parties.server import Server
from fedstill.wire.messages import Done, Message, Scores
from fedstill.wire.replies import Replies

SLOW = 0.1
"""A factor on the clients' rate with which their votes stay what they have learnt."""


@dataclass(frozen=True)
class FedID(Algorithm):
    """Interactive distillation (paper: fedid, Algorithm 1): a conversation over the public set, a batch at a time.

    The server minimises sum_k (n_k/n) CE(f, argmax z^k) (`ensemble: hard`), and tells how much each step helped
    (`feedback`, feedbacks.py). Eq. 11's soft y is sum_k (n_k/n) p^k (`probabilities`) or s(sum_k (n_k/n) z^k)
    (`logits`). `feedback: none` and `transfer: false` are Table 4's ablations. `chunk` is the number of batches in one
    exchange. Weak clients can collapse to one class; ours against it: `rehearsal` adds so many times the cross-entropy
    of a private batch to every step of a client's conversation, `client_rate` is a factor on its rate.
    `reading: released` does as the authors' code: a new optimiser at the full rate for every step, opinions and
    feedback in train mode, public batches that stay the same, and labelled ones that take turns.
    """

    reading: Literal["paper", "released"] = "paper"
    feedback: Literal["loss_diff", "per_client", "exact", "none"] = "loss_diff"
    transfer: bool = True
    strength: NotNegative = 1.0
    ensemble: Ensemble = "hard"
    client_loss: Distillation = "hard"
    client_rate: Positive = 1.0
    rehearsal: NotNegative = 0.0
    chunk: Annotated[int, Field(ge=1)] = 1

    needs: ClassVar[frozenset[str]] = frozenset({"public", "labelled"})
    messages: ClassVar[tuple[type[Message], ...]] = (Scores, Lesson, Done)
    paper: ClassVar[str] = "FedID (Ma 2023)"
    cost: ClassVar[str] = "NC(K+1) a public pass"

    def __post_init__(self) -> None:
        if type(self.teaching) is Feedback and not self.transfer:
            raise FedstillError("without feedback and without transfer clients learn nothing: leave one of them on.")
        chosen = (self.ensemble, self.client_loss, self.chunk, self.feedback)
        if self.is_released and chosen not in [("hard", "hard", 1, known) for known in ("loss_diff", "none")]:
            raise FedstillError(
                "reading: released has `ensemble: hard`, `client_loss: hard`, `chunk: 1`, and `feedback: loss_diff` or "
                "`none`: leave these options out."
            )

    @property
    def follows_own_votes(self) -> bool:
        return self.transfer and self.client_loss == "hard" and not self.rehearsal and self.client_rate > SLOW

    @property
    def is_released(self) -> bool:
        return self.reading == "released"

    @cached_property
    def teaching(self) -> Feedback:
        return FEEDBACKS[self.feedback](self.ensemble)  # how feedback is measured, sent and used

    def round(self, fed: Federation, answer: Answers) -> None:
        me, settings, public = fed.server, fed.server.spec.distill, len(fed.server.data.public)
        if public < settings.batch:
            me.notes.append(f"the public set ({public} rows) is smaller than a batch ({settings.batch}).")
        steps = settings.epochs * math.ceil(public / settings.batch)
        random = me.generator("conversation")
        judges = self.judges(random, len(me.labelled_rows()), settings.batch)
        ups: Replies[Any] = fed.call("practise")
        lesson = Lesson(settings.batch, steps, int(ups.sizes.sum()), NOTHING)
        for rows in self._exchanges(random, public, settings.epochs, settings.batch):
            # Learning from one batch and predicting the next are one call: half as many as the paper's two per batch.
            # A client that does not answer is left out until the next round.
            ups = fed.call("converse", replace(lesson, rows=rows.int()), clients=list(ups))
            lesson = self.teach(me, lesson, rows, ups, judges)
        fed.call("converse", lesson, clients=list(ups))

    def _exchanges(self, random: Generator, public: int, epochs: int, batch: int) -> Iterator[Tensor]:
        """Public rows, a chunk of batches at a time, in a new order every epoch; as released, always the same."""
        many = math.ceil(public / batch)
        for _ in range(epochs):
            if self.is_released:
                yield from (torch.arange(number, public, many) for number in range(many))
            else:
                yield from torch.split(torch.from_numpy(random.permutation(public)), self.chunk * batch)

    def judges(self, random: Generator, labelled: int, batch: int) -> Iterator[Ints]:
        """The labelled rows for each step: drawn for each; as released, all in turn, in a new order every pass."""
        while True:
            if self.is_released:
                yield from np.split(random.permutation(labelled), range(batch, labelled, batch))
            else:
                yield random.choice(labelled, min(batch, labelled), replace=False)

    def _phase(self, me: Party, steps: int, rate: float = 1.0) -> Phase:
        """The conversation's phase, opened when first asked for, at so many times the party's rate."""
        changes: dict[str, object] = {"restart": "batch"} if self.is_released else {}
        if rate != 1:
            changes["rate_factor"] = rate * me.spec.distill.rate_factor
        return me.phase("converse", steps, me.spec.distill.model_copy(update=changes) if changes else None)

    def teach(self, me: Server, last: Lesson, rows: Tensor, ups: Replies[Scores], judges: Iterator[Ints]) -> Lesson:
        """Take a step on the ensemble of every batch of the exchange; the lesson tells how much each helped."""
        said, sizes, shares = ups.column("logits"), ups.sizes, ups.shares
        parts = LABELS[self.ensemble](said)
        y = ups.blended(parts, shares, "logits" if self.ensemble == "logits" else "probabilities")  # Eq. 10
        y = y.softmax(-1) if self.ensemble == "logits" else y
        labelled, phase, worth = me.labelled_rows(), self._phase(me, last.steps), []
        for batch in _batches(len(rows), last.batch):
            judge = labelled.pick(next(judges))
            step = Step(phase, rows[batch], y[batch], parts[:, batch], shares, judge, self.is_released)
            worth.append(self.teaching.measure(step))  # Eqs. 11 and 12
        me.tell("converse", me.spec.distill.epochs, phase.taken, phase.steps, math.nan)
        refuse_divergence(me.name, torch.cat([value.flatten() for value in worth]))
        ensemble = ups.blended(said, shares) if self.ensemble != "probabilities" else y.clamp(min=1e-30).log()
        return replace(last, total=int(sizes.sum()), ensemble=ensemble, **self.teaching.told(worth, ups))

    def practise(self, me: Client, nothing: None) -> Done:
        me.train()  # Eq. 4
        me.evaluate("trained")
        return Done()

    def converse(self, me: Client, lesson: Lesson) -> Scores | Done:
        """Learn from the lesson on the last opinions, then give the next opinions."""
        if lesson.ensemble is not None:
            self.learn(me, lesson)
        if not len(lesson.rows):
            me.memory.arrays.clear()
            if ratio := norm_ratio(me.memory.numbers, "feedback", "transfer"):
                me.observe("gradient norms", ratio)
            me.evaluate("distilled")
            return Done()
        asked = me.data.public.pick(lesson.rows.numpy())
        logits = (
            self._phase(me, lesson.steps, self.client_rate).spoken(asked) if self.is_released else me.predict(asked)
        )  # Eq. 9
        refuse_divergence(me.name, logits)
        me.memory.arrays |= {"asked": lesson.rows.long(), "said": logits}
        return Scores(logits)

    def learn(self, me: Client, lesson: Lesson) -> None:
        """Eq. 15, one step per batch."""
        asked, said = me.memory.arrays["asked"], me.memory.arrays["said"]
        phase = self._phase(me, lesson.steps, self.client_rate)
        for number, rows in enumerate(_batches(len(asked), lesson.batch)):
            heard = Heard(me.name, me.size / lesson.total, lesson, number, rows, said[rows])
            own = self._rehearsed(me, phase) if self.rehearsal else None
            phase.step(asked[rows], partial(self.client_step, me, heard, own=own), own)

    def client_step(
        self, me: Client, heard: Heard, logits: Tensor, rehearsed: Tensor | None = None, own: Labelled | None = None
    ) -> Tensor:
        """What a client minimises at a step: Eq. 15, and the loss of a private batch if it rehearses."""
        spoken = self._spoken(me, heard, logits)
        if own is None or rehearsed is None:
            return spoken
        return spoken + self.rehearsal * me.label_loss()(rehearsed, own.labels.to(rehearsed.device)).mean()

    def _spoken(self, me: Client, heard: Heard, logits: Tensor) -> Tensor:
        """Towards the ensemble (Eq. 13), and away from or towards its own labels as the feedback says (Eq. 14)."""
        transfer = distillation(self.client_loss)(logits, heard.ensemble.to(logits)).mean()
        if self.feedback == "none":
            return transfer
        feedback = self.strength * self.teaching.loss(heard, logits)
        phase = me.phase("converse", heard.lesson.steps)
        add_gradient_norms(me.memory.numbers, phase, transfer=transfer, feedback=feedback)
        return transfer + feedback if self.transfer else feedback

    def _rehearsed(self, me: Client, phase: Phase) -> Labelled:
        """The next batch of the client's own rows, in a new random order every pass over them."""
        own, size = me.training_rows(), me.spec.train.batch
        passed, number = divmod(phase.taken, math.ceil(len(own) / size))
        order = me.generator(f"rehearsal {passed}").permutation(len(own))
        return own.pick(order[number * size : (number + 1) * size])

    def leaks(self) -> str | None:
        return "reads private rows for `rehearsal`" if self.rehearsal else None

    @property
    def title(self) -> str:
        """Says whether clients rehearse, and which reading it is."""
        share = "" if self.rehearsal == 1 else f" {self.rehearsal:g}"
        rehearsing = f" w/ rehearsal{share}" if self.rehearsal else ""
        is_theirs = self.rehearsal == 0 and self.client_rate == self.strength == 1
        reading = (" as released" if is_theirs else " (released)") if self.is_released else ""
        return f"FedID{reading}{rehearsing}"


def _batches(rows: int, size: int) -> Iterator[slice]:
    """The positions of each batch of an exchange about so many rows."""
    return (slice(start, start + size) for start in range(0, rows, size))
