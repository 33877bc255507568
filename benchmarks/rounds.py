"""A whole round of AdaFD, evaluations included: the local engine in one process against the plain loop, taking turns.

A turn is the next round of a federation that is under way: every client digests the last answer and is measured,
trains, speaks and is measured again; the server distils, is measured and answers; ours also writes a checkpoint. Both
sides have the same rows and read the same tokens, made before.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import plain
import torch
from plain import Padded
from turns import TURNS, Results, Seconds, Values, in_turns, spread, times

from fedstill.algorithms.base import Answers
from fedstill.common.events import tell_nobody
from fedstill.config.experiment import Experiment
from fedstill.engines.books import Books
from fedstill.engines.conductor import Conductor
from fedstill.engines.journal import Journal
from fedstill.engines.local import LocalEngine
from fedstill.models import Model, build
from fedstill.plan.plan import Plan
from fedstill.plan.prepare import prepare

CLIENTS = 4
SIZES = {"bert-tiny": (64, 3), "minilm": (32, 1)}
"""Rows of each of the five domains, and epochs of a phase."""
MOST_ROUNDS = 50
"""More than are played: what a client says of a round after the last one is refused."""


def experiment(model: str, workers: int = 1) -> Experiment:
    """AdaFD as in its paper: a fifth of the rows public, a tenth of the rest for the test."""
    rows, epochs = SIZES[model]
    return Experiment.model_validate(
        {
            "corpus": "tweets",
            "partition": {
                "kind": "iid", "clients": CLIENTS, "public": 0.2, "validation": 0, "test": 0.1, "rows_per_domain": rows,
            },
            "clients": model,
            "server": model,
            "algorithm": {"name": "AdaFD", "reading": "paper"},
            "train": {"epochs": epochs, "max_length": plain.WIDTH},
            "rounds": MOST_ROUNDS,
            "workers": workers,
            "threads": 1,
            "device": "cpu",
        }
    )  # fmt: skip


class Rounds:
    """A federation in the local engine, a round at a time as `conduct` does them."""

    def __init__(self, plan: Plan) -> None:
        self.journal = Journal(plan.folder)
        books = Books(self.journal, tell_nobody)
        self.engine = LocalEngine(plan, books)
        self.conductor = Conductor(plan, books, self.engine)
        self.answer: Answers = self.conductor.begin()
        self.next()

    def next(self) -> None:
        """The next round."""
        self.answer = self.conductor.play(self.conductor.round + 1, self.answer)

    def close(self) -> None:
        """Let go of everything."""
        self.engine.close()
        self.journal.close()


class PlainRounds:
    """The same federation by the plain loop."""

    def __init__(self, plan: Plan) -> None:
        def model(seed: int) -> Model:
            return build(plan.server.model, plan.labels, plan.default_tokenizer, seed)

        self.rows = padded_rows(plan)
        self.server = model(0)
        self.clients = {
            name: plain.Client(model(number).module, self.rows[name]) for number, name in enumerate(plan.clients, 1)
        }
        self.epochs = plan.server.train.epochs

    def next(self) -> None:
        """The next round."""
        rows, rate = self.rows, self.server.rate
        plain.adafd_round(self.clients, self.server.module, rows["public"], rows["test"], self.epochs, rate)


def padded_rows(plan: Plan) -> dict[str, Padded]:
    """Everybody's rows as the plain loop has them."""
    parties = {name: plan.make_client(name, tell_nobody) for name in plan.clients}
    first = next(iter(parties.values())).data
    assert first.evaluation is not None
    rows: dict[str, Any] = {name: client.data.train for name, client in parties.items()}
    rows |= {"public": first.public, "test": first.evaluation.data}
    return {name: Padded.of(own) for name, own in rows.items()}


def measure() -> Results:
    """One process: ours and plain."""
    torch.set_num_threads(1)
    return {f"{model}, one process": one_process(model) for model in SIZES}


def workers() -> Results:
    """Two processes and one: ours, by the clock, so that only idle cores give the right numbers."""
    torch.set_num_threads(1)
    return {model: two_workers(model) for model in SIZES}


def one_process(model: str) -> Values:
    """How many times as fast as the plain loop."""
    with tempfile.TemporaryDirectory() as scratch:
        plan = prepare(experiment(model), Path(scratch))[1]
        ours, by_hand = Rounds(plan), PlainRounds(plan)
        seconds = in_turns({"plain": lambda: by_hand.next, "ours": lambda: ours.next}, TURNS[model])
        ours.close()
    return times(seconds["plain"], seconds["ours"]) | {
        "plain_cpu_s": statistics.median(each.cpu for each in seconds["plain"]),
        "train_rows": sum(len(client.train) for client in by_hand.clients.values()),
        "public_rows": len(by_hand.rows["public"]),
        "test_rows": len(by_hand.rows["test"]),
        "epochs": by_hand.epochs,
    }


