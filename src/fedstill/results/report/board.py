"""Several runs side by side: who is first, which differences are significant, and what every score cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from statistics import fmean

from scipy import stats

from fedstill.learning.metrics import METRICS
from fedstill.results.compare import Comparison, Difference, by_method, compare, difference
from fedstill.results.ranking import LEVEL, Ranks, holm, letters, ranks
from fedstill.results.report.series import Curves, RunSeries, mean_of
from fedstill.results.runs import Run

RESAMPLES = 1_000
"""Enough for a standard error, and quick for the 190 pairs of twenty methods."""


@dataclass(frozen=True)
class Board:
    """Runs that can be compared; every curve is a method's, as a mean over its seeds."""

    comparison: Comparison
    caption: str
    letters: Mapping[str, str]
    tests: str
    """How the letters were found."""
    ranks: Ranks | None
    by_round: Curves
    bytes: Curves
    """Method -> round -> bytes until then."""
    seconds: Curves
    epsilon: Mapping[str, float]
    runs: tuple[RunSeries, ...]


def boards(runs: Sequence[RunSeries]) -> list[Board]:
    """A board for all runs that share labels, clients and metric; a run that stands alone has none."""
    groups: dict[object, list[RunSeries]] = {}
    for one in runs:
        groups.setdefault((one.run.labels, tuple(sorted(one.run.client_names)), one.run.metric), []).append(one)
    return [_board(group) for group in groups.values() if len(group) > 1]


def _board(group: Sequence[RunSeries]) -> Board:
    comparison = compare([one.run for one in group])
    methods = by_method([one.run for one in group])
    of = {one.run.folder: one for one in group}
    known = {name: [of[run.folder] for run in methods[name]] for name in (row.method for row in comparison.rows)}
    order = [row.method for row in reversed(comparison.rows)]
    found, tests = _letters({name: methods[name] for name in order})
    spent = {name: [one.epsilon for one in each if one.epsilon is not None] for name, each in known.items()}
    return Board(
        comparison=comparison,
        caption=METRICS[comparison.metric].caption,
        letters=found,
        tests=tests,
        ranks=_ranks({name: methods[name] for name in order}, comparison.domains),
        by_round={name: mean_of(one.by_round for one in each) for name, each in known.items()},
        bytes={name: mean_of(_so_far(one.bytes) for one in each) for name, each in known.items()},
        seconds={name: mean_of(_so_far(one.seconds) for one in each) for name, each in known.items()},
        epsilon={name: fmean(values) for name, values in spent.items() if values},
        runs=tuple(group),
    )


def _letters(methods: Mapping[str, Sequence[Run]]) -> tuple[dict[str, str], str]:
    """Letters by method, the best first; and how they were found. No letters if some pair cannot be tested."""
    pairs = list(combinations(methods, 2))
    values, has_seeds = [], []
    for one, other in pairs:
        found, _ = difference(methods[one], methods[other], RESAMPLES)
        if found is None or (found.p_seeds is None and found.bootstrap is None):
            return {}, f"No letters: {one} and {other} cannot be paired, for lack of seeds in common or of predictions."
        has_seeds.append(found.p_seeds is not None)
        values.append(_p(found))
    different = {frozenset(pair) for pair, value in zip(pairs, holm(values), strict=True) if value < LEVEL}
    over = {True: "a paired t-test over seeds", False: "the standard error of a paired bootstrap over test rows"}
    used = " or ".join(over[kind] for kind in (True, False) if kind in has_seeds)
    return letters(list(methods), different), (
        f"Methods that share a letter do not differ significantly (5%, {used}, Holm's correction for "
        f"{len(pairs)} pair{'s' * (len(pairs) > 1)})."
    )


def _p(found: Difference) -> float:
    """Over seeds if there are enough; otherwise by the bootstrap's standard error: counted resamples end at 1/1000."""
    if found.p_seeds is not None:
        return found.p_seeds
    assert found.bootstrap is not None
    error = (found.bootstrap.high - found.bootstrap.low) / (2 * stats.norm.ppf(0.975))
    if error == 0:
        return 1.0 if found.bootstrap.difference == 0 else 0.0
    return float(2 * stats.norm.sf(abs(found.bootstrap.difference) / error))


def _ranks(methods: Mapping[str, Sequence[Run]], domains: Sequence[str]) -> Ranks | None:
    """Mean ranks over blocks: every domain of every seed that all methods have, or every seed without domains."""
    seeds = sorted(set.intersection(*({run.seed for run in runs} for runs in methods.values())))
    scores: dict[str, list[float]] = {}
    for name, runs in methods.items():
        by_seed = {run.seed: run for run in runs}
        found = [
            by_seed[seed].domain(domain) if domain else by_seed[seed].overall
            for seed in seeds
            for domain in (domains or [""])
        ]
        if any(value is None for value in found):
            return None
        scores[name] = [value for value in found if value is not None]
    return ranks(scores)


def _so_far(parts: Curves) -> dict[int, float]:
    """The sum over parts until the end of every round."""
    rounds = sorted({number for curve in parts.values() for number in curve})
    sums = accumulate(sum(curve.get(number, 0.0) for curve in parts.values()) for number in rounds)
    return dict(zip(rounds, sums, strict=True))
