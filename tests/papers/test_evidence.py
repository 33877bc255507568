"""Lines of finished runs, and pages made from them alone: the same bytes wherever they are made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment
from fedstill.config.source import Source
from fedstill.papers.borrowing import borrow
from fedstill.papers.evidence import MAIN_SCALE, Evidence, fingerprint, recall
from fedstill.papers.grid import plan_grid
from fedstill.papers.recipe import recipe_files, recipe_path
from fedstill.papers.reproduce import Table, Wishes, reproduce, reproduce_from
from tests.cli.test_cli import fedstill
from tests.papers.test_communication import TABLE
from tests.papers.tiny import TINY

pytestmark = pytest.mark.xdist_group("evidence")  # one process makes the lines for all of them

ROOT = Path(__file__).parents[2]
COMMITTED = sorted((ROOT / "evidence").glob("*/*.md"))
CURVES = TINY.replace("method: AdaFD", "table: curves\nmethod: AdaFD").replace("Everything: C", "Alone: C")
CURVES = CURVES.replace("Alone: Centralized", "Alone: Local").replace("    Everything:", "    Alone:")
OTHER_NAMES = {"few": "scarce", "Alone": "By itself", "FedAvg": "Mean"}
OF_A_TABLE = ("group", "row", "name", "experiment", "shared_with")
"""What a line has of the table that shows the run."""


def quiet() -> Console:
    return Console(width=100, no_color=True, quiet=True)


def write(folder: Path, reviews: Path, text: str = TINY) -> Path:
    """The table as a file of its own."""
    path = folder / "tiny.yaml"
    path.write_text(text.replace("REVIEWS", str(reviews)))
    return path


def make(recipe: Path, *words: str, seeds: int = 3) -> int:
    """Run the table and keep its lines."""
    out, keep = recipe.parent / "runs", recipe.parent / "evidence"
    return fedstill("reproduce", str(recipe), "--seeds", str(seeds), "--out", str(out), "--keep", str(keep), *words)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe, its runs and its lines, of curves, with a method without a server model."""
    from tests.conftest import write_reviews

    folder = tmp_path_factory.mktemp("evidence")
    assert make(write(folder, write_reviews(folder / "reviews.csv"), CURVES)) == 0
    return folder


@pytest.fixture
def moved(kept: Path, tmp_path: Path) -> Path:
    """Recipe and lines elsewhere, without the runs and the corpus."""
    shutil.copytree(kept / "evidence", tmp_path / "evidence", ignore=shutil.ignore_patterns("*.md"))
    write(tmp_path, tmp_path / "nowhere.csv", CURVES)
    return tmp_path


def renamed(text: str, names: dict[str, str]) -> str:
    for name, other in names.items():
        text = text.replace(name, other)
    return text


@pytest.fixture
def lent(kept: Path, tmp_path: Path) -> Path:
    """A table with other names for the same experiments, without runs and corpus, and the lines of the first."""
    theirs = tmp_path / "evidence" / "adafd" / "table1.jsonl"
    theirs.parent.mkdir(parents=True)
    shutil.copy(kept / "evidence" / "tiny.jsonl", theirs)
    write(tmp_path, tmp_path / "nowhere.csv", renamed(CURVES, OTHER_NAMES))
    return tmp_path


def alter(folder: Path, change: Callable[[dict[str, Any]], object], *rows: str) -> None:
    """Change the lines of the other table, all or those of some rows."""
    path = folder / "evidence" / "adafd" / "table1.jsonl"
    every = [json.loads(line) for line in path.read_text().splitlines()]
    for line in every:
        if not rows or line["row"] in rows:
            change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in every))


def taken(folder: Path) -> int:
    """How many lines the table in a folder takes from others."""
    grid = plan_grid(Source.read(folder / "tiny.yaml"), "small", folder / "runs", seeds=3)
    return borrow(grid, Evidence(folder / "evidence", "tiny", "small"))


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "evidence" / "tiny.jsonl").read_text().splitlines()]


def page(folder: Path) -> str:
    assert fedstill("reproduce", str(folder / "tiny.yaml"), "--scale", "small", "--from", f"{folder}/evidence") == 0
    return (folder / "evidence" / "tiny-small.md").read_text()


