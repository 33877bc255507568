"""Noisy learning: gradients are clipped row by row, and the noise has the declared spread."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedstill import FedstillError
from fedstill.common.randomness import SystemNoise
from fedstill.data.examples import Labelled, TensorStore
from fedstill.learning.epsilon import Budget
from fedstill.learning.losses import ce
from fedstill.learning.private import (
    Descent,
    PrivacySettings,
    noisy_descent,
    noisy_head,
    noisy_opinions,
    public_components,
)

pytest.importorskip("opacus")


class Nothing:
    """Noise that is none, and samples everybody."""

    def normal(self, *, scale, size):
        return np.zeros(size)

    def random(self, size):
        return np.zeros(size)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3).double()

    def forward(self, values):
        return self.layer(values)


def some_rows(many: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(many, 4, generator=random).double(), torch.randint(0, 3, (many,), generator=random)


def clipped_sum(rows, labels, weights, clip):
    """Every row's gradient by autograd, shortened to the clip."""
    total = torch.zeros_like(weights)
    for row, label in zip(rows, labels, strict=True):
        leaf = weights.clone().requires_grad_()
        nn.functional.cross_entropy((leaf @ row)[None], label[None]).backward()
        total += leaf.grad * min(1.0, clip / float(leaf.grad.norm()))
    return total


def test_the_head_s_steps_are_clipped_gradients_of_all_rows():
    rows, labels = some_rows()
    for clip in (0.4, 100.0):
        found = noisy_head(rows, labels, 3, Descent(clip, 2, 0.5, 0.0, Nothing()))
        one = -0.5 * clipped_sum(rows, labels, torch.zeros(3, 4).double(), clip) / 12
        step = 0.9 * one - 0.5 * clipped_sum(rows, labels, one, clip) / 12
        assert torch.allclose(found, one + step)  # of two steps, the second half is the last


def test_a_whole_model_s_step_is_the_sum_of_clipped_gradients():
    rows, labels = some_rows()
    module = Linear()
    before = torch.cat([module.layer.weight, module.layer.bias[:, None]], 1).detach().clone()
    data = Labelled(TensorStore("values", rows), np.arange(12), labels)
    noisy_descent(module, data, ce, Descent(0.7, 1, 0.5, 0.0, Nothing()), 0.5, "fp32")
    wide = nn.functional.pad(rows, (0, 1), value=1.0)
    wanted = before - 0.5 / 6 * clipped_sum(wide, labels, before, 0.7)  # all were sampled, six are expected
    assert torch.allclose(torch.cat([module.layer.weight, module.layer.bias[:, None]], 1), wanted)


def test_batch_norm_is_refused():
    with pytest.raises(FedstillError, match="batch norm mixes rows"):
        noisy_descent(nn.BatchNorm1d(3), None, ce, Descent(1, 1, 1, 0, Nothing()), 1.0, "fp32")


@pytest.mark.parametrize("noise", [np.random.default_rng(0), SystemNoise()], ids=["seeded", "system"])
def test_the_noise_has_the_declared_spread(noise):
    settings = PrivacySettings(kind="head", clip=0.5, epsilon=2)
    budget = settings.budget(rows=1000, releases=0)
    how = Descent.of(settings, budget, 20, noise)
    assert budget == Budget(2, 1e-5, 20)
    assert how.deviation == pytest.approx(2 * 0.5 * budget.noise())  # another row moves the sum by 2 clip at most
    drawn = how.cover(torch.zeros(300, 200, dtype=torch.float64))
    assert float(drawn.std()) == pytest.approx(how.deviation, rel=0.02)
    assert abs(float(drawn.mean())) < 5 * how.deviation / math.sqrt(60_000)
    assert float((drawn.abs() > 2 * how.deviation).double().mean()) == pytest.approx(0.0455, abs=0.005)


def test_with_sampling_a_row_is_added_or_removed_so_the_unit_is_the_clip():
    settings = PrivacySettings(kind="sgd", clip=0.5, batch=50)
    budget = settings.budget(rows=1000, releases=0)
    assert budget.rate == 0.05
    assert Descent.of(settings, budget, 10, Nothing()).deviation == pytest.approx(0.5 * budget.noise())


def test_system_noise_is_never_the_same_and_stays_inside():
    noise = SystemNoise()
    assert not np.array_equal(noise.normal(scale=1.0, size=(3, 2)), noise.normal(scale=1.0, size=(3, 2)))
    drawn = noise.random(100_000)
    assert 0 < drawn.min() < drawn.max() < 1
    assert drawn.mean() == pytest.approx(0.5, abs=0.01)


def test_components_come_from_public_rows_alone():
    random = torch.Generator().manual_seed(1)
    public = torch.randn(50, 6, generator=random) * torch.tensor([9.0, 4, 1, 0.1, 0.1, 0.1])
    project = public_components(public, 2)
    found = project(public)
    assert found.shape == (50, 3)
    assert torch.equal(found[:, 2], torch.ones(50).double())
    assert float(found[:, :2].norm(dim=1).mean()) == pytest.approx(1)
    covariance = torch.cov(public.double().T)
    values = torch.linalg.eigvalsh(covariance)[-2:].flip(0)
    own = torch.var(found[:, :2], 0)
    assert torch.allclose(own / own.sum(), values / values.sum())


def test_votes_and_probabilities_keep_what_the_method_sends():
    logits = torch.tensor([[3.0, 1.0, -2.0], [0.0, 5.0, 1.0]])
    votes = noisy_opinions(logits, "votes", 0.0, Nothing())
    assert votes.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert torch.allclose(noisy_opinions(logits, "probabilities", 0.0, Nothing()), logits.softmax(-1))
    said = noisy_opinions(logits.softmax(-1), "votes", 3.0, np.random.default_rng(0))
    assert torch.allclose(said.sum(-1), torch.ones(2))
    assert (said > 0).all()
    many = noisy_opinions(torch.zeros(20_000, 3), "votes", 2.5, np.random.default_rng(0))
    assert float((many - torch.tensor([1.0, 0, 0])).std()) == pytest.approx(2.5, rel=0.02)
