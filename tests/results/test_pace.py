"""What is left of a run, from the events that one told: three rounds of 10, 14 and 14 s, 4 s of them for the digest."""

from __future__ import annotations

import pytest
from rich.console import Console

from fedstill.common.events import Begun, RoundDone, Saving
from fedstill.results.pace import Left, Took, left
from fedstill.results.progress import Progress

TOLD = (RoundDone(1, 3, 7, 10.0, 0.0), RoundDone(2, 3, 14, 14.0, 4.0), RoundDone(3, 3, 21, 14.0, 4.0))


def test_the_last_digest_is_counted_from_the_first_round_on_that_has_one() -> None:
    took = {event.round: Took(event.seconds, event.digest_s) for event in TOLD}
    assert left({}, 3) is None
    assert left({1: took[1]}, 3) == Left(10.0, 10.0, is_whole=False)  # nobody has digested anything yet
    assert left({number: took[number] for number in (1, 2)}, 3) == Left(14.0, 4.0)
    assert left(took, 3) == Left(4.0)
    assert left({1: took[1]}, 1) is None
    assert left({1: Took(10.0, 2.0)}, 3) == Left(10.0, 12.0)  # a method that begins with an answer
    assert left({2: took[2]}, 3) == Left(14.0, 4.0)  # a run that goes on after its first round


def test_a_late_round_takes_nothing_from_those_after_it() -> None:
    assert str(Left(14.0, 18.0).after(10.0)) == "about 22 s left"
    assert str(Left(14.0, 18.0).after(100.0)) == "about 18 s left"


def test_progress_says_what_is_left_until_models_are_saved() -> None:
    console = Console(width=200)
    with console.capture() as shown, Progress(console) as tell:
        tell(Begun(rounds=3, metric="f1", models={"server": "bow"}))
        for event in TOLD:
            tell(event)
        assert "about 4 s left" in tell._times()
        tell(Saving())
        assert "left" not in tell._times()
    said = [line.rpartition(", ")[2] for line in shown.get().splitlines() if line.startswith("round ")]
    assert said == ["more than 20 s left", "about 18 s left", "about 4 s left"]


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(0.2, "about 1 s left"), (40, "about 40 s left"), (600, "about 10 min left"), (9e3, "about 2.5 h left")],
)
def test_durations_are_said_roughly(seconds: float, says: str) -> None:
    assert str(Left(seconds)) == says
