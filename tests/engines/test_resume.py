from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fedstill import Experiment, FedstillError, Record, resume, run
from fedstill.common.events import Begun, Event, Measured, Noted, RoundDone, Step, Tell
from fedstill.config.source import dump
from fedstill.engines import checkpoint
from fedstill.engines.runner import begin_or_finish
from tests.engines.conftest import content

Small = Callable[..., Experiment]


def stop_after(round: int) -> Tell:
    """Ctrl-C as soon as that round is done."""

    def tell(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == round:
            raise KeyboardInterrupt

    return tell


def stop_in(round: int) -> Tell:
    """Ctrl-C in the middle of that round."""

    def tell(event: Event) -> None:
        if not isinstance(event, Measured):
            return
        if event.metric["round"] == round and event.metric.get("stage") == "trained":
            raise KeyboardInterrupt

    return tell


@pytest.fixture
def whole(small: Small, tmp_path: Path) -> Path:
    """An uninterrupted run."""
    return run(small(), tmp_path / "whole").folder


@pytest.mark.parametrize("stop", [stop_after(1), stop_in(1), stop_in(2), stop_after(3)])
def test_an_interrupted_run_ends_as_it_would_have(small: Small, whole: Path, tmp_path: Path, stop: Tell) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(small(), tmp_path / "run", tell=stop)
    assert not Record(tmp_path / "run").is_finished
    record = resume(tmp_path / "run")
    assert content(record.folder) == content(whole)
    same = ("scores", "bytes", "test_fingerprint")
    assert {key: record.summary[key] for key in same} == {key: Record(whole).summary[key] for key in same}


CONVERSING = {"kind": "domain", "public": 0.3, "labelled_public": 0.2}


@pytest.mark.parametrize("stop", [pytest.param(stop_after(1), marks=pytest.mark.slow), stop_in(2)])
@pytest.mark.parametrize("algorithm", ["FedID", "FedDF"])
def test_conversations_and_models_by_architecture_go_on_as_they_would_have(
    small: Small, tmp_path: Path, stop: Tell, algorithm: str
) -> None:
    chosen = small(algorithm=algorithm, partition=CONVERSING, participation=0.67)
    whole = run(chosen, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(chosen, tmp_path / "run", tell=stop)
    assert content(resume(tmp_path / "run").folder) == content(whole.folder)


@pytest.mark.parametrize("damage", ["state", "manifest"])
def test_a_broken_checkpoint_is_noticed_and_the_one_before_it_used(
    small: Small, whole: Path, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(small(), folder, tell=stop_after(2))
    broken = folder / "checkpoint" / ("state/books.2.safetensors" if damage == "state" else "round-00002.json")
    data = broken.read_bytes()
    broken.write_bytes(data[: len(data) // 2])
    heard: list[Event] = []
    resume(folder, heard.append)
    assert any("round-00002.json is broken" in event.note for event in heard if isinstance(event, Noted))
    assert [event.after for event in heard if isinstance(event, Begun)] == [1]
    assert content(folder) == content(whole)


def test_with_every_checkpoint_broken_the_run_starts_over(small: Small, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(small(), folder, tell=stop_after(2))
    for manifest in (folder / "checkpoint").glob("round-*.json"):
        manifest.write_text("{}")
    resume(folder)
    assert content(folder) == content(whole)


def test_only_the_last_two_checkpoints_are_kept_and_one_when_finished(small: Small, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(small(rounds=5), folder, tell=stop_after(4))
    assert sorted(path.name for path in (folder / "checkpoint").glob("*.json")) == [
        "round-00003.json",
        "round-00004.json",
    ]
    rounds = {path.name.split(".")[1] for path in (folder / "checkpoint" / "state").iterdir()}
    assert rounds == {"3", "4"}
    resume(folder)
    assert [path.name for path in (folder / "checkpoint").glob("*.json")] == ["round-00005.json"]
    assert {path.name.split(".")[1] for path in (folder / "checkpoint" / "state").iterdir()} == {"5"}


def test_a_finished_run_goes_on_for_more_rounds_as_if_it_had_had_them(
    small: Small, whole: Path, tmp_path: Path
) -> None:
    folder = run(small(rounds=2), tmp_path / "run").folder
    heard: list[Event] = []
    assert resume(folder, heard.append, rounds=3).summary["rounds"] == 3
    assert [event.after for event in heard if isinstance(event, Begun)] == [2]
    assert content(folder) == content(whole)
    assert begin_or_finish(small(), folder).folder == folder  # it is the longer experiment now


@pytest.mark.slow
def test_an_interrupted_run_can_be_given_more_rounds_and_interrupted_again(
    small: Small, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(small(rounds=2), tmp_path / "run", tell=stop_after(1))
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "run", stop_in(3), rounds=3)
    assert content(resume(tmp_path / "run").folder) == content(whole)


@pytest.mark.slow
def test_a_checkpoint_that_is_large_is_not_kept_and_more_rounds_begin_again(
    small: Small, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MOST_BYTES", 1000)
    folder = run(small(rounds=2), tmp_path / "run").folder
    assert not (folder / "checkpoint").exists()
    heard: list[Event] = []
    resume(folder, heard.append, rounds=3)
    assert any("all rounds are computed again" in event.note for event in heard if isinstance(event, Noted))
    assert content(folder) == content(whole)


@pytest.mark.parametrize(
    ("changes", "rounds", "says"),
    [
        ({}, 1, r"has 1 round; rounds=1 would not be more"),
        ({"privacy": {"kind": "head", "epsilon": 3}}, 2, "promises an epsilon over 1 round, which more would break"),
    ],
)
def test_more_rounds_are_refused_where_they_make_no_sense(
    small: Small, tmp_path: Path, changes: dict[str, object], rounds: int, says: str
) -> None:
    folder = run(small(rounds=1, clients="bert-tiny", server="bert-tiny", **changes), tmp_path / "run").folder
    with pytest.raises(FedstillError, match=says):
        resume(folder, rounds=rounds)
    assert Record(folder).is_finished


def test_save_every_two_rounds_repeats_the_unsaved_one(small: Small, tmp_path: Path) -> None:
    run(small(save_every=2), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(small(save_every=2), tmp_path / "run", tell=stop_in(3))
    assert [path.name for path in (tmp_path / "run" / "checkpoint").glob("*.json")] == ["round-00002.json"]
    resume(tmp_path / "run")
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_a_changed_experiment_is_named_and_refused(small: Small, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(small(), folder, tell=stop_after(1))
    values = yaml.safe_load((folder / "experiment.yaml").read_text())
    values["train"]["epochs"] = 7
    (folder / "experiment.yaml").write_text(dump(values))
    with pytest.raises(FedstillError, match=r"was changed since the checkpoint \(train.epochs\)"):
        resume(folder)


def test_a_changed_corpus_is_refused(small: Small, reviews: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(small(), tmp_path / "run", tell=stop_after(1))
    text = reviews.read_text()
    reviews.write_text(text.replace("novel", "story", 1))
    with pytest.raises(FedstillError, match="the corpus is not the one"):
        resume(tmp_path / "run")


def test_finished_unfinished_and_foreign_folders_are_not_overwritten(small: Small, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(small(), folder, tell=stop_after(1))
    with pytest.raises(FedstillError, match="unfinished run; go on with `fedstill run --resume"):
        run(small(), folder)
    resume(folder)
    with pytest.raises(FedstillError, match="finished run; --force"):
        run(small(), folder)
    with pytest.raises(FedstillError, match="is finished; look at it"):
        resume(folder)
    run(small(rounds=1), folder, force=True)
    assert Record(folder).summary["rounds"] == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("work of years")
    with pytest.raises(FedstillError, match="is not empty and holds no run"):
        run(small(), tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()
    with pytest.raises(FedstillError, match=r"no experiment\.yaml"):
        resume(tmp_path / "nowhere")


def test_a_folder_in_use_is_not_touched(small: Small, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(small(), tmp_path / "run", tell=stop_after(1))

    def meanwhile(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 2:
            with pytest.raises(FedstillError, match="is in use"):
                resume(tmp_path / "run")

    assert resume(tmp_path / "run", meanwhile).summary["rounds"] == 3


def test_what_a_killed_write_left_behind_does_not_disturb_the_end(small: Small, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(small(), tmp_path / "run", tell=stop_after(1))
    (tmp_path / "run" / "checkpoint" / ".writing-1-2-round-00002.json").write_text("{")
    resume(tmp_path / "run")
    assert content(tmp_path / "run") == content(whole)
    assert not list((tmp_path / "run" / "checkpoint").glob(".writing-*"))


def start(experiment: Experiment, folder: Path, **options: object) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    folder.mkdir()
    (folder / "x.yaml").write_text(experiment.to_yaml())
    words = ["--trust-code", "run", str(folder / "x.yaml"), "--out", str(folder / "out")]
    command = [sys.executable, "-m", "fedstill", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)  # type: ignore[call-overload,no-any-return]


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until the file is there; not forever."""
    for _ in range(12_000):
        if path.exists():
            return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    raise AssertionError(f"{path} never came")


ENDLESS = """
from dataclasses import dataclass
from pathlib import Path

from fedstill.algorithms.adafd import AdaFD


@dataclass(frozen=True)
class Endless(AdaFD):
    def opine(self, me):
        Path(__file__).with_name("training").touch()
        return super().opine(me)
"""
"""Says when a client begins to train, which will take it days."""


def test_a_signal_in_code_from_a_string_ends_with_the_same_code(small: Small, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(ENDLESS.replace("return super().opine(me)", 'exec("while True: pass")'))
    process = start(small(algorithm=f"{tmp_path}/own.py:Endless", workers=1), tmp_path / "here")
    try:
        wait_for(tmp_path / "training", process)
        os.kill(process.pid, signal.SIGTERM)
        output = process.communicate(timeout=600)[0]
    finally:
        process.kill()
    assert process.returncode == 130, output


@pytest.mark.parametrize(
    ("signal_", "workers"),
    [
        (signal.SIGTERM, 1),
        pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 1, marks=pytest.mark.slow),
    ],
)
def test_a_signal_in_a_phase_ends_the_run_before_the_phase_ends_and_says_how_to_go_on(
    small: Small, tmp_path: Path, signal_: signal.Signals, workers: int
) -> None:
    (tmp_path / "own.py").write_text(ENDLESS)
    forever = {"epochs": 10**9, "max_length": 16}
    process = start(small(algorithm=f"{tmp_path}/own.py:Endless", train=forever, workers=workers), tmp_path / "here")
    try:
        wait_for(tmp_path / "training", process)
        os.kill(process.pid, signal_)
        output = process.communicate(timeout=600)[0]
    finally:
        process.kill()
    folder = tmp_path / "here" / "out" / "seed-0"
    assert process.returncode == 130, output
    assert f"Go on with: fedstill run --resume {folder} --trust-code" in output
    assert not (folder / "summary.json").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_that_python_drops_comes_again_and_ends_the_run(small: Small, tmp_path: Path, workers: int) -> None:
    class Dropping:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)  # what this raises is printed and forgotten

    def tell(event: object) -> None:
        if isinstance(event, Step) and not told:
            told.append(event)
            Dropping()

    told: list[Step] = []
    long = {"epochs": 100, "max_length": 16}
    with pytest.raises(KeyboardInterrupt):
        run(small(train=long, workers=workers), tmp_path / "run", tell=tell)
    assert told
    assert not (tmp_path / "run" / "summary.json").exists()


def test_sigterm_stops_what_comes_before_the_first_round_too(small: Small, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(small(), tmp_path / "run", tell=lambda event: signal.raise_signal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not list((tmp_path / "run").glob("*.jsonl"))


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_leaves_nothing_half_written_and_the_run_goes_on_with_room(
    small: Small, tmp_path: Path
) -> None:
    def tiny_disk() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))  # tokens fit, a client's state does not

    process = start(small(), tmp_path / "here", preexec_fn=tiny_disk)
    output = process.communicate(timeout=600)[0]
    assert process.returncode == 1
    assert "cannot be used (File too large)" in output
    assert "Traceback" not in output
    folder = tmp_path / "here" / "out" / "seed-0"
    assert not list(folder.rglob(".writing-*"))
    resume(folder)
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 3


def test_force_does_not_delete_a_folder_in_use(small: Small, tmp_path: Path) -> None:
    refused = []

    def meanwhile(event: Event) -> None:
        if isinstance(event, Begun | RoundDone):
            with pytest.raises(FedstillError, match="is in use: another process runs in it"):
                run(small(), tmp_path / "run", force=True)
            refused.append(event)

    assert run(small(rounds=1), tmp_path / "run", tell=meanwhile).is_finished
    assert len(refused) == 2
    assert run(small(rounds=1), tmp_path / "run", force=True).is_finished


@pytest.mark.parametrize("kind", ["metrics", "ledger"])
def test_a_file_that_lost_its_end_is_found_and_not_padded(small: Small, tmp_path: Path, kind: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(small(), tmp_path / "run", tell=stop_after(1))
    file = tmp_path / "run" / f"{kind}.jsonl"
    left = file.read_bytes()[:100]
    file.write_bytes(left)
    with pytest.raises(FedstillError, match=rf"{kind}\.jsonl has 100 bytes, and had .* its end is lost"):
        resume(tmp_path / "run")
    assert file.read_bytes() == left


def test_a_kill_after_the_summary_leaves_nothing_for_long(small: Small, tmp_path: Path) -> None:
    experiment = small(rounds=1)
    run(experiment, tmp_path / "run")
    left = tmp_path / "run" / "checkpoint" / "state" / "answer-.0"
    left.touch()
    with pytest.raises(FedstillError, match="is finished"):
        resume(tmp_path / "run")
    assert not left.exists()
    left.touch()
    begin_or_finish(experiment, tmp_path / "run")
    assert not left.exists()


def test_a_run_that_cannot_begin_leaves_no_folder(small: Small, tmp_path: Path) -> None:
    broken = small(corpus={"path": str(tmp_path / "nowhere.csv"), "text": "a", "label": "b"})
    with pytest.raises(FedstillError):
        run(broken, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_five_quick_interruptions_are_one(small: Small, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(ENDLESS)
    forever = {"epochs": 10**9, "max_length": 16}
    process = start(small(algorithm=f"{tmp_path}/own.py:Endless", train=forever, workers=2), tmp_path / "here")
    try:
        wait_for(tmp_path / "training", process)
        for _ in range(5):
            os.kill(process.pid, signal.SIGINT)
            time.sleep(0.02)
        output = process.communicate(timeout=600)[0]
    finally:
        process.kill()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "Go on with: fedstill run --resume" in output
