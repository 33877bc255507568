"""How long runs trained, and how long their clients trained alone: what to know before their scores are compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from fedstill.common.errors import FedstillError
from fedstill.common.words import counted, ranged
from fedstill.results.record import Record
from fedstill.results.runs import Run

Methods = Mapping[str, Sequence[Run]]


def unequal_lengths(methods: Methods) -> list[str]:
    """A sentence if some runs of a table trained for other rounds or epochs than others, which may be intended."""
    every = [run for runs in methods.values() for run in runs]
    epochs = {run.folder: _epochs(run) for run in every}
    has_rounds, has_epochs = _differ([run.rounds for run in every]), _differ(epochs.values())
    if not (has_rounds or has_epochs):
        return []

    def length(run: Run) -> str:
        rounds = counted(run.rounds or 0, "round")
        if not has_epochs:
            return rounds
        each = epochs[run.folder]
        told = f"{ranged(each)} {'epoch' if each == (1,) else 'epochs'}"
        return f"{rounds} of {told}" if has_rounds else f"{told} a round"

    outcome = "a difference may come from that alone"
    if mixed := [method for method, runs in methods.items() if len({length(run) for run in runs}) > 1]:
        outcome = f"the mean of {', '.join(mixed)} is over seeds of different lengths"
    return [f"The runs are not equally long: {_by_value(methods, length)}; {outcome}."]


def unequal_alone(methods: Methods) -> str | None:
    """A sentence if `alone` is not as many rounds for all clients of a table of gains."""
    gained = {method: [run for run in runs if Record(run.folder).members] for method, runs in methods.items()}

    def alone(run: Run) -> str:
        return counted(Record(run.folder).rounds_alone, "round")

    if len({alone(run) for runs in gained.values() for run in runs}) < 2:
        return None
    return f"Alone is not the same for all: {_by_value(gained, alone)}; such gains do not compare."


def _epochs(run: Run) -> tuple[int, ...]:
    """The different numbers of epochs that its clients train for in a round; empty if no experiment says so."""
    try:
        settings = Record(run.folder).settings
        clients = settings["clients"]
        own = [clients.get(name) for name in run.client_names] if isinstance(clients, dict) else []
        train = [one["train"] for one in own if isinstance(one, dict) and "train" in one] or [settings["train"]]
        return tuple(sorted({int(each["epochs"]) for each in train}))
    except (FedstillError, OSError, KeyError, TypeError, ValueError):
        return ()  # its scores can be compared all the same


def _differ(values: Collection[int | tuple[int, ...] | None]) -> bool:
    """Whether all are known, and not the same."""
    return all(values) and len(set(values)) > 1


def _by_value(methods: Methods, value_of: Callable[[Run], str]) -> str:
    """`3 rounds (DSFL; FedMD, seed 1, 2); 4 rounds (FedMD, seed 0)`: every value, and whose it is."""
    found = defaultdict[str, list[str]](list)
    for method, runs in methods.items():
        seeds = defaultdict[str, list[str]](list)
        for run in runs:
            seeds[value_of(run)].append(str(run.seed))
        for value, each in seeds.items():
            found[value].append(method if len(seeds) == 1 else f"{method}, seed {', '.join(each)}")
    return "; ".join(f"{value} ({'; '.join(names)})" for value, names in found.items())
