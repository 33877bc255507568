"""The attacks, against numbers worked out by hand or by scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from fedstill.results import attacks
from fedstill.results.attacks import Membership

RANDOM = np.random.default_rng(0)


def test_the_area_under_the_curve_is_scikit_learns_with_ties() -> None:
    members, others = RANDOM.integers(0, 9, 80) / 4, RANDOM.integers(0, 7, 50) / 4
    truth = np.r_[np.ones(80), np.zeros(50)]
    assert attacks.auc(members, others) == pytest.approx(roc_auc_score(truth, np.r_[members, others]))


def test_few_false_alarms_are_allowed_only_where_there_are_enough_rows() -> None:
    others = np.arange(2000.0)  # 0.1% are two rows: 1998 and 1999 may be called members
    assert attacks.tpr(np.array([1996.5, 1997.0, 1997.5, 3000.0]), others) == 0.5
    assert attacks.tpr(np.array([997.5, 998.0, 998.5]), np.arange(1000.0)) == 1 / 3  # one may
    assert attacks.tpr(np.array([8.5, 9.0, 9.5]), np.arange(10.0)) == 1 / 3  # none may


def test_intervals_hold_the_truth_are_wide_for_few_rows_and_come_back_with_the_seed() -> None:
    few, many = (Membership.of(RANDOM.normal(1, 1, n), RANDOM.normal(0, 1, n), 3) for n in (30, 1000))
    true = 0.7602  # the chance that N(1, 1) is above N(0, 1): Phi(1 / sqrt 2)
    for found in (few, many):
        assert found.auc.low < true < found.auc.high
    assert few.auc.high - few.auc.low > 3 * (many.auc.high - many.auc.low)
    scores = RANDOM.normal(0, 1, (2, 40))
    assert Membership.of(*scores, 3) == Membership.of(*scores, 3)
    assert Membership.of(*scores, 3) != Membership.of(*scores, 4)


def test_an_interval_is_that_of_rows_drawn_again_and_again() -> None:
    members, others = RANDOM.normal(0.5, 1, 60), RANDOM.normal(0, 1, 40)
    drawn = [attacks.auc(RANDOM.choice(members, 60), RANDOM.choice(others, 40)) for _ in range(2000)]
    found = Membership.of(members, others, 0).auc
    np.testing.assert_allclose([found.low, found.high], np.quantile(drawn, [0.025, 0.975]), atol=0.015)


def test_confidence_is_the_log_odds_of_the_label() -> None:
    logits, labels = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3, 0, 1])
    p = logits.double().softmax(-1)[torch.arange(6), labels]
    np.testing.assert_allclose(attacks.confidence(logits, labels), (p / (1 - p)).log().numpy())
    np.testing.assert_allclose(attacks.loss_scores(logits, labels), p.log().numpy())


def test_every_row_is_in_half_of_the_shadows() -> None:
    inside = attacks.halves(8, 100, 5)
    assert (inside.sum(0) == 4).all()
    assert inside.sum(1).min() > 30
    assert not np.array_equal(inside, attacks.halves(8, 100, 6))


def test_lira_finds_members_that_a_threshold_cannot() -> None:
    """Rows differ in how hard they are by far more than by having been trained on."""
    hard, members = RANDOM.normal(0, 5, 600), np.arange(600) < 300
    inside = attacks.halves(16, 600, 0)
    shadows = hard + np.where(inside, 1.0, 0.0) + RANDOM.normal(0, 0.5, (16, 600))
    target = hard + np.where(members, 1.0, 0.0) + RANDOM.normal(0, 0.5, 600)
    ratio = attacks.lira(target, shadows, inside)
    assert attacks.auc(target[:300], target[300:]) < 0.65
    assert attacks.auc(ratio[:300], ratio[300:]) > 0.85
    longer = attacks.lira(3 * target + 7, shadows, inside)  # a target that is surer of everything
    np.testing.assert_allclose(longer, ratio)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("start", [0.0, 0.1])
def test_tokens_are_the_rows_of_a_table_that_moved_beyond_weight_decay(decay: float, start: float) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(50, 8)
    nn.init.normal_(table.weight, std=start)
    before = table.weight.detach().clone()
    optimiser = torch.optim.AdamW(table.parameters(), lr=1e-2, weight_decay=decay)
    tokens = torch.tensor([3, 7, 7, 41])
    for _ in range(3):
        optimiser.zero_grad()
        (table(tokens) - 1).square().sum().backward()
        optimiser.step()
    named = attacks.named_tokens(before, table.weight.detach())
    assert named.tolist() == [3, 7, 41]
    assert attacks.found(named, np.array([3, 7, 9, 41])) == (1.0, 0.75)
    assert attacks.found(attacks.named_tokens(before, before), np.array([3])) == (0.0, 0.0)


def test_label_shares_are_the_mean_probabilities_whatever_form_opinions_have() -> None:
    said = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]])
    for opinions in (said, said.log() + 5):
        np.testing.assert_allclose(attacks.label_shares(opinions), [0.4, 0.4, 0.2], atol=1e-6)
