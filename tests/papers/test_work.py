"""What runs are expected to take, in which order they start, and how long those that are left will take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedstill.config.experiment import Experiment
from fedstill.papers.work import Pace, expected, in_order, seconds_left, work
from tests.papers.tiny import TINY, tiny_grid

SIZED = {
    "partition": {"kind": "dirichlet", "clients": 5, "rows_per_domain": 1000, "public": 0.5, "test": 0.1},
    "clients": "textcnn",
    "server": "textcnn",
    "algorithm": "LogitAvg",
    "train": {"epochs": 3, "max_length": 64},
    "rounds": 2,
}


def of(**changes: object) -> float:
    return work(Experiment.model_validate(SIZED | changes))


def test_work_grows_with_rows_epochs_rounds_models_and_methods() -> None:
    # 1,000 rows: 300 private, 3 epochs, 5 clients share them; 500 public, 3 + 1/3 epochs, 5 clients and the server
    size = 2e5  # textcnn's multiplications per token
    assert of() == pytest.approx(2 * 64 * size * (300 * 3 + 500 * (3 + 1 / 3) * 6))
    assert of(algorithm="FedAvg") == pytest.approx(2 * 64 * size * 300 * 3)
    assert of(rounds=4) == pytest.approx(2 * of())
    assert of(clients=["textcnn", "bigru", "bow", "bow", "bow"]) != of()
    assert of(partition=SIZED["partition"] | {"labelled_public": 0.1}, algorithm="FedID") == pytest.approx(4 * of())  # type: ignore[operator]
    assert of(server="FacebookAI/roberta-large") > of(server="google-bert/bert-base-cased") > of()


def finish(folder: Path, seconds: float) -> None:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({"seconds": seconds}))


def test_what_was_measured_goes_before_what_is_estimated(reviews: Path, tmp_path: Path) -> None:
    grid = tiny_grid(reviews, tmp_path / "out", seeds=3)
    everything, fedavg, adafd = grid.runs[:3]
    raw = expected(grid.runs)
    assert raw[fedavg.folder] == work(fedavg.experiment)
    finish(fedavg.folder, 20.0)
    finish(fedavg.folder.with_name("seed-1"), 40.0)
    takes = expected(grid.runs)
    assert takes[fedavg.folder.with_name("seed-2")] == 30.0
    assert takes[adafd.folder] == pytest.approx(30.0 * work(adafd.experiment) / work(fedavg.experiment))
    assert takes[everything.folder] < takes[adafd.folder]


def test_a_seed_comes_whole_before_the_next_and_side_by_side_its_longest_run_first(
    reviews: Path, tmp_path: Path
) -> None:
    runs = tiny_grid(reviews, tmp_path, text=TINY, seeds=2).runs
    takes = {run.folder: float(place % 3) for place, run in enumerate(runs)}
    assert in_order(runs, takes, at_once=1) == list(runs)
    shown = [(run.experiment.seed, run.row) for run in in_order(runs, takes, at_once=2)]
    assert shown == [(seed, row) for seed in (0, 1) for row in ("AdaFD", "FedAvg", "Everything")]


def test_the_time_left_is_that_of_the_schedule() -> None:
    # Two places: 10 and 4 are left of the running ones; 3 goes after 4 (ends at 7), 5 after that (12), 1 after 10 (11)
    assert seconds_left([3, 5, 1], [(12, 2), (8, 4)], at_once=2, rate=1.0) == 12
    # Twice as fast: 4 and 0 are left; 1.5 ends at 1.5, 2.5 at 4, and 0.5 after one of the two that end at 4
    assert seconds_left([3, 5, 1], [(12, 2), (8, 4)], at_once=2, rate=0.5) == pytest.approx(4.5)
    assert seconds_left([], [(5, 9)], at_once=2, rate=1.0) == 0  # longer than expected: any moment now
    assert seconds_left([6, 6, 6], [], at_once=1, rate=2.0) == 36


def test_pace_is_that_of_the_runs_that_ended_well(reviews: Path, tmp_path: Path) -> None:
    runs = list(tiny_grid(reviews, tmp_path, seeds=2).runs)
    takes = dict(zip((run.folder for run in runs), [40.0, 20.0, 10.0, 40.0, 20.0, 10.0], strict=True))
    pace = Pace(runs, takes, at_once=2)
    folders = [run.folder for run in runs]
    # 20 units took 10 s: of 40 units 10 s are left, and 10 + 40 + 20 + 10 wait: 5 -> 25 on one place, 10 -> 20 -> 25
    assert pace.left_after(folders[1], 10.0, {folders[0]: 10.0}) == pytest.approx(25.0)
    # A failure changes no rate. 8 s are left of 40 units and the next 40 have begun: 20 ends at 18, 10 at 23
    assert pace.left_after(folders[2], None, {folders[0]: 12.0}) == pytest.approx(23.0)
