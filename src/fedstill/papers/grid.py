"""A recipe at one scale: the experiment of every cell, and the folder that it runs in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import nearest
from fedstill.config.experiment import Experiment, from_source
from fedstill.config.source import Source
from fedstill.papers.recipe import Keys, Recipe, Variation, read_recipe, slug

Cell = tuple[str, str, tuple[str, ...]]
"""A group, a row, and the columns that one run fills."""


@dataclass(frozen=True)
class Selection:
    """Which part of the table is run, and sentences about rows that are left out."""

    groups: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class GridRun:
    """One run of a grid, and the columns of its row that it fills."""

    group: str
    row: str
    columns: tuple[str, ...]
    experiment: Experiment
    folder: Path

    def __str__(self) -> str:
        return f"{self.experiment.name}, seed {self.experiment.seed}"


@dataclass(frozen=True)
class Grid:
    """A recipe at one scale, with all its runs."""

    recipe: Recipe
    scale: str
    selection: Selection
    runs: tuple[GridRun, ...]
    """The first seed of all cells comes first, so that an interrupted grid is a complete table with fewer seeds."""

    def of(self, group: str, row: str, column: str) -> list[GridRun]:
        """The runs of a cell, one for each seed."""
        return [run for run in self.runs if (run.group, run.row) == (group, row) and column in run.columns]


def plan_grid(
    source: Source,
    scale: str,
    out: Path,
    overrides: Sequence[str] = (),
    seeds: int | None = None,
    only: Sequence[str] = (),
) -> Grid:
    """Every run of a recipe at a scale, with its experiment resolved and its folder chosen."""
    recipe = read_recipe(source)
    check_scale(source, recipe, scale)
    given = [word.partition("=")[0] for word in overrides]
    for key, what in (recipe.asks | recipe.scales[scale].asks).items():
        if not any(key == word or key.startswith(f"{word}.") for word in given):
            raise FedstillError(f"{recipe.paper} needs {what}: give it as {key}=...")
    selection = _select(recipe, scale, only)
    first = [
        _first_run(source, recipe, scale, (group, row, columns), overrides, out)
        for group in selection.groups
        for columns in _sharing(recipe, scale, selection.columns)
        for row in recipe.rows_of(group)
        if row in selection.rows
    ]
    if not first:
        reasons = " ".join(selection.left_out) or "no group has the chosen rows and columns."
        raise FedstillError(f"nothing is left to run of {source.name}: {reasons}")
    every = range(seeds or recipe.scales[scale].seeds)
    return Grid(recipe, scale, selection, tuple(_reseeded(run, number) for number in every for run in first))


def check_scale(source: Source, recipe: Recipe, scale: str) -> None:
    """Raise an error if the recipe has no such scale."""
    if scale not in recipe.scales:
        raise FedstillError(f"--scale {scale}: {source.name} has no such scale; {nearest(scale, recipe.scales)}")


def cell_run(source: Source, recipe: Recipe, scale: str, cell: tuple[str, str, Sequence[str]], out: Path) -> GridRun:
    """The run of a cell without overrides, with all columns that it fills: those given and those of the scale."""
    group, row, columns = cell
    shown = {*(recipe.scales[scale].columns or recipe.columns), *columns}
    alike = next(names for names in _sharing(recipe, scale, list(recipe.columns)) if columns[0] in names)
    return _first_run(source, recipe, scale, (group, row, tuple(name for name in alike if name in shown)), [], out)


def cell_names(recipe: Recipe, scale: str) -> dict[str, Cell]:
    """The name of every run of a recipe -> its cell."""
    return {
        _name(recipe, scale, group, row, columns[0]): (group, row, columns)
        for group in recipe.groups
        for row in recipe.rows_of(group)
        for columns in _sharing(recipe, scale, list(recipe.columns))
    }


def selected(recipe: Recipe, scale: str, runs: Sequence[GridRun]) -> Selection:
    """The part of the table that some runs fill, and sentences about rows of the scale that they do not."""
    groups, rows = {run.group for run in runs}, {run.row for run in runs}
    columns = {column for run in runs for column in run.columns}
    wanted = recipe.scales[scale].rows or list(recipe.rows)
    return Selection(
        groups=tuple(name for name in recipe.groups if name in groups),
        rows=tuple(name for name in recipe.rows if name in rows),
        columns=tuple(name for name in recipe.columns if name in columns),
        left_out=tuple(f"{name} is left out: no run of it is kept." for name in wanted if name not in rows),
    )


def _first_run(
    source: Source,
    recipe: Recipe,
    scale: str,
    cell: Cell,
    overrides: Sequence[str],
    out: Path,
) -> GridRun:
    group, row, columns = cell
    merged = _Layered(source, _layers(recipe, scale, group, row, columns[0]))
    merged.override(overrides)
    merged.values["name"] = _name(recipe, scale, group, row, columns[0])
    experiment = from_source(merged)
    return GridRun(group, row, columns, experiment, out / experiment.name / f"seed-{experiment.seed}")


def _reseeded(run: GridRun, number: int) -> GridRun:
    seed = run.experiment.seed + number
    experiment = run.experiment.model_copy(update={"seed": seed})
    return replace(run, experiment=experiment, folder=run.folder.with_name(f"seed-{seed}"))


def _select(recipe: Recipe, scale: str, only: Sequence[str]) -> Selection:
    """What the scale runs; names given with --only replace the scale's choice of groups, rows or columns."""
    sizes = recipe.scales[scale]
    kinds = {"groups": list(recipe.groups), "rows": list(recipe.rows), "columns": list(recipe.columns)}
    chosen = {kind: getattr(sizes, kind) or names for kind, names in kinds.items()}
    asked: dict[str, set[str]] = {}
    for word in only:
        found = [(kind, name) for kind, names in kinds.items() for name in names if name.lower() == word.lower()]
        if not found:
            known = [name for names in kinds.values() for name in names if name]
            raise FedstillError(f"--only {word}: no group, row or column has that name; {nearest(word, known)}")
        for kind, name in found:
            asked.setdefault(kind, set()).add(name)
    chosen |= {kind: [name for name in kinds[kind] if name in names] for kind, names in asked.items()}
    missing = {row: env for row in chosen["rows"] if (env := recipe.rows[row].needs_env) and not os.environ.get(env)}
    return Selection(
        groups=tuple(chosen["groups"]),
        rows=tuple(row for row in chosen["rows"] if row not in missing),
        columns=tuple(chosen["columns"]),
        left_out=tuple(f"{row} is left out: it needs the environment variable {env}." for row, env in missing.items()),
    )


