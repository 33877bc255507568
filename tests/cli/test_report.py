"""`fedstill report` as a user types it, and what a run says of its rounds and its page."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedstill.cli.gains import tell_methods
from fedstill.cli.report import page_of, sparkline, tell_rounds
from fedstill.results.runs import load_runs
from tests.cli.test_cli import fedstill
from tests.results.conftest import write_run

pytest.importorskip("jinja2", reason="the packages of report pages are absent")
pytest.importorskip("plotly", reason="the packages of report pages are absent")


@pytest.fixture
def console() -> Console:
    return Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), width=200, record=True)


def test_a_page_goes_into_the_folder_or_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [write_run(tmp_path / "runs", method) for method in ("AdaFD", "DSFL")]
    assert fedstill("report", str(folders[0])) == 0
    assert (folders[0] / "report.html").is_file()
    assert fedstill("report", *map(str, folders)) == 0
    assert "Page: report.html" in capsys.readouterr().out
    assert fedstill("report", "runs", "--out", "pages/all.html", "--no-texts") == 0
    assert "2 runs" in (tmp_path / "pages" / "all.html").read_text()


@pytest.mark.parametrize(
    ("words", "says"), [(["runs", "--out", "page.pdf"], "ends in .html"), (["nowhere"], "nowhere is not a folder")]
)
def test_bad_input_is_one_sentence(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs", "AdaFD")
    assert fedstill("report", *words) == 1
    assert says in capsys.readouterr().err


def test_compare_says_how_to_make_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path, "AdaFD")
    assert fedstill("compare", str(folder)) == 0
    assert f"fedstill report {folder}" in capsys.readouterr().out.replace("\n", "")


def test_a_page_that_cannot_be_written_does_not_spoil_a_finished_run(tmp_path: Path, console: Console) -> None:
    folder = write_run(tmp_path, "AdaFD")
    (tmp_path / "file").touch()
    page_of(console, [folder], tmp_path / "file")
    assert console.export_text().startswith("No page: ")


def test_scores_by_round_are_a_row_of_bars(tmp_path: Path, console: Console) -> None:
    assert sparkline([0.0, 3.5, 7.0, 1.0]) == "▁▅█▂"
    assert sparkline([2.0, 2.0]) == "▁▁"
    folder = write_run(tmp_path, "AdaFD")
    lines = [
        {"round": number, "party": party, "stage": "distilled", "split": "test", "f1": score}
        for number, score in ((1, 0.2), (2, 0.4), (3, 0.3))
        for party in ("server", "companies")
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tell_rounds(console, [folder])
    assert console.export_text() == "F1 by round: 20.0 ▁█▅ 30.0\n"
    plain = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), record=True)
    tell_rounds(plain, [folder])
    assert plain.export_text() == ""


def test_methods_are_compared_by_what_their_clients_gained(tmp_path: Path, console: Console) -> None:
    gained = [
        {"name": name, "model": "bow", "own": {"alone": alone, "after": 0.5}, "every": None}
        for name, alone in (("companies", 0.3), ("sports", 0.6))
    ]
    write_run(tmp_path, "AdaFD", members=gained)
    write_run(tmp_path, "Local")
    tell_methods(console, load_runs([tmp_path]))
    (row,) = [line.split() for line in console.export_text().splitlines() if "AdaFD" in line]
    assert row == ["AdaFD", "45.0", "50.0", "+5.0", "1", "of", "2"]
