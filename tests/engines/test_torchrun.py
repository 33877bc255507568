"""Real ranks over loopback: `python -m torch.distributed.run` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedstill import Experiment, FedstillError, Record, resume, run
from fedstill.common.events import Event, RoundDone
from fedstill.engines.torchrun import SHARED, see_shared
from tests.engines.conftest import content

Small = Callable[..., Experiment]
Ended = subprocess.CompletedProcess[str]

CONVERSING = {"kind": "domain", "public": 0.3, "labelled_public": 0.2}


GROUPED = """
from fedstill.cli.main import main
from fedstill.engines.host import Host

Host.at_once = property(lambda self: 3)  # as on a GPU, where clients learn together

if __name__ == "__main__":
    main()
"""


def torchrun(*words: object, ranks: int = 2, program: Sequence[object] = ("-m", "fedstill")) -> Ended:
    """A fedstill command over ranks on this machine."""
    launcher = ["torch.distributed.run", "--nproc-per-node", ranks, "--standalone", "--local-addr", "127.0.0.1"]
    command = [sys.executable, "-m", *launcher, *program, "--trust-code", *words]
    own = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "COLUMNS": "200"}
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, env=own, timeout=600)


def over_ranks(experiment: Experiment, folder: Path, ranks: int = 2, **options: Any) -> Ended:
    """Run the experiment into folder/seed-0."""
    folder.mkdir()
    (folder / "x.yaml").write_text(experiment.to_yaml())
    return torchrun("run", folder / "x.yaml", "--out", folder, ranks=ranks, **options)


def sentences(ended: Ended) -> list[str]:
    """What fedstill complained about; tracebacks, other than torchrun's own, are none of it."""
    assert "/src/fedstill/" not in ended.stderr
    return [line for line in ended.stderr.splitlines() if line.startswith(("error:", "stopped."))]


def test_a_mixed_conversation_over_two_ranks_gives_the_local_engines_bytes(small: Small, tmp_path: Path) -> None:
    mixed = {"clients": ["bert-tiny", "textcnn", "bow"], "server": "bert-tiny", "rounds": 2}
    chosen = small(algorithm="FedID", partition=CONVERSING, **mixed)
    local = run(chosen, tmp_path / "local")
    ended = over_ranks(chosen, tmp_path / "here")
    assert ended.returncode == 0, ended.stderr
    assert "2 rounds, 2 ranks" in ended.stdout
    assert ended.stdout.count("round 2/2") == 1
    ranks = tmp_path / "here" / "seed-0"
    assert content(ranks) == content(local.folder)
    assert (ranks / "experiment.yaml").read_bytes() == (local.folder / "experiment.yaml").read_bytes()
    assert not list(ranks.rglob(".*"))
    same = ("scores", "bytes", "test_fingerprint")
    assert {key: Record(ranks).summary[key] for key in same} == {key: local.summary[key] for key in same}


def test_ranks_that_call_their_clients_together_give_the_same_bytes(small: Small, tmp_path: Path) -> None:
    (tmp_path / "grouped.py").write_text(GROUPED)
    spread = {"kind": "dirichlet", "alpha": 5.0, "clients": 9, "public": 0.3, "labelled_public": 0.2}
    chosen = small(algorithm="FedID", partition=spread, clients="bow", server="bow", rounds=2)
    local = run(chosen, tmp_path / "local")
    ended = over_ranks(chosen, tmp_path / "here", program=[tmp_path / "grouped.py"])
    assert ended.returncode == 0, ended.stderr
    assert content(tmp_path / "here" / "seed-0") == content(local.folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (2, {"participation": 0.67, "memory": {"host": "1MiB"}}),
        (4, {"algorithm": "FedAvg", "clients": "textcnn"}),  # parameters, and a rank without a client
    ],
)
def test_any_number_of_ranks_gives_the_local_engines_bytes(
    small: Small, tmp_path: Path, ranks: int, changes: dict[str, Any]
) -> None:
    ended = over_ranks(small(engine="torchrun", rounds=2, **changes), tmp_path / "here", ranks)
    assert ended.returncode == 0, ended.stderr
    assert content(tmp_path / "here" / "seed-0") == content(run(small(rounds=2, **changes), tmp_path / "local").folder)


DYING = """
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from fedstill.algorithms.adafd import AdaFD


@dataclass(frozen=True)
class Dying(AdaFD):
    rank: int = 1

    def opine(self, me):
        died = Path(__file__).with_name("died")
        if me.round == 2 and os.environ.get("RANK") == str(self.rank) and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().opine(me)
"""


