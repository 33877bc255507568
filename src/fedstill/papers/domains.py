"""Ours on the domains of other data than the paper's: a table by domain has columns for the paper's own only."""

from __future__ import annotations

from fedstill.papers.grid import Grid
from fedstill.papers.side_by_side import Outcomes, SideBySide, finished, label, score, spread
from fedstill.results.runs import POOLED, complete

WHOLE = (POOLED, "global_test")
"""Splits that are divided by domain."""


def other_domains(grid: Grid, outcomes: Outcomes) -> SideBySide | None:
    """The scores on every domain that no column shows; None if there is none, or the table is not by domain."""
    shown = [what for column in grid.recipe.columns.values() for what in column.shows]
    by_domain = [(split, metric) for split, metric in shown if split.partition("/")[0] in WHOLE and "/" in split]
    if not by_domain or any(run.experiment.partition.kind != "domain" for run in grid.runs):
        return None
    whole, metric = by_domain[0][0].partition("/")[0], by_domain[0][1]
    ended = finished(grid.runs, outcomes)
    measured = {split for run in ended for scores in (run.server or {}, *run.clients.values()) for split in scores}
    splits = sorted(split for split in measured - dict(shown).keys() if split.startswith(f"{whole}/"))
    groups = []
    for group in grid.selection.groups:
        rows = []
        for row in grid.selection.rows:
            planned = {run.folder: run for run in grid.runs if (run.group, run.row) == (group, row)}
            if runs := finished(list(planned.values()), outcomes):
                cells = (spread(complete(score(run, split, metric) for run in runs)) for split in splits)
                rows.append((label(grid.recipe, row), *(f"{cell} ({len(runs)})" for cell in cells)))
        groups += [(group, tuple(rows))] if rows else []
    names = (split.removeprefix(f"{whole}/") for split in splits)
    return SideBySide(("method", *names), tuple(groups)) if splits else None
