"""What the runs of a table noted, in few sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedstill.papers.remarks import remarks
from fedstill.results.runs import load_runs
from tests.papers.tiny import tiny_grid
from tests.results.conftest import write_run

ONE = "predicts one class (good) for nearly all test rows"
OTHER = "predicts one class (bad) for nearly all test rows"


def said(reviews: Path, folder: Path, *notes: tuple[str, ...], row: str = "AdaFD") -> list[str]:
    """The remarks where the first runs of a row (or of any) noted this, a tuple each, and no other is there."""
    grid = tiny_grid(reviews, folder)
    runs = [run for run in grid.runs if row in run.row][: len(notes)]
    assert len(runs) == len(notes)
    (run,) = load_runs([write_run(folder, "AdaFD", 0, 0.8)])
    ended = [replace(run, client_names=("books", "toys"), notes=own) for own in notes]
    missing = {each.folder: "missing" for each in grid.runs}
    return remarks(grid, missing | {place.folder: end for place, end in zip(runs, ended, strict=True)})


def test_what_two_runs_say_of_several_parties_is_one_sentence(reviews, tmp_path):
    few = "has few rows."
    nobody = "nobody: of the whole run."
    assert said(reviews, tmp_path, (f"toys {few}", f"books {few} (2x)"), (f"books {few}", nobody)) == [
        "AdaFD: books, toys: has few rows (2 runs).",
        "AdaFD: nobody: of the whole run (1 run).",
    ]


def test_models_that_name_one_class_are_counted_by_round_and_the_server_apart(reviews, tmp_path):
    first = f"server {ONE} after round 1.", f"toys {OTHER} after round 1.", f"books {ONE} after round 2."
    second = f"server {OTHER} after round 1.", f"server {OTHER} after round 2.", f"books {ONE}."
    assert said(reviews, tmp_path, first, second) == [
        "AdaFD: server: predicts one class for nearly all test rows after round 1 (2 runs), after round 2 (1 run).",
        "AdaFD: books, toys: predicts one class for nearly all test rows after some round (1 run), "
        "after round 1 (1 run), after round 2 (1 run).",
    ]


def test_a_client_of_any_name_and_a_label_in_brackets_are_told(reviews, tmp_path):
    note = "toys predicts one class (so (so)) for nearly all test rows after round 12."
    assert said(reviews, tmp_path, (note,)) == [
        "AdaFD: toys: predicts one class for nearly all test rows after round 12 (1 run)."
    ]


def test_what_all_runs_of_two_rows_say_is_said_once(reviews, tmp_path):
    notes = [("all rows are alike.",)] * 6
    (remark,) = said(reviews, tmp_path, *notes, row="")
    rows, _, rest = remark.partition(" (each): ")
    assert sorted(rows.split("; ")) == ["AdaFD", "Everything", "FedAvg"]
    assert rest == "all rows are alike (2 runs)."
