"""Epsilon: as the library counts it, and never less than what is really spent."""

from __future__ import annotations

import math
import sys

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedstill import FedstillError
from fedstill.learning.epsilon import Budget, of_gaussian

accountants = pytest.importorskip("opacus.accountants")


def exact(mu: float, delta: float) -> float:
    """The smallest epsilon of one Gaussian mechanism with sensitivity over deviation mu (Balle and Wang 2018)."""

    def excess(epsilon: float) -> float:
        cut = epsilon / mu
        return float(norm.cdf(mu / 2 - cut) - math.exp(epsilon) * norm.cdf(-mu / 2 - cut) - delta)

    return float(brentq(excess, 0, 200))


def by_hand(noise: float, steps: int, delta: float) -> float:
    """The best of many Renyi orders a: steps a / (2 noise^2), turned into (epsilon, delta)."""
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    return min(steps * a / (2 * noise**2) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders)


@pytest.mark.parametrize(("noise", "steps", "delta"), [(10.0, 50, 1e-5), (2.0, 1, 1e-6), (30.0, 400, 1e-5)])
def test_without_sampling_it_is_the_library_s_and_that_worked_by_hand(noise, steps, delta):
    library = accountants.RDPAccountant()
    library.history = [(noise, 1.0, steps)]
    found = Budget(9.0, delta, steps).spent(noise, steps)
    assert found == pytest.approx(library.get_epsilon(delta), abs=1e-6)
    assert found == pytest.approx(by_hand(noise, steps, delta), abs=1e-6)


def test_with_sampling_each_of_two_changes_is_the_library_s():
    library = accountants.RDPAccountant()
    library.history = [(1.5, 0.05, 200)]
    assert of_gaussian(1.5, 0.05, 200, 1e-6) == pytest.approx(library.get_epsilon(1e-6), abs=1e-6)
    budget = Budget(4.0, 1e-5, 200, 0.05)
    assert budget.spent(1.5, 200) == pytest.approx(2 * library.get_epsilon(1e-5 / (1 + math.exp(2))), abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("steps", [1, 20, 6000])
def test_the_noise_of_a_budget_is_enough_by_an_exact_bound_and_not_far_from_it(epsilon, steps):
    budget = Budget(epsilon, 1e-5, steps)
    noise = budget.noise()
    # S steps of deviation z and sensitivity 1 are one Gaussian of sensitivity sqrt(S) in a fitting direction
    really = exact(math.sqrt(steps) / noise, 1e-5)
    assert 0.85 * epsilon < really <= epsilon
    assert 0.9998 * epsilon <= budget.spent(noise, steps) <= epsilon


def test_sampled_steps_fit_too_and_parts_of_them_cost_less():
    budget = Budget(3.0, 1e-5, 100, 0.1)
    noise = budget.noise()
    spent = [budget.spent(noise, steps) for steps in (0, 50, 100)]
    assert spent[0] == 0 < spent[1] < spent[2] <= 3.0
    assert spent[2] > 2.999


def test_an_impossible_budget_and_a_missing_library_are_sentences(monkeypatch):
    with pytest.raises(FedstillError, match=r"no noise makes 10 steps fit into epsilon 0.0001 with delta 1e-05"):
        Budget(1e-4, 1e-5, 10).noise()
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(FedstillError, match=r"pip install \"fedstill\[privacy\]\""):
        Budget(1.25, 1e-5, 10).noise()
