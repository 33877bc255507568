"""The examples run as their README says, and the project's README shows these files and commands that work."""

from __future__ import annotations

import ast
import csv
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from fedstill import Record, load_model
from fedstill.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLE = [line for line in (EXAMPLES / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| [")]


def command_of(file: str) -> str:
    """The command that the examples' README gives for a file."""
    (row,) = [row for row in TABLE if f"]({file})" in row]
    (command,) = re.findall(r"`([^`]+)` \|$", row)
    return str(command)


def script(file: str) -> str:
    """Run a Python example as its README says; what it prints."""
    program, *words = shlex.split(command_of(file))
    assert program == "python"
    return subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True, timeout=600).stdout


def fedstill(command: str, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    """Type a command, with further overrides for a run."""
    program, verb, *words = shlex.split(command, comments=True)
    assert program == "fedstill"
    monkeypatch.setattr(sys, "argv", [program, verb, *words, *(more if verb == "run" else ())])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code, command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples with the reviews written, to stand in."""
    folder = shutil.copytree(
        EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("runs", "rehearsals", "*.csv", "*.png")
    )
    monkeypatch.chdir(folder)
    script("make_reviews.py")
    return folder


def ran(file: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Run an experiment as the examples' README says; its record."""
    fedstill(command_of(file), monkeypatch, "workers=1")
    record = Record(Path(folder) / "seed-0")
    assert record.f1("server") > 0.5  # of three classes
    return record


def test_every_file_has_a_line_with_its_command() -> None:
    named = set(re.findall(r"\]\(([^)]+)\)", "\n".join(TABLE)))
    assert named == {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".yaml")}
    assert all(command_of(file) for file in named)


def test_reviews_have_three_shops_and_three_stars_and_are_the_same_every_time(here: Path) -> None:
    rows = list(csv.DictReader(Path("reviews.csv").read_text().splitlines()))
    assert len(rows) == 360
    assert {row["shop"] for row in rows} == {"books", "garden", "toys"}
    assert {row["stars"] for row in rows} == {"good", "so-so", "bad"}
    before = Path("reviews.csv").read_bytes()
    script("make_reviews.py")
    assert Path("reviews.csv").read_bytes() == before


def test_own_data(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ran("shops.yaml", "runs/shops", monkeypatch)
    assert record.summary["method"] == "AdaFD w/ ENWC"
    assert record.summary["clients"] == ["books", "garden", "toys"]


def test_own_method(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ran("own_method.py", "runs/own-method", monkeypatch)
    assert record.summary["method"] == "Confident"
    assert record.summary["models"] == {"server": "bert-tiny", "books": "bow", "garden": "textcnn", "toys": "bigru"}


def test_own_model(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ran("own_model.py", "runs/own-model", monkeypatch)
    module = load_model(record.model_folder("toys"), trust_code=True).module
    assert type(module).__name__ == "MyModel"
    assert module.head[2].weight.shape == (3, 32)  # type: ignore[index, union-attr]


def test_conversation(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ran("conversation.py", "runs/curious", monkeypatch)
    lines = [line for line in record.ledger if line["round"] == 3]
    assert [(line["direction"], line["verb"], line["message"]) for line in lines] == [
        ("down", "reply", "Question"),
        ("up", "reply", "Scores"),
        ("down", "listen", "Lesson"),
        ("up", "listen", "Done"),
    ]
    # A fifth of 360 rows is public, half of those are asked about: 36 rows, 3 labels, 3 clients, 4 bytes a number.
    assert lines[0]["indices"] == 36 * 4
    assert lines[1]["payload"] == 36 * 3 * 3 * 4


def test_python_api(here: Path) -> None:
    scores, *gain, books, server = script("python_api.py").strip().splitlines()
    record = Record("runs/from-python/seed-0")
    assert scores == f"{record.f1('server')} {record.f1('books')} {record.summary['bytes']}"
    assert "\n".join(gain) == str(record.gain())
    assert ast.literal_eval(books)[0] in record.summary["labels"]
    assert ast.literal_eval(server)["label"] in record.summary["labels"]


BLOCKS = re.findall(r"^```(?:python|yaml)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_readme_has_blocks_of_code() -> None:
    assert len(BLOCKS) == len(re.findall(r"^```[a-z]", README, re.MULTILINE)) > 0


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.partition("\n")[0])
def test_a_block_of_the_readme_is_an_example(block: str) -> None:
    head, _, shown = block.partition("\n")
    path = ROOT / head.removeprefix("# ")
    assert path.parent == EXAMPLES, f"begin the block with `# examples/FILE`, not with {head!r}"
    whole = path.read_text(encoding="utf-8")
    assert whole.endswith(shown), f"README shows another {path.name} than the file"
    left_out = whole.removesuffix(shown).strip()
    assert left_out == "" or re.fullmatch(r'"""[^"]*"""', left_out), f"README lacks more than {path.name}'s docstring"


def commands(heading: str) -> list[str]:
    """The indented commands of a section of the README."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    return [dedent(line) for line in section.splitlines() if line.startswith("    fedstill ")]


def test_the_readmes_commands_do_what_it_says(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = {}
    for command in commands("Your own data") + commands("Your own method"):
        if command.split()[1] == "watch":  # it goes on until Ctrl-C: tests/cli/test_watch.py
            continue
        fedstill(command, monkeypatch, "workers=1", "rounds=1", "clients=bow", "server=bow")
        printed[command.split()[1]] = capsys.readouterr().out
    assert Path("shops-partition.png").exists()
    assert {str(path) for path in Path("runs").glob("*/*")} == {
        *(f"runs/{name}/seed-{seed}" for name in ("shops", "dsfl") for seed in range(3)),
        "runs/confident/seed-0",
        "runs/shops/report.html",  # a page for all seeds
        "runs/dsfl/report.html",
    }
    assert "AdaFD w/ ENWC" in printed["compare"]
    assert "DSFL" in printed["compare"].replace("-", "")
    labelled = list(csv.DictReader(printed["predict"].splitlines()))
    given = list(csv.DictReader(Path("new.csv").read_text().splitlines()))
    assert [row["body"] for row in labelled] == [row["body"] for row in given]
    assert {row["predicted"] for row in labelled} <= {"good", "so-so", "bad"}
    resolved = yaml.safe_load(Path("runs/confident/seed-0/experiment.yaml").read_text())
    assert resolved["algorithm"] == {"name": f"{here.resolve() / 'own_method.py'}:Confident", "sharpness": 4}
