import numpy as np
import pytest
import torch

from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore
from fedstill.learning.predict import predict
from fedstill.models.small import BiGRU, TextCNN

LENGTHS = [3, 9, 1, 5, 9, 2, 7, 4, 6, 1, 8]


@pytest.fixture
def data():
    ids = np.random.default_rng(0).integers(1, 40, sum(LENGTHS)).astype(np.int32)
    return Examples(TokenStore(ids, np.concatenate([[0], np.cumsum(LENGTHS)]), None), np.arange(len(LENGTHS)))


@pytest.fixture(params=[TextCNN, BiGRU])
def model(request):
    torch.manual_seed(0)
    return request.param(40, 3, 0, embedding=8, dropout=0.5)


def one_by_one(model, data):
    """Each text alone, unpadded, in the order of the rows."""
    model.eval()
    with torch.no_grad():
        texts = [data.store.ids[data.store.offsets[row] : data.store.offsets[row + 1]] for row in data.rows]
        return torch.cat([model(torch.from_numpy(text.astype(np.int64))[None]) for text in texts])


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_predictions_come_in_the_order_asked_and_equal_one_by_one(model, data, batch):
    expected = one_by_one(model, data)
    torch.testing.assert_close(predict(model, data, batch=batch), expected, rtol=0, atol=1e-5)
    assert torch.cdist(expected, expected).add(torch.eye(len(data))).min() > 1e-4  # an order could not hide


def test_any_rows_in_any_order_are_predicted_as_asked(model, data):
    rows = np.array([7, 0, 10, 0])
    found = predict(model, Examples(data.store, rows), batch=2)
    torch.testing.assert_close(found, one_by_one(model, data)[rows], rtol=0, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_has_no_effect_and_the_mode_is_restored(model, data, training):
    model.train(training)
    first = predict(model, data)
    assert model.training is training
    assert all(module.training is training for module in model.modules())
    torch.manual_seed(1)
    assert torch.equal(first, predict(model, data))


def test_predictions_take_part_in_later_gradients(model, data):
    teacher = predict(model, data)
    student = torch.zeros_like(teacher, requires_grad=True)
    ((student - teacher) ** 2).sum().backward()
    torch.testing.assert_close(student.grad, -2 * teacher)
    assert not teacher.requires_grad


def test_numbers_stay_in_float64_or_become_float32(model, data):
    assert predict(model, data).dtype == torch.float32
    assert predict(model, data, precision="bf16").dtype == torch.float32
    assert predict(model.double(), data).dtype == torch.float64
