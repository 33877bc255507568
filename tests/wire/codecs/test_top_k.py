import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstill.wire import codecs
from fedstill.wire.codecs import Passage
from fedstill.wire.codecs.packing import join
from fedstill.wire.codecs.top_k import TopK
from fedstill.wire.messages import BadMessage

PASSAGE = Passage("up", "books", ("server",), 1, 3, largest=1000)


def chances(rows, classes, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(classes), rows)).float()


def there_and_back(codec, value):
    return codec.decode(codec.encode(value, PASSAGE, {}), PASSAGE, {})


def test_the_rest_is_shared_evenly():
    arrived = there_and_back(TopK(k=2), torch.tensor([[0.5, 0.03125, 0.21875, 0.25], [0.0, 1.0, 0.0, 0.0]]))
    torch.testing.assert_close(
        arrived, torch.tensor([[0.5, 0.125, 0.125, 0.25], [0.0, 1.0, 0.0, 0.0]]), rtol=0, atol=1e-7
    )


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 12), st.integers(0, 99))
def test_the_likeliest_classes_keep_their_probability_and_rows_sum_to_one(rows, classes, k, seed):
    value = chances(rows, classes, seed)
    arrived = there_and_back(TopK(k=k), value)
    torch.testing.assert_close(arrived.sum(1), torch.ones(rows))
    places = value.numpy().argsort(1)[:, ::-1][:, :k].copy()
    for row in range(rows):
        np.testing.assert_allclose(arrived[row, places[row]], value[row, places[row]], rtol=2e-3, atol=1e-6)


def test_bytes_by_hand():
    # 10 rows, 5 classes, two of them: three numbers of a byte; 20 of 2 bytes; 20 classes of 3 bits, 60 bits.
    parts = TopK(k=2).encode(chances(10, 5), PASSAGE, {})
    assert sum(part.nbytes for part in parts.values()) == 3 + 40 + 8


def test_logits_arrive_as_log_probabilities():
    logits = torch.tensor([[3.0, -1.0, 0.5, 2.0]])
    arrived = there_and_back(codecs.make({"name": "top_k", "k": 3}), logits)
    torch.testing.assert_close(arrived.exp(), logits.softmax(-1), rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"classes": torch.zeros(50)},
        {"classes": join((2, 3))},
        {"classes": join((2, 3, 0))},
        {"classes": join((2, 3, 0), b"\0" * 6)},
        {"classes": join((10**6, 3, 0), b"\0" * 5)},
        {"classes": join((2**32 - 1, 0, 0), b"")},
        {"classes": join((2, 3, 0), b"\0\0\0\0\xff")},
        {"classes": join((2, 3, 0), b"\xff\xff\xff\xff\0")},
    ],
)
def test_other_parts_are_refused(parts):
    with pytest.raises(BadMessage):
        TopK().decode(parts, PASSAGE, {})
