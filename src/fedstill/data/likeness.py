"""How unlike two sets of texts are, by their words."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedstill.data.corpus import Ints
from fedstill.data.tokens import TokenStore

Floats = npt.NDArray[np.float64]

MOST = 500
"""Rows of each set that are looked at."""
FEWEST = 20
"""With fewer rows in a set, nothing can be said."""
UNLIKE = 0.95
"""From here on, two sets are called unlike each other."""


def unlikeness(store: TokenStore, own: Ints, others: Ints) -> float | None:
    """How often words alone tell a row of one set from a row of the other: 0.5, as a coin would, to 1, always.

    The area under the curve of a naive Bayes classifier that has seen every other row of both sets and judges the rest.
    """
    if min(len(own), len(others)) < FEWEST:
        return None
    known, asked = zip(*(_halves(rows) for rows in (own, others)), strict=True)
    counts = [np.bincount(np.concatenate([_words(store, row) for row in rows])) for rows in known]
    width = max(int(store.ids.max(initial=0)) + 1, *map(len, counts))
    chances = [np.log((np.bincount(np.arange(len(c)), c, width) + 1) / (c.sum() + width)) for c in counts]
    evidence = chances[0] - chances[1]
    mine, theirs = (np.array([evidence[_words(store, row)].mean() for row in rows]) for rows in asked)
    return float((mine[:, None] > theirs).mean() + 0.5 * (mine[:, None] == theirs).mean())


def word_shares(store: TokenStore, rows: Ints, width: int = 1024) -> Floats:
    """How often each word occurs in each row, [rows, width], as a share of the row; words are folded to so many."""
    words = [_words(store, row) % width for row in rows]
    return np.stack([np.bincount(each, minlength=width) / max(len(each), 1) for each in words])


def _halves(rows: Ints) -> tuple[Ints, Ints]:
    some = rows[:: max(1, -(-len(rows) // MOST))]
    return some[::2], some[1::2]


def _words(store: TokenStore, row: int) -> npt.NDArray[np.int32]:
    return store.ids[store.offsets[row] : store.offsets[row + 1]]
