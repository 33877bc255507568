"""Scores by round: which lines of a record they are, their mean and spread, and the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedstill.papers.curves import (
    MethodCurves,
    Panel,
    by_round,
    curve,
    curves,
    losses,
    samplings,
    sheet,
    weights_by_round,
)
from fedstill.papers.grid import plan_grid
from fedstill.papers.side_by_side import score
from fedstill.results.drawing.panels import Lines
from fedstill.results.runs import Run, load_runs
from tests.papers.tiny import tiny_source
from tests.results.conftest import write_run


def measured(folder: Path, *lines: tuple[int, str, str, str, float]) -> Run:
    """A run whose journal holds these accuracies."""
    keys = ("round", "party", "stage", "split", "accuracy")
    observation = {"round": 1, "party": "server", "observation": "noise", "values": {}}
    written = [observation, *(dict(zip(keys, line, strict=True)) for line in lines)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
    return load_runs([folder])[0]


def test_the_servers_curve_is_its_model_after_every_round_on_the_split_that_is_shown(tmp_path: Path) -> None:
    run = measured(
        write_run(tmp_path, "FedSND"),
        (1, "server", "distilled", "test", 0.5),
        (1, "server", "distilled", "test/sports", 0.1),
        (1, "sports", "trained", "test", 0.2),
        (2, "server", "distilled", "test", 0.75),
        (2, "server", "processed", "test", 0.9),  # after the last round, not of it
    )
    assert curve(run, "test", "accuracy") == ({1: 0.5, 2: 0.75}, "")


def test_without_a_server_model_it_is_the_mean_over_clients_and_says_on_which_rows(tmp_path: Path) -> None:
    pooled = measured(
        write_run(tmp_path / "pooled", "FedHe", server=False),
        (1, "server", "distilled", "test", 0.9),  # a model that nobody trains
        (1, "companies", "trained", "test", 0.2),
        (1, "sports", "trained", "test", 0.4),
        (2, "sports", "trained", "test", 0.5),
        (2, "sports", "trained", "test/sports", 0.8),
    )
    scores, origin = curve(pooled, "test", "accuracy")
    assert scores == {1: pytest.approx(0.3), 2: 0.5}
    assert origin.endswith("once trained, on test")
    own = measured(
        write_run(tmp_path / "own", "FedMD", server=False),
        (1, "companies", "trained", "test/companies", 0.2),
        (1, "companies", "distilled", "test/companies", 0.4),
        (1, "sports", "distilled", "test/sports", 0.8),
        (1, "sports", "distilled", "test/companies", 0.0),
    )
    scores, origin = curve(own, "test", "accuracy")
    assert scores == {1: pytest.approx(0.6)}
    assert origin.endswith("once distilled, each on its own test rows")


def test_the_clients_split_is_their_mean_on_their_own_rows_for_methods_with_a_server_model_too(tmp_path: Path) -> None:
    run = measured(
        write_run(tmp_path, "AdaFD"),
        (1, "server", "distilled", "test", 0.9),
        (1, "companies", "trained", "test/companies", 0.1),
        (1, "companies", "distilled", "test/companies", 0.4),
        (1, "companies", "distilled", "test", 0.0),
        (1, "sports", "distilled", "test/sports", 0.8),
        (2, "sports", "distilled", "test/sports", 0.7),
    )
    assert curve(run, "clients", "accuracy") == ({1: pytest.approx(0.6), 2: 0.7}, "")
    own = [run.clients[name][f"test/{name}"]["accuracy"] for name in ("companies", "sports")]
    assert score(run, "clients", "accuracy") == pytest.approx(sum(own) / 2)


def test_weights_are_means_over_seeds_by_client_and_round(tmp_path: Path) -> None:
    grid = plan_grid(tiny_source(tmp_path), "small", tmp_path, only=["AdaFD"])
    outcomes: dict[Path, Run | str] = {}
    for seed, books in enumerate((0.25, 0.5)):
        folder = write_run(tmp_path, "AdaFD", seed, name="few-adafd")
        about = {"party": "server", "observation": "weights"}
        seen = [about | {"round": 1, "values": {"books": books, "toys": 1 - books}}]
        seen += [about | {"round": 2, "values": {"books": 0.125, "toys": 0.875}}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in seen))
        outcomes[folder] = load_runs([folder])[0]
    table = weights_by_round(grid, outcomes)
    assert table is not None
    assert table.headings == ("client", "1", "2")
    assert table.groups == (("few, AdaFD: weight in round", (("books", "0.375", "0.125"), ("toys", "0.625", "0.875"))),)
    for folder in outcomes:
        (folder / "metrics.jsonl").write_text("")
    assert weights_by_round(grid, {folder: load_runs([folder])[0] for folder in outcomes}) is None


def test_losses_are_those_that_the_server_observed(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "Local", server=False)
    seen = [
        {"round": 1, "party": "server", "observation": "losses", "values": {"books": 0.5, "toys": 0.25}},
        {"round": 1, "party": "books", "observation": "losses", "values": {"books": 9.0}},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in seen))
    assert losses(load_runs([folder])[0]) == {1: {"books": 0.5, "toys": 0.25}}


def test_mean_and_deviation_are_over_the_seeds_in_points_where_all_were_measured() -> None:
    line = MethodCurves("FedSND", ({1: 0.5, 2: 0.6}, {1: 0.7, 2: 0.6, 3: 0.9}))
    assert line.rounds == [1, 2]
    assert line.mean(1) == pytest.approx(60)
    assert line.deviation(1) == pytest.approx(100 * 0.2 / 2**0.5)
    assert MethodCurves("FedSND", ({1: 0.5},)).deviation(1) == 0


def test_a_panel_a_group_and_column_holds_what_came_to_its_end(tmp_path: Path) -> None:
    grid = plan_grid(tiny_source(tmp_path), "small", tmp_path, seeds=1)
    journal = [(number, "server", "distilled", "test", number / 100) for number in range(1, 31)]
    outcomes: dict[Path, Run | str] = {run.folder: "failed" for run in grid.runs}
    for row in ("few-fedavg", "few-adafd"):
        folder = write_run(tmp_path, row, name=row)
        lines = [dict(zip(("round", "party", "stage", "split", "f1"), line, strict=True)) for line in journal]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        outcomes[folder] = load_runs([folder])[0]
    only_global = plan_grid(tiny_source(tmp_path), "small", tmp_path, seeds=1, only=["global"])
    panels, notes = curves(only_global, outcomes)
    assert [(panel.title, panel.metric, [line.row for line in panel.lines]) for panel in panels] == [
        ("few, all (240)", "f1", ["FedAvg", "AdaFD"])
    ]
    assert not notes
    table = by_round(only_global, panels)
    assert table.headings == ("method", "1", "5", "9", "13", "18", "22", "26", "30")
    assert table.groups[0][1][0] == (
        "FedAvg (here: LogitAvg)",
        "1.0",
        "5.0",
        "9.0",
        "13.0",
        "18.0",
        "22.0",
        "26.0",
        "30.0",
    )


def test_samplings_are_means_over_rounds_and_clients_of_what_was_observed_at_a_step(tmp_path: Path) -> None:
    grid = plan_grid(tiny_source(tmp_path), "small", tmp_path, seeds=1, only=["global", "FedAvg"])
    folder = write_run(tmp_path, "few-fedavg", name="few-fedavg")
    values = [
        {"step": 0, "teacher": 3.0, "student": 3.5},
        {"step": 10, "teacher": 1.0, "student": 4.0},
        {"step": 0, "teacher": 2.0, "student": 2.5},
    ]
    about = {"round": 1, "party": "server"}
    seen = [about | {"observation": "adversary sampling", "values": each} for each in values]
    other = about | {"observation": "target sampling", "values": {"step": 0, "teacher": 9.0, "student": 9.0}}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*seen, other]))
    teacher, student = samplings(grid, {folder: load_runs([folder])[0]})
    assert (teacher.across, teacher.lines[0].seeds) == ("step", ({0: 2.5, 10: 1.0},))
    assert student.lines[0].mean(0) == pytest.approx(3.0)


def test_a_picture_has_a_line_for_each_method_with_the_spread_of_its_seeds() -> None:
    seeds = ({1: 0.5, 2: 0.6}, {1: 0.7, 2: 0.8})
    panels = [
        Panel("alpha=1", "accuracy", (MethodCurves("FedSND", seeds),)),
        Panel("the teacher", "cross-entropy (nats)", (MethodCurves("FedDRS", seeds[:1], unit=1.0),), "step"),
    ]
    scores, sampled = sheet(panels, "two panels").panels
    assert isinstance(scores, Lines)
    assert isinstance(sampled, Lines)
    (line,) = scores.lines
    assert (line.name, list(line.across), list(line.up)) == ("FedSND", [1, 2], pytest.approx([60, 70]))
    assert list(line.spread) == pytest.approx([100 * 0.2 / 2**0.5] * 2)
    assert (scores.across, scores.up) == ("round", "accuracy (points)")
    assert (sampled.across, sampled.up, list(sampled.lines[0].up)) == ("step", "cross-entropy (nats)", [0.5, 0.6])
