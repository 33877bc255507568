import numpy as np
import pytest
import torch

from fedstill.common.errors import FedstillError
from fedstill.wire.codecs import Passage
from fedstill.wire.codecs.packing import join
from fedstill.wire.codecs.top_changes import TopChanges
from fedstill.wire.messages import BadMessage

UP = Passage("up", "books", ("server",), 1, 9)


def weights(seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(40, 25))).float()


def test_the_largest_changes_travel_first_and_the_others_later():
    codec, here, there = TopChanges(share=0.01), {}, {}
    value = weights()
    assert torch.equal(codec.decode(codec.encode(value, UP, here), UP, there), value)
    value = value.clone()
    value[3, :20] += torch.arange(1.0, 21.0)  # 20 of 1,000 numbers change, 10 are sent a time
    for done in (10, 20):
        parts = codec.encode(value, UP, here)
        assert parts["changes"].tolist() == list(range(21 - done, 31 - done))
        arrived = codec.decode(parts, UP, there)
        missing = (arrived - value).abs() > 0.05
        assert missing.sum() == 20 - done
        assert missing[3, : 20 - done].all()
    assert torch.equal(here["known"], there["known"])


def test_rounding_is_made_up_for():
    codec, here, there = TopChanges(share=1.0), {}, {}
    first, then = weights(0), weights(1)
    codec.decode(codec.encode(first, UP, here), UP, there)
    off = [float((codec.decode(codec.encode(then, UP, here), UP, there) - then).abs().max()) for _ in range(4)]
    assert off[0] < 0.03
    assert off[3] < 1e-5


def test_bytes_by_hand():
    codec, here = TopChanges(share=0.02), {}
    first = codec.encode(weights(), UP, here)
    assert sum(part.nbytes for part in first.values()) == 4 * 1000 + 2
    parts = codec.encode(weights(1), UP, here)
    assert parts["changes"].nbytes == 20 * 2
    assert 2 < parts["which"].nbytes <= 2 + 125 + 11  # at most a bit for each place, and zlib's own


def test_small_arrays_travel_as_they_are():
    assert TopChanges().encode(torch.ones(255), UP, {}) is None


def test_a_receiver_that_missed_a_message_gets_everything():
    codec, here = TopChanges(), {}
    down = Passage("down", "server", ("books", "films"), 1, 9)
    assert ["whole" in codec.encode(weights(), down, here) for _ in range(2)] == [True, False]
    here.pop("to/films")
    assert "whole" in codec.encode(weights(), down, here)


def test_a_method_that_must_know_what_arrives_is_told_to_take_another():
    with pytest.raises(FedstillError, match="take low_rank or int8"):
        TopChanges().encode(weights(), Passage("down", "server", (), 1, 9), {})


def test_other_parts_are_refused():
    codec, here, there = TopChanges(), {}, {}
    with pytest.raises(BadMessage, match="number 1, but number 0 came last"):
        codec.decode({"which": join((2, 1))}, UP, {})
    codec.decode(codec.encode(weights(), UP, here), UP, there)
    good = dict(codec.encode(weights(1), UP, here))
    bad = [
        {},
        {"whole": weights().double(), "which": join((2, 0))},
        {"which": join((2, 0))},
        {"which": good["which"]},
        good | {"changes": good["changes"][1:]},
        good | {"changes": good["changes"].float()},
        good | {"which": good["which"][:-1]},
        good | {"which": join((2, 1), b"\0" * 40)},
        good | {"which": join((3, 2), good["which"].numpy().tobytes()[2:])},
    ]
    for parts in bad:
        with pytest.raises(BadMessage):
            codec.decode(parts, UP, dict(there))
    assert codec.decode(good, UP, there).shape == (40, 25)
