"""Code of the user's own: its bugs leave a trace, and its changes are noticed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fedstill
from fedstill import Experiment, FedstillError
from fedstill.cli.main import main
from fedstill.common.plugins import own_files
from fedstill.common.traces import ERRORS, own_frames

METHOD = """
from dataclasses import dataclass
from fedstill import Algorithm, Answer, Client, Opinion, Replies, Server

@dataclass(frozen=True)
class Mine(Algorithm):
    bug: str = ""
    needs = frozenset({"public"})

    def opine(self, me: Client) -> Opinion:
        if self.bug == me.name:
            [].pop()  # the client's bug
        return Opinion(me.predict())

    def server(self, me: Server, ups: Replies[Opinion]) -> Answer:
        if self.bug == "server":
            self.blend(ups)
        return Answer(me.predict())

    def blend(self, ups):
        return ups.column("logits") @ ups.column("logits")  # the server's bug
"""


def line_of(what: str) -> int:
    """The number of the method's line with this remark."""
    (number,) = [number for number, line in enumerate(METHOD.splitlines(), 1) if line.endswith(f"# {what}")]
    return number


@pytest.fixture
def mine(tmp_path: Path, small: Callable[..., Experiment]) -> Callable[..., Experiment]:
    """An experiment with a method of one's own, which has a bug if one is named."""
    (tmp_path / "mine.py").write_text(METHOD)

    def make(bug: str = "", **changes: object) -> Experiment:
        named = {"name": f"{tmp_path / 'mine.py'}:Mine", "bug": bug}
        return small(algorithm=named, clients="bow", server="bow", **{"rounds": 2, **changes})

    return make


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_clients_bug_is_one_line_that_says_where_its_traceback_is(
    mine: Callable[..., Experiment], tmp_path: Path, workers: int
) -> None:
    with pytest.raises(FedstillError) as refused:
        fedstill.run(mine("garden", workers=workers), tmp_path / "run", progress=False)
    line = line_of("the client's bug")
    assert f"IndexError in mine.py:{line}: pop from empty list" in str(refused.value)
    assert f"(the whole traceback is in {tmp_path / 'run' / ERRORS})" in str(refused.value)
    trace = (tmp_path / "run" / ERRORS).read_text()
    assert trace.startswith("garden, turn of round 1:\nTraceback")
    assert f'mine.py", line {line}, in opine' in trace


def test_a_client_that_fails_under_a_quorum_leaves_its_traceback_too(
    mine: Callable[..., Experiment], tmp_path: Path
) -> None:
    record = fedstill.run(mine("garden", quorum=0.5), tmp_path / "run", progress=False)
    assert any("IndexError in mine.py" in note for note in record.notes)
    assert (tmp_path / "run" / ERRORS).read_text().count("Traceback") == 2  # a round each


def test_the_command_shows_only_the_frames_of_the_methods_own_file(
    mine: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yaml").write_text(mine("server").to_yaml())
    words = ["fedstill", "run", str(tmp_path / "x.yaml"), "--out", str(tmp_path / "run"), "--trust-code"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    shown = capsys.readouterr().err
    number = line_of("the server's bug")
    first, *frames = shown[shown.index("error:") :].splitlines()
    assert f"RuntimeError in mine.py:{number}: " in first
    assert first.endswith(f"(the whole traceback is in {tmp_path / 'run' / 'seed-0' / ERRORS})")
    files = [frame for frame in frames if frame.lstrip().startswith("File")]
    assert [frame.rpartition(" in ")[2] for frame in files] == ["server", "blend"]
    assert all(str(tmp_path / "mine.py") in frame for frame in files)
    assert "conductor.py" in (tmp_path / "run" / "seed-0" / ERRORS).read_text()


def test_a_program_gets_the_exception_itself(mine: Callable[..., Experiment], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as raised:
        fedstill.run(mine("server"), tmp_path / "run", progress=False)
    assert [frame.name for frame in own_frames(raised.value) if frame.filename.endswith("mine.py")] == [
        "server",
        "blend",
    ]


def test_a_method_that_changed_before_it_goes_on_is_noted(mine: Callable[..., Experiment], tmp_path: Path) -> None:
    def stop(event: object) -> None:
        if type(event).__name__ == "RoundDone":
            raise KeyboardInterrupt

    for name in ("same", "changed"):
        with pytest.raises(KeyboardInterrupt):
            fedstill.run(mine(), tmp_path / name, tell=stop)
    assert list(json.loads((tmp_path / "same" / "code.json").read_text())) == [str(tmp_path / "mine.py")]
    assert fedstill.resume(tmp_path / "same", progress=False).notes == []
    (tmp_path / "mine.py").write_text(METHOD + "# changed\n")
    notes = fedstill.resume(tmp_path / "changed", progress=False).notes
    assert notes == [
        f"{tmp_path / 'mine.py'} was changed since the run began: from here on the new code computes, so the run is "
        "of two methods."
    ]


def test_own_files_are_found_wherever_settings_name_them(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.touch()
    two.touch()
    settings = {"a": {"name": f"{one}:A"}, "b": [f"{two}:B", {"c": f"{one}:C"}], "d": "gone.py:D", "e": 3, "f": None}
    assert own_files(settings) == [one, two]
