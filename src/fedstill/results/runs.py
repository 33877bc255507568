"""Finished runs, read from their folders."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedstill.common.errors import FedstillError
from fedstill.common.files import file_name, refuse_unreadable
from fedstill.learning.metrics import METRICS, Integers

POOLED = "test"
TASKS, TASKS_MEAN = "tasks", "mean over tasks"
"""The split in which all tasks count the same, and its heading."""
DEEPEST = 3

Scores = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Run:
    """One finished run folder; `server` is None for a method that has no server model."""

    folder: Path
    name: str
    method: str
    algorithm: str
    role: str
    seed: int
    labels: tuple[str, ...]
    client_names: tuple[str, ...]
    server: Scores | None
    clients: Mapping[str, Scores]
    bytes_up: int
    bytes_down: int
    seconds: float
    test_fingerprint: str
    metrics: tuple[str, ...] = ("f1",)
    notes: tuple[str, ...] = ()
    rounds: int | None = None
    """None where the summary does not say."""

    @property
    def metric(self) -> str:
        """The headline metric: the metric of all scores below."""
        return self.metrics[0]

    @property
    def overall(self) -> float | None:
        """The score on the pooled test: the server's, or the mean over clients if there is no server model."""
        return self._score(self.server, POOLED) if self.server is not None else self.clients_mean

    @property
    def clients_mean(self) -> float | None:
        """The mean over clients of their scores on the pooled test."""
        known = complete(self._score(scores, POOLED) for scores in self.clients.values())
        return fmean(known) if known else None

    @property
    def own_mean(self) -> float | None:
        """The mean over clients of their own models' scores, each on its own test."""
        known = complete(self._score(scores, f"{POOLED}/{name}") for name, scores in self.clients.items())
        return fmean(known) if known else None

    def domain(self, name: str) -> float | None:
        """The score on one domain's test: the server's, or that of the domain's own client."""
        split = TASKS if name == TASKS_MEAN else f"{POOLED}/{name}"
        return self._score(self.server if self.server is not None else self.clients.get(name), split)

    def domains(self) -> set[str]:
        """All domains that a model of the run was tested on."""
        tested = [*([self.server] if self.server is not None else []), *self.clients.values()]
        named = {split.partition("/")[2] for scores in tested for split in scores if split.startswith(f"{POOLED}/")}
        return named | ({TASKS_MEAN} if any(TASKS in scores for scores in tested) else set())

    def _score(self, scores: Scores | None, split: str) -> float | None:
        return None if scores is None else scores.get(split, {}).get(self.metric)


class Runs(list[Run]):
    """Finished runs, and the folders that were skipped because their run is not finished."""

    def __init__(self, runs: Iterable[Run] = (), skipped: Iterable[Path] = ()) -> None:
        super().__init__(runs)
        self.skipped = tuple(skipped)


class Unpaired(Exception):
    """Stored predictions cannot be compared row by row; the message says why."""


def load_runs(paths: Sequence[Path]) -> Runs:
    """Every finished run at or below the paths, each once; unfinished folders are listed in `.skipped`."""
    finished: dict[Path, Path] = {}
    skipped: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise FedstillError(f"{path} is not a folder: give run folders, such as runs/<name> or runs/<name>/seed-0")
        for folder in run_folders(path) or [path]:
            kind = finished if (folder / "summary.json").is_file() else skipped
            kind.setdefault(folder.resolve(), folder)
    if not finished:
        looked = ", ".join(str(folder) for folder in skipped.values()) or "no folder"
        raise FedstillError(
            f"no finished run: looked in {looked} for summary.json, which is written when a run ends. "
            "Finish one with `fedstill run --resume DIR`, or start one with `fedstill run EXPERIMENT.yaml`."
        )
    return Runs((load_run(folder) for folder in finished.values()), skipped.values())


def predictions(run: Run) -> tuple[Integers, list[Integers]]:
    """[row numbers, labels], and the predictions for these rows by each model that the run's global score is about."""
    parties = ["server"] if run.server is not None else sorted(run.clients)
    truths, predicted = [], []
    for party in parties:
        path = run.folder / "predictions" / f"{file_name(party)}.safetensors"
        if not path.is_file():
            raise Unpaired(f"{path} is missing")
        try:
            refuse_unreadable([path])
        except FedstillError as error:
            raise Unpaired(str(error).rstrip(".")) from error
        try:
            stored = load_file(path)
            rows, labels, answers = stored["rows"], stored["labels"], stored["predicted"]
        except (SafetensorError, KeyError) as error:
            raise Unpaired(f"{path} cannot be read ({error})") from error
        order = np.argsort(rows, kind="stable")
        truths.append(np.stack([rows, labels])[:, order])
        predicted.append(answers[order])
    if not all(np.array_equal(truths[0], truth) for truth in truths):
        raise Unpaired(f"the clients of {run.folder} predicted different rows")
    return truths[0], predicted


def complete(values: Iterable[float | None]) -> list[float]:
    """The values, or an empty list if one is missing: a mean over some must not look like a mean over all."""
    every = list(values)
    known = [value for value in every if value is not None]
    return known if len(known) == len(every) else []


def run_folders(path: Path, depth: int = 0) -> list[Path]:
    """The folders of runs at or below a path, finished or not."""
    if path.name.startswith("seed-") or is_run(path):
        return [path]
    if depth == DEEPEST or not path.is_dir():
        return []
    inside = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    return [folder for child in inside for folder in run_folders(child, depth + 1)]


def is_run(folder: Path) -> bool:
    """Whether a run is finished in this folder, or was begun: the experiment alone may be anybody's file."""
    begun = [name for name in ("experiment.yaml", "log.jsonl") if (folder / name).is_file()]
    return len(begun) == 2 or (folder / "summary.json").is_file()


def load_run(folder: Path, so_far: Mapping[str, Any] | None = None) -> Run:
    """A finished run; or, from what is known of it so far, one that is not."""
    path = folder / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8")) if so_far is None else so_far
        return Run(
            folder=folder,
            # A federation's run and its simulation have the same name; in a table they are two methods.
            name=summary["name"] + (" in a federation" if summary.get("engine") == "flare" else ""),
            method=summary["method"],
            algorithm=summary["algorithm"],
            role=summary["role"],
            notes=tuple(summary.get("notes", ())),
            seed=int(summary["seed"]),
            labels=tuple(str(label) for label in summary["labels"]),
            client_names=tuple(summary["clients"]),
            server=summary["scores"].get("server") or None,
            clients=summary["scores"].get("clients") or {},
            bytes_up=int(summary["bytes"]["up"]),
            bytes_down=int(summary["bytes"]["down"]),
            seconds=float(summary["seconds"]),
            test_fingerprint=summary["test_fingerprint"],
            metrics=_known(summary.get("metrics") or ["f1"]),
            rounds=int(summary["rounds"]) if "rounds" in summary else None,
        )
    except KeyError as error:
        problem = f"has no {error}"
    except (ValueError, TypeError, AttributeError) as error:
        problem = f"cannot be read ({error})"
    again = f"`fedstill run --resume {path.parent}` writes it again, from the last checkpoint if there is one, else by "
    raise FedstillError(f"{path} {problem}: leave this folder out, or remove the file; {again}training again.")


def _known(metrics: Sequence[str]) -> tuple[str, ...]:
    if unknown := [name for name in metrics if name not in METRICS]:
        raise ValueError(f"there is no metric {unknown[0]!r} in this version of fedstill")
    return tuple(metrics)
