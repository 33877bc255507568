"""Which methods to try, from what users have: public rows, labels, models, clients, bytes and trust."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import get_type_hints

from fedstill import algorithms
from fedstill.algorithms.base import Algorithm
from fedstill.algorithms.local import Local
from fedstill.common.errors import FedstillError
from fedstill.common.events import tell_nobody
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.plan.agreement import owed
from fedstill.plan.caution import cautions
from fedstill.plan.costs import Cost
from fedstill.plan.needs import check_chat, check_needs, same_architecture
from fedstill.plan.plan import Plan
from fedstill.wire.messages import Done, Hello, Message
from fedstill.wire.replies import label_counts

MOST = 3
"""The most methods to advise."""


@dataclass(frozen=True)
class Try:
    """A method, why to try it, and the page that has the evidence."""

    method: str
    why: str
    evidence: str


@dataclass(frozen=True)
class Case:
    """Methods in the order in which to try them where something holds; those that do not fit are passed over."""

    when: str
    tries: tuple[Try, ...]
    is_last: bool = False
    """Whether the cases after it are no advice if nothing of this one fits."""


DEFAULT = "evidence/default.md"
EQUAL, MIXED = "evidence/fedid/table1.md", "evidence/fedid/table2.md"
TASKS = "evidence/feddrs/table1.md"
BASELINES = "docs/baselines.md"
BLENDS = "evidence/blends.md"
DIGITS = "evidence/fedsnd/digits.md"
TEXTS = "evidence/fedsnd/table1-small.md"

CASES = (
    Case(
        "clients may lie",
        (
            Try(
                "AdaFD",
                "the default `blend` leaves out who contradicts most others; more than half must be honest",
                BLENDS,
            ),
            Try("DSFL", "likewise, and all that are not left out count the same", BLENDS),
            Try("Cronus", "its own filter leaves out liars on every sample, up to one client in five", BASELINES),
        ),
        is_last=True,
    ),
    Case(
        "several tasks",
        (
            Try("FedDF", "the average, refined on public rows by all models, was first; `train.heads: task`", TASKS),
            Try("FedAvg", "the plain average, about a point behind; `train.heads: task`", TASKS),
            Try("FedDRS", "the average, refined on made-up samples: as good as FedAvg; `train.heads: task`", TASKS),
            Try("FedAUX", "the average, refined on public rows by who knows the like; `train.heads: task`", TASKS),
        ),
    ),
    Case(
        "images",
        (
            Try("FedAvg", "the plain average; at twice the rate it was as good as FedSND on digits", DIGITS),
            Try("FedSND", "clients distil themselves, and each other on noise", DIGITS),
        ),
    ),
    Case(
        "anything",
        (
            Try("AdaFD", "on text of one task it gained most over working alone, and hurt the fewest clients", DEFAULT),
            Try("DSFL", "the next best there, and simpler: all clients count the same", DEFAULT),
            Try(
                "FedDF",
                "the average, refined on public rows: first of eight with equal models and uneven labels",
                EQUAL,
            ),
            Try("FedAvg", "the plain average, since all models are alike", EQUAL),
            Try("FedED", "since all models are alike: predictions go up, one model comes down", EQUAL),
            Try(
                "MHAT",
                "votes, weighted by rows; a little behind DSFL with pretrained models, far behind with small ones",
                MIXED,
            ),
            Try("FedDRS", "the average, refined on made-up samples, which gained little with several tasks", TASKS),
            Try("FedSND", "clients distil themselves, and each other on noise; behind FedAvg on uneven labels", TEXTS),
            Try("FedOpt", "the average as a step of the server's own optimiser, whose rate must be tuned", BASELINES),
            Try("CFD", "predictions in one bit a class", BASELINES),
            Try("FedKD", "clients speak once, and only the server's model learns", "evidence/adafd/table1.md"),
        ),
    ),
    Case(
        "anything",
        (
            Try("FD", "needs no public rows and no common model; not measured here, so compare with Local", BASELINES),
            Try("FedHe", "likewise, with clients one after the other", BASELINES),
        ),
    ),
)
"""The first case that holds, and of which a method fits, is the advice."""


@dataclass(frozen=True)
class Wishes:
    """What users allow, which no experiment says."""

    bytes: int | None = None
    """The most that may cross in a round."""
    predictions_only: bool = False
    """Whether the clients' parameters must stay where they are."""
    untrusted: bool = False
    """Whether clients may lie."""


