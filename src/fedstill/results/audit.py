"""The audit: what an honest but curious server could learn about single clients of a finished simulation, by attack."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.common.events import tell_nobody
from fedstill.common.files import write_whole
from fedstill.common.randomness import key
from fedstill.config.experiment import load_begun
from fedstill.data.corpus import Ints
from fedstill.data.examples import Labelled
from fedstill.learning.losses import kl
from fedstill.learning.phases import PhaseSettings
from fedstill.models import ModelSpec
from fedstill.parties.party import Party, PartyData, PartySpec, TrainSettings
from fedstill.plan.plan import Plan
from fedstill.plan.prepare import prepare
from fedstill.results import attacks
from fedstill.results.attacks import Bools, Floats, Membership
from fedstill.results.record import Record
from fedstill.wire.blends import average
from fedstill.wire.messages import Message, Opinion, Parameters
from fedstill.wire.replies import uniform

FILE = "audit.json"
SHADOWS = 16
LESSONS = 20
"""Epochs that a stand-in learns from opinions."""
LESSON = 128
"""Public rows in a step of it."""
MOST_EPOCHS = 30
"""Epochs that a shadow of a client is trained at most."""
MOST_ROWS = 2000
"""Training rows of a client that are tried at most."""

POOLED = "all"

Predict = Callable[[Mapping[str, Tensor], Ints], Tensor]
"""(parameters, rows of the corpus) -> the logits of the client's model with these parameters."""
Watch = Callable[[str, int, int], None]
"""(what, steps done, steps in all)."""


@dataclass(frozen=True)
class Heard:
    """What the server hears of one client, or of all where only their sum is known, and what it knew before."""

    name: str
    message: Message
    train: Ints
    """The rows that were trained on."""
    others: Ints
    """Rows of the same kind that were not."""
    predict: Predict
    before: Mapping[str, Tensor]
    """The parameters that training began from; the server knows them if parameters are exchanged."""
    embedding: str | None
    """The name of the table of tokens among the parameters."""
    tokens: Ints
    """Those in the rows that were trained on."""

    @property
    def opinions(self) -> Tensor | None:
        """Its opinions on the public rows, if it sends them."""
        named = [item.name for item in fields(self.message) if item.metadata.get("shape") == ("public", "labels")]
        return next((value for name in named if (value := getattr(self.message, name)) is not None), None)

    @property
    def parameters(self) -> Mapping[str, Tensor] | None:
        """Its model, if it sends that."""
        named = [item.name for item in fields(self.message) if item.metadata.get("of_model") and item.metadata["whole"]]
        return next((value for name in named if (value := getattr(self.message, name)) is not None), None)

    @property
    def kind(self) -> str:
        """What it sends."""
        return "parameters" if self.parameters is not None else "opinions" if self.opinions is not None else ""


@dataclass
class Findings:
    """What the attacks found."""

    run: str
    method: str
    leaves: str
    """`opinions`, `parameters`, or `the sum of` them."""
    stand_in: str
    shadows: int
    membership: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    label_shares: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def plan_of(run: Path) -> tuple[Plan, Record]:
    """The plan of a finished simulation that can be audited; raises with the reason if it cannot."""
    record = Record(run)
    if not (run / "experiment.yaml").exists():
        raise FedstillError(f"{run} is not a run folder: give one such as runs/<name>/seed-0.")
    if record.summary["engine"] == "flare":
        raise FedstillError(f"{run} is of a federation, whose rows are at its sites: audit its simulation instead.")
    plan = prepare(load_begun(run), run.resolve())[1]
    if "pooled" in plan.experiment.method.requires():
        raise FedstillError(f"{run}: {record.summary['method']} has all rows in one place: nothing is sent.")
    if missing := [name for name in plan.clients if not record.model_folder(name).is_dir()]:
        raise FedstillError(
            f"{run} has no model of {missing[0]}, and without models there is nothing to attack: run it again "
            "(`reproduce` keeps models with --models)."
        )
    if plan.test_fingerprint != record.summary["test_fingerprint"]:
        raise FedstillError(f"{run}: the corpus is not the one that the run used, so nobody knows who trained on what.")
    return plan, record


