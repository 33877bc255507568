"""The demo: five organisations with different models teach each other, beside what each could do alone."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedstill.config import Experiment
from fedstill.data.partition import PartitionSpec
from fedstill.engines.plan import SERVER
from fedstill.models import ModelSpec
from fedstill.parties.party import TrainSettings
from fedstill.progress import Progress
from fedstill.results.compare import compare, load_runs
from fedstill.results.record import Record
from fedstill.results.table import render
from fedstill.runner import resume, run

Method = str | dict[str, str]

SHORT: list[Method] = ["Local", "LogitAvg", "Centralized", "AdaFD"]
FULL: list[Method] = [*SHORT[:3], "DSFL", "MHAT", "FedKD", {"name": "AdaFD", "weighting": "RNWC"}, "AdaFD"]
SOFT = {"MHAT": {"server_loss": "kl", "client_loss": "kl"}}
"""Everybody distils softly here, so that only the weighting differs."""


def experiment(algorithm: Method, seed: int, full: bool) -> Experiment:
    """One method on the five domains of the tweets."""
    options = {"name": algorithm} if isinstance(algorithm, str) else dict(algorithm)
    return Experiment(
        name="-".join(["demo", *options.values()]).lower(),
        algorithm={**options, **SOFT.get(options["name"], {})},
        partition=PartitionSpec(kind="domain", rows_per_domain=None if full else 1300),
        clients=[ModelSpec(name=name) for name in ("bert-tiny", "bow", "bert-tiny", "textcnn", "bigru")],
        server=ModelSpec(name="bert-tiny"),
        train=TrainSettings(epochs=3, batch=32, max_length=40),
        rounds=3 if full else 2,
        seed=seed,
    )


def demo(console: Console, out: Path, full: bool = False, seed: int = 0) -> float:
    """Run the demo's methods, print what each organisation gained, and return the gain in points of F1."""
    methods = FULL if full else SHORT
    seeds = range(seed, seed + 3) if full else [seed]
    if not full:
        console.print(INTRODUCTION, highlight=False)
    records: dict[str, Record] = {}
    for number in seeds:
        for method in methods:
            chosen = experiment(method, number, full)
            folder = out / chosen.name / f"seed-{number}"
            title = f"{chosen.make_algorithm().title}: "
            with Progress(console, title, tells_corpus=not records) as tell:
                records[chosen.name] = _run(chosen, folder, tell, keep=full)
    console.print()
    console.print(render(compare(load_runs([out])), console.width))
    local, ours = records["demo-local"], records["demo-adafd"]
    console.print(_gains(local, ours))
    gain = 100 * (
        ours.f1() - sum(local.f1(client) for client in local.summary["clients"]) / len(local.summary["clients"])
    )
    console.print(_closing(local, ours, gain), highlight=False, soft_wrap=True)
    return gain


INTRODUCTION = (
    "Five organisations hold tweets about their own kind of product, labelled negative, neutral or positive. They run "
    "different models and share no text. First each trains alone (Local). Then they teach each other through "
    "predictions on public tweets: every teacher counting the same (LogitAvg), or weighted by how well it fits "
    "(AdaFD). Centralized moves all text to one place, which nobody wants: it shows what there is to win.\n"
)


def _run(chosen: Experiment, folder: Path, tell: Progress, keep: bool) -> Record:
    """A finished run of the full demo is kept and an interrupted one goes on; the short demo always runs."""
    record = Record(folder)
    if keep and record.is_finished:
        return record
    if keep and (folder / "experiment.yaml").exists():
        return resume(folder, tell)
    if folder.exists():
        shutil.rmtree(folder)
    return run(chosen, folder, tell=tell)


def _gains(local: Record, ours: Record) -> Table:
    """What each organisation had, and what it has now."""
    table = Table(
        title="\nWhat each organisation gained: weighted F1 on its own tweets and on those of all five",
        title_justify="left",
    )
    for column in ("organisation", "its model", "own: alone", "after", "all five: alone", "after", "gain"):
        table.add_column(column, justify="left" if column in ("organisation", "its model") else "right")
    for client in ours.summary["clients"]:
        own = f"test/{client}"
        values = [100 * record.f1(client, split) for split in (own, "test") for record in (local, ours)]
        table.add_row(
            client,
            ours.summary["models"][client],
            *(f"{value:.1f}" for value in values),
            f"{values[3] - values[2]:+.1f}",
        )
    return table


def _closing(local: Record, ours: Record, gain: float) -> str:
    clients = local.summary["clients"]
    alone = 100 * sum(local.f1(client) for client in clients) / len(clients)
    crossed = sum(ours.summary["bytes"].values()) / 1e6
    return (
        f"Alone, an organisation's model scores {alone:.1f} on average on the tweets of all five. The model they "
        f"taught together scores {100 * ours.f1(SERVER):.1f}, and {crossed:.1f} MB of predictions crossed, no text.\n"
        f"What federated distillation gained over working alone: {gain:+.1f} points"
    )
