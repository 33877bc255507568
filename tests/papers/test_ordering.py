"""Who is first, and what a difference is worth, against scipy and against `compare`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import stats

from fedstill.papers.ordering import difference, orderings
from fedstill.results.compare import compare
from fedstill.results.runs import Run, load_runs
from tests.papers.tiny import TINY, tiny_grid
from tests.results.conftest import CLIENTS, pooled_test, write_run

SHOWN = TINY.replace("test/books", "test/sports").replace("test/toys", "test/companies")
NONE = np.empty(0, np.int64)


def runs(root: Path, name: str, method: str, accuracy: float, seeds: int = 3) -> list[Run]:
    """Finished runs with their partitions."""
    folders = [write_run(root, method, seed, accuracy, name=name) for seed in range(seeds)]
    for seed, folder in enumerate(folders):
        rows, _, domains = pooled_test(seed)
        tests = {f"test/{client}": rows[domains == number] for number, client in enumerate(CLIENTS)}
        empty = {f"{kind}/{client}": NONE for kind in ("train", "validation") for client in CLIENTS}
        save_file(tests | empty | {"public": NONE, "labelled": NONE, "unused": NONE}, folder / "partition.safetensors")
    return list(load_runs(folders))


def test_on_the_pooled_test_the_difference_is_that_of_compare(tmp_path: Path) -> None:
    ours, theirs = runs(tmp_path, "a", "AdaFD", 0.8), runs(tmp_path, "b", "FedAvg", 0.7)
    found = difference(ours, theirs, "test", "f1")
    row = next(row for row in compare([*ours, *theirs], against="b").rows if row.method == "AdaFD")
    assert found is not None
    assert row.difference is not None
    assert (found.mean, found.p_seeds, found.seeds, found.test_rows) == (
        pytest.approx(row.difference.mean),
        pytest.approx(row.difference.p_seeds),
        row.difference.seeds,
        row.difference.test_rows,
    )
    assert found.bootstrap == row.difference.bootstrap


def test_on_one_domain_only_its_rows_count_in_the_metric_that_is_asked_for(tmp_path: Path) -> None:
    ours, theirs = runs(tmp_path, "a", "AdaFD", 0.9), runs(tmp_path, "b", "FedAvg", 0.6)
    found = difference(ours, theirs, "test/sports", "accuracy")
    assert found is not None
    assert found.bootstrap is not None
    first, second = ([run.server["test/sports"]["accuracy"] for run in each] for each in (ours, theirs))  # type: ignore[index]
    assert found.mean == pytest.approx(np.mean(first) - np.mean(second))
    assert found.p_seeds == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert found.bootstrap.difference == pytest.approx(found.mean)
    assert found.test_rows == (60, 60, 60)
    apart = np.subtract(first, second)
    assert found.interval == pytest.approx(stats.t.interval(0.95, 2, loc=apart.mean(), scale=stats.sem(apart)))


def test_a_split_without_kept_predictions_has_no_p_over_rows(tmp_path: Path) -> None:
    scores = {"server": {"global_test": {"f1": 0.5}}, "clients": {}}
    folders = [write_run(tmp_path, method, scores=scores) for method in ("AdaFD", "FedAvg")]
    for folder in folders:
        save_file(
            dict.fromkeys(("train/x", "validation/x", "test/x", "public", "labelled", "unused"), NONE),
            folder / "partition.safetensors",
        )
    first, second = ([run] for run in load_runs(folders))
    found = difference(first, second, "global_test", "f1")
    assert found is not None
    assert (found.mean, found.p_seeds, found.bootstrap) == (0.0, None, None)


def test_the_papers_method_is_held_against_the_best_baseline_whoever_wins(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, tmp_path, text=SHOWN, seeds=3)
    ours = runs(tmp_path, "few-adafd", "AdaFD w/ ENWC", 0.6)
    theirs = runs(tmp_path, "few-fedavg", "LogitAvg", 0.9)
    bound = runs(tmp_path, "few-everything", "Centralized", 0.95)
    outcomes = {run.folder: run for run in [*ours, *theirs, *bound]}
    sentences = orderings(grid, outcomes)
    assert sentences[0] == "AdaFD is first, or shares the first place, in 0 of 3 here, in the paper in 2 of them."
    mine, its = (100 * np.mean([run.server["test"]["f1"] for run in each]) for each in (ours, theirs))  # type: ignore[index]
    assert sentences[1].startswith(
        f"few, global: first here FedAvg ({its:.1f}), in the paper AdaFD (75.0). AdaFD against FedAvg, the best other: "
        f"{mine - its:+.1f} ["
    )
    assert "], in the paper +5.0 (p over 3 seeds " in sentences[1]
    assert "p over 120 test rows" in sentences[1]
    assert "in the paper FedAvg (71.0)" in sentences[2]
    assert "p over 60 test rows" in sentences[2]
    assert "Everything" not in "".join(sentences)  # an upper bound does not compete


def test_equal_numbers_share_the_first_place_and_two_seeds_give_no_p(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, tmp_path, text=SHOWN, seeds=2)
    ours, theirs = (runs(tmp_path, name, "AdaFD", 0.8, 2) for name in ("few-adafd", "few-fedavg"))
    sentences = orderings(grid, {run.folder: run for run in [*ours, *theirs]})
    assert "in 3 of 3 here" in sentences[0]
    assert "first here FedAvg and AdaFD" in sentences[1]
    assert "+0.0, in the paper +5.0 (2 seeds, 3 are needed for a p; p over 120 test rows 1.000)" in sentences[1]


def test_variants_of_one_method_are_held_against_each_other(tmp_path: Path) -> None:
    text = SHOWN.replace("  FedAvg: LogitAvg", "  FedAvg: {algorithm: {name: AdaFD, weighting: RNWC}}")
    grid = tiny_grid(tmp_path, tmp_path, text=text, seeds=1)
    ours, theirs = runs(tmp_path, "few-adafd", "AdaFD w/ ENWC", 0.9, 1), runs(tmp_path, "few-fedavg", "AdaFD", 0.6, 1)
    sentences = orderings(grid, {run.folder: run for run in [*ours, *theirs]})
    assert "AdaFD against FedAvg, the best other: +" in sentences[1]