def audit(
    plan: Plan,
    method: str,
    every: Sequence[Heard],
    stand_in: str | None = None,
    shadows: int = SHADOWS,
    watch: Watch = lambda what, done, steps: None,
) -> Findings:
    """Attack what the server hears of every client."""
    is_masked = plan.experiment.wire.mask is not None
    every = [_together(plan, every)] if is_masked else every
    kind = " and ".join(sorted({one.kind for one in every} - {""}))
    if not kind:
        raise FedstillError(f"{method} sends neither opinions on public rows nor parameters: nothing can be attacked.")
    model = _stand_in(plan, stand_in)
    attacker = Attacker(plan, model, shadows if kind == "opinions" or model.is_small else 0)
    leaves = f"the sum of {kind}" if is_masked else kind
    findings = Findings(str(plan.folder), method, leaves, str(model), attacker.shadows, notes=_notes(every, attacker))
    scores: dict[str, list[tuple[Floats, Floats]]] = {}
    steps = attacker.shadows + 1
    for number, one in enumerate(every):

        def step(done: int, name: str = one.name, before: int = number * steps) -> None:
            watch(name, before + done, len(every) * steps)

        for attack, pair in attacker.membership(one, step).items():
            findings.membership.append(_line(one.name, attack, pair, attacker.seed(one.name)))
            scores.setdefault(attack, []).append(pair)
        findings.tokens.append(_tokens(one))
        findings.label_shares += _label_shares(plan, one)
    for attack, pairs in scores.items() if len(every) > 1 else ():
        pooled = np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])
        findings.membership.append(_line(POOLED, attack, pooled, attacker.seed(POOLED)))
    return findings


def write(findings: Findings, run: Path) -> None:
    """Put the findings into the run's folder."""
    write_whole(run / FILE, (json.dumps(asdict(findings), indent=1) + "\n").encode())


class Attacker:
    """Has the public rows, models of its own, and rows of which it wants to know whether they were trained on."""

    def __init__(self, plan: Plan, model: ModelSpec, shadows: int) -> None:
        self.plan, self.shadows = plan, shadows
        experiment = plan.experiment
        if model != experiment.server:
            plan = prepare(experiment.model_copy(update={"server": model}), plan.folder)[1]
        self.server = plan.make_server(tell_nobody)
        epochs = min(MOST_EPOCHS, experiment.train.epochs * experiment.rounds)
        train = TrainSettings(epochs=epochs, max_length=experiment.train.max_length)
        self.spec = PartySpec(model, train, PhaseSettings(epochs=LESSONS, batch=LESSON))

    def seed(self, name: str) -> int:
        """For everything that is drawn about a client."""
        return key(self.plan.experiment.seed, 0, name, "audit")

    def membership(self, one: Heard, step: Callable[[int], None]) -> dict[str, tuple[Floats, Floats]]:
        """The scores of the client's training rows and of others, by attack."""
        train = one.train
        if len(train) > MOST_ROWS:
            train = np.random.default_rng(self.seed(one.name)).choice(train, MOST_ROWS, replace=False)
        rows, many = np.concatenate([train, one.others]), len(train)
        labels = torch.from_numpy(self.plan.row_labels[rows])
        step(0)
        if one.parameters is not None:
            logits = one.predict(one.parameters, rows)
        else:
            assert one.opinions is not None
            logits = self._taught(f"stand-in for {one.name}", one.opinions).predict(self._labelled(rows))
        found = {"loss threshold": attacks.loss_scores(logits, labels)}
        if self.shadows:
            inside = attacks.halves(self.shadows, len(rows), self.seed(one.name))
            shadows = self._shadows(one, rows, inside, step)
            found["LiRA"] = attacks.lira(attacks.confidence(logits, labels), shadows, inside)
        return {attack: (scores[:many], scores[many:]) for attack, scores in found.items()}

    def _shadows(self, one: Heard, rows: Ints, inside: Bools, step: Callable[[int], None]) -> Floats:
        """The confidences [S, N] of models that were made as the client's was, from the rows that are inside."""
        found = []
        for number, chosen in enumerate(inside):
            step(number + 1)
            name = f"shadow {number} of {one.name}"
            shadow = self._party(name)
            shadow.train(self._labelled(rows[chosen]))
            if one.parameters is None:
                shadow = self._taught(f"stand-in for {name}", shadow.predict())
            data = self._labelled(rows)
            found.append(attacks.confidence(shadow.predict(data), data.labels))
        return np.stack(found)

    def _taught(self, name: str, opinions: Tensor) -> Party:
        """A model that has learnt from opinions on the public rows, which is all that the attacker has."""
        party = self._party(name)
        party.distill(attacks.logits_of(opinions).float(), kl)
        return party

    def _party(self, name: str) -> Party:
        data = PartyData(self.server.data.public)
        return Party(name, self.spec, data, self.server.around, self.server.make_model)

    def _labelled(self, rows: Ints) -> Labelled:
        return Labelled(self.server.data.public.store, rows, torch.from_numpy(self.plan.row_labels[rows]))


