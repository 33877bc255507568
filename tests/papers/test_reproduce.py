"""A small table from its recipe to the printed page; interrupted, forced and failing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from fedstill import FedstillError, Record, run
from fedstill.papers.grid import Grid
from fedstill.papers.reproduce import Table, Wishes, reproduce
from fedstill.papers.running import default_jobs
from fedstill.results.watch.planned import Planned
from fedstill.results.watch.state import State
from tests.cli.test_cli import fedstill
from tests.engines.conftest import content
from tests.engines.test_resume import stop_after, wait_for
from tests.papers.tiny import TINY, tiny_grid

FAILING = TINY.replace("  FedAvg: LogitAvg", "  FedAvg: FedID")


def printed(grid: Grid, out: Path, jobs: int = 1, force: bool = False, models: bool = False) -> tuple[bool, str]:
    """Whether all of it came out, and what a person sees."""
    console = Console(width=100, no_color=True)
    with console.capture() as capture:
        is_whole = reproduce([Table(grid, out)], console, Wishes(jobs, force, models))
    return is_whole, capture.get()


def test_a_table_runs_two_at_a_time_prints_both_numbers_and_is_not_run_again(reviews: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    is_whole, shown = printed(tiny_grid(reviews, out), out, jobs=2)
    assert is_whole
    assert "6 runs to do, 2 at once." in shown
    assert "6/6 few-" in shown
    assert "all (240)" in shown
    f1 = [100 * Record(out / "few-fedavg" / f"seed-{seed}").f1() for seed in (0, 1)]
    assert f"70.0 | {sum(f1) / 2:.1f} ± {abs(f1[0] - f1[1]) / 2**0.5:.1f} (2)" in shown
    assert "FedAvg (here: LogitAvg)" in shown
    assert "72.0 | –" in shown  # the group that this scale does not run
    assert "few, global: first here" in shown
    assert "AdaFD against FedAvg, the best other" in shown
    assert "Three shops are few." in shown
    # A shop has 80 rows: 8 public, 7 for validation, 7 for the test
    assert "174 private, 24 public, 21 test rows; K = 3 clients (bow), server bow; T = 2 rounds" in shown
    assert "Seeds: 0, 1." in shown
    assert "| FedAvg (here: LogitAvg) | 70.0 \\| " in (out / "table.md").read_text()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    _, again = printed(tiny_grid(reviews, out), out, jobs=2)
    assert "0 runs to do, 1 at once; 6 are finished already." in again
    assert again[again.index("method") :] == shown[shown.index("method") :]
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}


def test_curves_show_every_round_beside_the_last_scores(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, text = tmp_path / "out", TINY.replace("method: AdaFD", "table: curves").replace("Everything: C", "Local: C")
    text = text.replace("Local: Centralized", "Local: Local").replace("    Everything:", "    Local:")
    grid = tiny_grid(reviews, out, text=text, only=["global", "FedAvg", "Local"])
    is_whole, shown = printed(grid, out)
    assert is_whole
    f1 = [
        {
            line["round"]: line["f1"]
            for line in Record(out / "few-fedavg" / f"seed-{seed}").metrics
            if (line["party"], line.get("split")) == ("server", "test")
        }
        for seed in (0, 1)
    ]
    table = shown[shown.index("few, all (240): f1 after round") :]
    words = next(line for line in table.splitlines() if line.startswith("FedAvg")).split()
    assert words[-2:] == [f"{50 * (f1[0][number] + f1[1][number]):.1f}" for number in (1, 2)]
    assert "70.0 | " in shown  # the usual table comes first
    assert "72.0 | –" in shown
    assert "Local in the curves: no server model, so the mean over the clients measured in a round" in shown
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "table.md").read_text()
    assert "**few, all (240): f1 after round**" in page
    assert "Drawn in curves.png" in page
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    is_whole, without = printed(grid, out)
    assert is_whole
    assert 'pip install "fedstill[figures]"' in without


def test_a_group_with_neither_printed_numbers_nor_runs_is_not_shown(reviews: Path, tmp_path: Path) -> None:
    text = TINY[: TINY.index("  many:\n    FedAvg")]
    _, shown = printed(
        tiny_grid(reviews, tmp_path / "out", text=text, only=["few", "FedAvg"], seeds=1), tmp_path / "out"
    )
    assert "90.1 | –" in shown
    assert "many" not in shown


def test_an_interrupted_run_goes_on_and_ends_as_it_would_have(reviews: Path, tmp_path: Path) -> None:
    out, grid = tmp_path / "out", tiny_grid(reviews, tmp_path / "out", only=["AdaFD"], seeds=1)
    whole = run(grid.runs[0].experiment, tmp_path / "whole").folder
    with pytest.raises(KeyboardInterrupt):
        run(grid.runs[0].experiment, grid.runs[0].folder, tell=stop_after(1))
    is_whole, shown = printed(grid, out, models=True)
    assert is_whole
    assert "going on after round 1" in shown
    assert content(grid.runs[0].folder) == content(whole)


def test_another_experiment_in_the_folder_is_refused_until_forced(reviews: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed(tiny_grid(reviews, out, only=["AdaFD"], seeds=1), out)
    changed = tiny_grid(reviews, out, "rounds=1", only=["AdaFD"], seeds=1)
    with pytest.raises(FedstillError, match=r"holds another experiment \(it differs in rounds\): use --force to run"):
        printed(changed, out)
    assert printed(changed, out, force=True)[0]
    assert Record(changed.runs[0].folder).summary["rounds"] == 1


def test_a_row_that_fails_is_shown_and_the_others_go_on(reviews: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    grid = tiny_grid(reviews, out, text=FAILING)
    is_whole, shown = printed(grid, out)
    assert not is_whole
    assert "70.0 | failed" in shown
    assert "first here AdaFD" not in shown  # nobody to be first of
    assert shown.count("needs labelled rows at the server") == 1
    assert "(few-fedavg, seed 0 and 1 more)" in shown
    assert len(list(out.rglob("summary.json"))) == 4
    planned = Planned.read(out)  # for `fedstill watch`
    assert len(planned.runs) == 6
    assert planned.runs["few-fedavg/seed-1"] == "few-fedavg, seed 1"
    assert sorted(planned.failed) == ["few-fedavg/seed-0", "few-fedavg/seed-1"]
    assert "4 finished, 2 failed of 6 runs" in planned.words([State.of(run.folder) for run in grid.runs])


def test_nothing_but_failures_is_an_error_with_its_reason(reviews: Path, tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match="needs labelled rows at the server"):
        printed(tiny_grid(reviews, tmp_path / "out", text=FAILING, only=["FedAvg"]), tmp_path / "out")


def test_runs_of_one_worker_are_spread_over_the_cores(reviews: Path, tmp_path: Path) -> None:
    cpu = tiny_grid(reviews, tmp_path, "device=cpu").runs
    assert default_jobs(cpu) == len(os.sched_getaffinity(0))
    assert default_jobs(tiny_grid(reviews, tmp_path, "device=cpu", "workers=auto").runs) == 1


SLOW_AT_FIRST = """
import time
from dataclasses import dataclass
from pathlib import Path

