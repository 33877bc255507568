"""What holds for every codec, whatever it does."""

import numpy as np
import pytest
import torch

from fedstill.wire import codecs
from fedstill.wire.codecs import Passage
from fedstill.wire.messages import BadMessage

SPECS = [name for name in codecs.known() if name != "fp32"] + [
    {"name": "cached", "inner": "int8"},
    {"name": "cached", "inner": {"name": "top_k", "k": 2}},
    {"name": "quantised", "up": 4},
]
LARGEST = 400 * 3


def passage(round):
    return Passage("up", "books", ("server",), round, 3, largest=LARGEST)


def values():
    """Opinions of three rounds, each near the last: of low rank, so that no codec sends them unchanged."""
    random = np.random.default_rng(0)
    first = torch.from_numpy(np.outer(random.normal(size=400), [1.0, -1.0, 0.5])).float()
    return [first, first * 1.01, first * 1.3]


def conversation(codec):
    """The parts of the third message, and what a receiver remembers before it."""
    here, there = {}, {}
    for round, value in enumerate(values(), 1):
        parts = codec.encode(value, passage(round), here)
        if round == 3:
            return parts, there
        codec.decode(parts, passage(round), there)
    raise AssertionError


def mutated(parts, random):
    parts = {name: part.clone() for name, part in parts.items()}
    name = random.choice(list(parts))
    part = parts[name]
    kind = random.integers(6)
    if kind == 0:
        del parts[name]
    elif kind == 1:
        types = [torch.float32, torch.int64, torch.uint8, torch.bool, torch.float16, torch.complex64, torch.float64]
        parts[name] = part.to(types[random.integers(len(types))])
    elif kind == 2:
        parts[name] = [part.flatten(), part[:0], part[None], part[:-1], part.sum(), torch.cat([part, part])][
            random.integers(6)
        ]
    elif part.numel():
        raw = part.flatten().view(torch.uint8).clone()
        front = min(len(raw), 20) if kind == 3 else len(raw)
        for _ in range(random.integers(1, 4)):
            raw[random.integers(front)] = int(random.integers(256))
        parts[name] = raw.view(part.dtype).reshape(part.shape)
    return parts


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_damaged_message_is_refused_or_has_a_size_that_a_call_can_ask_for(spec):
    codec, random = codecs.make(spec), np.random.default_rng(1)
    parts, history = conversation(codec)
    refused = 0
    for _ in range(300):
        remembered = {name: value.clone() for name, value in history.items()}
        try:
            arrived = codec.decode(mutated(parts, random), passage(3), remembered)
        except BadMessage:
            refused += 1
            continue
        assert arrived.numel() <= 2 * LARGEST
        assert arrived.is_floating_point()
    assert refused > 30


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_sender_can_decode_what_it_sends(spec):
    codec, here, there = codecs.make(spec), {}, {}
    for round, value in enumerate(values(), 1):
        before = {name: part.clone() for name, part in here.items()}
        parts = codec.encode(value, passage(round), here)
        arrived = codec.decode(parts, passage(round), there)
        assert torch.equal(codec.decode(parts, passage(round), before), arrived)
        assert arrived.shape == value.shape


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_memory_that_was_stored_gives_the_same_bytes(spec):
    codec, here, stored = codecs.make(spec), {}, {}
    for round, value in enumerate(values(), 1):
        one, two = (codec.encode(value, passage(round), history) for history in (here, stored))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)
        stored = {name: part.clone() for name, part in here.items()}
