import pytest
import torch

from fedstill.common.errors import FedstillError
from fedstill.wire import codecs
from fedstill.wire.codecs import Passage
from fedstill.wire.messages import BadMessage

PASSAGE = Passage("down", "server", ("books",), 0, 3)


@pytest.mark.parametrize(("name", "precision"), [("bf16", 2**-8), ("fp16", 2**-11)])
def test_numbers_take_half_the_bytes_and_arrive_as_float32(name, precision):
    codec, value = codecs.make(name), torch.randn(5, 3)
    parts = codec.encode(value, PASSAGE, {})
    assert sum(part.nbytes for part in parts.values()) == 2 * 15
    arrived = codec.decode(parts, PASSAGE, {})
    assert arrived.dtype == torch.float32
    torch.testing.assert_close(arrived, value, rtol=precision, atol=0)


def test_what_fp16_cannot_hold_is_refused_by_the_sender():
    with pytest.raises(FedstillError, match="too large for fp16: send bf16"):
        codecs.make("fp16").encode(torch.tensor([1e6]), PASSAGE, {})


@pytest.mark.parametrize("parts", [{}, {"bf16": torch.ones(2)}, {"fp16": torch.ones(2, dtype=torch.float16)}])
def test_other_numbers_are_refused_by_the_receiver(parts):
    with pytest.raises(BadMessage, match="numbers that are not bf16"):
        codecs.make("bf16").decode(parts, PASSAGE, {})
