"""Whether one model is right more often than another on the same rows, by more than chance."""

import math

import numpy as np
from numpy.typing import NDArray


def sign_test(right: NDArray[np.bool_], than: NDArray[np.bool_]) -> float:
    """The one-sided p: how likely so many of the rows where only one is right are the first one's, by chance."""
    won, lost = int((right & ~than).sum()), int((than & ~right).sum())
    ways = sum(math.comb(won + lost, many) for many in range(won, won + lost + 1))
    return float(ways / 2 ** (won + lost))
