"""Which method is first here and in the paper, and whether the difference is significant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from fedstill import algorithms
from fedstill.data.partition import Partition
from fedstill.learning.metrics import METRICS, Integers
from fedstill.papers.grid import Grid
from fedstill.papers.kept import KeptRun
from fedstill.papers.recipe import Recipe
from fedstill.papers.side_by_side import MISSING, Outcomes, finished, score
from fedstill.results.compare import Difference
from fedstill.results.runs import POOLED, Run, Unpaired, complete, predictions
from fedstill.results.significance import (
    FEWEST_SEEDS,
    RESAMPLES,
    interval_over_seeds,
    p_text,
    paired_bootstrap,
    paired_over_seeds,
)


@dataclass(frozen=True)
class PairedDifference(Difference):
    """A difference with its 95% interval over seeds, from three seeds on."""

    interval: tuple[float, float] | None = None


Methods = Mapping[str, Sequence[Run]]
"""Row -> finished runs, without upper bounds."""


def orderings(grid: Grid, outcomes: Outcomes) -> list[str]:
    """A sentence for each group and column that was run, and one that counts them; without upper bounds."""
    recipe = grid.recipe
    sentences, firsts = [], []
    for group in grid.selection.groups:
        for column in (name for name in grid.selection.columns if recipe.columns[name].is_ranked):
            rows = [row for row in recipe.rows_of(group) if _role(recipe, row) != "upper bound"]
            methods = {row: runs for row in rows if (runs := finished(grid.of(group, row, column), outcomes))}
            means = _means(methods, *recipe.columns[column].shows[0])
            if len(means) < 2:
                continue
            theirs = _printed(recipe, group, column, rows)
            firsts.append((_best(means), _best(theirs)))
            where = ", ".join(filter(None, (group, column)))
            sentences.append(f"{where}: {_first(means, theirs)}{_against(recipe, column, methods, means, theirs)}")
    return [*_tally(recipe.method, firsts), *sentences]


def difference(ours: Sequence[Run], theirs: Sequence[Run], split: str, metric: str) -> PairedDifference | None:
    """The paired difference on one split in one metric, over the seeds that have the same test rows."""
    other = {run.seed: run for run in theirs}
    pairs = [
        (run, twin)
        for run in ours
        if (twin := other.get(run.seed)) is not None and run.test_fingerprint == twin.test_fingerprint
    ]
    first, second = (complete(score(pair[side], split, metric) for pair in pairs) for side in (0, 1))
    if not first or not second:
        return None
    seeds = tuple(run.seed for run, _ in pairs)
    apart = [one - other for one, other in zip(first, second, strict=True)]
    found = PairedDifference(
        fmean(first) - fmean(second), seeds, paired_over_seeds(first, second), interval=interval_over_seeds(apart)
    )
    if not METRICS[metric].is_of_classes:
        return found
    try:
        tests = [(_split(run, split), _split(twin, split)) for run, twin in pairs]
    except Unpaired:
        return found
    if not all(np.array_equal(mine[0], its[0]) for mine, its in tests):
        return found
    truths = [truth for (truth, _), _ in tests]
    bootstrap = paired_bootstrap(
        [truth[1] for truth in truths],
        [predicted for (_, predicted), _ in tests],
        [predicted for _, (_, predicted) in tests],
        classes=len(ours[0].labels),
        resamples=RESAMPLES,
        same_rows=all(np.array_equal(truths[0], truth) for truth in truths),
        measure=METRICS[metric].measure,
    )
    return replace(found, bootstrap=bootstrap, test_rows=tuple(truth.shape[1] for truth in truths))


def _split(run: Run, split: str) -> tuple[Integers, list[Integers]]:
    """[row numbers, labels] of one split of the pooled test, and the predictions for these rows."""
    truth, predicted = predictions(run)
    if split == POOLED:
        return truth, predicted
    kind, _, client = split.partition("/")
    parts = Partition.read(run.folder)
    if kind != POOLED or client not in parts.test:
        raise Unpaired(f"no predictions are kept for {split}")
    inside = np.isin(truth[0], parts.test[client])
    return truth[:, inside], [each[inside] for each in predicted]


def _role(recipe: Recipe, row: str) -> str:
    return algorithms.make(recipe.rows[row].algorithm).role


def _means(methods: Methods, split: str, metric: str) -> dict[str, float]:
    values = {row: complete(score(run, split, metric) for run in runs) for row, runs in methods.items()}
    return {row: 100 * fmean(known) for row, known in values.items() if known}


def _printed(recipe: Recipe, group: str, column: str, rows: Sequence[str]) -> dict[str, float]:
    """The paper's numbers; the first one where a cell has two."""
    printed = {row: recipe.printed(group, row, column) for row in rows}
    return {row: float(value.split("/")[0]) for row, value in printed.items() if value and value != MISSING}


