"""How many rows the corpora of a recipe have, beside what the paper says. Nothing is trained."""

from __future__ import annotations

import numpy as np

from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment
from fedstill.data import corpora
from fedstill.papers.grid import Grid
from fedstill.papers.side_by_side import MISSING, SideBySide

READ = {"train": False, "dev": True}
"""The columns, and whether their rows are held out."""


def statistics(grid: Grid) -> tuple[SideBySide, list[str]]:
    """Rows for training and for testing of every corpus, as printed and as read; why some could not be read."""
    recipe = grid.recipe
    first = {(run.group, run.row): run.experiment for run in grid.runs}
    groups, problems = [], []
    for group in recipe.groups:
        rows = []
        for row in recipe.rows_of(group):
            counts, problem = _counts(first[group, row]) if (group, row) in first else ({}, "")
            problems += [f"{row}: {problem}"] if problem else []
            cells = (f"{recipe.printed(group, row, name) or MISSING} | {counts.get(name, MISSING)}" for name in READ)
            rows.append((row, *cells))
        groups.append((group, tuple(rows)))
    headings = (recipe.columns[name].heading or name for name in READ)
    return SideBySide(("corpus", *headings), tuple(groups)), problems


def _counts(experiment: Experiment) -> tuple[dict[str, str], str]:
    try:
        corpus = corpora.load(experiment.corpus, experiment.labels)
    except FedstillError as error:
        return {}, str(error)
    held_out = np.zeros(len(corpus.texts), bool) if corpus.held_out is None else corpus.held_out
    return {name: str(int((held_out == is_out).sum())) for name, is_out in READ.items()}, ""
