from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from fedstill import FedstillError
from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore
from fedstill.learning.fast.int8 import Product
from fedstill.learning.predict import predict

SIZES = {"vocab_size": 200, "num_labels": 3, "max_position_embeddings": 40}
WIDE = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
FAMILIES = {
    "bert": lambda: BertForSequenceClassification(BertConfig(**SIZES, **WIDE)),
    "roberta": lambda: RobertaForSequenceClassification(RobertaConfig(**SIZES, **WIDE, pad_token_id=1)),
    "distilbert": lambda: DistilBertForSequenceClassification(
        DistilBertConfig(**SIZES, dim=64, n_layers=3, n_heads=4, hidden_dim=128)
    ),
}


def texts(count: int = 40) -> Examples:
    random = np.random.default_rng(0)
    lengths = random.integers(3, 30, count)
    ends = np.concatenate([[0], lengths.cumsum()])
    return Examples(
        TokenStore(random.integers(5, 200, ends[-1]).astype(np.int32), ends, None, pad_id=1), np.arange(count)
    )


def test_a_product_is_off_by_no_more_than_the_rounding_of_its_two_sides() -> None:
    torch.manual_seed(0)
    first, second, states = nn.Linear(48, 20), nn.Linear(48, 12), torch.randn(30, 48)
    exact = torch.cat([first(states), second(states)], 1)
    # Weights are rounded to 255 steps a row, states to 128 in all (torch keeps a bit free): half a step each.
    weights = torch.cat([first.weight, second.weight])
    step, wide = (states.max() - states.min()) / 127, weights.abs().amax(1) / 127
    most = 0.51 * (step * weights.abs().sum(1) + wide * states.abs().sum(1, keepdim=True) + 48 * step * wide)
    error = (Product(first, second)(states) - exact).abs()
    assert bool((error <= most).all())
    assert error.max() > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_nearly_those_of_fp32(family: str) -> None:
    torch.manual_seed(1)
    model = FAMILIES[family]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.2)  # untrained weights are so small that rounding would not show
    exact, near = (predict(model, texts(), int8=int8) for int8 in (False, True))
    assert not torch.equal(exact, near)
    assert (exact - near).std() < 0.15 * exact.std()
    assert (exact.argmax(-1) == near.argmax(-1)).float().mean() > 0.85


def test_it_is_the_weights_of_now_that_are_rounded() -> None:
    torch.manual_seed(2)
    model = FAMILIES["bert"]()
    before = predict(model, texts(), int8=True)
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight.mul_(-3)
    assert (predict(model, texts(), int8=True) - before).abs().max() > 1e-3


def test_other_models_are_refused_with_a_sentence() -> None:
    with pytest.raises(FedstillError, match="int8 is for BERT-"):
        predict(nn.Sequential(nn.Linear(2, 2)), texts(), int8=True)
