"""Sites that stall: how long a round waits for them, how often they are asked, and what becomes of their work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedstill.common.events import tell_nobody
from fedstill.engines.host import Host
from fedstill.engines.seconds import Slip
from fedstill.federation.data import read_public, site_plan
from fedstill.federation.patience import Patience
from fedstill.federation.requests import frame, unframe
from fedstill.federation.status import Status
from tests.federation.together import Deliver, Inside, Request, Together, two_shops, write_two_shops

Make = Callable[..., Together]
WORKING = frame({"state": "working"})
SHORT_S, LONG_S = 0.3, 3600.0
LATE = "late: enough others had answered 0.3 s before."


@pytest.fixture
def together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr("fedstill.federation.site.Worker", Inside)
    made: list[Together] = []

    def make(**changes: Any) -> Together:
        reviews = write_two_shops(tmp_path / "reviews.csv")
        made.append(Together(two_shops(reviews, **changes), tmp_path / "together", deadline="1h", grace="1h"))
        return made[-1]

    yield make
    for one in made:
        one.close()


def stalling() -> bytes:
    """What a site says that is still at it."""
    time.sleep(0.05)
    return WORKING


def asked_in(stage: Together, site: str) -> list[int]:
    """The rounds in which a site was called."""
    return [
        request.round
        for request in stage.requests
        if (request.site, request.what, request.is_new) == (site, "call", True)
    ]


def test_rests_double_until_a_good_answer_and_count_once_a_round() -> None:
    patience, asked = Patience(), []
    for round in range(40):
        if "north" not in patience.rests:
            asked.append(round)
            patience.stall("north", "late")
            patience.stall("north", "late again, in the same round")
        patience.begin_round()
    assert asked == [0, 2, 5, 10, 19, 36]
    patience.ask_all()
    assert not patience.rests
    patience.answer("north")
    patience.stall("north", "late")
    assert patience.rests == {"north": 2}  # this round and the next


def test_a_site_that_stalls_from_hello_on_is_asked_ever_more_rarely_and_no_deadline_is_waited_for(
    together: Make,
) -> None:
    stage = together(rounds=6)

    def stalled(request: Request, deliver: Deliver) -> bytes:
        if request.what == "call":
            stage.give(SHORT_S)
        return stalling() if request.what == "call" and request.site == "garden" else deliver()

    stage.transport = stalled
    status = Status(stage.run, stage.job)
    record = stage.conduct(status)
    assert asked_in(stage, "garden") == [0, 2, 5]
    assert record.notes == [f"no usable reply: {LATE}"] * 3 + ["left out after 3 failures, until it answers again."]
    said = status.state["sites"]["garden"]
    assert said["state"] == "failed"
    assert said["reason"] == f"left out, rounds until it is asked again: 4; {LATE}"
    assert {line["party"] for line in record.metrics if line.get("stage") == "trained"} == {"books"}
    assert record.is_finished


def test_a_late_site_does_as_if_the_round_had_not_been_even_if_it_ended_its_work(together: Make) -> None:
    stage = together(rounds=4)
    is_done = threading.Event()
    calls: dict[int, tuple[bytes, bytes]] = {}

    def hiding(request: Request, deliver: Deliver) -> bytes:
        if request.what != "call" or request.round not in (0, 1, 2, 4):
            return deliver()
        stage.give(SHORT_S if request.round == 2 else LONG_S)
        if request.site == "books":
            is_done.wait(600 if request.round == 2 else 0)  # the garden is done before the books are
            return deliver()
        said = deliver()
        if unframe(said)[0]["state"] == "done" and request.round == 2:
            is_done.set()
            return stalling()
        heard = request.payload or calls.get(request.round, (b"", b""))[0]
        calls[request.round] = (heard, unframe(said)[1])
        return said

    stage.transport = hiding
    record = stage.conduct()
    assert asked_in(stage, "garden") == [0, 1, 2, 4, 5]
    assert record.notes == [f"no usable reply: {LATE}"]
    assert "round 2: it took too long and was given up." in (stage.sites["garden"].folder / "site.log").read_text()
    folder = stage.folder / "reference"
    folder.mkdir()
    public = read_public(stage.centre)
    reference = Host(site_plan(stage.job, "garden", stage.file("garden"), public, folder), tell_nobody)
    for round in (0, 1, 4):
        heard, said = calls[round]
        assert Slip.take_off(reference.call("garden", heard))[0] == Slip.take_off(said)[0]


def test_a_site_that_stalled_is_asked_at_once_when_the_others_are_too_few(together: Make) -> None:
    stage = together(rounds=2)

    def unlucky(request: Request, deliver: Deliver) -> bytes:
        stage.give(SHORT_S if request.what == "call" and request.round == 1 else LONG_S)
        if request.what == "call" and (request.site, request.round) == ("garden", 1):
            return stalling()
        if request.what == "call" and (request.site, request.round) == ("books", 2):
            return frame({"state": "failed", "reason": "its disk is full."})
        return deliver()

    stage.transport = unlucky
    record = stage.conduct()
    assert asked_in(stage, "garden") == [0, 1, 2, 3]
    trained = {(line["round"], line["party"]) for line in record.metrics if line.get("stage") == "trained"}
    assert trained == {(1, "books"), (2, "garden")}


def test_everybody_is_waited_for_where_everybody_is_needed(together: Make) -> None:
    stage = together(rounds=1, quorum=1.0)
    stage.give(SHORT_S)
    begun: list[float] = []

    def slow(request: Request, deliver: Deliver) -> bytes:
        if request.site == "garden" and request.what == "call" and request.round == 1:
            said = deliver()
            begun.append(time.monotonic())
            return stalling() if begun[-1] - begun[0] < 1.2 else said  # four times the grace
        return deliver()

    stage.transport = slow
    assert stage.conduct().notes == []
    assert asked_in(stage, "garden") == [0, 1, 2]


def test_answers_of_no_use_do_not_cut_off_the_others(together: Make) -> None:
    stage = together(rounds=2)
    begun: list[float] = []

    def lying(request: Request, deliver: Deliver) -> bytes:
        stage.give(SHORT_S if request.what == "call" and request.round == 2 else LONG_S)
        said = deliver()
        if request.what != "call" or request.round not in (1, 2):
            return said
        if request.site == "garden":
            return frame({"state": "done", "notes": []}, b"nothing of the kind, but at once")
        if request.round == 2:
            begun.append(time.monotonic())
            return stalling() if begun[-1] - begun[0] < 0.9 else said  # three times the grace
        return said

    stage.transport = lying
    record = stage.conduct()
    trained = {(line["round"], line["party"]) for line in record.metrics if line.get("stage") == "trained"}
    assert trained == {(1, "books"), (2, "books")}
