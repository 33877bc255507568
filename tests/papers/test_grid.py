"""What a recipe runs at a scale: layers, shared runs, selections, names."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.common.errors import FedstillError
from fedstill.papers.grid import plan_grid
from tests.papers.tiny import TINY, tiny_grid, tiny_source


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_columns_that_change_nothing_share_a_run_and_seeds_come_round_by_round(reviews: Path, out: Path) -> None:
    grid = tiny_grid(reviews, out)
    names = ["few-everything", "few-fedavg", "few-adafd"]
    assert [run.folder for run in grid.runs] == [out / name / f"seed-{seed}" for seed in (0, 1) for name in names]
    assert {run.columns for run in grid.runs} == {("global", "books", "toys")}
    assert [str(run) for run in grid.of("few", "AdaFD", "toys")] == ["few-adafd, seed 0", "few-adafd, seed 1"]
    assert grid.of("many", "AdaFD", "toys") == []


def test_columns_that_change_something_have_runs_that_are_called_after_them(reviews: Path, out: Path) -> None:
    text = TINY.replace("books: {shows", "books: {experiment: {rounds: 1}, shows")
    whole = tiny_grid(reviews, out, text=text, seeds=1)
    assert [run.experiment.name for run in whole.runs[:4]] == [
        "few-global-everything",
        "few-global-fedavg",
        "few-global-adafd",
        "few-books-everything",
    ]
    alone = tiny_grid(reviews, out, text=text, seeds=1, only=["toys"])  # the run that it shares keeps its name
    assert [run.folder for run in alone.runs] == [run.folder for run in whole.runs[:3]]


def test_a_scale_goes_over_what_holds_at_all_scales_and_the_command_line_over_both(reviews: Path, out: Path) -> None:
    text = TINY.replace("books: {shows", "books: {experiment: {rounds: 5}, scales: {small: {train: {batch: 4}}}, shows")
    books = tiny_grid(reviews, out, text=text, only=["books", "FedAvg"]).runs[0].experiment
    assert (books.rounds, books.train.batch, books.train.epochs) == (2, 4, 2)  # small says rounds: 2
    assert books.partition.public == 0.1
    changed = tiny_grid(reviews, out, "rounds=7", "train.batch=3", "seed=4", text=text, only=["books", "FedAvg"])
    assert (changed.runs[0].experiment.rounds, changed.runs[0].experiment.train.batch) == (7, 3)
    assert [run.folder.name for run in changed.runs] == ["seed-4", "seed-5"]
    assert plan_grid(tiny_source(reviews, text), "paper", out, only=["FedAvg", "books"]).runs[0].experiment.rounds == 9


def test_only_chooses_by_column_row_or_group_beyond_what_the_scale_runs(reviews: Path, out: Path) -> None:
    grid = tiny_grid(reviews, out, only=["many", "adafd"], seeds=1)
    assert [(run.group, run.row) for run in grid.runs] == [("many", "AdaFD")]


def test_a_row_whose_key_is_missing_is_left_out_and_said_so(
    reviews: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TINY.replace("  FedAvg: LogitAvg", "  FedAvg: {algorithm: LogitAvg, needs_env: A_KEY}")
    monkeypatch.delenv("A_KEY", raising=False)
    grid = tiny_grid(reviews, out, text=text)
    assert {run.row for run in grid.runs} == {"Everything", "AdaFD"}
    assert grid.selection.left_out == ("FedAvg is left out: it needs the environment variable A_KEY.",)
    monkeypatch.setenv("A_KEY", "here")
    assert len(tiny_grid(reviews, out, text=text).runs) == 6


@pytest.mark.parametrize(
    ("text", "overrides", "options", "says"),
    [
        (TINY, [], {"only": ["book"]}, "--only book: no group, row or column has that name; did you mean 'books'?"),
        (TINY, [], {"only": ["many", "Everything"]}, "no group has the chosen rows and columns"),
        (TINY, ["round=3"], {}, "on the command line: unknown key 'round'; did you mean 'rounds'?"),
        (TINY, ["rounds"], {}, "'rounds' is not an override"),
        (TINY.replace("epochs: 2", "epochs: 0"), [], {}, "tiny.yaml:9: train.epochs"),
        (TINY.replace("public: 0.1", "public: 1.5"), [], {}, "tiny.yaml:15: partition.public"),
        (TINY.replace("rounds: 2", "rounds: 0"), [], {}, "tiny.yaml:13: rounds"),
        (TINY.replace("beta: 5", "betta: 5"), [], {}, "tiny.yaml:20: ENWC has no option 'betta'"),
        (TINY.replace("method: AdaFD", "asks: {corpus.label: the label's column}"), [], {}, "give it as corpus.label="),
    ],
)
def test_a_mistake_is_a_sentence_that_says_where(
    reviews: Path, out: Path, text: str, overrides: list[str], options: dict[str, object], says: str
) -> None:
    with pytest.raises(FedstillError) as error:
        tiny_grid(reviews, out, *overrides, text=text, **options)
    assert says in str(error.value)


def test_a_scale_asks_for_what_the_others_do_not_need(reviews: Path, out: Path) -> None:
    source = tiny_source(reviews, TINY.replace("small: {seeds: 2,", "small: {seeds: 2, asks: {labels: a list},"))
    with pytest.raises(FedstillError, match=r"Nobody, Table 0 needs a list: give it as labels=\.\.\."):
        plan_grid(source, "small", out)
    assert plan_grid(source, "small", out, ["labels=[bad, good, so-so]"])
    assert plan_grid(source, "paper", out)


def test_an_unknown_scale_names_the_nearest(reviews: Path, out: Path) -> None:
    with pytest.raises(FedstillError, match="has no such scale; did you mean 'small'"):
        plan_grid(tiny_source(reviews), "smal", out)