def _stand_in(plan: Plan, chosen: str | None) -> ModelSpec:
    """The attacker's model: the server's if it is small or reads images, else a bag of words, unless one is chosen."""
    if chosen is not None:
        model = ModelSpec.model_validate(chosen)
        model.check()
        return model
    server = plan.experiment.server
    return server if server.is_small or server.reads != "text" else ModelSpec(name="bow")


def _together(plan: Plan, every: Sequence[Heard]) -> Heard:
    """What the server hears under masks: the weighted mean."""
    sizes = torch.tensor([len(one.train) for one in every], dtype=torch.float64)
    by_size = plan.experiment.method.masked_weights() == "size"
    weights = sizes / sizes.sum() if by_size else uniform(len(every))
    first = every[0]
    mean: Message = Message()
    if first.parameters is not None:
        mean = Parameters(average({one.name: one.parameters or {} for one in every}, weights))
    elif first.opinions is not None:
        said = torch.stack([one.opinions for one in every if one.opinions is not None])
        mean = Opinion((said.double() * weights[:, None, None]).sum(0).float())
    return replace(
        first,
        name=POOLED,
        message=mean,
        train=np.concatenate([one.train for one in every]),
        others=np.concatenate([one.others for one in every]),
        tokens=np.unique(np.concatenate([one.tokens for one in every])),
    )


def _line(name: str, attack: str, scores: tuple[Floats, Floats], seed: int) -> dict[str, Any]:
    return {"client": name, "attack": attack, **asdict(Membership.of(*scores, seed))}


def _tokens(one: Heard) -> dict[str, Any]:
    """The tokens that a client's parameters name; opinions name none."""
    sent, named = one.parameters, np.empty(0, np.int64)
    table = one.embedding
    if sent is not None and table is not None and table in sent and table in one.before:
        named = attacks.named_tokens(one.before[table], sent[table])
    precision, recall = attacks.found(named, one.tokens)
    counts = {"client": one.name, "named": len(named), "private": len(one.tokens)}
    return {**counts, "precision": precision if len(named) else None, "recall": recall}


def _label_shares(plan: Plan, one: Heard) -> list[dict[str, Any]]:
    """How far the shares of labels that opinions tell are from the true ones, and how far equal shares are."""
    opinions = one.opinions
    if one.parameters is not None and len(plan.partition.public):
        opinions = one.predict(one.parameters, plan.partition.public)
    if opinions is None:
        return []
    true = np.bincount(plan.row_labels[one.train], minlength=len(plan.labels)) / len(one.train)
    error = float(np.abs(attacks.label_shares(opinions) - true).mean())
    return [{"client": one.name, "error": error, "guess": float(np.abs(1 / len(true) - true).mean())}]


def _notes(every: Sequence[Heard], attacker: Attacker) -> list[str]:
    notes = ["Attacked is what clients would send next, from their saved models."]
    if few := min(
        (one for one in every if len(one.others) < attacks.ENOUGH), key=lambda one: len(one.others), default=None
    ):
        notes.append(
            f"{few.name} has {len(few.others)} rows that were not trained on: with fewer than {attacks.ENOUGH:,}, no "
            "false alarm at all is allowed at 0.1%, and the interval of that rate is wide."
        )
    if not attacker.shadows:
        notes.append("LiRA was left out: there are no shadow models, which would be as large as the clients'.")
    return notes
