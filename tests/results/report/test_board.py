"""Several runs: letters, ranks and costs, against tests worked out here."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from fedstill.learning.metrics import scores
from fedstill.results.report.board import Board, boards
from fedstill.results.report.series import series
from fedstill.results.runs import load_runs
from tests.results.conftest import ROWS, pooled_test, predict, write_run

ACCURACIES = {"AdaFD": 0.9, "DSFL": 0.91, "FedMD": 0.5}


def board_of(folder: Path) -> Board:
    (board,) = boards([series(run) for run in load_runs([folder])])
    return board


def test_letters_over_rows_follow_a_bootstrap_of_our_own(tmp_path: Path) -> None:
    for method, accuracy in ACCURACIES.items():
        write_run(tmp_path, method, 0, accuracy)
    board = board_of(tmp_path)
    labels = pooled_test(0)[1]
    generator = np.random.default_rng(1)
    p = {}
    for one, other in (("AdaFD", "DSFL"), ("AdaFD", "FedMD"), ("DSFL", "FedMD")):
        first, second = (predict(0, ACCURACIES[name], "server") for name in (one, other))

        def apart(rows: np.ndarray, first: np.ndarray = first, second: np.ndarray = second) -> float:
            return scores(labels[rows], first[rows], 3)["f1"] - scores(labels[rows], second[rows], 3)["f1"]

        drawn = [apart(generator.integers(0, ROWS, ROWS)) for _ in range(300)]
        p[one, other] = 2 * stats.norm.sf(abs(apart(np.arange(ROWS))) / np.std(drawn))
    assert p["AdaFD", "DSFL"] > 0.2
    assert max(p["AdaFD", "FedMD"], p["DSFL", "FedMD"]) < 0.001
    assert sorted(board.letters.items()) == [("AdaFD", "a"), ("DSFL", "a"), ("FedMD", "b")]
    assert "bootstrap over test rows" in board.tests


def test_with_three_seeds_letters_are_over_seeds_and_scores_are_means(tmp_path: Path) -> None:
    for method, accuracy in ACCURACIES.items():
        for seed in range(3):
            write_run(tmp_path, method, seed, accuracy)
    board = board_of(tmp_path)
    assert "t-test over seeds" in board.tests
    found = {row.method: row.overall.mean for row in board.comparison.rows if row.overall is not None}
    for method, accuracy in ACCURACIES.items():
        each = [scores(pooled_test(seed)[1], predict(seed, accuracy, "server"), 3)["f1"] for seed in range(3)]
        assert found[method] == pytest.approx(fmean(each))
    assert board.ranks is not None
    assert board.ranks.blocks == 6
    assert board.ranks.means["FedMD"] == 3.0


def test_without_predictions_and_seeds_there_are_no_letters(tmp_path: Path) -> None:
    for method in ACCURACIES:
        for file in (write_run(tmp_path, method) / "predictions").iterdir():
            file.unlink()
    board = board_of(tmp_path)
    assert board.letters == {}
    assert "cannot be paired" in board.tests


def test_costs_are_summed_up_to_every_round(shops: Path) -> None:
    board = board_of(shops)
    runs = {run.method: run for run in load_runs([shops])}
    for method, run in runs.items():
        assert max(board.bytes[method].values()) == run.bytes_up + run.bytes_down
        assert list(board.by_round[method]) == [1, 2]
