import numpy as np
import pytest
import torch

from fedstill.common.errors import FedstillError
from fedstill.wire import codecs
from fedstill.wire.codecs import Passage
from fedstill.wire.codecs.packing import join
from fedstill.wire.messages import BadMessage

EXACT = {"name": "cached", "duration": 3, "threshold": 0.05, "inner": "fp32"}


def up(round):
    return Passage("up", "books", ("server",), round, 9, largest=300)


def chances(rows=100, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(3), rows)).float()


def sent(parts):
    """How many rows travelled, without a codec for them."""
    return len(parts["rows"]) if "rows" in parts else 0


def test_rows_that_changed_little_are_not_sent_again_before_their_time_is_over():
    codec, here, there = codecs.make(EXACT), {}, {}
    first = chances()
    slightly, much = first.clone(), first.clone()
    slightly[:50] = slightly[:50] * 0.96 + 0.04 / 3  # moves by at most 0.04 * 2/3 of total variation
    much[:7] = much[:7].roll(1, 1)
    changed = int(((much - first).abs().sum(1) / 2 > 0.05).sum())
    expected = [
        (1, first, 100, first),
        (2, slightly, 0, first),
        (3, much, changed, much),
        (4, much, 100 - changed, much),
    ]
    for round, value, rows, arrives in expected:
        parts = codec.encode(value, up(round), here)
        assert sent(parts) == rows
        torch.testing.assert_close(codec.decode(parts, up(round), there), arrives, rtol=0, atol=0)
    assert sent(codec.encode(much, up(5), here)) == 0
    assert sent(codec.encode(much, up(6), here)) == changed  # those of round 3


def test_with_the_threshold_one_only_time_counts():
    codec, here = codecs.make(EXACT | {"threshold": 1.0}), {}
    assert [sent(codec.encode(chances(seed=round), up(round), here)) for round in range(1, 8)] == [
        100, 0, 0, 100, 0, 0, 100
    ]  # fmt: skip


@pytest.mark.parametrize(
    "inner", ["quantised", {"name": "quantised", "up": 4}, "int8", "fp16", {"name": "top_k", "k": 2}]
)
def test_rows_travel_by_the_inner_codec_and_the_sender_knows_what_arrives(inner):
    codec, alone = codecs.make({"name": "cached", "threshold": 0.1, "inner": inner}), codecs.make(inner)
    here, there = {}, {}
    value = chances()
    for round in range(1, 6):
        before = dict(here)
        parts = codec.encode(value, up(round), here)
        arrived = codec.decode(parts, up(round), there)
        assert torch.equal(codec.decode(parts, up(round), before), arrived)
        by_itself = alone.decode(alone.encode(value, up(round), {}), up(round), {})
        # Rows lie at most the threshold, and what the inner codec does to either of two rows, from the codec alone.
        assert float((arrived - by_itself).abs().sum(1).max() / 2) < 0.1 + (1.01 if inner == "quantised" else 0.25)
        if round == 1:
            torch.testing.assert_close(arrived, by_itself, rtol=0, atol=1e-2)
        value = value * 0.9 + 0.1 * chances(seed=round)
    assert torch.equal(here["cache/rows"], there["cache/rows"])


def test_a_receiver_that_missed_a_message_gets_everything():
    codec, here = codecs.make(EXACT), {}
    down = Passage("down", "server", ("books", "films"), 1, 9, largest=300)
    for _ in range(2):
        parts = codec.encode(chances(), down, here)
    assert sent(parts) == 0
    here.pop("to/films")
    assert sent(codec.encode(chances(), down, here)) == 100


def test_a_history_that_went_through_a_state_gives_the_same_bytes():
    codec = codecs.make({"name": "cached", "inner": {"name": "quantised", "up": 3}})
    here = {}
    codec.encode(chances(), up(1), here)
    stored = {name: value.clone() for name, value in here.items()}
    one, two = (codec.encode(chances(seed=1), up(2), history) for history in (here, stored))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_options_of_the_inner_codec_are_checked():
    with pytest.raises(FedstillError, match="no option 'bits'"):
        codecs.make({"name": "cached", "inner": {"name": "quantised", "bits": 3}})
    with pytest.raises(FedstillError, match="there is no codec 'quantized'"):
        codecs.make({"name": "cached", "inner": "quantized"})


NONE = b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"which": torch.zeros(40)},
        {"which": join((2, 1, 100, 3), NONE)},
        {"which": join((1, 0, 100, 3), NONE)},
        {"which": join((1, 0, 10**6, 3), NONE)},
        {"which": join((1, 0, 0, 3), NONE)},
        {"which": codecs.make(EXACT).encode(chances(), up(1), {})["which"]},
        {"which": codecs.make(EXACT).encode(chances(), up(1), {})["which"], "rows": torch.ones(99, 3)},
        {"which": codecs.make(EXACT).encode(chances(), up(1), {})["which"], "rows": torch.ones(100, 3).long()},
    ],
)
def test_other_parts_are_refused(parts):
    with pytest.raises(BadMessage):
        codecs.make(EXACT).decode(parts, up(1), {})
