import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedstill.common.errors import FedstillError
from fedstill.wire.codecs import Passage, quantised
from fedstill.wire.codecs.packing import join, split
from fedstill.wire.codecs.quantised import Quantised, dequantise, pack, quantise, unpack
from fedstill.wire.messages import BadMessage

many_bits = st.integers(1, 8)
positive = st.floats(0, 1, width=32)
probabilities = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 6), st.integers(2, 7)), elements=positive
).map(lambda rows: rows + np.float32(1e-3)).map(lambda rows: rows / rows.sum(1, keepdims=True))  # fmt: skip


@st.composite
def codes_and_others(draw):
    """Codes of so many bits, and others of the same shape."""
    bits, shape, seed = draw(many_bits), draw(st.tuples(st.integers(1, 5), st.integers(1, 5))), draw(st.integers(0, 99))
    rows = np.random.default_rng(seed).dirichlet(np.ones(shape[1]), (2, shape[0]))
    return bits, quantise(torch.from_numpy(rows[0]), bits), quantise(torch.from_numpy(rows[1]), bits)


def test_rounding_up_goes_by_the_largest_remainder():
    # 2 bits: thirds. 3p = (1.5, 0.9, 0.6): whole parts 1, 0, 0, and two are missing: 0.9 and 0.6 beat 0.5.
    assert quantise(torch.tensor([[0.5, 0.3, 0.2]]), 2).tolist() == [[1, 1, 1]]
    # 3p = (2.4, 0.36, 0.24): one is missing.
    assert quantise(torch.tensor([[0.8, 0.12, 0.08]]), 2).tolist() == [[3, 0, 0]]
    assert quantise(torch.tensor([[0.0, 1.0, 0.0]]), 8).tolist() == [[0, 255, 0]]


def test_ties_go_by_class_order():
    assert quantise(torch.full((1, 4), 0.25), 1).tolist() == [[1, 0, 0, 0]]
    assert quantise(torch.full((1, 4), 0.25), 2).tolist() == [[1, 1, 1, 0]]


@given(probabilities)
def test_one_bit_is_the_most_likely_class(rows):
    assert np.array_equal(quantise(torch.from_numpy(rows), 1).argmax(1).numpy(), rows.argmax(1))
    assert (quantise(torch.from_numpy(rows), 1).sum(1) == 1).all()


@given(probabilities, many_bits)
def test_rows_still_sum_to_one_and_no_number_is_off_by_a_step(rows, bits):
    codes, levels = quantise(torch.from_numpy(rows), bits), 2**bits - 1
    assert codes.dtype == torch.uint8
    assert (codes.long().sum(1) == levels).all()
    exact = rows.astype(np.float64) / rows.astype(np.float64).sum(1, keepdims=True)
    assert (np.abs(dequantise(codes, bits).double().numpy() - exact) < 1 / levels + 1e-6).all()


@given(probabilities, many_bits)
def test_what_lies_on_the_grid_stays_where_it_is(rows, bits):
    codes = quantise(torch.from_numpy(rows), bits)
    assert torch.equal(quantise(dequantise(codes, bits), bits), codes)


@given(codes_and_others())
def test_unpacking_inverts_packing(drawn):
    bits, codes, before = drawn
    for last in (before, None):
        assert torch.equal(unpack(pack(codes, last, bits), last, bits, tuple(codes.shape)), codes)


@pytest.mark.parametrize("before", [True, False])
def test_very_many_codes_are_packed_by_zlib_and_come_back(monkeypatch, before):
    monkeypatch.setattr(quantised, "MOST_DECISIONS", 100)
    codes, last = (quantise(chances(seed, rows=50), 4) for seed in (1, 2))
    last = last if before else None
    packed = pack(codes, last, 4)
    assert packed[:1] == b"\x78"  # zlib's first byte
    assert torch.equal(unpack(packed, last, 4, (50, 3)), codes)
    for bad in (packed[:-1], packed + b"0", b"x" * 9, pack(quantise(chances(1, rows=60), 4), None, 4)):
        with pytest.raises(BadMessage):
            unpack(bad, last, 4, (50, 3))


def test_what_did_not_change_costs_next_to_nothing():
    random = np.random.default_rng(0)
    codes = quantise(torch.from_numpy(random.dirichlet(np.ones(4), 2000)), 3)
    other = codes.clone()
    other[:10] = other[:10].flip(1)
    alone, changed, same = (len(pack(codes, last, 3)) for last in (None, other, codes))
    assert same < changed < alone / 10


