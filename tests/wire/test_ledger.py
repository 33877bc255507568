import math

import pytest
import torch

from fedstill.wire.codecs.error import Error
from fedstill.wire.encoding import Sizes
from fedstill.wire.ledger import Ledger, condensed
from fedstill.wire.messages import BadMessage


def test_lines_sum_what_went_the_same_way_for_the_same_purpose():
    ledger = Ledger(round=2)
    ledger.count("up", "opine", "Opinion", Sizes(100, 10, 1), 100 + 10 + 1)
    ledger.count("up", "opine", "Opinion", Sizes(200, 20, 2), 200 + 20 + 2)
    ledger.count("down", "opine", "Answer", Sizes(50, 0, 5), 50 + 0 + 5, recipients=3)
    ledger.count("up", "hello", "Hello", Sizes(0, 24, 6), 0 + 24 + 6)
    assert list(ledger.lines()) == [
        line("up", "opine", "Opinion", messages=2, recipients=1, payload=300, indices=30, header=3, total=333),
        line("down", "opine", "Answer", messages=1, recipients=3, payload=50, indices=0, header=5, total=55),
        line("up", "hello", "Hello", messages=1, recipients=1, payload=0, indices=24, header=6, total=30),
    ]


def line(direction, verb, message, messages, recipients, payload, indices, header, total):
    return {
        "round": 2,
        "direction": direction,
        "verb": verb,
        "message": message,
        "messages": messages,
        "recipients": recipients,
        "payload": payload,
        "indices": indices,
        "header": header,
        "bytes": total,
        "encoded": total,
    }


def test_totals_count_every_recipient():
    ledger = Ledger()
    ledger.count("down", "opine", "Answer", Sizes(50, 0, 5), 50 + 0 + 5, recipients=3)
    ledger.count("down", "opine", "Answer", Sizes(50, 0, 5), 50 + 0 + 5, recipients=1)
    ledger.count("up", "opine", "Opinion", Sizes(7, 2, 1), 7 + 2 + 1)
    assert ledger.totals == {"up": 10, "down": 4 * 55}


def test_messages_to_different_numbers_of_recipients_stand_in_different_lines():
    ledger = Ledger()
    for recipients in (3, 1, 3):
        ledger.count("down", "opine", "Answer", Sizes(50, 0, 5), 50 + 0 + 5, recipients)
    assert [(one["recipients"], one["messages"], one["bytes"]) for one in ledger.lines()] == [(3, 2, 110), (1, 1, 55)]


def test_lines_are_forgotten_when_they_were_read_and_totals_are_not():
    ledger = Ledger()
    ledger.count("up", "opine", "Opinion", Sizes(7, 2, 1), 7 + 2 + 1)
    assert len(list(ledger.lines())) == 1
    assert list(ledger.lines()) == []
    ledger.round = 1
    ledger.count("up", "opine", "Opinion", Sizes(7, 2, 1), 7 + 2 + 1)
    assert [(one["round"], one["messages"]) for one in ledger.lines()] == [(1, 1)]
    assert ledger.totals == {"up": 20, "down": 0}


def test_errors_of_codecs_are_root_mean_squares_and_the_largest_change():
    ledger = Ledger(round=1)
    ledger.count("up", "opine", "Opinion", Sizes(100, 0, 9), 30, error=Error(0.09, 1, 0.5))
    ledger.count("up", "opine", "Opinion", Sizes(100, 0, 9), 20, error=Error(0.01, 1, 0.2))
    ledger.count("down", "opine", "Answer", Sizes(100, 0, 9), 40, recipients=2, error=Error(4 * 0.16, 4, 0.7))
    lines = list(ledger.lines())
    assert [(line["encoded"], line["rms"], line["change"]) for line in lines] == [(50, 0.224, 0.5), (40, 0.4, 0.7)]
    assert condensed(lines) == {
        "up": {"before": 218, "after": 50, "rms": 0.224, "change": 0.5},
        "down": {"before": 218, "after": 80, "rms": 0.4, "change": 0.7},
    }


def test_the_error_of_logits_is_that_of_their_probabilities():
    logits = torch.tensor([[math.log(3.0), 0.0], [5.0, 5.0]])  # 3/4, 1/4 and twice 1/2
    arrived = torch.tensor([[0.0, 0.0], [math.log(0.5), math.log(0.5)]])
    error = Error.of("opinions", logits, arrived)
    assert (error.numbers, error.change) == (4, pytest.approx(0.25))
    assert error.rms == pytest.approx(math.sqrt((2 * 0.25**2) / 4))
    error = Error.of("parameters", torch.tensor([1.0, 2.0]), torch.tensor([1.0, 5.0]))
    assert (error.rms, error.change) == (pytest.approx(3 / math.sqrt(2)), None)


@pytest.mark.parametrize(
    "said", [None, 3, [], {}, {"change": 1.0}, {"rms": "x"}, {"rms": -1}, {"rms": 1e99}, {"rms": 1, "a": 2}]
)
def test_what_a_client_says_about_its_error_is_checked(said):
    with pytest.raises(BadMessage, match="error of a codec"):
        Error.from_json(said)