def _best(means: Mapping[str, float]) -> list[str]:
    """The first method; several if their numbers are equal as printed."""
    return [row for row, mean in means.items() if f"{mean:.1f}" == f"{max(means.values()):.1f}"]


def _first(means: Mapping[str, float], theirs: Mapping[str, float]) -> str:
    here = f"first here {' and '.join(_best(means))} ({max(means.values()):.1f})"
    paper = f", in the paper {' and '.join(_best(theirs))} ({max(theirs.values()):.1f})" if theirs else ""
    return f"{here}{paper}."


def _against(
    recipe: Recipe, column: str, methods: Methods, means: Mapping[str, float], theirs: Mapping[str, float]
) -> str:
    """The paper's method compared with the best baseline (with the best other, if all are variants of the method)."""
    method = recipe.method
    others = {row: mean for row, mean in means.items() if row != method}
    others = {row: mean for row, mean in others.items() if _role(recipe, row) == "baseline"} or others
    if method is None or method not in means or not others:
        return ""
    rival = max(others, key=lambda row: others[row])
    split, metric = recipe.columns[column].shows[0]
    found = difference(methods[method], methods[rival], split, metric)
    if found is None:
        return f" {method} and {rival}, the best other, have no seed in common."
    both = {row: theirs[row] for row in (method, rival) if row in theirs}
    paper = f", in the paper {both[method] - both[rival]:+.1f}" if len(both) == 2 else ""
    low, high = found.interval or (0.0, 0.0)
    within = f" [{100 * low:+.1f}, {100 * high:+.1f}]" if found.interval else ""
    worth = _worth(found, is_kept=any(isinstance(run, KeptRun) for run in methods[method]))
    return f" {method} against {rival}, the best other: {100 * found.mean:+.1f}{within}{paper} ({worth})."


def _worth(found: Difference, is_kept: bool) -> str:
    many = len(found.seeds)
    over_seeds = f"{many} seed{'s' * (many > 1)}, {FEWEST_SEEDS} are needed for a p"
    if found.p_seeds is not None:
        over_seeds = f"p over {many} seeds {p_text(found.p_seeds)}"
    if is_kept:  # predictions are too large for the evidence, which a page need not say in every line
        return over_seeds
    if found.bootstrap is None:
        return f"{over_seeds}; no predictions are kept for a p over rows"
    low, high = min(found.test_rows), max(found.test_rows)
    return f"{over_seeds}; p over {low if low == high else f'{low} to {high}'} test rows {p_text(found.bootstrap.p)}"


def _tally(method: str | None, firsts: Sequence[tuple[list[str], list[str]]]) -> list[str]:
    if method is None or not firsts:
        return []
    here = sum(method in ours for ours, _ in firsts)
    paper = sum(method in theirs for _, theirs in firsts)
    told = f", in the paper in {paper} of them" if any(theirs for _, theirs in firsts) else ""
    return [f"{method} is first, or shares the first place, in {here} of {len(firsts)} here{told}."]