def test_packed_codes_take_as_many_bytes_as_their_entropy():
    # One bit, four classes with the shares 1/2, 1/4, 1/8, 1/8: 1.75 bits a row, which adaptive counts nearly reach.
    random = np.random.default_rng(0)
    classes = random.choice(4, 4000, p=[1 / 2, 1 / 4, 1 / 8, 1 / 8])
    packed = pack(torch.eye(4, dtype=torch.uint8)[classes], None, 1)
    shares = np.bincount(classes) / 4000
    entropy = -(shares * np.log2(shares)).sum() * 4000 / 8
    assert entropy < len(packed) < entropy * 1.01 + 8


def chances(seed, rows=12):
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(3), rows)).float()


UP = Passage("up", "books", ("server",), 1, 3, largest=36)


def test_a_sender_packs_its_codes_given_what_it_said_last():
    codec, here, there = Quantised(up=3), {}, {}
    for number, value in enumerate([chances(1), chances(1), chances(2)], 1):
        parts = codec.encode(value, UP, here)
        about, packed = split(parts, "codes", 5)
        assert about == [number, number - 1, 0, 12, 3]
        assert parts["codes"].nbytes == 5 + len(packed)  # a byte for each number below 128
        assert torch.equal(codec.decode(parts, UP, there), dequantise(quantise(value, 3), 3))
    assert torch.equal(here["codes"], there["codes"])


def test_a_difference_goes_only_to_who_has_what_it_is_to():
    codec, here = Quantised(down=2), {}

    def since(*receivers):
        passage = Passage("down", "server", receivers, 1, 3)
        return split(codec.encode(chances(1), passage, here), "codes", 5)[0][1]

    assert since("books") == 0
    assert since("books", "films") == 0
    assert since("books", "films") == 2
    here.pop("to/films")  # nobody knows what it has
    assert since("books") == 3
    assert since("books", "films") == 0


def test_logits_arrive_as_log_probabilities_and_keep_their_order():
    logits = torch.tensor([[2.0, 1.0, -3.0], [-9.0, 0.0, 4.0]])
    parts = Quantised(up=8).encode(logits, UP, {})
    arrived = Quantised(up=8).decode(parts, UP, {})
    torch.testing.assert_close(arrived.exp().sum(1), torch.ones(2), rtol=1e-6, atol=0)
    torch.testing.assert_close(arrived.exp(), logits.softmax(-1), rtol=0, atol=1 / 255)


def test_32_bits_are_the_numbers_themselves():
    assert Quantised(up=32).encode(chances(1), UP, {}) is None
    with pytest.raises(BadMessage, match="not in the agreed 32 bits"):
        Quantised(up=32).decode({"codes": torch.zeros(3, dtype=torch.uint8)}, UP, {})


def test_what_is_not_finite_is_refused_by_the_sender():
    with pytest.raises(FedstillError, match="not finite"):
        Quantised().encode(torch.tensor([[1.0, float("nan")]]), UP, {})


GOOD = pack(quantise(chances(1), 2), None, 2)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({}, "not in the agreed 2 bits"),
        ({"codes": torch.zeros(30)}, "without packed codes"),
        ({"codes": torch.zeros(3, dtype=torch.uint8)}, "without packed codes"),
        ({"codes": join((3, 2, 0, 12, 3), GOOD)}, "differences from its labels number 2.*are number 0"),
        ({"codes": join((3, 0, 0, 12, 3), GOOD + b"0")}, "too short or too long"),
        ({"codes": join((3, 0, 0, 12, 3), GOOD[:-1])}, "too short or too long"),
        ({"codes": join((3, 0, 0, 12, 3))}, "too short or too long"),
        ({"codes": join((3, 0, 0, 10**6, 3), GOOD)}, "no call asks for so many"),
        ({"codes": join((3, 0, 0, 2**32 - 1, 0), GOOD)}, "no call asks for so many"),
    ],
)
def test_what_cannot_be_read_is_refused(parts, complaint):
    with pytest.raises(BadMessage, match=complaint):
        Quantised(up=2).decode(parts, UP, {})


@settings(deadline=None)
@given(st.binary(max_size=60), many_bits)
def test_any_bytes_are_codes_that_sum_to_one_or_refused(raw, bits):
    try:
        codes = unpack(raw, None, bits, (12, 3))
    except BadMessage:
        return
    assert (codes.long().sum(1) == 2**bits - 1).all()
