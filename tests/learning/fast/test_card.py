"""Meetings of parties; what a card does in them is tested where there is one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from fedstill.data.examples import Examples, TensorStore
from fedstill.learning.fast.card import meet, waited_s
from fedstill.learning.losses import ce
from fedstill.learning.phases import Phase, PhaseSettings
from fedstill.learning.predict import predict
from fedstill.models.small import TextCNN


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


def learn_for_ever(model: TextCNN, data: Examples) -> None:
    settings = PhaseSettings(epochs=10**9, batch=2)
    Phase(model, data, settings, 0.1, seed=0).run(torch.zeros(len(data), dtype=torch.long), ce)


def predict_for_ever(model: TextCNN, data: Examples) -> None:
    while True:
        predict(model, data)


@pytest.mark.parametrize("work", [learn_for_ever, predict_for_ever])
def test_ctrl_c_ends_a_meeting_at_the_next_batch_of_whoever_is_at_work(
    work: Callable[[TextCNN, Examples], None],
) -> None:
    model = TextCNN(30, 3, 0, embedding=5, filters=4, widths=(1,))
    data = Examples(TensorStore("inputs_embeds", torch.randn(6, 4, 5)), np.arange(6))
    begun, seen, before = [], [], threading.active_count()

    def interrupted(*given: object) -> None:
        seen.append(given)
        if len(seen) == 3:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    model.register_forward_hook(interrupted)

    def endless(number: int) -> None:
        begun.append(number)
        work(model, data)

    with pytest.raises(KeyboardInterrupt):
        meet([lambda: begun.append(0), partial(endless, 1), partial(endless, 2)])
    assert begun == [0, 1]
    assert threading.active_count() <= before