@dataclass(frozen=True)
class Situation:
    """What there is: rows, models and parties of an experiment, and the users' wishes."""

    plan: Plan
    server: Server
    clients: Mapping[str, Hello]
    wishes: Wishes = Wishes()

    @classmethod
    def of(cls, plan: Plan, wishes: Wishes) -> Situation:
        """Ask every client of a plan for what it would tell about itself."""
        hellos = {name: Local().hello(plan.make_client(name, tell_nobody), None) for name in plan.clients}
        if len(hellos) < 2:
            raise FedstillError(f"{plan.experiment.name} has one client: there is nobody that it could learn from.")
        return cls(plan, plan.make_server(tell_nobody), hellos, wishes)

    @property
    def facts(self) -> dict[str, bool]:
        """What the cases ask about."""
        return {
            "clients may lie": self.wishes.untrusted,
            "several tasks": len(self.plan.tasks) > 1,
            "images": self.plan.shape is not None,
            "anything": True,
        }

    @cached_property
    def letters(self) -> dict[str, int]:
        """The letters of the methods' cost formulas."""
        return {
            "N": len(self.plan.partition.public),
            "C": len(self.plan.labels),
            "K": max(1, round(self.plan.experiment.participation * len(self.clients))),
            "P": self.server.model.learnt,
        }

    def cost(self, method: Algorithm) -> Cost | None:
        """What a method would send in a round; None if that is known only in a run."""
        return Cost.of(method, self.letters, self.plan.server.distill.epochs)

    def __str__(self) -> str:
        """One line of what was found."""
        parts, named = self.plan.partition, (*self.plan.clients.values(), self.plan.server)
        kinds = {hello.architecture for hello in self.clients.values()} | {self.server.model.architecture}
        models = ", ".join(sorted({str(spec.model) for spec in named}))
        told = all(hello.label_counts is not None for hello in self.clients.values())
        return "; ".join(
            (
                f"{self.plan.experiment.name}: {'text' if self.plan.shape is None else 'images'}, "
                f"{len(self.plan.labels)} labels{f' of {len(self.plan.tasks)} tasks' if self.plan.tasks else ''}",
                f"{len(self.clients)} clients, {self.letters['K']} active in a round",
                f"{_count(len(kinds), 'architecture')} ({models})",
                f"{self.letters['P']:,} parameters at the server",
                f"{_count(len(parts.public), 'public row')}",
                f"{_count(len(parts.labelled), 'labelled row')} at the server",
                f"label counts {'told' if told else 'withheld'}.",
            )
        )


def _count(many: int, what: str) -> str:
    return f"{many:,} {what}{'' if many == 1 else 's'}" if many else f"no {what}s"


@dataclass(frozen=True)
class Advice:
    """Methods to try in order, others that would run, and why the rest would not."""

    tries: Sequence[tuple[Try, Algorithm]]
    others: Sequence[str]
    obstacles: Mapping[str, str]


def advise(found: Situation) -> Advice:
    """The methods of the first case that has some, and what is to be said about all others."""
    tries: list[tuple[Try, Algorithm]] = []
    for case in CASES:
        if found.facts[case.when] and not tries:
            made = [(one, algorithms.make(one.method)) for one in case.tries]
            tries = [(one, method) for one, method in made if obstacle(method, found) is None][:MOST]
            if case.is_last:
                break
    named = {type(method).__name__ for _, method in tries}
    known = {name: cls() for name, cls in sorted(algorithms.known(Algorithm).items())}
    rest = {name: method for name, method in known.items() if name not in named and tells(method)}
    obstacles = {name: obstacle(method, found) for name, method in rest.items()}
    return Advice(
        tries,
        [name for name, reason in obstacles.items() if reason is None],
        {name: reason for name, reason in obstacles.items() if reason is not None},
    )


def obstacle(method: Algorithm, found: Situation) -> str | None:
    """Why a method cannot be run here, or should not; None if it can."""
    parts = found.plan.partition
    how = {
        "public": "set partition.public above 0, or take them from another corpus (`public`)",
        "labelled": "set partition.labelled_public",
    }
    try:
        check_needs(method, len(parts.public), len(parts.labelled), how)
        check_chat(method)
        if "label_counts" in method.requires():
            label_counts(found.clients)
        if "parameters" in method.requires():
            same_architecture(method, found.server, {name: own.architecture for name, own in found.clients.items()})
        if method.has_server_model:
            method.admit(found.server)
    except FedstillError as error:
        sentence = str(error).partition(". ")[0].removesuffix(".")
        return re.sub(rf"^({re.escape(method.title)}|{type(method).__name__}):? ", "", sentence)
    if found.wishes.predictions_only and "parameters" in tells(method):
        return "sends the clients' parameters"
    for caution in cautions(method, found.clients):
        if method.blends_raw_logits and caution.cause.startswith(method.title):
            return caution.cause.removeprefix(f"{method.title} ")
    return _too_much(method, found)


def _too_much(method: Algorithm, found: Situation) -> str | None:
    if found.wishes.bytes is None:
        return None
    cost = found.cost(method)
    if cost is None:
        return f"sends {method.cost}, and how many bytes that is shows only in a run"
    most = found.wishes.bytes * (found.plan.experiment.rounds if cost.is_once else 1)
    return f"sends {cost}" if cost.bytes > most else None


def tells(method: Algorithm) -> frozenset[str]:
    """What clients send: "opinions", "parameters", or "other" numbers if neither; empty if nothing but greetings."""
    kinds: set[str] = set()
    for verb in (name for name in dir(type(method)) if not name.startswith("_")):
        function = getattr(type(method), verb)
        if callable(function) and _hint(function, "me") is Client:
            for message in owed(method, verb):
                if message not in (Message, Hello, Done):
                    kinds |= {item.metadata.get("kind") or "other" for item in fields(message)}
    return frozenset(kinds & {"opinions", "parameters"} or kinds)


def _hint(method: Callable[..., object], name: str) -> object:
    try:
        return get_type_hints(method).get(name)
    except NameError:  # an annotation that is imported for type checkers only
        return None
