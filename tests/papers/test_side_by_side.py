"""Cells as the paper's number beside ours, worked out from the stored scores."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, stdev

import pytest
from rich.console import Console

from fedstill.papers.domains import other_domains
from fedstill.papers.grid import Grid
from fedstill.papers.side_by_side import (
    Outcomes,
    SideBySide,
    brief,
    how_to_read,
    label,
    markdown,
    render,
    score,
    side_by_side,
)
from fedstill.results.runs import Run, load_runs
from tests.papers.tiny import TINY, tiny_grid
from tests.results.conftest import write_run

SHOWN = TINY.replace("[[test/books, f1]]", "[[test/sports, f1]]").replace(
    "[[test/toys, accuracy], [test/toys, macro_f1]]", "[[test, accuracy], [test/sports, macro_f1]]"
)


def finished_grid(tmp_path: Path, text: str = SHOWN) -> tuple[Grid, Outcomes]:
    """A grid whose runs are there: Everything twice, FedAvg once with a failure, AdaFD not at all."""
    grid = tiny_grid(tmp_path, tmp_path, text=text)
    outcomes: dict[Path, object] = {}
    for seed, accuracy in ((0, 0.9), (1, 0.8)):
        write_run(tmp_path, "Centralized", seed, accuracy, name="few-everything")
    write_run(tmp_path, "LogitAvg", 0, 0.7, name="few-fedavg")
    for run in grid.runs:
        is_there = (run.folder / "summary.json").exists()
        outcomes[run.folder] = load_runs([run.folder])[0] if is_there else "the disk is full."
    return grid, outcomes  # type: ignore[return-value]


def stored(folder: Path, split: str, metric: str) -> float:
    return 100 * float(json.loads((folder / "summary.json").read_text())["scores"]["server"][split][metric])


def test_a_cell_holds_the_papers_number_our_mean_deviation_and_seeds(tmp_path: Path) -> None:
    table = side_by_side(*finished_grid(tmp_path))
    assert table.headings == ("method", "all (240)", "books", "toys")
    (few, rows), (many, others) = table.groups
    assert (few, many) == ("few", "many")
    both = [stored(tmp_path / "few-everything" / f"seed-{seed}", "test", "f1") for seed in (0, 1)]
    assert rows[0][:2] == (
        "Everything (here: Centralized)",
        f"90.1 | {fmean(both):.1f} ± {stdev(both):.1f} (2)",
    )
    pairs = [
        [stored(tmp_path / "few-everything" / f"seed-{seed}", *what) for seed in (0, 1)]
        for what in (("test", "accuracy"), ("test/sports", "macro_f1"))
    ]
    joined = "/".join(f"{fmean(pair):.1f} ± {stdev(pair):.1f}" for pair in pairs)
    assert rows[0][3] == f"80.0/81.5 | {joined} (2)"
    one = stored(tmp_path / "few-fedavg" / "seed-0", "test/sports", "f1")
    assert rows[1][2] == f"71.0 | {one:.1f} (1; 1 failed)"
    assert rows[2][1:] == ("75.0 | failed", "70.5 | failed", "62.5/60.0 | failed")
    assert [row[0] for row in others] == ["FedAvg (here: LogitAvg)", "AdaFD (here: AdaFD w/ ENWC)"]
    assert others[0][1] == "72.0 | –"  # a group that the scale does not run


def test_a_table_without_printed_numbers_shows_ours_only_and_says_so(tmp_path: Path) -> None:
    grid, outcomes = finished_grid(tmp_path, SHOWN[: SHOWN.index("values:")])
    (_, rows), _ = side_by_side(grid, outcomes).groups
    assert rows[1][1] == f"{stored(tmp_path / 'few-fedavg' / 'seed-0', 'test', 'f1'):.1f} (1; 1 failed)"
    assert how_to_read(grid)[0].startswith("The paper prints no numbers for this (Nobody, Table 0): every cell is ours")


def test_a_score_of_the_last_five_rounds_is_their_mean_before_post_processing(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "FedDRS")
    lines = [("distilled", round, round / 10) for round in range(1, 8)] + [("processed", 7, 0.0)]
    about = {"party": "server", "split": "tasks"}
    other = {"round": 7, "party": "server", "split": "test", "stage": "distilled", "f1": 0.0}
    measured = [{"round": round, "stage": stage, "f1": f1} | about for stage, round, f1 in lines] + [other]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in reversed(measured)))
    run = load_runs([folder])[0]
    assert score(run, "last5/tasks", "f1") == pytest.approx((0.3 + 0.4 + 0.5 + 0.6 + 0.7) / 5)
    assert score(run, "last5/nowhere", "f1") is None


def test_a_column_against_a_row_has_the_differences_from_it_seed_by_seed(tmp_path: Path) -> None:
    text = SHOWN[: SHOWN.index("values:")].replace("{heading: all (240)}", "{against: FedAvg}")
    grid, outcomes = finished_grid(tmp_path, text)
    (_, rows), _ = side_by_side(grid, outcomes).groups
    ours, theirs = (stored(tmp_path / f"few-{row}" / "seed-0", "test", "f1") for row in ("everything", "fedavg"))
    assert rows[0][1] == f"{ours - theirs:+.1f} (2)"  # FedAvg has no second seed to compare with
    assert rows[1][1] == "–"


def test_a_split_that_was_not_measured_is_a_dash(tmp_path: Path) -> None:
    grid, outcomes = finished_grid(tmp_path, TINY)
    (_, rows), _ = side_by_side(grid, outcomes).groups
    assert rows[0][2] == "91.2 | –"


def test_without_a_server_model_a_score_is_the_mean_over_the_clients_that_have_it(tmp_path: Path) -> None:
    run = load_runs([write_run(tmp_path, "Local", server=False)])[0]
    f1 = [run.clients[name]["test"]["f1"] for name in ("companies", "sports")]
    assert score(run, "test", "f1") == pytest.approx(fmean(f1))
    assert score(run, "test/nowhere", "f1") is None


def test_the_same_name_in_other_spelling_is_not_repeated(tmp_path: Path) -> None:
    recipe = tiny_grid(tmp_path, tmp_path, text=TINY.replace("FedAvg", "Logit-Avg")).recipe
    assert label(recipe, "Logit-Avg") == "Logit-Avg"


def test_a_narrow_terminal_gets_the_columns_below_each_other_with_nothing_cut_off(tmp_path: Path) -> None:
    table = side_by_side(*finished_grid(tmp_path))
    wide, narrow = render(table, 200), render(table, 80)
    assert len(wide) == 1 < len(narrow)
    console = Console(width=80, no_color=True)
    with console.capture() as capture:
        for block in narrow:
            console.print(block)
    shown = capture.get()
    for _, rows in table.groups:
        for row in rows:
            assert all(cell in shown for cell in row)


def test_a_terminal_gets_neither_columns_without_ours_nor_empty_rows() -> None:
    rows = (("FedAvg", "81.0 | 70.2", "79.1 | –"), ("AdaFD", "– | –", "80.0 | –"), ("MHAT", "78.0 | –", "– | –"))
    table = SideBySide(("method", "global", "baby"), (("small", rows), ("large", (("FedAvg", "– | –", "90.0 | –"),))))
    kept = (("FedAvg", "81.0 | 70.2"), ("MHAT", "78.0 | –"))
    assert brief(table) == SideBySide(("method", "global"), (("small", kept),))
    printed = SideBySide(("method", "global"), (("", (("FedAvg", "81.0 | –"),)),))
    assert brief(printed) == printed


def test_markdown_has_one_line_a_row_and_escapes_the_bars(tmp_path: Path) -> None:
    lines = markdown(side_by_side(*finished_grid(tmp_path))).splitlines()
    assert len(lines) == 2 + 2 + 5
    assert all(line.replace("\\|", "").count("|") == 5 for line in lines)
    assert lines[2] == "| **few** |  |  |  |"


def test_a_column_of_bytes_has_the_sum_of_both_directions(tmp_path: Path) -> None:
    text = SHOWN.replace("[[test/sports, f1]]", "[[test/sports, f1]], sent: true", 1)
    grid, outcomes = finished_grid(tmp_path, text)
    everything = json.loads((tmp_path / "few-everything" / "seed-0" / "summary.json").read_text())["bytes"]
    cell = side_by_side(grid, outcomes).groups[0][1][0][2]
    assert cell.endswith(f"| {everything['up'] + everything['down']:,}")


def test_domains_that_the_paper_does_not_have_get_a_table_of_their_own(tmp_path: Path) -> None:
    grid, outcomes = finished_grid(tmp_path)  # measured on sports, which a column shows, and on companies
    table = other_domains(grid, outcomes)
    assert table is not None
    assert table.headings == ("method", "companies")
    ((name, rows),) = table.groups
    assert name == "few"
    assert [row[0] for row in rows] == ["Everything (here: Centralized)", "FedAvg (here: LogitAvg)"]
    ended = [each for each in outcomes.values() if isinstance(each, Run)]
    scores = [each.server["test/companies"]["f1"] for each in ended if each.server and each.method == "Centralized"]
    assert rows[0][1] == f"{100 * fmean(scores):.1f} ± {100 * stdev(scores):.1f} (2)"
    shown = TINY.replace("[[test/books, f1]]", "[[test/sports, f1], [test/companies, f1]]")
    assert other_domains(*finished_grid(tmp_path / "all", shown)) is None