def dying(small: Small, folder: Path, rank: int) -> Experiment:
    """A federation in which that rank is killed, once, in the middle of the second round."""
    (folder / "own.py").write_text(DYING)
    return small(algorithm={"name": f"{folder}/own.py:Dying", "rank": rank})


@pytest.mark.slow
def test_a_lost_rank_is_one_sentence_and_the_run_goes_on_to_the_same_end(small: Small, tmp_path: Path) -> None:
    chosen = dying(small, tmp_path, rank=1)
    ended = over_ranks(chosen, tmp_path / "here")
    folder = tmp_path / "here" / "seed-0"
    assert ended.returncode != 0
    again = f"torchrun --nproc-per-node 2 -m fedstill run --resume {folder} --trust-code"
    loss = "error: rank 1 of 2 was lost: its process ended. The last checkpoint is whole; go on with: "
    assert sentences(ended) == [loss + again]
    assert [path.name for path in (folder / "checkpoint").glob("*.json")] == ["round-00001.json"]
    assert content(resume(folder).folder) == content(run(chosen, tmp_path / "whole").folder)


@pytest.mark.slow
def test_with_rank_0_killed_the_others_end_and_ranks_go_on_to_the_same_end(small: Small, tmp_path: Path) -> None:
    chosen = dying(small, tmp_path, rank=0)
    ended = over_ranks(chosen, tmp_path / "here", ranks=3)
    folder = tmp_path / "here" / "seed-0"
    assert ended.returncode != 0
    assert len(sentences(ended)) == 1
    assert "rank 0, which conducts the run, was lost" in sentences(ended)[0]
    ended = torchrun("run", "--resume", folder)
    assert ended.returncode == 0, ended.stderr
    assert "going on after round 1" in ended.stdout
    assert content(folder) == content(run(chosen, tmp_path / "whole").folder)


def test_a_mistake_is_said_once_and_ends_all_ranks(small: Small, tmp_path: Path) -> None:
    ended = over_ranks(small(clients=["bow"] * 4), tmp_path / "here")
    assert ended.returncode != 0
    assert sentences(ended) == [
        "error: clients: 4 models for 3 clients (books, garden, toys); give one for all, one each, or some that take "
        "turns."
    ]
    assert ended.stdout == ""


@pytest.mark.slow
def test_seeds_run_one_after_the_other_and_finished_folders_are_refused(small: Small, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(small(rounds=1).to_yaml())
    ended = torchrun("run", tmp_path / "x.yaml", "--seeds", 2, "--out", tmp_path / "out")
    assert ended.returncode == 0, ended.stderr
    for seed in (0, 1):
        local = run(small(rounds=1, seed=seed), tmp_path / str(seed))
        assert content(tmp_path / "out" / f"seed-{seed}") == content(local.folder)
    ended = torchrun("run", tmp_path / "x.yaml", "--out", tmp_path / "out")
    assert ended.returncode != 0
    assert len(sentences(ended)) == 1
    assert "finished run; --force runs it again" in sentences(ended)[0]


def test_the_engine_refuses_to_run_without_ranks_and_to_go_on_without_them(small: Small, tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match=r"start it as `torchrun .* -m fedstill run \.\.\.`"):
        run(small(engine="torchrun"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.yaml").write_text(small(engine="torchrun").to_yaml())
    with pytest.raises(FedstillError, match=r"begun with `engine: torchrun`: go on with `torchrun .*--resume"):
        resume(tmp_path / "run")


def test_the_engine_may_change_between_a_run_and_its_resumption(small: Small, tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(small(rounds=2), tmp_path / "run", tell=stop)
    file = tmp_path / "run" / "experiment.yaml"
    there = file.read_text()
    file.write_text(there.replace("engine: local", "engine: torchrun"))
    with pytest.raises(FedstillError, match="begun with `engine: torchrun`"):
        resume(tmp_path / "run")
    file.write_text(there)
    assert resume(tmp_path / "run").summary["rounds"] == 2


def test_a_folder_that_the_machines_do_not_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match="must be on a disk that all machines share"):
        see_shared(tmp_path, "token", wait_s=0)
    (tmp_path / SHARED).write_text("another run's")
    with pytest.raises(FedstillError, match="must be on a disk that all machines share"):
        see_shared(tmp_path, "token", wait_s=0)
    (tmp_path / SHARED).write_text("token")
    see_shared(tmp_path, "token", wait_s=0)
