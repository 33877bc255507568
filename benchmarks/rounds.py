"""A whole round of AdaFD, evaluations included: the local engine in one process against the plain loop, taking turns.

A turn is the next round of a federation that is under way: every client digests the last answer and is measured,
trains, speaks and is measured again; the server distils, is measured and answers; ours also writes a checkpoint. Both
sides have the same rows and read the same tokens, made before.
"""

from __future__ import annotations

import json
import statistics
import tempfile
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
            "algorithm": "AdaFD",
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


def two_workers(model: str) -> Values:
    """How many times as fast as one process, by the clock: the workers' CPU time is not this process's."""
    with tempfile.TemporaryDirectory() as scratch:
        plans = {workers: prepare(experiment(model, workers), Path(scratch) / str(workers))[1] for workers in (1, 2)}
        for plan in plans.values():
            plan.folder.mkdir()
        running = {workers: Rounds(plan) for workers, plan in plans.items()}
        seconds = in_turns({str(workers): lambda own=own: own.next for workers, own in running.items()}, TURNS[model])  # type: ignore[misc]
        for own in running.values():
            own.close()
        parts = parts_of(plans[2].folder)
    one, two = ([Seconds(each.wall, each.wall) for each in seconds[workers]] for workers in ("1", "2"))
    return times(one, two) | parts


def parts_of(folder: Path) -> Values:
    """Where a round's seconds went: the medians of what the log of a run says, without its first two rounds.

    Its `rest` and `total` are left out: they count the turns of the others.
    """
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    rounds = [line["seconds"] for line in lines if "seconds" in line][2:]
    median = {part: statistics.median(own[part] for own in rounds) for part in ("clients", "state", "idle")}
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
        "other one still computes; checkpoints; the server alone, with all else. What is on one core bounds what a "
        "second worker can gain: `most`. Again, on idle cores: `python benchmarks/run.py workers`.",
        "",
        "| model | one worker | two workers | clients | idle | server | state | gain | most |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {model} | {own['wall_s'] * own['ratio']:.2f} | {own['wall_s']:.2f} | {own['clients_s']:.2f} "
            f"| {own['idle_s']:.2f} | {server_s(own):.2f} | {own['state_s']:.2f} "
            f"| {own['ratio']:.2f} | {most(own):.2f} |"
            for model, own in both.items()
        ),
        "",
    ]


def server_s(own: Values) -> float:
    """The server's part of a round."""
    return max(0.0, own["wall_s"] - own["clients_s"] - own["state_s"])


def most(own: Values) -> float:
    """How many times as fast two workers could be if only the server were not shared: Amdahl's law."""
    one = own["wall_s"] * own["ratio"]
    return one / ((one - server_s(own)) / 2 + server_s(own))
