"""How much work every run is, in which order runs start, and how long those that are left will take."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment
from fedstill.data.partition import PartitionSpec
from fedstill.models import ModelSpec
from fedstill.models.build import cost
from fedstill.papers.grid import GridRun
from fedstill.results.record import Record

MANY_ROWS = 30_000
"""Rows of a domain where the experiment does not limit them."""
DOMAINS = 4
"""Clients of an experiment that has one per domain and one model for all."""
LARGE, BASE = 3e8, 8.5e7
"""Multiplications per token of a large and a base transformer of the Hub, which is not asked for an estimate."""
HEAVIER = {"FedID": 4.0, "FedDRS": 4.0, "FedSND": 2.0, "FedGKD": 1.5, "MutualKD": 2.0}
"""Methods that do more than train and distil, and how many times the work that takes, roughly."""

Expected = Mapping[Path, float]
"""A run's folder -> seconds that it will take, or its work in any unit as long as nothing was measured."""


def work(experiment: Experiment) -> float:
    """Rows x epochs x rounds x size of the model, over all parties: only good for comparing runs with each other."""
    parties = models_of(experiment)
    rows = _rows(experiment.partition, len(parties))
    public = rows * experiment.partition.public * experiment.partition.public_share
    private = rows * (1 - experiment.partition.public - experiment.partition.validation - experiment.partition.test)
    training = private * experiment.train.epochs * fmean(map(size_of, parties))
    everybody = sum(map(size_of, [*parties, experiment.server]))
    # A client of a public set also predicts it, which is about a third of a training step.
    distilling = public * (experiment.resolved().distill.epochs + 1 / 3) * everybody if _distils(experiment) else 0.0
    heavier = HEAVIER.get(type(experiment.method).__name__, 1.0)
    return (
        heavier * experiment.rounds * experiment.participation * experiment.train.max_length * (training + distilling)
    )


def expected(runs: Sequence[GridRun]) -> Expected:
    """What each run will take: what its cell took with other seeds, else its work at the rate of what was measured."""
    taken: dict[str, list[float]] = {}
    for run in runs:
        if Record(run.folder).is_finished:
            taken.setdefault(run.experiment.name, []).append(float(Record(run.folder).summary["seconds"]))
    first = {run.experiment.name: run for run in runs}
    works = {name: work(run.experiment) for name, run in first.items()}
    measured = {name: fmean(seconds) for name, seconds in taken.items()}
    known = sum(works[name] for name in measured)
    rate = sum(measured.values()) / known if known else 1.0
    return {run.folder: measured.get(run.experiment.name, rate * works[run.experiment.name]) for run in runs}


def in_order(runs: Sequence[GridRun], takes: Expected, at_once: int) -> list[GridRun]:
    """First seeds first; side by side the longest of a seed first, so that no long one is left alone at the end."""
    if at_once == 1:
        return list(runs)
    return sorted(runs, key=lambda run: (run.experiment.seed, -takes[run.folder]))


def seconds_left(waiting: Sequence[float], running: Sequence[tuple[float, float]], at_once: int, rate: float) -> float:
    """Until the last run ends: `waiting` in order, `running` as (expected, seconds so far), `rate` seconds a unit."""
    free = [max(rate * takes - so_far, 0.0) for takes, so_far in running]
    free += [0.0] * (at_once - len(free))
    heapq.heapify(free)
    for takes in waiting:
        heapq.heappush(free, heapq.heappop(free) + rate * takes)
    return max(free)


class Pace:
    """How long the runs that are left will take, by what was expected and what those that ended took."""

    def __init__(self, ordered: Sequence[GridRun], takes: Expected, at_once: int) -> None:
        self.left = [run.folder for run in ordered]
        self.takes, self.at_once = takes, at_once
        self.seconds = self.expected = 0.0

    def left_after(self, ended: Path, seconds: float | None, others: Expected) -> float:
        """Seconds until the last run ends, now that one has; None if it failed, which says nothing about the others.

        `others` are the seconds for which others have been running.
        """
        self.left.remove(ended)
        if seconds is not None:
            self.seconds += seconds
            self.expected += self.takes[ended]
        rate = self.seconds / self.expected if self.expected else 0.0
        running = [(self.takes[folder], so_far) for folder, so_far in others.items()]
        waiting = [self.takes[folder] for folder in self.left if folder not in others]
        return seconds_left(waiting, running, self.at_once, rate)


def models_of(experiment: Experiment) -> list[ModelSpec]:
    """The clients' models."""
    if isinstance(experiment.clients, ModelSpec):
        return [experiment.clients] * (experiment.partition.clients or DOMAINS)
    clients = experiment.clients if isinstance(experiment.clients, list) else experiment.clients.values()
    return [spec if isinstance(spec, ModelSpec) else spec.model for spec in clients]


def _rows(partition: PartitionSpec, clients: int) -> float:
    return (partition.rows_per_domain or MANY_ROWS) * (clients if partition.is_by_domain else 1)


def _distils(experiment: Experiment) -> bool:
    return "public" in experiment.method.needs


def size_of(spec: ModelSpec) -> float:
    """Multiplications per token; a model of the Hub is not fetched for that."""
    is_remote = "/" in spec.name and not Path(spec.name.partition("[")[0]).expanduser().exists()
    if is_remote and not spec.is_small:
        return LARGE if "large" in spec.name else BASE
    try:
        return cost(spec)
    except FedstillError:
        return BASE