def test_a_line_holds_what_a_run_gave_and_what_it_was_made_with(kept: Path) -> None:
    every = lines(kept)
    assert [(line["row"], line["seed"]) for line in every] == [
        (row, seed) for row in ("AdaFD", "Alone", "FedAvg") for seed in range(3)
    ]
    first = every[0]
    summary = json.loads((kept / "runs/few-adafd/seed-0/summary.json").read_text())
    assert first["server"]["test/toys"]["accuracy"] == round(summary["scores"]["server"]["test/toys"]["accuracy"], 10)  # type: ignore[index]
    assert first["by_round"]["test"]["f1"]["2"] == first["server"]["test"]["f1"]  # type: ignore[index]
    assert set(first["by_round"]["test/toys"]) == {"accuracy", "macro_f1", "f1"}  # type: ignore[index]
    assert set(first["clients"]) == {"books", "garden", "toys"}  # type: ignore[call-overload]
    assert sum(first["weights"]["1"].values()) == pytest.approx(1, abs=1e-5)  # type: ignore[index]
    assert set(every[3]["losses"]["2"]) == {"books", "garden", "toys"}  # type: ignore[index]
    assert (first["scale"], first["group"], first["bytes"]) == ("small", "few", summary["bytes"])
    assert first["setting"].startswith("174 private, 24 public, 21 test rows; K = 3 clients (bow)")  # type: ignore[attr-defined]
    assert "core" in str(first["device"]) or "NVIDIA" in str(first["device"])
    assert first["commit"]
    assert str(kept) not in (kept / "evidence" / "tiny.jsonl").read_text()


def test_the_page_needs_neither_runs_nor_corpus_and_is_the_same_each_time(kept: Path, moved: Path) -> None:
    written = page(moved)
    assert written == page(kept)
    runs = (kept / "runs" / "table.md").read_text()
    table = [line for line in runs.splitlines() if line.startswith("|")]
    assert [line for line in written.splitlines() if line.startswith("|")] == table
    assert "**few, all (240): f1 after round**" in written
    assert "Alone in the curves: no server model" in written
    assert "174 private, 24 public, 21 test rows" in written
    assert "few, global: first here" in written
    assert "p over 3 seeds" in written
    assert "test rows 0." not in written  # predictions are not kept
    assert "9 runs on " in written
    assert "reproduce tiny --scale small --from evidence" in written


