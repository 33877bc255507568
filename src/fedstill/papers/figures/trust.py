"""Figures of our own about trust: attacks and blends, bytes, epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from statistics import fmean

from fedstill.common.units import size_text
from fedstill.papers.figures.cells import Panels, axis, rows, scores, spread
from fedstill.papers.grid import Grid
from fedstill.papers.side_by_side import Outcomes, sent
from fedstill.results.drawing.panels import Heat, Line, Lines

NO_NOISE = 1e5
"""An epsilon from which on noise is too small to matter."""


def attacks(grid: Grid, outcomes: Outcomes) -> Panels:
    """A heat map with a row for each method and blend, and a column for each attack."""
    names = [row for row in grid.recipe.rows if row in grid.selection.rows]
    column = grid.selection.columns[0]
    values = [[_points(scores(grid, outcomes, group, row, column)) for group in grid.selection.groups] for row in names]
    methods = [name.rpartition(", ")[0] for name in names]
    rules = tuple(place for place in range(1, len(names)) if methods[place] != methods[place - 1])
    return [
        Heat(
            "",
            "attack, share of liars",
            "method, blend",
            tuple(names),
            grid.selection.groups,
            values,
            axis(grid),
            digits=0,
            rules=rules,
        )
    ]


def score_and_bytes(grid: Grid, outcomes: Outcomes) -> Panels:
    """The score against the bytes that all messages have, a point for each row."""
    found: Panels = []
    for group in grid.selection.groups:
        points = []
        for row, runs in rows(grid, outcomes, group):
            if values := scores(grid, outcomes, group, row, grid.selection.columns[0]):
                points.append(
                    Line(row, [fmean(sent(run) for run in runs)], *spread([[100 * value for value in values]]))
                )
        if points:
            ticks = {at: size_text(at) for at in _round_numbers([line.across[0] for line in points])}
            found.append(
                Lines(group, "bytes in both directions", axis(grid), tuple(points), ticks, True, are_joined=False)
            )
    return found


def score_and_epsilon(grid: Grid, outcomes: Outcomes) -> Panels:
    """The score against the epsilon that was promised, a line for each mechanism; runs without noise are levels."""
    found: Panels = []
    for group in grid.selection.groups:
        at: dict[str, dict[float, list[float]]] = {}
        levels: dict[str, float] = {}
        for row, _ in rows(grid, outcomes, group):
            values = scores(grid, outcomes, group, row, grid.selection.columns[0])
            how = next(run.experiment.privacy for run in grid.runs if (run.group, run.row) == (group, row))
            if values and how is not None and how.epsilon < NO_NOISE:
                at.setdefault(how.kind, {})[how.epsilon] = [100 * value for value in values]
            elif values:
                levels[row] = 100 * fmean(values)
        lines = tuple(
            Line(kind, sorted(each), *spread([each[place] for place in sorted(each)])) for kind, each in at.items()
        )
        ticks = {place: f"{place:g}" for each in at.values() for place in each}
        if lines or levels:
            across = "epsilon of a client for the whole run"
            found.append(Lines(group, across, axis(grid), lines, ticks, True, levels))
    return found


def _points(values: Sequence[float]) -> float | None:
    return 100 * fmean(values) if values else None


def _round_numbers(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten, from below the smallest value to above the largest."""
    powers = range(floor(log10(min(values))), floor(log10(max(values))) + 2)
    every = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    low, high = (
        place for place in (max(n for n in every if n <= min(values)), min(n for n in every if n >= max(values)))
    )
    return [number for number in every if low <= number <= high]
