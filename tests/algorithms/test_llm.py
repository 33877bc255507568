from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstill.algorithms.llm import Statistics, parse, prompt, statistics
from fedstill.common.chat import Unusable

CLIENTS = [
    Statistics("health", 0.123456, 0.87654, (1.23456, -0.5, 0.0), (2.0, 0.333333, 4.5), 0.98766),
    Statistics("automotive", 1234.56, 0.5, (-1.0, 2.0, 3.0), (0.1, 0.2, 0.3), 0.001),
]


@given(st.lists(st.floats(0, allow_infinity=False), min_size=1, max_size=20).filter(any))
def test_any_usable_weights_come_back_normalised(values: list[float]) -> None:
    weights = parse(", ".join(map(repr, values)), len(values))
    total = sum(map(Fraction, values))
    assert weights == pytest.approx([float(Fraction(value) / total) for value in values], rel=1e-12)
    assert sum(weights) == pytest.approx(1)


@pytest.mark.parametrize(
    "reply", [" 0.3,0.1\n", "0.3, 0.1.", "[0.3, 0.1]", "[0.3, 0.1].", "(3, 1)", "[ .3 , 1e-1 ]", "0.3,\n0.1", "+3, 1"]
)
def test_harmless_decoration_is_tolerated(reply: str) -> None:
    assert parse(reply, 2) == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize(
    "reply",
    [
        *("", "0.3", "0.3 0.1", "0.3; 0.1", "0.3, 0.1,", "0.3, 0.1..", "[0.3, 0.1", "[0.3, 0.1)", "[[0.3, 0.1]]"),
        *("30%, 10%", "0.3, inf", "0.3, 1e999", "0.3, 1_0", "0.3, ٣", "a: 0.3, b: 0.1", "`0.3, 0.1`", "0.3, 0x1"),
    ],
)
def test_anything_else_is_unusable(reply: str) -> None:
    with pytest.raises(Unusable):
        parse(reply, 2)


def test_statistics_agree_with_numpy() -> None:
    logits = np.random.default_rng(0).normal(size=(7, 3), scale=4).astype(np.float32)
    found = statistics("baby", 0.25, 0.5, torch.from_numpy(logits).requires_grad_())
    wide = logits.astype(np.float64)
    probabilities = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
    assert (found.client, found.loss, found.f1) == ("baby", 0.25, 0.5)
    assert found.logit_mean == pytest.approx(wide.mean(axis=0).tolist())
    assert found.logit_std == pytest.approx(wide.std(axis=0).tolist())
    assert found.entropy == pytest.approx(-(probabilities * np.log(probabilities)).sum(axis=1).mean())


def test_statistics_by_hand_at_the_edges() -> None:
    even = statistics("baby", 0.25, 0.5, torch.zeros(1, 4))
    assert even.logit_std == (0.0, 0.0, 0.0, 0.0)
    assert even.entropy == pytest.approx(np.log(4))
    assert statistics("baby", 0.25, 0.5, torch.tensor([[1e4, 0.0]])).entropy == 0.0


def test_prompt_is_the_appendix_with_the_query_filled_in() -> None:
    system, user = prompt(CLIENTS[:1])
    assert (system["role"], user["role"]) == ("system", "user")
    assert user["content"].splitlines()[:2] == [
        "Input:",
        "Client health: training loss 0.1235, F1 score 0.8765, logits mean [1.235, -0.5, 0], "
        "logits standard deviation [2, 0.3333, 4.5], logits entropy 0.9877",
    ]


def test_prompt_asks_in_the_papers_words_and_holds_every_clients_numbers_in_order() -> None:
    system, user = (message["content"] for message in prompt(CLIENTS))
    assert system.startswith("You are an expert in federated learning and federated distillation.")
    assert "Return only the numerical values separated by commas" in system
    assert "please compute and normalize the weight for each client to maximize the global model performance" in user
    for number in ["0.1235", "0.8765", "[1.235, -0.5, 0]", "[2, 0.3333, 4.5]", "0.9877", "1235", "[0.1, 0.2, 0.3]"]:
        assert number in user
    assert user.index("health") < user.index("automotive")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("Sure! 0.3, 0.1", "is not a number"),
        ("0.3, 0.1, 0.6", "3 values instead of 2"),
        ("1.3, -0.3", "-0.3 is negative"),
        ("NaN, 0.5", "'NaN' is not a number"),
        ("0, 0.0", "every weight is zero"),
    ],
)
def test_why_an_answer_is_unusable_is_said(reply: str, reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        parse(reply, 2)