def test_lines_are_kept_as_runs_end_and_models_only_if_asked_for(
    tmp_path: Path, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write(tmp_path, reviews)
    monkeypatch.setattr("fedstill.papers.reproduce._present", lambda *_: pytest.fail("stopped before the table"))
    with pytest.raises(pytest.fail.Exception):
        make(recipe, "--jobs", "1", "--only", "AdaFD", seeds=1)
    lines = (tmp_path / "evidence" / "tiny.jsonl").read_text().splitlines()
    runs = [path.parent for path in (tmp_path / "runs").rglob("summary.json")]
    assert len(lines) == len(runs) > 0
    assert not any((run / "models").exists() for run in runs)
    monkeypatch.undo()
    assert make(recipe, "--jobs", "1", "--only", "AdaFD", "--models", "--force", seeds=1) == 0
    assert all((run / "models" / "server").is_dir() for run in runs)


def test_keeping_again_changes_no_byte_and_other_scales_stay(kept: Path) -> None:
    path = kept / "evidence" / "tiny.jsonl"
    before = path.read_bytes()
    assert make(kept / "tiny.yaml") == 0
    assert path.read_bytes() == before
    other = json.loads(before.splitlines()[0]) | {"scale": "paper"}
    path.write_text(path.read_text() + json.dumps(other) + "\n")
    try:
        assert make(kept / "tiny.yaml") == 0
        assert len(lines(kept)) == 10
        assert lines(kept)[0]["scale"] == "paper"
        grid, outcomes = recall(Source.read(kept / "tiny.yaml"), Evidence(kept / "evidence", "tiny", "small"))
        assert len(grid.runs) == len(outcomes) == 9
    finally:
        path.write_bytes(before)


def test_runs_whose_lines_are_kept_are_not_done_again(
    kept: Path, moved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, path = write(moved, kept / "reviews.csv", CURVES), moved / "evidence" / "tiny.jsonl"
    every = path.read_text().splitlines()
    path.write_text("\n".join(line for line in every if json.loads(line)["seed"] < 2))
    assert make(recipe) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "tiny.jsonl already: 6 runs; --force" in said
    assert "3 runs to do" in said
    assert {run.name for run in (moved / "runs").glob("*/seed-*")} == {"seed-2"}
    assert [json.loads(line)["server"] for line in path.read_text().splitlines()] == [
        json.loads(line)["server"] for line in every
    ]
    table = [(folder / "runs" / "table.md").read_text().split("\n\n")[1] for folder in (moved, kept)]
    assert table[0] == table[1]

    recipe.write_text(recipe.read_text().replace("beta: 5", "beta: 6"))
    assert make(recipe, "--only", "AdaFD", "--out", str(moved / "other"), seeds=1) == 0
    assert "1 run to do" in capsys.readouterr().out  # the line is of another experiment


def test_runs_that_another_table_shows_too_are_not_done_again(
    kept: Path, lent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(lent / "tiny.yaml") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Taken from the lines of other tables: 9 runs of the same experiments." in said
    assert "0 runs to do" in said
    assert not list((lent / "runs").rglob("summary.json"))

    grid = plan_grid(Source.read(lent / "tiny.yaml"), "small", lent / "runs", seeds=3)
    own = {(run.row, run.experiment.seed): run.experiment for run in grid.runs}
    first = {(renamed(str(line["row"]), OTHER_NAMES), line["seed"]): line for line in lines(kept)}
    assert len(lines(lent)) == 9
    for line in lines(lent):
        experiment = own[line["row"], line["seed"]]  # type: ignore[index]
        assert (line["group"], line["name"]) == ("scarce", experiment.name)
        assert (line["experiment"], line["shared_with"]) == (fingerprint(experiment), "adafd/table1")
        numbers, theirs = (
            {key: value for key, value in each.items() if key not in OF_A_TABLE}
            for each in (line, first[line["row"], line["seed"]])  # type: ignore[index]
        )
        assert numbers == theirs

    written, model = page(lent), renamed(page(kept), OTHER_NAMES)
    tables = [[line for line in text.splitlines() if line.startswith(("|", "**"))] for text in (written, model)]
    assert len(tables[0]) > 10
    assert tables[0] == tables[1]
    sentence = "- 9 of them are runs of adafd/table1 too: the same experiments."
    assert sentence in written
    assert sentence not in model


def test_several_tables_are_made_by_one_command_and_share_their_runs(reviews: Path, tmp_path: Path) -> None:
    texts = {"adafd/figure4": CURVES, "adafd/figure5": renamed(CURVES, OTHER_NAMES)}  # lines of these names are known
    tables = []
    for name, text in texts.items():
        source = Source(text.replace("REVIEWS", str(reviews)), f"{name}.yaml")
        grid = plan_grid(source, "small", tmp_path / name, seeds=1)
        tables.append(Table(grid, tmp_path / name, Evidence(tmp_path / "evidence", name, "small")))

    def made(wishes: Wishes) -> tuple[bool, str]:
        console = Console(width=200, no_color=True)
        with console.capture() as shown:
            is_whole = reproduce(tables, console, wishes)
        return is_whole, shown.get()

    is_whole, said = made(Wishes(jobs=2, minutes=0))
    assert not is_whole
    assert said.count("3 runs of 3 not begun; the same command goes on.") == 2
    is_whole, said = made(Wishes(jobs=2))
    assert is_whole
    assert "3 runs to do, 2 at once." in said
    assert "Taken from the lines of other tables: 3 runs of the same experiments." in said
    assert len(list(tmp_path.rglob("summary.json"))) == 3
    first, second = ((table.out / "table.md").read_text() for table in tables)
    assert [line for line in renamed(first, OTHER_NAMES).splitlines() if line.startswith("|")] == [
        line for line in second.splitlines() if line.startswith("|")
    ]


def test_a_line_of_another_experiment_is_not_taken(lent: Path) -> None:
    recipe = lent / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("beta: 5", "beta: 6"))
    assert taken(lent) == 6
    assert {line["row"] for line in lines(lent)} == {"By itself", "Mean"}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda line: line["by_round"]["test"].pop("macro_f1"),
        lambda line: line["by_round"].pop("test/toys"),
        lambda line: line.pop("losses"),
        lambda line: line.update(scale="paper"),
        lambda line: line.update(seed=7),
    ],
    ids=[
        "without a metric",
        "without a split of the curves",
        "without losses for a figure",
        "of another scale",
        "of another seed",
    ],
)
def test_a_line_that_does_not_serve_is_not_taken(lent: Path, spoil: Callable[[dict[str, Any]], object]) -> None:
    alter(lent, spoil, "FedAvg")
    assert taken(lent) == 6
    assert {line["row"] for line in lines(lent)} == {"By itself", "AdaFD"}


