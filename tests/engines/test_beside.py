"""Where clients have processes of their own, a round ends while they work on the next one; the bytes are the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedstill import Experiment, FedstillError, Record, resume, run
from fedstill.common.events import Event, RoundDone
from fedstill.engines import checkpoint
from fedstill.engines.beside import beside
from fedstill.engines.checkpoint import Manifest
from fedstill.engines.local import LocalEngine
from fedstill.learning.fast.card import heed_stop
from fedstill.parties.server import Server
from tests.engines.conftest import content

Small = Callable[..., Experiment]


def in_deliver(monkeypatch: pytest.MonkeyPatch, do: Callable[[int], None]) -> None:
    """Do something whenever calls of a round are about to be delivered, by its number; 0 is the greeting."""
    carry = LocalEngine.deliver

    def deliver(self: LocalEngine, calls: Mapping[str, bytes], round: int) -> Any:
        do(round)
        return carry(self, calls, round)

    monkeypatch.setattr(LocalEngine, "deliver", deliver)


@pytest.mark.parametrize("algorithm", ["AdaFD", "DSFL", "LogitAvg"])
def test_a_round_ends_while_clients_work_on_the_next(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    done = {round: threading.Event() for round in range(1, 4)}
    known_before: list[bool] = []

    def tell(event: Event) -> None:
        if isinstance(event, RoundDone):
            done[event.round].set()

    def wait(round: int) -> None:
        if round > 1:
            known_before.append(done[round - 1].is_set())
            assert done[round - 1].wait(60)

    in_deliver(monkeypatch, wait)
    beside_them = run(small(workers=2, algorithm=algorithm), tmp_path / "run", tell=tell)
    assert known_before == [False] * 3
    monkeypatch.undo()
    assert content(beside_them.folder) == content(run(small(algorithm=algorithm), tmp_path / "one").folder)
    lines = [line for line in beside_them.log if "seconds" in line]
    assert [line["round"] for line in lines] == [0, 1, 2, 3, 4]
    assert ["beside" in line["seconds"] for line in lines] == [False, True, True, True, False]


@pytest.mark.parametrize("wire", [{}, {"opinions": "cached"}])
def test_a_run_that_is_stopped_while_a_round_ends_goes_on_as_it_would_have(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: dict[str, Any]
) -> None:
    chosen = small(workers=2, wire=wire)
    whole = content(run(chosen, tmp_path / "whole").folder)
    for stopped in (2, 3, 4):

        def stop(round: int, stopped: int = stopped) -> None:
            if round == stopped:
                raise KeyboardInterrupt

        in_deliver(monkeypatch, stop)
        folder = tmp_path / f"run-{stopped}"
        with pytest.raises(KeyboardInterrupt):
            run(chosen, folder)
        monkeypatch.undo()
        assert not Record(folder).is_finished
        assert content(resume(folder).folder) == whole


def test_a_checkpoint_that_is_written_beside_holds_what_codecs_knew_at_the_rounds_end(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = small(workers=2, wire={"opinions": "cached"})
    whole = content(run(chosen, tmp_path / "whole").folder)
    saved = threading.Event()

    def tell(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 2:
            saved.set()

    def stop(round: int) -> None:
        if round == 3:
            assert saved.wait(60)
            raise KeyboardInterrupt

    in_deliver(monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        run(chosen, tmp_path / "run", tell=tell)
    monkeypatch.undo()
    found = checkpoint.latest(tmp_path / "run")[0]
    assert found is not None
    assert found.round == 2
    assert content(resume(tmp_path / "run").folder) == whole


def test_what_goes_wrong_beside_ends_the_run(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Server) -> None:
        raise FedstillError("the server cannot learn.")

    monkeypatch.setattr(Server, "catch_up", fail)
    with pytest.raises(FedstillError, match="the server cannot learn"):
        run(small(workers=2), tmp_path / "run")


def test_a_block_that_fails_stops_the_work_beside_it() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        try:
            while True:
                heed_stop()
        finally:
            ended.set()

    def block() -> None:
        with beside(work, waited=lambda seconds: None):
            assert begun.wait(60)
            raise ValueError("the block's own")

    with pytest.raises(ValueError, match="the block's own"):
        block()
    assert ended.is_set()
    heed_stop()  # this thread was not told to stop


def test_the_block_waits_for_the_work_and_raises_what_it_raised() -> None:
    seconds: list[float] = []
    with beside(lambda: None, waited=seconds.append):
        pass
    assert len(seconds) == 1
    with pytest.raises(ZeroDivisionError), beside(lambda: print(1 // 0), waited=seconds.append):
        pass


def test_a_checkpoint_leaves_the_files_of_clients_in_the_next_round_alone(tmp_path: Path) -> None:
    states = tmp_path / "checkpoint" / "state"
    states.mkdir(parents=True)
    for name in ("books.1.safetensors", "books.2.safetensors", "books.3.safetensors", "answer-.1"):
        (states / name).write_bytes(b"")
    nothing: dict[str, Any] = {"parties": {}, "answer": {}, "offsets": {}, "bytes": {}, "seconds": 0.0}
    checkpoint.write(tmp_path, Manifest(round=2, **nothing, experiment={}, corpus=""))
    assert [path.name for path in states.iterdir()] == ["books.3.safetensors"]
    checkpoint.settle(tmp_path)
    assert not list(states.iterdir())
