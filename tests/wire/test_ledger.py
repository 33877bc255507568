from fedstill.wire.encoding import Sizes
from fedstill.wire.ledger import Ledger


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
