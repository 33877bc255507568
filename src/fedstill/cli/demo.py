"""The demo: five organisations with different models teach each other, compared with each working alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from fedstill.cli.gains import to_json
from fedstill.cli.report import page_of
from fedstill.common.units import size_text
from fedstill.common.words import counted, listed
from fedstill.config.experiment import Experiment
from fedstill.data.partition import PartitionSpec
from fedstill.engines.runner import begin_or_finish, differences
from fedstill.models import ModelSpec
from fedstill.parties.party import TrainSettings
from fedstill.results.compare import compare, load_runs
from fedstill.results.progress import Progress
from fedstill.results.record import Record
from fedstill.results.table import render
from fedstill.wire.messages import SERVER

Method = str | dict[str, str]

SHORT: list[Method] = ["Local", "LogitAvg", "Centralized", "AdaFD"]
FULL: list[Method] = [*SHORT[:3], "DSFL", "MHAT", "FedKD", {"name": "AdaFD", "weighting": "RNWC"}, "AdaFD"]


def experiment(algorithm: Method, seed: int, full: bool) -> Experiment:
    """One method on the five domains of the tweets."""
    options = {"name": algorithm} if isinstance(algorithm, str) else dict(algorithm)
    return Experiment(
        name="-".join(["full" if full else "demo", *options.values()]).lower(),
        algorithm=options,
        partition=PartitionSpec(kind="domain", rows_per_domain=None if full else 1200),
        clients=[ModelSpec(name=name) for name in ("bert-tiny", "bow", "bert-tiny", "textcnn", "bigru")],
        server=ModelSpec(name="bert-tiny"),
        train=TrainSettings(epochs=3, batch=32, max_length=40),
        rounds=3 if full else 2,
        seed=seed,
    )


def demo(console: Console, out: Path, full: bool = False, fresh: bool = False, as_json: bool = False) -> float:
    """Run the demo's methods, print what each organisation gained, and return the gain in points of F1.

    Runs that are finished are used again, unless the demo is to be `fresh`. `as_json` prints the end as JSON.
    """
    console.print(INTRODUCTION, highlight=False)
    reused = 0
    records: dict[str, list[Record]] = {}
    for seed in range(3) if full else [0]:
        for method in FULL if full else SHORT:
            chosen = experiment(method, seed, full)
            folder = out / chosen.name / f"seed-{seed}"
            if fresh or (not full and differences(chosen, folder)):
                shutil.rmtree(folder, ignore_errors=True)
            reused += Record(folder).is_finished
            title = f"{chosen.method.title}, seed {seed}: " if full else f"{chosen.method.title}: "
            with Progress(console, title, tells_corpus=not records) as tell:
                record = begin_or_finish(chosen, folder, tell=tell)
            records.setdefault(chosen.name, []).append(record)
    if reused:
        said = f"{counted(reused, 'run')} of an earlier demo used again; `fedstill demo --fresh` runs everything anew."
        console.print(said, style="dim", highlight=False)
    folders = [record.folder for each in records.values() for record in each]
    prefix = "full" if full else "demo"
    gains = Gains(records[f"{prefix}-local"], records[f"{prefix}-adafd"])
    if as_json:
        print(json.dumps(to_json(folders) | {"gain": gains.gain}, indent=1))
        return gains.gain
    console.print()
    console.print(render(compare(load_runs(folders)), console.width))
    console.print(gains.table())
    page_of(console, folders, out)
    console.print(gains.sentences(), highlight=False)
    return gains.gain


INTRODUCTION = (
    "Five organisations hold tweets about their own kind of product, labelled negative, neutral or positive. They run "
    "different models and share no text. First each trains alone (Local). Then they teach each other through "
    "predictions on public tweets: every teacher counting the same (LogitAvg), or weighted by how well it fits "
    "(AdaFD). Centralized moves all text to one place, which nobody wants: it shows how much could be gained.\n"
)


@dataclass(frozen=True)
class Gains:
    """The organisations' scores alone and together, in points of weighted F1, as means over the seeds."""

    local: list[Record]
    ours: list[Record]

    @property
    def clients(self) -> list[str]:
        """The organisations."""
        return list(self.ours[0].summary["clients"])

    @property
    def alone(self) -> float:
        """The mean score of the organisations' own models, each trained alone, on the test rows of all five."""
        return fmean(_points(self.local, client) for client in self.clients)

    @property
    def gain(self) -> float:
        """The score of the server's final model minus `alone`."""
        return _points(self.ours, SERVER) - self.alone

    def table(self) -> Table:
        """Each organisation's scores before and after."""
        title = "\nWhat each organisation gained: weighted F1 on its own tweets and on all five's"
        table = Table(title=title, title_justify="left")
        for column in ("organisation", "its model", "own: alone", "after", "all: alone", "after", "gain"):
            table.add_column(column, justify="left" if column in ("organisation", "its model") else "right")
        for client in self.clients:
            own, every = f"test/{client}", "test"
            values = [_points(runs, client, split) for split in (own, every) for runs in (self.local, self.ours)]
            model = self.ours[0].summary["models"][client]
            table.add_row(client, model, *(f"{value:.1f}" for value in values), f"{values[3] - values[2]:+.1f}")
        return table

    def sentences(self) -> str:
        """A summary for newcomers; the last line ends with the gain."""
        crossed = fmean(sum(record.summary["bytes"].values()) for record in self.ours)
        return (
            f"{self.own()}\n"
            f"Alone, an organisation's model scores {self.alone:.1f} on average on the tweets of all five. The model "
            f"they taught together scores {_points(self.ours, SERVER):.1f}; {size_text(crossed)} of predictions "
            f"crossed, no text.\nWhat federated distillation gained over working alone: {self.gain:+.1f} points"
        )

    def own(self) -> str:
        """What the organisations gained on their own tweets, and who lost more than a point there."""
        gains = {
            name: _points(self.ours, name, f"test/{name}") - _points(self.local, name, f"test/{name}")
            for name in self.clients
        }
        rows = {
            line["party"]: line["rows"] for line in self.ours[0].metrics if line.get("split") == f"test/{line['party']}"
        }
        lost = [f"{name} {gain:+.1f} ({rows[name]} test rows)" for name, gain in gains.items() if round(gain, 1) < -1]
        worse = f"worse off: {listed(lost, most=5)}" if lost else "none of them lost more than a point"
        return f"On their own tweets they gained {fmean(gains.values()):+.1f} points on average; {worse}."


def _points(records: list[Record], party: str, split: str = "test") -> float:
    return fmean(100 * record.f1(party, split) for record in records)
