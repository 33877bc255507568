"""MutualKD: a private teacher and a shared student teach each other, and the student's update is sent at low rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedstill.algorithms.averaging import Averaging, Limit
from fedstill.algorithms.base import Algorithm, Answers, Federation, Role
from fedstill.common.errors import FedstillError
from fedstill.learning.mutual import Learner, learn_mutually, shows_layers
from fedstill.learning.phases import class_weights
from fedstill.models import ModelSpec
from fedstill.parties.client import Client
from fedstill.parties.party import Party
from fedstill.wire.codecs import Codecs
from fedstill.wire.codecs.low_rank import LowRank
from fedstill.wire.messages import Done, Hello, Message, parameters
from fedstill.wire.replies import Weights


@dataclass(frozen=True)
class Student(Message):
    """The shared student: its change in a round, which a codec shrinks; or all of it, unchanged."""

    update: Mapping[str, Tensor] | None = parameters(optional=True)
    whole: Mapping[str, Tensor] | None = parameters(optional=True, coded=False)


@dataclass(frozen=True)
class MutualKD(Averaging, Algorithm):
    """FedKD of Wu 2022: L_t = CE_t + [KL(p_s || p_t) + hidden + attention]/(CE_t + CE_s), and L_s likewise.

    The teacher (`teacher: MODEL`, else of the client's own architecture) stays with its client. Our readings: the other
    model's outputs and the denominator are constants; states and attentions are compared without a learnt projection,
    so both models need the same width and heads; they are left out, with a note, if a model shows none. Updates are
    sent by the codec `low_rank` (`wire: {parameters: fp32}`: raw). Server and clients apply the mean as it was decoded,
    so all hold the same student; a client that missed a round gets the whole student instead of the update.
    """

    weights: Weights = "uniform"
    teacher: str | None = None

    needs: ClassVar[frozenset[str]] = frozenset({"parameters"})
    messages: ClassVar[tuple[type[Message], ...]] = (Student, Limit, Done)
    codecs: ClassVar[Codecs] = Codecs(parameters=LowRank())
    paper: ClassVar[str] = "FedKD (Wu 2022)"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "(K+1) sum r(m+n+1)"

    def hello(self, me: Client, nothing: None) -> Hello:
        self._teacher(me)  # a teacher that cannot be built is refused before anybody trains
        return super().hello(me, nothing)

    def start(self, fed: Federation) -> Student:
        return Student(whole=fed.server.parameters())

    def leaks(self) -> str | None:
        return "trains two models on private rows"

    def digest(self, me: Client, answer: Student) -> None:
        theta = changed(me.memory.mappings["theta"], answer.update) if answer.update else dict(answer.whole or {})
        me.memory.mappings["theta"] = theta  # the next update is relative to this, not to what training makes of it
        me.set_parameters(theta)

    def opine(self, me: Client) -> Student:
        self.learn(me)
        return Student(update=difference(me.parameters(), me.memory.mappings["theta"]))

    def learn(self, me: Client) -> None:
        """One phase in which teacher and student see the same batches."""
        teacher = self._teacher(me)
        if not _show_layers(me, teacher) and not me.memory.numbers.setdefault("noted", 0.0):
            me.memory.numbers["noted"] = 1.0
            me.notes.append("teacher or student shows no hidden states: they learn from each other's logits only.")
        data, settings = self.rows(me), me.spec.train
        weights = class_weights(data.labels, len(me.model.labels)) if settings.class_weights == "balanced" else None
        theirs, own = (Learner(p.new_phase("train", data, settings), p.label_loss()) for p in (teacher, me))

        def watch(done: int, steps: int, loss: float) -> None:
            me.tell("train", settings.epochs, done, steps, loss)

        try:
            losses = learn_mutually(theirs, own, data.labels, weights, watch)
        except FedstillError as error:
            raise FedstillError(f"{me.name}, train in round {me.round}: {error}") from error
        me.observe("mutual", {"teacher_loss": losses[-1][0], "student_loss": losses[-1][1]})

    def reads(self) -> frozenset[str]:
        return frozenset({"Student.update"})

    def _teacher(self, me: Client) -> Party:
        teacher = me.extra("teacher", None if self.teacher is None else ModelSpec(name=self.teacher))
        _refuse_other_layers(me, teacher)
        return teacher

    def round(self, fed: Federation, answer: Answers) -> Answers:
        self.even_out(fed)
        ups = fed.call("turn", answer)
        update = Student(update=ups.average("update", self.shares(ups)))
        me = fed.server
        me.set_parameters(changed(me.parameters(), fed.as_received(update).update or {}))
        if len(ups) == len(fed.clients):
            return update
        whole = Student(whole=me.parameters())
        return {name: update if name in ups else whole for name in fed.clients}


def difference(after: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What must be added to `before` to get `after`; for integers, the new value."""
    return {name: value - before[name] if value.is_floating_point() else value for name, value in after.items()}


def changed(before: Mapping[str, Tensor], update: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters after an update."""
    return {name: value + update[name] if value.is_floating_point() else update[name] for name, value in before.items()}


def _show_layers(me: Client, teacher: Party) -> bool:
    return shows_layers(me.model.module) and shows_layers(teacher.model.module)


def _refuse_other_layers(me: Client, teacher: Party) -> None:
    """Refuse models that show their layers but differ in width or heads, since layers are compared."""
    if not _show_layers(me, teacher):
        return
    (width, heads), (own_width, own_heads) = (
        (module.config.hidden_size, module.config.num_attention_heads)  # type: ignore[union-attr]
        for module in (teacher.model.module, me.model.module)
    )
    if (width, heads) != (own_width, own_heads):
        raise FedstillError(
            f"{me.name}: the teacher ({teacher.model.spec}) has width {width} and {heads} heads, the student "
            f"({me.model.spec}) {own_width} and {own_heads}: MutualKD compares their layers, so both must be the same."
        )