def test_other_files_of_the_folder_are_left_alone(lent: Path) -> None:
    (lent / "evidence" / "data").mkdir()
    (lent / "evidence" / "data" / "train.jsonl").write_text('{"text": "no line of ours"}\n')
    assert taken(lent) == 9


def test_a_table_without_curves_takes_lines_without_losses(lent: Path) -> None:
    alter(lent, lambda line: line.pop("losses"))
    assert taken(lent) == 0
    recipe = lent / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("table: curves\n", ""))
    assert taken(lent) == 9


def test_a_line_that_was_taken_names_the_table_for_which_the_run_was_done(lent: Path) -> None:
    alter(lent, lambda line: line.update(shared_with="shops/before"))
    assert taken(lent) == 9
    assert {line["shared_with"] for line in lines(lent)} == {"shops/before"}
    assert taken(lent) == 0  # they have lines here now


def test_force_does_runs_that_another_table_shows_too(
    kept: Path, lent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write(lent, kept / "reviews.csv", renamed(CURVES, OTHER_NAMES))
    assert make(recipe, "--only", "Mean", "--force", seeds=1) == 0
    said = capsys.readouterr().out
    assert "1 run to do" in said
    assert "other tables" not in said
    assert len(list((lent / "runs").rglob("summary.json"))) == 1
    assert taken(lent) == 8
    assert [(line["row"], line["seed"]) for line in lines(lent) if "shared_with" not in line] == [("Mean", 0)]


def test_brief_lines_show_the_same_scores(kept: Path, tmp_path: Path) -> None:
    brief, runs, whole = write(tmp_path, kept / "reviews.csv", f"brief: true\n{CURVES}"), kept / "runs", lines(kept)
    assert fedstill("reproduce", str(brief), "--seeds", "3", "--out", str(runs), "--keep", f"{tmp_path}/evidence") == 0
    for short, long in zip(lines(tmp_path), whole, strict=True):
        assert len(json.dumps(short)) < len(json.dumps(long))
        assert bool(short["clients"]) != bool(short["server"])
    table = [part.split("\n\n")[1] for part in (page(tmp_path), page(kept))]
    assert table[0] == table[1]


def test_a_line_of_another_experiment_is_refused_by_name(
    moved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = moved / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("beta: 5", "beta: 6"))
    assert fedstill("reproduce", str(recipe), "--from", f"{moved}/evidence") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "few-adafd, seed 0 (scale small) and 2 more: made by another experiment than the recipe's now." in said
    assert '--scale small --only "AdaFD" --only "few" --only "global" --keep' in said
    assert not (moved / "evidence" / "tiny-small.md").exists()


@pytest.mark.parametrize(
    ("change", "words", "says"),
    [
        (None, [], "tiny.jsonl is not there: no run of this recipe is kept"),
        ("{}", [], "tiny.jsonl:1: not a line of the evidence"),
        ("not JSON", [], "tiny.jsonl:1: not a line of the evidence"),
        ("", [], "tiny.jsonl has no line of scale small"),
        ("twice", [], "tiny.jsonl:2: a second line of few-adafd, seed 0."),
        ("FedProx", [], "tiny.jsonl:1: the recipe has no row 'FedProx' now"),
        ("", ["--scale", "tall"], "has no such scale; did you mean 'small'?"),
        ("", ["rounds=3"], "--from makes the page of all lines that are kept"),
    ],
)
def test_bad_lines_are_one_sentence(
    moved: Path, capsys: pytest.CaptureFixture[str], change: str | None, words: list[str], says: str
) -> None:
    path = moved / "evidence" / "tiny.jsonl"
    first = path.read_text().splitlines()[0]
    texts = {"twice": f"{first}\n{first}\n", "FedProx": first.replace('"row": "AdaFD"', '"row": "FedProx"')}
    path.unlink() if change is None else path.write_text(texts.get(change, change))
    assert fedstill("reproduce", str(moved / "tiny.yaml"), *words, "--from", f"{moved}/evidence") == 1
    said = capsys.readouterr().err
    assert says in " ".join(said.split())
    assert "Traceback" not in said


def test_runs_of_another_experiment_than_the_recipes_are_not_kept(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(kept / "tiny.yaml", "rounds=1") == 1
    assert "few-alone, seed 0 is not the recipe's experiment" in " ".join(capsys.readouterr().err.split())
    assert fedstill("reproduce", "fedsnd/figure6", "--keep", str(kept)) == 1
    assert "there is nothing to keep" in " ".join(capsys.readouterr().err.split())


def test_what_was_sent_is_kept_for_the_table_of_formulas(reviews: Path, tmp_path: Path) -> None:
    recipe = write(tmp_path, reviews, TABLE)
    assert make(recipe, "--only", "MHAT", "--only", "FedID", seeds=1) == 0
    table = (tmp_path / "runs" / "table.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith(("| MHAT", "| FedID"))]
    assert len(rows) == 2
    written = page(tmp_path)
    assert all(row in written for row in rows)
    assert "FedAvg is left out: no run of it is kept." in written


def test_a_fingerprint_is_of_what_counts_wherever_the_files_are() -> None:
    def of(**changes: object) -> str:
        base = {"corpus": {"path": "/here/reviews.csv", "label": "stars"}, "algorithm": "LogitAvg"}
        return fingerprint(Experiment.model_validate(base | changes))

    assert len(of()) == 16
    assert of(corpus={"path": "/there/other.csv", "label": "stars"}) == of()
    assert of(seed=4, workers=3, device="cpu", precision="bf16") == of()
    assert of(algorithm={"name": "LogitAvg"}, train={"epochs": 3}) == of()  # what the defaults say anyway
    assert of(rounds=7) != of()
    assert of(train={"rate": 1e-4}) != of()
    assert of(algorithm="DSFL") != of()


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_page_in_the_folder_is_what_its_lines_make(path: Path, tmp_path: Path) -> None:
    stem, _, scale = path.stem.partition("-") if path.with_suffix(".jsonl").exists() is False else (path.stem, "", "")
    name = f"{path.parent.name}/{stem}"
    shutil.copytree(ROOT / "evidence", tmp_path / "evidence")
    evidence = Evidence(tmp_path / "evidence", name, scale or MAIN_SCALE)
    evidence.page.unlink()
    found = recipe_path(name)
    assert found is not None
    assert reproduce_from(Source.read(found), evidence, quiet())
    assert evidence.page.read_bytes() == path.read_bytes()


def test_every_file_of_lines_has_a_recipe_and_its_pages() -> None:
    for path in (ROOT / "evidence").glob("*/*.jsonl"):
        name = f"{path.parent.name}/{path.stem}"
        assert name in recipe_files()
        scales = {json.loads(line)["scale"] for line in path.read_text().splitlines()}
        assert all(Evidence(ROOT / "evidence", name, scale).page.exists() for scale in scales)


def test_the_evidence_of_a_recipe_is_planned_by_the_recipe_alone(reviews: Path, tmp_path: Path) -> None:
    recipe = write(tmp_path, reviews, TINY.replace("method: AdaFD", "asks: {corpus.path: the reviews}"))
    with pytest.raises(FedstillError, match="give it as"):
        plan_grid(Source.read(recipe), "small", tmp_path)
    assert make(recipe, f"corpus.path={reviews}", "--only", "FedAvg", seeds=1) == 0
    assert "70.0" in page(tmp_path)  # which asks for nothing
