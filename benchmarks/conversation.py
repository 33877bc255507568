"""What FedID's conversation costs besides the learning: the local engine against plain method calls, taking turns."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedstill.algorithms.base import Algorithm, Answers
from fedstill.common.events import tell_nobody
from fedstill.config.experiment import Experiment
from fedstill.engines.books import Books
from fedstill.engines.conductor import Conductor
from fedstill.engines.journal import Journal
from fedstill.engines.local import LocalEngine
from fedstill.plan.plan import Plan
from fedstill.plan.prepare import prepare
from fedstill.wire.messages import Hello
from fedstill.wire.replies import Replies

CLIENTS, REPEATS = 4, 5

EXPERIMENT = Experiment.model_validate(
    {
        "corpus": "tweets",
        "partition": {
            "kind": "iid", "clients": CLIENTS, "public": 0.5, "labelled_public": 0.1, "rows_per_domain": 120,
        },
        "algorithm": "FedID",
        "train": {"epochs": 1, "max_length": 40},
        "distill": {"epochs": 3},
        "rounds": 2,
        "save_every": 2,
        "workers": 1,
        "device": "cpu",
    }
)  # fmt: skip


class Plain:
    """A federation without a wire: clients are objects, and a call is a method call."""

    def __init__(self, plan: Plan) -> None:
        self.server = plan.make_server(tell_nobody)
        self.parties = {name: plan.make_client(name, tell_nobody) for name in plan.clients}
        self.clients = {name: Hello(client.size) for name, client in self.parties.items()}
        self.active, self.round, self.rounds = sorted(self.clients), 1, 2
        self.algorithm: Algorithm = EXPERIMENT.method
        for party in (self.server, *self.parties.values()):
            party.enter(1)

    def call(self, verb: str, message: Answers = None, clients: Sequence[str] | None = None) -> Replies[Any]:
        """The verb of every client, one after the other."""
        names = clients if clients is not None else self.active
        return Replies(
            {name: getattr(self.algorithm, verb)(self.parties[name], message) for name in names}, self.clients
        )

    def play(self, number: int, answer: Answers) -> None:
        """One round."""
        self.algorithm.round(self, answer)
        self.server.evaluate("distilled")


def seconds_of(federation: Plain | Conductor) -> float:
    """CPU seconds of the first round, which saves nothing: other processes of the machine do not count."""
    started = time.process_time()
    federation.play(1, None)
    return time.process_time() - started


def measure() -> dict[str, float]:
    """The share of a round that is not learning: the median over neighbours in time."""
    torch.set_num_threads(1)
    shares, rounds = [], []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as scratch:
            _, plan, _ = prepare(EXPERIMENT, Path(scratch))
            journal = Journal(Path(scratch))
            books = Books(journal, tell_nobody)
            engine = LocalEngine(plan, books)
            conductor = Conductor(plan, books, engine)
            conductor.begin()
            plain, ours = seconds_of(Plain(plan)), seconds_of(conductor)
            engine.close()
            journal.close()
        shares.append(ours / plain - 1)
        rounds.append(ours)
    exchanges = 3 * -(-len(plan.partition.public) // 32)
    return {
        "percent": 100 * statistics.median(shares),
        "low": 100 * min(shares),
        "high": 100 * max(shares),
        "round_s": statistics.median(rounds),
        "exchanges": exchanges,
    }


if __name__ == "__main__":
    sys.stdout.write(f"{measure()}\n")
