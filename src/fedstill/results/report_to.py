"""Tells a run's numbers to TensorBoard, Weights & Biases, MLflow or trackio, round by round: whoever is asked for."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from fedstill.common.errors import FedstillError
from fedstill.common.events import Event, Noted, RoundDone, Tell
from fedstill.common.files import write_whole
from fedstill.plan.plan import Plan
from fedstill.results.record import Measurement
from fedstill.results.report import series
from fedstill.results.report.series import MANY, Curves
from fedstill.results.runs import POOLED

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}
"""Target -> the package it needs, which is also the name of our extra."""
IDS = "report_to.json"
"""The file that holds the ids that targets gave the run, so that a resumed run goes on with them."""
KINDS = ("metrics", "ledger", "log")


class Target(Protocol):
    """Somebody who is told numbers; a resumed run tells again those of the rounds that it repeats."""

    def tell(self, round: int, numbers: Mapping[str, float]) -> None:
        """The numbers of a round, by name."""

    def close(self) -> None:
        """No more numbers come."""


def chosen(report_to: Sequence[str] | str) -> list[str]:
    """The targets of an experiment on this machine; an error if one of them is not installed."""
    if report_to == "auto":
        return ["tensorboard"] if find_spec("tensorboard") is not None else []
    if absent := [name for name in report_to if find_spec(PACKAGES[name]) is None]:
        raise FedstillError(
            f'report_to: {absent[0]} is not installed: run `pip install "fedstill[{absent[0]}]"`, or leave it out.'
        )
    return list(report_to)


class Reporter:
    """Listens to a run's events, reads what is new in the record after each round, and tells all targets.

    A round is told when the next one is done, because clients digest its answer only then: every number once, as on
    the page. A target that fails after the beginning is dropped with a note: who only looks must not end a run.
    """

    def __init__(self, plan: Plan, folder: Path, after: int, tell: Tell) -> None:
        self.folder, self.listener, self.told = folder, tell, after - 1
        self.metric, self.clients = plan.metrics[0], sorted(plan.clients)
        self.has_server = plan.experiment.method.has_server_model
        self.read = dict.fromkeys(KINDS, 0)
        self.waiting: dict[int, dict[str, list[Measurement]]] = {}
        """Round -> the lines of each file."""
        self.targets: dict[str, Target] = {}
        for name in chosen(plan.experiment.report_to):
            try:
                self.targets[name] = TARGETS[name](plan, folder, after)
            except Exception as error:
                self.close()
                raise FedstillError(f"report_to: {name} cannot begin ({type(error).__name__}: {error}).") from error

    def __call__(self, event: Event) -> None:
        """Pass an event on."""
        self.listener(event)
        if self.targets and isinstance(event, RoundDone):
            self._tell(before=event.round)

    def finish(self) -> None:
        """Tell what is left."""
        if self.targets:
            self._tell()

    def close(self) -> None:
        """End with all targets."""
        for name, target in list(self.targets.items()):
            self._guarded(name, target.close)
        self.targets.clear()

    def _tell(self, before: int | None = None) -> None:
        for kind in KINDS:
            for line in self._new(kind):
                if line["round"] > self.told:
                    self.waiting.setdefault(line["round"], {kind: [] for kind in KINDS})[kind].append(line)
        for round in sorted(number for number in self.waiting if before is None or number < before):
            found = numbers(self.waiting.pop(round), round, self.metric, self.clients, self.has_server)
            self.told = round
            for name, target in list(self.targets.items()):
                self._guarded(name, partial(target.tell, round, found))

    def _new(self, kind: str) -> list[dict[str, Any]]:
        with (self.folder / f"{kind}.jsonl").open("rb") as file:
            file.seek(self.read[kind])
            whole = file.read().rpartition(b"\n")[0]
        self.read[kind] += len(whole) + bool(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def _guarded(self, name: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            self.targets.pop(name, None)
            self.listener(Noted(f"report_to: {name} is told no more ({type(error).__name__}: {error})."))


def numbers(
    lines: Mapping[str, Sequence[Measurement]], round: int, metric: str, clients: Sequence[str], has_server: bool
) -> dict[str, float]:
    """A round's numbers by name, from the lines that it wrote; of many clients, and of their losses, only means."""
    measured = [line for line in lines["metrics"] if "split" in line and metric in line]
    scores = series.last_stage(
        [line for line in measured if line["split"] == POOLED], metric, lambda line: line["party"]
    )
    domains = series.by_domain(measured, metric, has_server)
    curves: dict[str, Curves] = {
        metric: scores,
        f"{metric} by domain": domains if len(domains) <= MANY else {},
        "loss": series.losses(lines["metrics"]),
        "epsilon": series.spent(lines["metrics"]),
        "bytes": series.bytes_sent(lines["ledger"]),
        "seconds": series.seconds_spent(lines["log"]),
    }
    told: dict[str, float] = {}
    for group, curve in curves.items():
        known = {name: values[round] for name, values in curve.items() if round in values}
        own = {name: value for name, value in known.items() if name in clients}
        if own and group != f"{metric} by domain":
            told[f"{group}/mean of clients"] = fmean(own.values())
        hidden = own if len(clients) > MANY else {}
        told |= {f"{group}/{name}": value for name, value in known.items() if name not in hidden}
    for direction in ("up", "down"):
        sent = [value for name, value in told.items() if name.startswith(f"bytes/{direction}: ")]
        told[f"bytes/{direction}"] = sum(sent)
    return told


