"""Runs that several tables show: done for one of them, and their lines copied for the others."""

from __future__ import annotations

from collections.abc import Sequence

from fedstill.papers.evidence import (
    Evidence,
    Key,
    Line,
    hash_of,
    lines_of,
    read_lines,
    settings_by_name,
    write_lines,
)
from fedstill.papers.grid import Grid, GridRun
from fedstill.papers.recipe import Recipe, recipe_path
from fedstill.results.record import Record
from fedstill.results.runs import POOLED


def borrow(grid: Grid, evidence: Evidence) -> int:
    """Copy lines of other recipes for runs that have none here: papers show some runs in two places; how many."""
    if grid.recipe.table == "communication":  # what was sent is counted for that table alone
        return 0
    own, others = lines_of(evidence), _lines_of_others(grid, evidence)
    names = sorted({other for other, _ in others})
    found, cells = dict[Key, Line](), settings_by_name(grid.runs)
    for run in grid.runs:
        name, seed = run.experiment.name, run.experiment.seed
        settings = cells[name]
        key = grid.scale, run.group, run.row, name, seed
        if Record(run.folder).is_finished or (key in own and own[key]["experiment"] == hash_of(settings)):
            continue
        for other in names:
            line = others.get((other, seed))
            if line is not None and line["experiment"] == hash_of({**settings, "name": line["name"]}):
                place = {"group": run.group, "row": run.row, "columns": list(run.columns), "name": name}
                found[key] = line | place | {"experiment": hash_of(settings)}
                break
    if found:
        write_lines(evidence, own | found)
    return len(found)


def _lines_of_others(grid: Grid, evidence: Evidence) -> dict[tuple[str, int], Line]:
    """By a name for a run and its seed: the other recipes' lines of this scale that hold all that this table shows."""
    found = dict[tuple[str, int], Line]()
    for path in sorted(evidence.folder.glob("*/*.jsonl")):
        recipe = path.relative_to(evidence.folder).with_suffix("").as_posix()
        if path == evidence.lines or recipe_path(recipe) is None:  # somebody's data are no lines of ours
            continue
        for _, line in read_lines(path):
            if line["scale"] == grid.scale and _holds(line, grid.recipe):
                found[f"{recipe} {line['name']}", line["seed"]] = {"shared_with": recipe} | line
    return found


def _holds(line: Line, recipe: Recipe) -> bool:
    """Whether a line has the metrics that a table shows and, where it draws curves, the splits and the losses."""
    shown = {metric for column in recipe.columns.values() for _, metric in column.shows}
    curves = {column.shows[0] for column in recipe.columns.values()} if recipe.table == "curves" else set()
    is_drawn = "losses" in line or not curves  # lines of earlier versions lack them
    by_round = line["by_round"]
    return is_drawn and shown <= set(by_round.get(POOLED, {})) and all(m in by_round.get(s, {}) for s, m in curves)


def experiments_of(runs: Sequence[GridRun]) -> list[tuple[str, int]]:
    """The experiment of each run, whatever its name, and its seed: equal for runs that several tables show."""
    hashes = {name: hash_of({**settings, "name": ""}) for name, settings in settings_by_name(runs).items()}
    return [(hashes[run.experiment.name], run.experiment.seed) for run in runs]
