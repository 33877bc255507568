"""The sign test, against scipy's binomial test."""

import numpy as np
import pytest
from scipy.stats import binomtest

from fedstill.learning.sign_test import sign_test


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (1, 0), (5, 0), (9, 3), (3, 9), (600, 520)])
def test_p_is_that_of_the_rows_on_which_only_one_is_right(won, lost):
    right = np.array([True] * won + [False] * lost + [True, False] * 4)
    than = np.array([False] * won + [True] * lost + [True, False] * 4)
    expected = binomtest(won, won + lost, alternative="greater").pvalue if won + lost else 1.0
    assert sign_test(right, than) == pytest.approx(expected, rel=1e-9)
