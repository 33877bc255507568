import numpy as np
import pytest
import torch
from torch import nn

from fedstill.common.errors import FedstillError
from fedstill.data.examples import Examples, TensorStore
from fedstill.data.tokens import TokenStore
from fedstill.learning.features import features, last_linear
from fedstill.learning.predict import predict
from fedstill.models.small import BagOfWords, BiGRU, TextCNN

LENGTHS = [3, 9, 1, 5, 9, 2, 7]


@pytest.fixture
def data():
    ids = np.random.default_rng(0).integers(1, 40, sum(LENGTHS)).astype(np.int32)
    return Examples(TokenStore(ids, np.concatenate([[0], np.cumsum(LENGTHS)]), None), np.arange(len(LENGTHS)))


@pytest.mark.parametrize("kind", [TextCNN, BiGRU])
@pytest.mark.parametrize("training", [True, False])
def test_the_head_makes_the_logits_of_the_features_in_the_order_asked(data, kind, training):
    torch.manual_seed(0)
    model = kind(40, 3, 0, embedding=8, dropout=0.5).train(training)
    found = features(model, data)
    assert found.shape == (len(LENGTHS), last_linear(model).in_features)
    torch.testing.assert_close(model.head(found), predict(model, data))
    assert all(module.training is training for module in model.modules())
    assert not last_linear(model)._forward_pre_hooks  # nothing listens when nobody asks


def test_the_last_of_several_linear_layers_is_the_head():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2), nn.Softmax(-1))
    assert last_linear(model) is model[2]


def test_a_model_without_a_linear_layer_is_refused(data):
    model = BagOfWords(40, 3, 0)
    with pytest.raises(FedstillError, match="BagOfWords has no linear layer whose input could be features: choose"):
        features(model, data)


class Everywhere(nn.Module):
    """A linear layer at every place of a sequence."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        return self.head(x).mean(1)


def test_a_layer_that_sees_many_vectors_a_row_gives_no_features():
    rows = Examples(TensorStore("x", torch.zeros(4, 5, 2)), np.arange(4))
    with pytest.raises(FedstillError, match="Everywhere has no features"):
        features(Everywhere(), rows)