class TensorBoard:
    """Events in the run's own folder, `tensorboard/`; steps that a resumed run repeats replace the old ones."""

    def __init__(self, plan: Plan, folder: Path, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=after or None)

    def tell(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write them, so that a killed run keeps them."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()

    def close(self) -> None:
        """Close the file."""
        self.writer.close()


class Wandb:
    """Weights & Biases: a run in the project `fedstill`, or in WANDB_PROJECT; WANDB_MODE=offline keeps it here."""

    def __init__(self, plan: Plan, folder: Path, after: int) -> None:
        wandb: Any = import_module("wandb")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedstill"),
            name=_title(plan),
            dir=str(folder),
            config=_settings(plan),
            id=_id(folder, "wandb", lambda: secrets.token_hex(4)),
            resume="allow",
        )

    def tell(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log them as the step of this round."""
        self.run.log(dict(numbers), step=round)

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


class MLflow:
    """MLflow: a run in an experiment of this name, at MLFLOW_TRACKING_URI, or where MLflow keeps them by default."""

    def __init__(self, plan: Plan, folder: Path, after: int) -> None:
        mlflow: Any = import_module("mlflow")
        self.client = mlflow.MlflowClient()
        self.run = _id(folder, "mlflow", lambda: self._begin(plan))

    def _begin(self, plan: Plan) -> str:
        name = plan.experiment.name
        found = self.client.get_experiment_by_name(name)
        home = self.client.create_experiment(name) if found is None else found.experiment_id
        run: str = self.client.create_run(home, run_name=_title(plan)).info.run_id
        for key, value in _settings(plan).items():
            self.client.log_param(run, key, str(value)[:500])
        return run

    def tell(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log them as the step of this round; MLflow's names have few characters."""
        for name, value in numbers.items():
            self.client.log_metric(self.run, re.sub(r"[^\w\-./ ]", "_", name), value, step=round)

    def close(self) -> None:
        """Mark the run as finished."""
        self.client.set_terminated(self.run)


class Trackio:
    """trackio: a run in the project `fedstill`, kept on this machine unless trackio is told otherwise."""

    def __init__(self, plan: Plan, folder: Path, after: int) -> None:
        trackio: Any = import_module("trackio")
        name = _id(folder, "trackio", lambda: f"{_title(plan)} {secrets.token_hex(2)}")
        self.run = trackio.init(project="fedstill", name=name, config=_settings(plan), resume="allow")

    def tell(self, round: int, numbers: Mapping[str, float]) -> None:
        """Log them as the step of this round."""
        self.run.log(dict(numbers), step=round)

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


TARGETS: dict[str, Callable[[Plan, Path, int], Target]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": MLflow,
    "trackio": Trackio,
}


def _title(plan: Plan) -> str:
    return f"{plan.experiment.name}, seed {plan.experiment.seed}"


def _settings(plan: Plan) -> dict[str, Any]:
    """The experiment's settings, without its data."""
    whole = plan.experiment.model_dump(mode="json")
    return {key: value for key, value in whole.items() if key not in ("corpus", "public", "report_to")}


def _id(folder: Path, target: str, make: Callable[[], str]) -> str:
    """The id under which a target knows the run: that of its beginning, if it is resumed."""
    known: dict[str, str] = {}
    with suppress(OSError, ValueError):
        known = json.loads((folder / IDS).read_text())
    if target not in known:
        known[target] = make()
        write_whole(folder / IDS, json.dumps(known).encode())
    return known[target]
