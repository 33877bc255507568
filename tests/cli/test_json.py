"""Every command that prints a table prints it as JSON too, alone on standard output; colours and exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console

from fedstill.cli import demo as demonstration
from fedstill.cli import federation, main
from tests.cli.test_cli import TEN_LINES, fedstill
from tests.cli.test_demo import tiny  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["clients=bow", "server=bow", "rounds=1", "train.epochs=1"]


@pytest.fixture
def here(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's own CSV and an experiment."""
    monkeypatch.chdir(reviews.parent)
    (reviews.parent / "shops.yaml").write_text(TEN_LINES)
    return reviews.parent


def test_check_run_and_compare_print_nothing_but_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("check", "shops.yaml", "--json", *SMALL) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["counts"] == {"rows read": 240}
    assert [party["party"] for party in checked["parties"]] == ["books", "garden", "toys", "server"]
    for party in checked["parties"][:3]:
        assert sum(checked["rows_by_label"][party["party"]].values()) == party["train"]
    assert fedstill("run", "shops.yaml", "--json", *SMALL) == 0
    captured = capsys.readouterr()
    ran = json.loads(captured.out)
    assert "round 1/1" in captured.err
    assert [row["client"] for row in ran["runs"][0]["clients"]] == ["books", "garden", "toys"]
    assert fedstill("compare", "runs", "--json") == 0
    assert json.loads(capsys.readouterr().out) == ran["comparison"]


@pytest.mark.slow
def test_a_papers_table_is_json_from_kept_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = ROOT / "evidence" / "adafd" / "table1.jsonl"
    (tmp_path / "adafd").mkdir()
    (tmp_path / "adafd" / "table1.jsonl").write_bytes(lines.read_bytes())
    assert fedstill("reproduce", "adafd/table1", "--scale", "medium", "--from", str(tmp_path), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    first = told["tables"][0]
    assert first["headings"][:2] == ["method", "global"]
    assert all(len(row) == len(first["headings"]) for rows in first["groups"].values() for row in rows)


@pytest.mark.slow
def test_the_demo_ends_with_json(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    gain = demonstration.demo(Console(stderr=True), tmp_path, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["gain"] == gain
    assert len(told["comparison"]["rows"]) == 4


def test_the_list_of_figures_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("figure", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0].keys() == {"name", "shows", "made by", "takes"}
    assert fedstill("figure", "adafd/fig4", "--json") == 1


def test_every_command_has_json_but_those_without_a_table() -> None:
    def without(app: typer.Typer) -> set[str]:
        commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
        return {
            name for name, command in commands.items() if "--json" not in {o for p in command.params for o in p.opts}
        }

    assert without(main.app) == {"federation", "fetch", "trust", "report", "watch", "predict", "push"}
    assert without(federation.app) == {"init", "serve", "submit", "stop", "join", "leave"}


@pytest.mark.parametrize(("settings", "is_red"), [({"NO_COLOR": "1"}, False), ({}, True)])
def test_no_color_is_respected_on_a_terminal(settings: dict[str, str], is_red: bool, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm-256color"}
    program = [sys.executable, "-m", "fedstill", "trust", "nowhere.py"]
    done = subprocess.run(program, stderr=theirs, env=clean | settings, cwd=tmp_path, timeout=600)
    os.close(theirs)
    shown = os.read(ours, 10_000)
    os.close(ours)
    assert b"nowhere.py" in shown
    assert (b"31m" in shown) == is_red
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("words", "code"), [(["--version"], 0), (["compare", "nowhere"], 1), (["run", "--nonsense"], 2), (["nonsense"], 2)]
)
def test_exit_codes_are_those_of_the_page(words: list[str], code: int, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert f"\n| {code} |" in page
    assert fedstill(*words) == code
