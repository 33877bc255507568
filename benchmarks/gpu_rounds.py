"""Whole rounds on a GPU of methods whose phases are taken step by step: open stacks against the ordinary path.

    python benchmarks/gpu_rounds.py [METHOD ...] [--turns N] [--out FILE]

Five clients and a server, MiniLM, the tweets. Both paths take turns in one process; the first round of a run captures
graphs and is not counted. An exchange of FedID is the time from one call to the next: all clients learn from a batch
and predict the next one, messages cross the wire, and the server takes its step and measures it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import fedstill
from fedstill.common.events import Event, RoundDone
from fedstill.config.experiment import Experiment
from fedstill.engines.conductor import Conductor

METHODS: dict[str, Any] = {
    "FedID": "FedID",
    "FedID, rehearsing": {"name": "FedID", "rehearsal": 1},
    "FedSND": "FedSND",
    "FedGKD": "FedGKD",
    "MutualKD": "MutualKD",
    "FedDRS": "FedDRS",
    "AdaFD": "AdaFD",
}


def experiment(method: str, steps: bool) -> Experiment:
    """Two rounds, of which the second is counted."""
    return Experiment.model_validate(
        {
            "corpus": "tweets",
            "partition": {
                "kind": "iid", "clients": 5, "public": 0.2, "labelled_public": 0.2, "rows_per_domain": 1000,
            },
            "clients": "minilm",
            "server": "minilm",
            "algorithm": METHODS[method],
            "train": {"epochs": 1, "batch": 32, "max_length": 64},
            "distill": {"epochs": 1},
            "rounds": 2,
            "save_every": 2,
            "workers": 1,
            "device": "cuda",
            "fast": {"steps": steps},
        }
    )  # fmt: skip


def measure(method: str, steps: bool) -> dict[str, float]:
    """A run's second round: its seconds, the milliseconds of an exchange, and the score at the end."""
    stamps, rounds = list[float](), list[float]()
    call = Conductor.call

    def stamped(self: Conductor, verb: str, *rest: Any, **more: Any) -> Any:
        if verb == "converse" and self.round == 2:
            stamps.append(time.perf_counter())
        return call(self, verb, *rest, **more)

    def tell(event: Event) -> None:
        if isinstance(event, RoundDone):
            torch.cuda.synchronize()
            rounds.append(time.perf_counter())

    Conductor.call = stamped  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            record = fedstill.run(experiment(method, steps), Path(folder) / "run", tell=tell)
            score = record.f1() if method != "Local" else 0.0
    finally:
        Conductor.call = call  # type: ignore[method-assign]
    found = {"round_s": rounds[-1] - rounds[-2], "f1": 100 * score}
    if len(stamps) > 2:
        between = [later - earlier for earlier, later in itertools.pairwise(stamps)]
        found["exchange_ms"] = 1000 * statistics.median(between)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what every method takes on both paths, and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=list(METHODS), metavar="METHOD")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for method in options.methods:
        paths: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for _ in range(options.turns):
            for steps in (True, False):
                try:
                    paths[steps].append(measure(method, steps))
                except Exception as error:
                    print(f"{method}, steps {steps}: {type(error).__name__}: {error}", flush=True)
        row = {
            ("open" if steps else "ordinary"): {key: statistics.median(each[key] for each in all_) for key in all_[0]}
            for steps, all_ in paths.items()
            if all_
        }
        print(method, json.dumps(row), flush=True)
        found[method] = row
        if options.out is not None:
            options.out.write_text(json.dumps({"machine": machine, "values": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
