"""`fedstill check`: what an experiment would do, without doing it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedstill.config import Experiment
from fedstill.data.partition import label_counts
from fedstill.engines.engine import same_architecture
from fedstill.engines.plan import Plan
from fedstill.parties.party import Party
from fedstill.prepare import prepare


def report(experiment: Experiment, console: Console) -> None:
    """Print parties, rows, labels, parameters and the bytes of a round."""
    with tempfile.TemporaryDirectory() as scratch:
        resolved, plan, corpus = prepare(experiment, Path(scratch))
        algorithm = resolved.make_algorithm()
        said = ", ".join(f"{what}: {number:,}" for what, number in corpus.counts.items())
        console.print(
            f"{resolved.name}: {algorithm.title} on {corpus.name} ({said})",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )
        table = Table()
        for column in ("party", "model", "numbers", "rate", "train", "val", "test", "train labels"):
            table.add_column(column, justify="left" if column in ("party", "model") else "right")
        parts = plan.partition
        architectures = {}
        for name in plan.clients:
            client = plan.make_client(name, lambda event: None)
            architectures[name] = client.model.architecture
            sizes = (len(part[name]) for part in (parts.train, parts.validation, parts.test))
            by_label = " / ".join(f"{count:,}" for count in label_counts(corpus, parts.train[name]))
            table.add_row(*map(Text, (*_model(client), *(f"{size:,}" for size in sizes), by_label)))
        if algorithm.has_server_model:
            server = plan.make_server(lambda event: None)
            table.add_row(*map(Text, _model(server)))
            if "parameters" in algorithm.requires():
                same_architecture(algorithm, server, architectures)
    console.print(table)
    for name, rows in plan.partition.train.items():
        if len(classes := set(corpus.labels[rows].tolist())) < len(plan.labels):
            seen = ", ".join(plan.labels[number] for number in sorted(classes))
            console.print(f"{name} has only {seen} among its {len(rows)} training rows.", style="yellow", markup=False)
    for sentence in _sentences(plan, algorithm.cost):
        console.print(sentence, highlight=False, soft_wrap=True, markup=False)


def _model(party: Party) -> tuple[str, ...]:
    rate = party.spec.train.rate or party.model.rate
    return party.name, str(party.spec.model), f"{party.model.parameters / 1e6:.1f}M", f"{rate:g}"


def _sentences(plan: Plan, cost: str) -> list[str]:
    parts, classes = plan.partition, len(plan.labels)
    active = max(1, round(plan.participation * len(plan.clients)))
    opinion = 4 * len(parts.public) * classes
    others = {"labelled at the server": parts.labelled, "unused": parts.unused}
    extra = "".join(f", {len(rows):,} {name}" for name, rows in others.items() if len(rows))
    return [
        f"{len(parts.public):,} public rows{extra}; labels: {', '.join(plan.labels)}.",
        f"{plan.rounds} rounds, {active} of {len(plan.clients)} clients active in each, {plan.workers} workers, "
        f"seed {plan.seed}.",
        f"Numbers a round: {cost} (N public samples, C classes, K clients); an opinion on all public samples is "
        f"{len(parts.public):,} x {classes} x 4 = {opinion:,} bytes.",
        "Nothing was trained.",
    ]
