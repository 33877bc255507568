"""Runs in processes of their own: one that dies takes nobody with it."""

from __future__ import annotations

from pathlib import Path

from fedstill import Record
from fedstill.papers.jobs import Job, attempt, run_all
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


def test_jobs_end_well_with_a_reason_or_by_death_each_alone(reviews: Path, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    well, refused, dead = (run.experiment for run in tiny_grid(reviews, tmp_path / "out", seeds=1).runs)
    dead = dead.model_copy(update={"algorithm": {"name": f"{tmp_path}/deadly.py:Deadly"}})
    refused = refused.model_copy(update={"algorithm": {"name": "FedID"}})
    jobs = [Job(each, tmp_path / name) for each, name in ((well, "well"), (refused, "refused"), (dead, "dead"))]
    ends = {end.job.folder.name: end for end in run_all(jobs, at_once=2)}
    assert ends["well"].reason is None
    assert Record(tmp_path / "well").is_finished
    assert "set partition.labelled_public" in str(ends["refused"].reason)
    assert ends["dead"].reason == "its process died (killed by signal 9; out of memory?)."
    assert all(end.seconds > 0 for end in ends.values())


def test_an_attempt_goes_on_where_the_same_experiment_stopped_and_begins_again_when_forced(
    reviews: Path, tmp_path: Path
) -> None:
    job = Job(tiny_grid(reviews, tmp_path, seeds=1).runs[1].experiment, tmp_path / "run")
    assert attempt(job) is None
    written = (tmp_path / "run" / "summary.json").stat().st_mtime_ns
    assert attempt(job) is None
    assert (tmp_path / "run" / "summary.json").stat().st_mtime_ns == written
    other = Job(job.experiment.model_copy(update={"rounds": 1}), job.folder)
    assert "holds a finished run" in str(attempt(other))
    assert attempt(other, force=True) is None
    assert Record(job.folder).summary["rounds"] == 1
