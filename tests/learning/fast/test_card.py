"""Meetings of parties; what a card does in them is tested where there is one."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from fedstill.learning.fast.card import meet, waited_s


def test_works_are_done_one_after_the_other_and_answer_in_their_order() -> None:
    busy, most, done = 0, 0, []

    def work(number: int) -> int:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        done.append(number)
        busy -= 1
        return number * number

    assert meet([partial(work, number) for number in range(5)]) == [0, 1, 4, 9, 16]
    assert (most, done) == (1, [0, 1, 2, 3, 4])


def test_an_error_is_raised_when_all_others_have_ended() -> None:
    done, before = [], threading.active_count()

    def fail() -> None:
        raise ValueError("not me")

    with pytest.raises(ValueError, match="not me"):
        meet([fail, lambda: done.append(1)])
    assert done == [1]
    assert threading.active_count() <= before


def test_outside_a_meeting_nobody_waits() -> None:
    assert waited_s() == 0.0
    assert meet([waited_s]) == [0.0]
