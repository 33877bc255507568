import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedstill.common.errors import FedstillError
from fedstill.wire import codecs
from fedstill.wire.codecs import Passage
from fedstill.wire.codecs.int8 import Int8
from fedstill.wire.messages import BadMessage

PASSAGE = Passage("up", "books", ("server",), 1, 3)
numbers = arrays.arrays(
    np.float32, arrays.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=5),
    elements=st.floats(-1e6, 1e6, width=32),
)  # fmt: skip


@given(numbers, st.sampled_from(["auto", "row", "tensor"]))
def test_no_number_is_off_by_more_than_half_a_step_of_its_scale(array, scales):
    value, codec = torch.from_numpy(array.copy()), Int8(scales=scales)
    arrived = codec.decode(codec.encode(value, PASSAGE, {}), PASSAGE, {})
    assert arrived.shape == value.shape
    assert arrived.dtype == torch.float32
    by_row = scales == "row" and array.ndim > 1
    largest = np.abs(array.reshape(len(array), -1)).max(1) if by_row else np.abs(array).max()
    off = np.abs(arrived.numpy().astype(np.float64) - array)
    off = off.reshape(len(array), -1).max(1) if by_row else off.max()
    assert (off <= largest / 254 * 1.001 + 1e-30).all()


def test_codes_and_scales_by_hand():
    value = torch.tensor([[1.27, -0.64, 0.0], [0.0, 25.4, 12.6]])
    parts = Int8(scales="row").encode(value, PASSAGE, {})
    assert parts["codes"].view(torch.int8).tolist() == [[127, -64, 0], [0, 127, 63]]
    torch.testing.assert_close(parts["scales"], torch.tensor([0.01, 0.2]))
    assert sum(part.nbytes for part in parts.values()) == 6 + 2 * 4


@pytest.mark.parametrize(("shape", "scales"), [((2030, 3), 1), ((64, 32), 64), ((64, 31), 1), ((768,), 1), ((), 1)])
def test_only_long_rows_have_scales_of_their_own(shape, scales):
    parts = codecs.make("int8").encode(torch.randn(shape), PASSAGE, {})
    assert parts["scales"].shape == (scales,)


def test_zeros_stay_zeros():
    parts = Int8().encode(torch.zeros(4, 3), PASSAGE, {})
    assert torch.equal(Int8().decode(parts, PASSAGE, {}), torch.zeros(4, 3))


def test_what_is_not_finite_is_refused_by_the_sender():
    with pytest.raises(FedstillError, match="not finite"):
        Int8().encode(torch.tensor([float("inf")]), PASSAGE, {})


CODES = torch.zeros(4, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"codes": CODES},
        {"codes": CODES.float(), "scales": torch.ones(1)},
        {"codes": CODES, "scales": torch.ones(1).double()},
        {"codes": CODES, "scales": torch.ones(4)},
        {"codes": CODES, "scales": torch.tensor(1.0)},
        {"codes": CODES[:0], "scales": torch.ones(1)},
    ],
)
def test_other_parts_are_refused(parts):
    with pytest.raises(BadMessage, match="scales"):
        Int8().decode(parts, PASSAGE, {})
