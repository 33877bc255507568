"""What noise costs: epsilon by Opacus's accountant, and the noise that a budget of epsilon allows.

Two data sets are neighbours if one row of one is replaced by another row; how many rows there are is public. Without
sampling, a replaced row moves a sum of clipped rows by the whole sensitivity, in which `noise` is measured. With
sampling, a replacement is a removal and an addition, each of which Opacus accounts for.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedstill.common.errors import FedstillError

MOST_NOISE = 1e7
PRECISE = 1e-4
"""The share of epsilon that may be left over."""
HIGHER_ORDERS = (72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024)
"""Renyi orders beyond Opacus's own, where a small epsilon has its best bound."""


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta) for so many noisy steps, each of which sees a row with probability `rate`."""

    epsilon: float
    delta: float
    steps: int
    rate: float = 1.0

    def noise(self) -> float:
        """The smallest deviation, in units of a step's sensitivity, with which all steps fit into the budget."""
        return _least_noise(self)

    def spent(self, noise: float, steps: int) -> float:
        """The epsilon of so many of the steps with that noise."""
        if not steps:
            return 0.0
        if self.rate == 1:
            return of_gaussian(noise, 1.0, steps, self.delta)
        # Group privacy for two changes: (e, d) for each is (2 e, (1 + exp(e)) d) for both, and e <= epsilon / 2.
        each = self.delta / (1 + math.exp(self.epsilon / 2))
        return 2 * of_gaussian(noise, self.rate, steps, each)


@cache
def _least_noise(budget: Budget) -> float:
    low, high = 0.0, 1.0
    while (spent := budget.spent(high, budget.steps)) > budget.epsilon:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise FedstillError(
                f"privacy: no noise makes {budget.steps:,} steps fit into epsilon {budget.epsilon:g} with delta "
                f"{budget.delta:g}."
            )
    while budget.epsilon - spent > PRECISE * budget.epsilon and high - low > PRECISE**2 * high:
        middle = (low + high) / 2
        if (there := budget.spent(middle, budget.steps)) > budget.epsilon:
            low = middle
        else:
            high, spent = middle, there
    return high


def of_gaussian(noise: float, rate: float, steps: int, delta: float) -> float:
    """Opacus's epsilon of so many Gaussian steps, each on a Poisson sample of the rows."""
    rdp = _opacus()
    accountant = rdp.RDPAccountant()
    accountant.history = [(noise, rate, steps)]
    orders = [*accountant.DEFAULT_ALPHAS, *HIGHER_ORDERS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that another order could give a smaller epsilon: this one is true, too
        return float(accountant.get_epsilon(delta, alphas=orders))


def _opacus() -> Any:
    try:
        from opacus.accountants import rdp
    except ImportError as error:
        raise FedstillError('privacy: epsilon is counted by Opacus: run `pip install "fedstill[privacy]"`.') from error
    return rdp
