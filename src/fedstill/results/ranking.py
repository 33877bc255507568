"""Many methods at once: letters for significant differences, and mean ranks with a critical difference."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from string import ascii_letters

import numpy as np
from scipy import stats

LEVEL = 0.05
FEWEST_METHODS, FEWEST_BLOCKS = 3, 5
"""Fewer methods or blocks have no critical difference worth drawing."""


@dataclass(frozen=True)
class Ranks:
    """Mean ranks over blocks (1 is best), Friedman's p that all are equal, and Nemenyi's critical difference."""

    means: Mapping[str, float]
    blocks: int
    p: float
    critical: float

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The largest sets of neighbours in rank that differ by less than the critical difference; two or more."""
        order = sorted(self.means, key=lambda name: self.means[name])
        spans = [
            tuple(name for name in order[start:] if self.means[name] - self.means[first] <= self.critical)
            for start, first in enumerate(order)
        ]
        return [
            span
            for number, span in enumerate(spans)
            if len(span) > 1 and not any(set(span) <= set(other) for other in spans[:number])
        ]


def ranks(scores: Mapping[str, Sequence[float]]) -> Ranks | None:
    """Mean ranks of methods by their scores, a score a block; None where there are too few of either."""
    table = np.array(list(scores.values()))
    if table.ndim != 2 or table.shape[0] < FEWEST_METHODS or table.shape[1] < FEWEST_BLOCKS:
        return None
    many, blocks = table.shape
    # Rounded, so that scores that are equal up to the last bit share a rank.
    ranked = stats.rankdata(-np.round(table, 12), axis=0)
    is_tied = bool((ranked == ranked[0]).all())
    p = 1.0 if is_tied else float(stats.friedmanchisquare(*table).pvalue)
    spread = float(stats.studentized_range.ppf(1 - LEVEL, many, np.inf)) / np.sqrt(2)
    means = dict(zip(scores, ranked.mean(1).tolist(), strict=True))
    return Ranks(means, blocks, p, float(spread * np.sqrt(many * (many + 1) / (6 * blocks))))


def holm(values: Sequence[float]) -> list[float]:
    """P values corrected for their number, in the same order, by Holm's method."""
    order = np.argsort(values, kind="stable")
    steps = np.asarray(values, dtype=float)[order] * np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(value) for value in corrected]


def letters(names: Sequence[str], different: Collection[frozenset[str]]) -> dict[str, str]:
    """Letters for every name, the best name first: two names share a letter unless their pair is among `different`."""
    groups = [set(names)]
    for pair in combinations(names, 2):
        if frozenset(pair) in different:
            split = [
                part for group in groups for part in ([group - {one} for one in pair] if {*pair} <= group else [group])
            ]
            groups = [
                group
                for number, group in enumerate(split)
                if not any(group < other or (group == other and place < number) for place, other in enumerate(split))
            ]
    groups.sort(key=lambda group: [name not in group for name in names])
    return {
        name: "".join(letter for letter, group in zip(ascii_letters, groups, strict=False) if name in group)
        for name in names
    }