from fedstill.algorithms.logit_avg import LogitAvg


@dataclass(frozen=True)
class SlowAtFirst(LogitAvg):
    def opine(self, me):
        begun = Path(__file__).with_name("begun")
        if me.round == 2 and not begun.exists():
            begun.touch()
            time.sleep(3600)
        return super().opine(me)
"""
"""Stays in its second round until it is stopped there, once."""


def test_a_signal_stops_everything_and_the_same_command_goes_on(reviews: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SLOW_AT_FIRST)
    recipe = tmp_path / "tiny.yaml"
    text = TINY.replace("REVIEWS", str(reviews)).replace("FedAvg: LogitAvg", f"FedAvg: {tmp_path}/own.py:SlowAtFirst")
    recipe.write_text(text)
    words = ["reproduce", str(recipe), "--seeds", "1", "--jobs", "2", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "fedstill", "--trust-code", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0)
    try:
        wait_for(tmp_path / "begun", process)
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
        output = process.communicate(timeout=600)[0]
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped. Go on with the same command." in output
    assert "Traceback" not in output
    assert not (tmp_path / "out" / "few-fedavg" / "seed-0" / "summary.json").exists()
    assert fedstill("--trust-code", *words, "--only", "FedAvg", "--jobs", "1") == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["reproduce", "tweets"], "tweets is one experiment, not a table: use `fedstill run tweets`"),
        (["run", "fedid/table2"], "use `fedstill reproduce fedid/table2`"),
        (["check", "fedid/table2"], "use `fedstill reproduce fedid/table2`"),
        (["reproduce", "fedid/tabel2"], "there is no file or recipe 'fedid/tabel2'; did you mean 'fedid/table2'?"),
        (["reproduce", "fedid/table2", "--scale", "papper"], "has no such scale; did you mean 'paper'?"),
        (["reproduce", "fedid/table2", "--only", "SST2"], "did you mean 'SST-2'?"),
        (["reproduce", "adafd/table1"], "AdaFD, Table I needs the folder with the authors' automotive"),
        (["reproduce", "feddrs/table1"], "FedDRS, Table 1 needs the folder with agnews, dbpedia and glue"),
        (["reproduce", "nowhere.yaml"], "there is no experiment file nowhere.yaml"),
    ],
)
def test_a_wrong_command_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedstill(*words) == 1
    captured = capsys.readouterr()
    assert says in " ".join((captured.out + captured.err).split())
    assert "Traceback" not in captured.err
    assert not list(tmp_path.iterdir())


def test_recipes_are_listed_as_tables_and_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("show", "recipes") == 0
    shown = capsys.readouterr().out
    assert "table" in next(line for line in shown.splitlines() if "fedid/table2" in line)
    assert "experiment" in next(line for line in shown.splitlines() if "│ tweets" in line)
