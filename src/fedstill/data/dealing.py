"""Random division: whole numbers that sum to a total, quotas by stratum, the rows of classes divided among clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedstill.data.corpus import Ints

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]


def deal_by_class(random: np.random.Generator, strata: Ints, shares: Floats) -> Ints:
    """The client of each row: every class is divided among the clients in the proportions of its row of `shares`."""
    holders = np.empty(len(strata), np.int64)
    for stratum, proportions in enumerate(shares):
        members = random.permutation(np.flatnonzero(strata == stratum))
        # Without the random offset, rounding would favour the same clients in every class.
        ends = np.floor(np.cumsum(proportions) * len(members) + random.random())
        turns = np.searchsorted(ends, np.arange(len(members)), side="right")
        holders[members] = np.minimum(turns, len(proportions) - 1)
    return holders


def deal_by_client(random: np.random.Generator, strata: Ints, shares: Floats) -> Ints:
    """The client of each row: all clients draw equally many, without replacement, with classes by their `shares`."""
    holders = np.empty(len(strata), np.int64)
    clients, classes = shares.shape
    left = sizes_of(strata, classes)
    shuffled = random.permutation(len(strata))
    queues = np.split(shuffled[np.argsort(strata[shuffled], kind="stable")], np.cumsum(left)[:-1])
    turns = allot(random, np.full(clients, len(strata) / clients), len(strata), np.full(clients, len(strata)))
    for client, size in enumerate(turns):
        taken = draw_counts(random, int(size), shares[client], left)
        for stratum in np.flatnonzero(taken):
            end = left[stratum]
            holders[queues[stratum][end - taken[stratum] : end]] = client
        left = left - taken
    return holders


def draw_counts(random: np.random.Generator, total: int, shares: Floats, available: Ints) -> Ints:
    """How many of `total` draws by these shares fall on each class; a class that is used up gets no more."""
    counts = np.zeros_like(available)
    while (missing := min(total, int(available.sum())) - int(counts.sum())) > 0:
        room = available - counts
        weights = np.where(room > 0, shares, 0.0)
        if not weights.sum() > 0:
            # The shares are zero, to machine precision, for every class that is not used up.
            weights = room.astype(np.float64)
        counts += np.minimum(room, random.multinomial(missing, weights / weights.sum()))
    return counts


def allot(random: np.random.Generator, exact: Floats, total: int, room: Ints) -> Ints:
    """Whole numbers near `exact` that sum to `total`, none above its `room`: largest remainder, ties at random."""
    counts = np.minimum(np.floor(exact).astype(np.int64), room)
    remainders = np.round(exact - counts, 9)
    order = np.lexsort((random.random(len(exact)), -remainders))
    while (missing := total - int(counts.sum())) > 0:
        roomy = order[room[order] > counts[order]][:missing]
        if not len(roomy):
            break
        counts[roomy] += 1
    return counts


def choose(random: np.random.Generator, strata: Ints, quotas: Ints, weights: Ints | None = None) -> Bools:
    """A random choice in each stratum of units whose weights (default 1) sum to no more than its quota."""
    weights = np.ones_like(strata) if weights is None else weights
    shuffled = random.permutation(len(strata))
    order = shuffled[np.argsort(strata[shuffled], kind="stable")]
    running = np.cumsum(weights[order])
    before = np.concatenate(([0], np.cumsum(np.bincount(strata, weights=weights, minlength=len(quotas)))))
    chosen = np.zeros(len(strata), np.bool_)
    chosen[order] = running - before[strata[order]] <= quotas[strata[order]]
    return chosen


def strata_of(labels: Ints) -> tuple[Ints, Ints]:
    """The labels renumbered from 0 without gaps, and how often each occurs."""
    _, strata, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return strata.astype(np.int64), sizes.astype(np.int64)


def sizes_of(strata: Ints, many: int) -> Ints:
    """How often each of the strata 0 to many - 1 occurs."""
    return np.bincount(strata, minlength=many).astype(np.int64)
