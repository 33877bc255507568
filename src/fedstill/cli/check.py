"""`fedstill check`: what an experiment would do, without doing it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedstill.common.errors import FedstillError
from fedstill.common.events import tell_nobody
from fedstill.common.files import unusable
from fedstill.common.words import counted
from fedstill.config.experiment import Experiment
from fedstill.data.corpus import Corpus
from fedstill.data.partition import label_counts
from fedstill.parties.party import Party
from fedstill.plan.caution import cautions
from fedstill.plan.needs import same_architecture
from fedstill.plan.plan import Plan
from fedstill.plan.prepare import prepare
from fedstill.results import picture as drawing


def report(experiment: Experiment, console: Console, picture: Path | None = None) -> dict[str, Any]:
    """Print parties, rows, labels, parameters and the bytes of a round; write the partition's picture to a file.

    Returns the same for JSON.
    """
    with tempfile.TemporaryDirectory() as scratch:
        resolved, plan, corpus = prepare(experiment, Path(scratch))
        algorithm = resolved.method
        said = ", ".join(f"{what}: {number:,}" for what, number in corpus.counts.items())
        console.print(
            f"{resolved.name}: {algorithm.title} on {corpus.name} ({said})",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )
        notices = (*corpus.notices, *resolved.turns(list(plan.clients)))
        for notice in notices:
            console.print(f"note: {notice}", style="yellow", markup=False, soft_wrap=True)
        table = Table()
        parties: list[dict[str, Any]] = []
        for column in ("party", "model", "numbers", "rate", "train", "val", "test"):
            table.add_column(column, justify="left" if column in ("party", "model") else "right")
        parts = plan.partition
        hellos = {}
        learning: dict[str, None] = {}
        for name in plan.clients:
            client = plan.make_client(name, tell_nobody)
            hellos[name] = algorithm.hello(client, None)
            sizes = [len(part[name]) for part in (parts.train, parts.validation, parts.test)]
            parties.append(_party(client, sizes))
            table.add_row(*map(Text, (*_model(client), *(f"{size:,}" for size in sizes))))
            learning |= dict.fromkeys(_adapter(client))
        if algorithm.has_server_model:
            server = plan.make_server(tell_nobody)
            table.add_row(*map(Text, _model(server)))
            parties.append(_party(server, []))
            learning |= dict.fromkeys(_adapter(server))
            algorithm.admit(server)
            if "parameters" in algorithm.requires():
                same_architecture(algorithm, server, {name: hello.architecture for name, hello in hellos.items()})
    console.print(table)
    _picture(plan, corpus, console, picture)
    for name, rows in plan.partition.train.items():
        missing = [plan.labels[label] for label in np.flatnonzero(label_counts(corpus, rows) == 0)]
        if missing and corpus.label_tasks is None:  # with several tasks, a client has only the labels of its own
            said = f"{name} has no {' and no '.join(missing)} among its {len(rows)} training rows."
            console.print(said, style="yellow", markup=False, soft_wrap=True)
    warned = cautions(algorithm, hellos, len(plan.partition.public))
    for caution in warned:
        console.print(f"caution: {caution}", style="yellow", markup=False, soft_wrap=True)
    if not any(map(len, (*plan.partition.test.values(), *plan.test_domains.values()))):
        said = "There are no test rows (partition.test): nothing will be measured, nor said of whether it helped."
        console.print(said, style="yellow", markup=False, soft_wrap=True)
    for task in plan.tasks:
        rows = np.concatenate([*plan.partition.test.values(), *plan.test_domains.values()])
        if not np.isin(corpus.domain_names.index(task), corpus.domains[rows] if corpus.domains is not None else ()):
            console.print(f"{task} has no test rows: it is not in the mean over tasks.", style="yellow", markup=False)
    for sentence in (*learning, *_sentences(plan, algorithm.cost)):
        console.print(sentence, highlight=False, soft_wrap=True, markup=False)
    return {
        "name": resolved.name,
        "method": algorithm.title,
        "corpus": corpus.name,
        "counts": corpus.counts,
        "notes": list(notices),
        "labels": list(plan.labels),
        "parties": parties,
        "rows_by_label": {
            name: dict(zip(corpus.label_names, label_counts(corpus, rows).tolist(), strict=True))
            for name, rows in plan.partition.train.items()
        },
        "public": len(plan.partition.public),
        "rounds": plan.experiment.rounds,
        "seed": plan.experiment.seed,
        "cautions": [str(caution) for caution in warned],
    }


def _picture(plan: Plan, corpus: Corpus, console: Console, path: Path | None) -> None:
    """Draw how many training rows each client has of each label, or of each task if there are several."""
    counts, names = drawing.holdings(corpus, plan.partition)
    clients = plan.partition.clients
    console.print(drawing.lines(counts, names, clients, console.width))
    if path is not None:
        try:
            drawing.save(counts, names, clients, f"{plan.experiment.name}: {corpus.name}", path)
            console.print(f"Picture: {path}", highlight=False, soft_wrap=True, markup=False)
        except (FedstillError, OSError) as error:  # the printed picture shows the same
            said = unusable(error, path) if isinstance(error, OSError) else str(error)
            console.print(said, style="yellow", markup=False, soft_wrap=True)


def _party(party: Party, sizes: Sequence[int]) -> dict[str, Any]:
    rows = dict(zip(("train", "validation", "test"), sizes, strict=False))
    rate = party.spec.train.rate_for(party.model.rate)
    about = {"party": party.name, "model": str(party.spec.model), "parameters": party.model.parameters, "rate": rate}
    return about | rows


def _model(party: Party) -> tuple[str, ...]:
    rate = party.spec.train.rate_for(party.model.rate)
    return party.name, str(party.spec.model), f"{party.model.parameters / 1e6:.1f}M", f"{rate:g}"


def _adapter(party: Party) -> list[str]:
    """What learns of a model with adapters, and what that is as a message."""
    model = party.model
    if model.spec.lora is None:
        return []
    learn = f"{model.learnt:,} of {model.parameters:,} parameters learn ({100 * model.learnt / model.parameters:.1f}%)"
    return [f"{model.spec}: {learn}; a message with parameters is {model.bytes:,} bytes, as fp32."]


def _sentences(plan: Plan, cost: str) -> list[str]:
    parts, classes = plan.partition, len(plan.labels)
    active = max(1, round(plan.experiment.participation * len(plan.clients)))
    many = len(parts.public)
    size = f"{many:,} x {classes} x 4 = {4 * many * classes:,} bytes"
    opinion = f"; an opinion on all public samples is {size}" if many else ""
    others = {"labelled at the server": parts.labelled, "unused": parts.unused}
    extra = "".join(f", {len(rows):,} {name}" for name, rows in others.items() if len(rows))
    return [
        f"{counted(len(parts.public), 'public row')}{extra}; labels: {', '.join(plan.labels)}.",
        f"{counted(plan.experiment.rounds, 'round')}, {active} of {counted(len(plan.clients), 'client')} active in "
        f"each, {counted(plan.workers, 'worker')}, seed {plan.experiment.seed}.",
        f"Numbers per round: {cost} (N public samples, C classes, K clients, P parameters){opinion}.",
        "Nothing was trained.",
    ]