def _sharing(recipe: Recipe, scale: str, chosen: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The columns that are measured in the same runs, because they change the same keys."""
    together: dict[str, list[str]] = {}
    for name in chosen:
        together.setdefault(_changes(recipe, scale, name), []).append(name)
    yield from map(tuple, together.values())


def _changes(recipe: Recipe, scale: str, column: str) -> str:
    spec = recipe.columns[column]
    return repr(_merge(spec.experiment, spec.scales.get(scale, {})))


def _name(recipe: Recipe, scale: str, group: str, row: str, column: str) -> str:
    """The run's name; it names the first of the columns that share the run, if columns have different runs."""
    alike = list(_sharing(recipe, scale, list(recipe.columns)))
    first = next(names[0] for names in alike if column in names)
    return "-".join(filter(None, (slug(group), slug(first) if len(alike) > 1 else "", slug(row))))


Layer = tuple[Sequence[str | int], Keys]
"""Where in the recipe some keys of an experiment are, and the keys."""


def _layers(recipe: Recipe, scale: str, group: str, row: str, column: str) -> list[Layer]:
    """The layers of one run, later ones override earlier ones: first the keys for every scale, then for this scale."""
    varied: list[tuple[str, str, Variation]] = [
        ("groups", group, recipe.groups[group]),
        ("columns", column, recipe.columns[column]),
        ("rows", row, recipe.rows[row]),
    ]
    return [
        (["experiment"], recipe.experiment),
        *(([kind, name, "experiment"], spec.experiment) for kind, name, spec in varied),
        (["rows", row], {"algorithm": recipe.rows[row].algorithm}),
        (["scales", scale, "experiment"], recipe.scales[scale].experiment),
        *(([kind, name, "scales", scale], spec.scales.get(scale, {})) for kind, name, spec in varied),
    ]


class _Layered(Source):
    """The keys of one run, with the part of the recipe that each came from."""

    def __init__(self, recipe: Source, layers: Sequence[Layer]) -> None:
        super().__init__("", recipe.name)
        self.recipe, self.layers = recipe, layers
        self.values = deepcopy(reduce(_merge, (keys for _, keys in layers), {}))  # overrides must not reach the recipe

    def place(self, path: Sequence[str | int]) -> str:
        """`file:line` in the recipe, of the last layer that sets the key."""
        if (place := super().place(path)) == "on the command line":
            return place
        where, _ = max(enumerate(self.layers), key=lambda item: (_depth(item[1][1], path), item[0]))
        return self.recipe.place([*self.layers[where][0], *path])


def _merge(below: Any, above: Any) -> Any:
    """Mappings are merged key by key, other values are replaced; a name under a mapping is short for {name: ...}."""
    if isinstance(below, str) and isinstance(above, dict) and "name" not in above:
        below = {"name": below}
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _merge(below[key], value) if key in below else value for key, value in above.items()}


def _depth(keys: Any, path: Sequence[str | int]) -> int:
    """How many parts of the path exist in these keys."""
    for depth, part in enumerate(path):
        if not isinstance(keys, dict) or part not in keys:
            return depth
        keys = keys[part]
    return len(path)
