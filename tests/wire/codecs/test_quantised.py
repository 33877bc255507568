import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedstill.wire.codecs import Passage
from fedstill.wire.codecs.quantised import Quantised, dequantise, pack, quantise, unpack
from fedstill.wire.messages import BadMessage

many_bits = st.integers(1, 8)
positive = st.floats(0, 1, width=32)
probabilities = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 6), st.integers(2, 7)), elements=positive
).map(lambda rows: rows + np.float32(1e-3)).map(lambda rows: rows / rows.sum(1, keepdims=True))  # fmt: skip


@st.composite
def codes_and_others(draw):
    """Any codes of so many bits, and others of the same shape."""
    bits, shape = draw(many_bits), draw(st.tuples(st.integers(0, 5), st.integers(1, 5)))
    two = draw(arrays.arrays(np.uint8, (2, *shape), elements=st.integers(0, 2**bits - 1)))
    return bits, torch.from_numpy(two[0].copy()), torch.from_numpy(two[1].copy())


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
        packed = pack(codes, last, bits)
        assert packed.dtype == torch.uint8
        assert packed.ndim == 1
        assert torch.equal(unpack(packed, last, bits, tuple(codes.shape)), codes)


def test_differences_are_zero_where_nothing_changed_and_cost_next_to_nothing():
    random = np.random.default_rng(0)
    codes = quantise(torch.from_numpy(random.dirichlet(np.ones(4), 2000)), 3)
    other = codes.clone()
    other[:10] = other[:10].flip(1)
    assert not any(zlib.decompress(pack(codes, codes, 3).numpy().tobytes()))
    alone, changed, same = (len(pack(codes, last, 3)) for last in (None, other, codes))
    assert same < changed < alone / 10
    assert alone < 4 * 2000 * 3 / 8 * 1.1  # about three bits a code, and not the eight they are held in


@pytest.mark.parametrize(
    ("packed", "complaint"),
    [
        (torch.zeros(3), "packed codes are bytes, not torch.float32"),
        (torch.zeros(2, 2, dtype=torch.uint8), "of shape"),
        (torch.arange(9, dtype=torch.uint8), "cannot be unpacked"),
        (pack(torch.zeros(5, 3, dtype=torch.uint8), None, 2), "not those of 4 samples and 3 classes"),
        (pack(torch.zeros(3, 3, dtype=torch.uint8), None, 2), "not those of 4 samples and 3 classes"),
        (pack(torch.zeros(4000, 4000, dtype=torch.uint8), None, 2), "not those of 4 samples and 3 classes"),
        (pack(torch.zeros(4, 3, dtype=torch.uint8), None, 2)[:-2], "not those of 4 samples and 3 classes"),
        (pack(torch.full((4, 3), 4, dtype=torch.uint8), None, 3), "more than the 2 bits that were agreed"),
    ],
)
def test_other_bytes_are_refused(packed, complaint):
    with pytest.raises(BadMessage, match=complaint):
        unpack(packed, None, 2, (4, 3))


def chances(seed, rows=12):
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(3), rows)).float()


UP = Passage("up", "books", ("server",), 1, 3, largest=36)


def test_a_sender_speaks_in_differences_to_what_it_said_last_where_that_is_shorter():
    codec, here, there = Quantised(up=3), {}, {}
    for number, value in enumerate([chances(1), chances(1), chances(2)], 1):
        parts = codec.encode(value, UP, here)
        said, since, is_logits, *shape = parts["about"].tolist()
        assert (said, is_logits, shape) == (number, 0, [12, 3])
        assert since == (1 if number == 2 else 0) or number == 3
        assert torch.equal(codec.decode(parts, UP, there), dequantise(quantise(value, 3), 3))
    assert torch.equal(here["codes"], there["codes"])


def test_a_difference_goes_only_to_who_has_what_it_is_to():
    codec, here = Quantised(down=2), {}

    def since(*receivers):
        passage = Passage("down", "server", receivers, 1, 3)
        return int(codec.encode(chances(1), passage, here)["about"][1])

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


def about(*numbers):
    return torch.tensor(numbers)


GOOD = pack(quantise(chances(1), 2), None, 2)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"codes": GOOD}, "not in the agreed 2 bits"),
        ({"codes": GOOD, "about": about(1, 0, 0)}, "not in the agreed 2 bits"),
        ({"codes": GOOD, "about": about(3, 2, 0, 12, 3)}, "differences from its labels number 2.*are number 0"),
        ({"codes": GOOD, "about": about(3, 0, 0, 11, 3)}, "not those of 11 samples and 3 classes"),
        ({"codes": GOOD, "about": about(3, 0, 0, 10**6, 3)}, "no call asks for so many"),
        ({"codes": GOOD, "about": about(3, 0, 0, -1, 3)}, "no call asks for so many"),
        ({"codes": pack(torch.full((12, 3), 3, dtype=torch.uint8), None, 2), "about": about(1, 0, 0, 12, 3)}, "sum to"),
        ({"codes": pack(quantise(chances(1), 4), None, 4), "about": about(1, 0, 0, 12, 3)}, "more than the 2 bits"),
    ],
)
def test_what_cannot_be_read_is_refused(parts, complaint):
    with pytest.raises(BadMessage, match=complaint):
        Quantised(up=2).decode(parts, UP, {})
