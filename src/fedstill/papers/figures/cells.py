"""What all figures read of a grid: its rows and their runs, scores of cells, names of axes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from fedstill.learning.metrics import METRICS
from fedstill.papers.grid import Grid
from fedstill.papers.side_by_side import Outcomes, finished, score
from fedstill.results.drawing.panels import Panel
from fedstill.results.runs import Run, complete

Panels = list[Panel]


def rows(grid: Grid, outcomes: Outcomes, group: str) -> Iterator[tuple[str, list[Run]]]:
    """The rows of a group that have finished runs, with those of the first column."""
    for row in grid.recipe.rows_of(group):
        if runs := finished(grid.of(group, row, grid.selection.columns[0]), outcomes):
            yield row, runs


def scores(grid: Grid, outcomes: Outcomes, group: str, row: str, column: str) -> list[float]:
    """The last score of every seed of a cell; none if one is missing."""
    split, metric = shows(grid, column)
    return complete(score(run, split, metric) for run in finished(grid.of(group, row, column), outcomes))


def shows(grid: Grid, column: str | None = None) -> tuple[str, str]:
    """The split and the metric of a column, or of the first."""
    return grid.recipe.columns[grid.selection.columns[0] if column is None else column].shows[0]


def axis(grid: Grid) -> str:
    """What scores are."""
    return f"{METRICS[shows(grid)[1]].title} (points)"


def heading(grid: Grid, column: str) -> str:
    """A column as its table calls it."""
    return grid.recipe.columns[column].heading or column


def joined(*parts: str) -> str:
    """The parts that say something."""
    return ", ".join(filter(None, parts))


def only(grid: Grid, columns: Sequence[str]) -> Grid:
    """The grid with some of its columns."""
    return replace(grid, selection=replace(grid.selection, columns=tuple(columns)))


def spread(samples: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """The mean of every sample, and its standard deviation, which is 0 for one value."""
    return [fmean(each) for each in samples], [stdev(each) if len(each) > 1 else 0.0 for each in samples]


def number(name: str) -> float:
    """The first number in a name: 40% or 10 clients."""
    found = re.search(r"\d+(?:\.\d+)?", name)
    return float(found[0]) if found else 0.0
