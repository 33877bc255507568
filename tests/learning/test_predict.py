import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore
from fedstill.learning.fast import Fast, accelerate
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
        answers = [model(torch.from_numpy(text.astype(np.int64))[None]) for text in texts]
        return torch.cat([getattr(answer, "logits", answer) for answer in answers])


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


@pytest.fixture(params=["bert", "distilbert", "electra"])
def transformer(request):
    """Two whose computing is known to the fast path, and one that is left to Hugging Face."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    small = {"distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}}.get(request.param, sizes)
    config = AutoConfig.for_model(request.param, vocab_size=40, num_labels=3, initializer_range=0.3, **small)
    return AutoModelForSequenceClassification.from_config(config)


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_a_transformer_on_the_fast_path_predicts_what_it_does_one_by_one(transformer, data, batch):
    expected = one_by_one(transformer, data)
    accelerate(transformer, Fast())
    torch.testing.assert_close(predict(transformer, data, batch=batch), expected, rtol=0, atol=1e-5)
    assert torch.cdist(expected, expected).add(torch.eye(len(data))).min() > 1e-4


def test_a_transformer_predicts_the_same_with_and_without_the_fast_path(transformer, data):
    plain = predict(transformer.double(), data)
    accelerate(transformer, Fast())
    found = predict(transformer, data)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-9)
