"""Runs in processes of their own: one that dies takes nobody with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedstill import Record
from fedstill.papers.grid import GridRun
from fedstill.papers.parallel import attempt, run_all
from tests.papers.tiny import tiny_grid

DEADLY = """
import os, signal
from dataclasses import dataclass
from fedstill import Algorithm

@dataclass(frozen=True)
class Deadly(Algorithm):
    def opine(self, me):
        os.kill(os.getpid(), signal.SIGKILL)
"""


SIGNED = """
import os
from dataclasses import dataclass
from pathlib import Path
from fedstill import LogitAvg

@dataclass(frozen=True)
class Signed(LogitAvg):
    def opine(self, me):
        with (Path(__file__).parent / "processes").open("a") as file:
            file.write(f"{os.getpid()}\\n")
        return super().opine(me)
"""


FULL = """
import os
from dataclasses import dataclass
from pathlib import Path
from fedstill import LogitAvg

@dataclass(frozen=True)
class Full(LogitAvg):
    times: int = 1

    def server(self, me, ups):
        file = Path(__file__).parent / f"tried-{me.around.seed}"
        file.write_text(file.read_text() + f"{os.getpid()} " if file.exists() else f"{os.getpid()} ")
        if len(file.read_text().split()) <= self.times:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return super().server(me, ups)
"""


def with_algorithm(run: GridRun, name: str) -> GridRun:
    return replace(run, experiment=run.experiment.model_copy(update={"algorithm": {"name": name}}))


def test_runs_end_well_with_a_reason_or_by_death_each_alone(reviews: Path, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    well, refused, dead = tiny_grid(reviews, tmp_path / "out", seeds=1).runs
    runs = [well, with_algorithm(refused, "FedID"), with_algorithm(dead, f"{tmp_path}/deadly.py:Deadly")]
    ends = {end.run.folder: end for end in run_all(runs, at_once=2)}
    assert ends[well.folder].reason is None
    assert Record(well.folder).is_finished
    assert "set partition.labelled_public" in str(ends[refused.folder].reason)
    assert ends[dead.folder].reason == "its process died (killed by signal 9; out of memory?)."
    assert all(end.seconds > 0 for end in ends.values())


def test_a_process_does_one_run_after_another_each_as_if_it_were_the_first(reviews: Path, tmp_path: Path) -> None:
    (tmp_path / "signed.py").write_text(SIGNED)
    runs = [
        with_algorithm(run, f"{tmp_path}/signed.py:Signed")
        for run in tiny_grid(reviews, tmp_path / "out", seeds=1).runs
    ]
    assert [end.reason for end in run_all(runs, at_once=1)] == [None] * len(runs)
    assert len(set((tmp_path / "processes").read_text().split())) == 1
    alone = replace(runs[-1], folder=tmp_path / "alone")
    assert attempt(alone) is None
    assert Record(alone.folder).summary["scores"] == Record(runs[-1].folder).summary["scores"]


@pytest.mark.parametrize("times", [1, 9])
def test_a_run_that_finds_a_card_full_is_tried_once_more_by_another_process(
    reviews: Path, tmp_path: Path, times: int
) -> None:
    (tmp_path / "full.py").write_text(FULL)
    run = next(iter(tiny_grid(reviews, tmp_path / "out", seeds=1).runs))
    chosen = {"name": f"{tmp_path}/full.py:Full", "times": times}
    run = replace(run, experiment=run.experiment.model_copy(update={"algorithm": chosen}))
    (end,) = run_all([run], at_once=2)
    assert (end.reason is None) == (times == 1)
    assert end.reason is None or "CUDA out of memory" in end.reason
    tried = (tmp_path / "tried-0").read_text().split()
    assert len(set(tried)) == 2  # and one more round by the second, where that went well
    assert len(tried) == (3 if times == 1 else 2)


def test_after_a_full_card_there_are_as_many_runs_at_once_again(reviews: Path, tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(FULL)
    first, *others = tiny_grid(reviews, tmp_path / "out", seeds=3).runs
    runs = [with_algorithm(first, f"{tmp_path}/full.py:Full"), *others]
    ends = list(run_all(runs, at_once=2))
    assert [end.reason for end in ends] == [None] * len(runs)
    assert [len(end.others) for end in ends[-2:]] == [1, 0]  # one by one, the last but one would be alone


def test_an_attempt_goes_on_where_the_same_experiment_stopped_and_begins_again_when_forced(
    reviews: Path, tmp_path: Path
) -> None:
    run = replace(tiny_grid(reviews, tmp_path, seeds=1).runs[1], folder=tmp_path / "run")
    assert attempt(run) is None
    written = (tmp_path / "run" / "summary.json").stat().st_mtime_ns
    assert attempt(run) is None
    assert (tmp_path / "run" / "summary.json").stat().st_mtime_ns == written
    other = replace(run, experiment=run.experiment.model_copy(update={"rounds": 1}))
    assert "holds a finished run" in str(attempt(other))
    assert attempt(other, force=True) is None
    assert Record(run.folder).summary["rounds"] == 1