class Twin:
    """A federation of one process beside another one, with nothing in common: what the second core is worth."""

    def __init__(self, model: str, scratch: Path, other: Rounds) -> None:
        how = multiprocessing.get_context("spawn")
        self.other, (self.pipe, there) = other, how.Pipe()
        self.process = how.Process(target=_live, args=(there, model, scratch / "twin"), daemon=True)
        self.process.start()
        self.pipe.recv()

    def next(self) -> None:
        """The next round of both, at the same time."""
        self.pipe.send(True)
        self.other.next()
        self.pipe.recv()

    def close(self) -> None:
        """End the process."""
        self.pipe.send(False)
        self.process.join()


def _live(pipe: Connection, model: str, folder: Path) -> None:
    torch.set_num_threads(1)
    folder.mkdir()
    rounds = Rounds(prepare(experiment(model), folder)[1])
    pipe.send(True)
    while pipe.recv():
        rounds.next()
        pipe.send(True)
    rounds.close()


def two_workers(model: str) -> Values:
    """How many times as fast as one process, by the clock: the workers' CPU time is not this process's."""
    with tempfile.TemporaryDirectory() as scratch:
        plans = {workers: prepare(experiment(model, workers), Path(scratch) / str(workers))[1] for workers in (1, 2)}
        for plan in plans.values():
            plan.folder.mkdir()
        alone, shared = (Rounds(plan) for plan in plans.values())
        running: dict[str, Rounds | Twin] = {"1": alone, "2": shared, "both": Twin(model, Path(scratch), alone)}
        seconds = in_turns({name: lambda own=own: own.next for name, own in running.items()}, TURNS[model])  # type: ignore[misc]
        for own in running.values():
            own.close()
        parts = parts_of(plans[2].folder)
    one, two, both = ([Seconds(each.wall, each.wall) for each in seconds[name]] for name in ("1", "2", "both"))
    twice = [Seconds(2 * each.cpu, 2 * each.wall) for each in one]
    return times(one, two) | parts | {"most": times(twice, both)["ratio"]}


def parts_of(folder: Path) -> Values:
    """Where a round's seconds went: the medians of what the log of a run says, without its first two rounds.

    Its `rest` and `total` are left out: they count the turns of the others.
    """
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    rounds = [line["seconds"] for line in lines if "seconds" in line][2:]
    parts = ("clients", "state", "idle", "beside")
    median = {part: statistics.median(own.get(part, 0.0) for own in rounds) for part in parts}
    return {f"{part}_s": seconds for part, seconds in median.items()}


def lines(found: dict[str, Results]) -> list[str]:
    """This part of the page."""
    results, both = found.get("rounds", {}), found.get("workers", {})
    return [
        "| model | times as fast as the plain loop | by the clock | plain CPU s | our CPU s | rows: private, public, "
        "test | epochs | two workers, times as fast as one process (clock) |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {model} | {spread(one)} | {one['wall_ratio']:.2f} | {one['plain_cpu_s']:.1f} | {one['cpu_s']:.1f} "
            f"| {one['train_rows']:.0f}, {one['public_rows']:.0f}, {one['test_rows']:.0f} | {one['epochs']:.0f} "
            f"| {spread(both.get(model) or results.get(f'{model}, two workers'))} |"
            for model in SIZES
            if (one := results.get(f"{model}, one process"))
        ),
        "",
        *_parts(both),
    ]


def _parts(both: Results) -> list[str]:
    """Where the time of two workers goes."""
    if not both:
        return []
    return [
        "Seconds of a round with two workers, by the clock: waiting for clients, of which a worker is idle while the "
        "other one still computes; checkpoints; and beside the clients' work the server's, of the round before. `most` "
        "is what the machine's second core is worth: two federations of one process each, at the same time and with "
        "nothing in common, against one after the other. Again, on idle cores: `python benchmarks/run.py workers`.",
        "",
        "| model | one worker | two workers | clients | idle | beside | state | gain | most |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {model} | {own['wall_s'] * own['ratio']:.2f} | {own['wall_s']:.2f} | {own['clients_s']:.2f} "
            f"| {own['idle_s']:.2f} | {own['beside_s']:.2f} | {own['state_s']:.2f} "
            f"| {own['ratio']:.2f} | {own['most']:.2f} |"
            for model, own in both.items()
        ),
        "",
    ]
