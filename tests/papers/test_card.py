"""How many runs a card holds, and NVIDIA's service around them, for which a small script stands in."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fedstill.config.experiment import Experiment
from fedstill.papers.card import CONTROL, PIPES, RUN_BYTES, at_once, bytes_of_run, on_card, shared
from fedstill.papers.parallel import run_all
from tests.papers.test_parallel import with_algorithm
from tests.papers.tiny import tiny_grid

GIB = 2**30

SERVICE = """#!/bin/sh
echo "$1 $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY" >> {log}
if [ "$1" = "-d" ]; then exit {code}; fi
cat >> {log}
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> Path:
    """The script on PATH; what it was told, a line each."""
    script, log = folder / "bin" / CONTROL, folder / "told"
    script.parent.mkdir()
    script.write_text(SERVICE.format(log=log, code=code))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setenv(PIPES, str(folder / "usual"))
    return log


def test_one_run_per_core_as_far_as_the_cards_memory_goes() -> None:
    assert at_once(runs=70, cores=16, free=139 * GIB, each=6 * GIB) == 16
    assert at_once(runs=70, cores=16, free=24 * GIB, each=6 * GIB) == 4
    assert at_once(runs=3, cores=16, free=139 * GIB, each=6 * GIB) == 3
    assert at_once(runs=3, cores=16, free=GIB, each=6 * GIB) == 1
    assert at_once(runs=3, cores=0, free=139 * GIB, each=6 * GIB) == 1  # more workers than cores


def test_a_runs_memory_is_that_of_its_models_up_to_what_the_experiment_allows() -> None:
    small = Experiment.model_validate({"clients": ["textcnn"] * 4, "server": "textcnn"})
    assert bytes_of_run(small) == RUN_BYTES + 32 * 5 * 200_000
    large = Experiment.model_validate({"clients": ["FacebookAI/roberta-large"] * 4, "server": "textcnn"})
    assert bytes_of_run(large) == RUN_BYTES + 8 * GIB
    assert bytes_of_run(large.model_copy(update={"memory": large.memory.model_copy(update={"device": None})})) == int(
        RUN_BYTES + 32 * (4 * 3e8 + 200_000)
    )


def test_runs_for_the_cpu_are_not_on_a_card(reviews: Path, tmp_path: Path) -> None:
    assert not on_card(tiny_grid(reviews, tmp_path, "device=cpu").runs)
    assert not on_card([])


def test_the_service_is_started_with_folders_of_its_own_and_stopped_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, said = install(tmp_path, monkeypatch), list[str]()
    found = dict[str, str]()

    def interrupted() -> None:
        with shared(said.append) as environment:
            found.update(environment)
            assert all(Path(folder).is_dir() for folder in environment.values())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    pipes, logs = found[PIPES], found["CUDA_MPS_LOG_DIRECTORY"]
    assert log.read_text() == f"-d {pipes} {logs}\n {pipes} {logs}\nquit\n"
    assert not Path(pipes).exists()
    assert len(said) == 1
    assert "multi-process service" in said[0]


def test_a_service_that_is_missing_broken_or_running_already_is_let_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    monkeypatch.setenv("PATH", str(tmp_path))
    with shared(said.append) as environment:
        assert environment == {}
    assert said == []
    (tmp_path / "usual").mkdir()
    pid = tmp_path / "usual" / f"{CONTROL}.pid"
    pid.write_text(f"{os.getpid()}\n")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    log = install(tmp_path, monkeypatch, code=3)
    with shared(said.append) as environment:
        assert environment == {}
    assert not log.exists()
    pid.unlink()
    with shared(said.append) as environment:
        assert environment == {}
    assert said[0].endswith("did not start (exit code 3).")


ASKING = """
import os
from dataclasses import dataclass
from pathlib import Path
from fedstill.algorithms.logit_avg import LogitAvg

@dataclass(frozen=True)
class Asking(LogitAvg):
    def opine(self, me):
        Path(__file__).with_name("heard").write_text(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
        return super().opine(me)
"""


def test_runs_in_processes_of_their_own_are_told_where_the_service_is(reviews: Path, tmp_path: Path) -> None:
    (tmp_path / "asking.py").write_text(ASKING)
    run = with_algorithm(tiny_grid(reviews, tmp_path / "out", seeds=1).runs[0], f"{tmp_path}/asking.py:Asking")
    (end,) = run_all([run], at_once=2, environment={PIPES: "/where/it/is"})
    assert end.reason is None
    assert (tmp_path / "heard").read_text() == "/where/it/is"
