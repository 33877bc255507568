"""MutualKD: a private teacher and a shared student teach each other, and the student's update travels factored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedstill.algorithms.base import Algorithm, Answers, Federation, Role
from fedstill.common.errors import FedstillError
from fedstill.learning.mutual import Learner, learn_mutually, shows_layers
from fedstill.learning.phases import class_weights
from fedstill.models import ModelSpec
from fedstill.parties.client import Client
from fedstill.parties.party import Party
from fedstill.parties.server import Server
from fedstill.wire.low_rank import compress, expand
from fedstill.wire.messages import Done, Hello, Message
from fedstill.wire.replies import Replies, average, uniform

Energy = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True)
class Student(Message):
    """The shared student: what a round changed of it, factored; or the whole of it."""

    parts: Mapping[str, Tensor]
    is_whole: bool = False
    rounds: int = 0
    """Of the run, for clients: what they keep of their updates rises over them."""


@dataclass(frozen=True)
class MutualKD(Algorithm):
    """FedKD of Wu 2022: L_t = CE_t + [KL(p_s || p_t) + hidden + attention]/(CE_t + CE_s), and L_s likewise.

    The teacher (`teacher: MODEL`, else of the client's own architecture) stays with its client. Our readings: the other
    model's outputs and the denominator are constants; states and attentions are compared without a learnt projection,
    so both need the same width and heads, or are left out with a note where a model shows none. Of every matrix of an
    update the smallest rank travels with more than a share tau of its energy, from `energy_first` in the first round to
    `energy_last` in the last (`svd: false`: raw updates). Everybody applies the mean as it travelled down, so all hold
    the same student; who had no part in a round gets the whole student instead of its update.
    """

    teacher: str | None = None
    svd: bool = True
    energy_first: Energy = 0.95
    energy_last: Energy = 0.98
    weights: Literal["uniform", "size"] = "uniform"

    needs: ClassVar[frozenset[str]] = frozenset({"parameters"})
    messages: ClassVar[tuple[type[Message], ...]] = (Student, Done)
    paper: ClassVar[str] = "FedKD (Wu 2022)"
    role: ClassVar[Role] = "baseline"
    cost: ClassVar[str] = "(K+1) sum r(m+n+1)"

    def hello(self, me: Client, nothing: None) -> Hello:
        self._teacher(me)  # a teacher that cannot be had is told before anybody trains
        return super().hello(me, nothing)

    def start(self, fed: Federation) -> Student:
        return Student(fed.server.parameters(), is_whole=True, rounds=fed.rounds)

    def digest(self, me: Client, answer: Student) -> None:
        theta = dict(answer.parts) if answer.is_whole else changed(me.memory.mappings["theta"], expand(answer.parts))
        me.memory.mappings["theta"] = theta  # the next answer speaks of this one, not of what training makes of it
        me.memory.numbers["rounds"] = answer.rounds
        me.set_parameters(theta)

    def opine(self, me: Client) -> Student:
        self.learn(me)
        update = difference(me.parameters(), me.memory.mappings["theta"])
        return Student(self._pack(update, me.round, int(me.memory.numbers["rounds"])))

    def learn(self, me: Client) -> None:
        """One phase in which teacher and student see the same batches."""
        teacher = self._teacher(me)
        if not _show_layers(me, teacher) and not me.memory.numbers.setdefault("noted", 0.0):
            me.memory.numbers["noted"] = 1.0
            me.notes.append("teacher or student shows no hidden states: they learn from each other's logits only.")
        data, settings = me.training_rows(), me.spec.train
        weights = class_weights(data.labels, len(me.model.labels)) if settings.class_weights == "balanced" else None
        theirs, own = (Learner(p.new_phase("train", data, settings), p.label_loss()) for p in (teacher, me))

        def watch(done: int, steps: int, loss: float) -> None:
            me.tell("train", settings.epochs, done, steps, loss)

        try:
            losses = learn_mutually(theirs, own, data.labels, weights, watch)
        except FedstillError as error:
            raise FedstillError(f"{me.name}, train in round {me.round}: {error}") from error
        me.observe("mutual", {"teacher_loss": losses[-1][0], "student_loss": losses[-1][1]})

    def _teacher(self, me: Client) -> Party:
        teacher = me.extra("teacher", None if self.teacher is None else ModelSpec(name=self.teacher))
        _refuse_other_layers(me, teacher)
        return teacher

    def round(self, fed: Federation, answer: Answers) -> Answers:
        ups = fed.call("turn", answer)
        update = Student(self.merge(fed.server, ups, fed.round, fed.rounds), rounds=fed.rounds)
        if len(ups) == len(fed.clients):
            return update
        whole = Student(fed.server.parameters(), is_whole=True, rounds=fed.rounds)
        return {name: update if name in ups else whole for name in fed.clients}

    def merge(self, me: Server, ups: Replies[Student], round: int, rounds: int) -> dict[str, Tensor]:
        """The mean update as it will travel down; the server applies it as everybody will."""
        updates = {name: expand(up.parts) for name, up in ups.items()}
        mean = average(updates, ups.shares if self.weights == "size" else uniform(len(ups)))
        parts = self._pack(mean, round, rounds)
        me.set_parameters(changed(me.parameters(), expand(parts)))
        return parts

    def _pack(self, update: dict[str, Tensor], round: int, rounds: int) -> dict[str, Tensor]:
        done = (round - 1) / max(1, rounds - 1)
        return (
            compress(update, self.energy_first + (self.energy_last - self.energy_first) * done) if self.svd else update
        )


def difference(after: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What has to be added to come from one to the other; of integers, what they are now."""
    return {name: value - before[name] if value.is_floating_point() else value for name, value in after.items()}


def changed(before: Mapping[str, Tensor], update: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters after an update."""
    return {name: value + update[name] if value.is_floating_point() else update[name] for name, value in before.items()}


def _show_layers(me: Client, teacher: Party) -> bool:
    return shows_layers(me.model.module) and shows_layers(teacher.model.module)


def _refuse_other_layers(me: Client, teacher: Party) -> None:
    """Layers can be compared where both models show them and have the same width."""
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
