"""A recipe: a table of a paper as a typed file, with the paper's numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import nearest
from fedstill.common.settings import Settings
from fedstill.config.source import Source
from fedstill.learning.metrics import METRICS

Keys = dict[str, Any]
"""Some keys of an experiment."""


class Variation(Settings):
    """What a group, row or column changes in the experiment: at every scale, and at single scales."""

    experiment: Keys = Field(default_factory=dict)
    scales: dict[str, Keys] = Field(default_factory=dict)


class RecipeRow(Variation):
    """A method under the paper's name. A string is the algorithm."""

    algorithm: str | Keys
    ours: bool = False
    """Not in the paper: it stands beside the paper's own method, without a printed number."""
    needs_env: str | None = None
    """An environment variable that the row needs; without it the row is left out."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"algorithm": value} if isinstance(value, str) else value


class RecipeColumn(Variation):
    """What is measured: one or more (split, metric), which a cell joins with a slash."""

    heading: str | None = None
    shows: list[tuple[str, str]] = Field(default=[("test", "f1")], min_length=1)
    """A split `last5/SPLIT` is the mean over the last five rounds, before any post-processing."""
    against: str | None = None
    """A row: cells are differences from it, seed by seed."""
    sent: bool = False
    """Cells are bytes, sent in both directions, instead of a score; with `against`, how many times fewer."""

    @property
    def is_ranked(self) -> bool:
        """Whether the highest cell is the best."""
        return self.against is None and not self.sent


class Scale(Settings):
    """How large the runs are, how many seeds each has, and which part of the table they fill."""

    experiment: Keys = Field(default_factory=dict)
    seeds: int = Field(1, ge=1)
    groups: list[str] | None = None
    rows: list[str] | None = None
    columns: list[str] | None = None
    tries: dict[str, list[Any]] = Field(default_factory=dict)
    """Dotted key -> the values that `--tune` tries for every row."""
    asks: dict[str, str] = Field(default_factory=dict)
    """Keys that must be given on the command line at this scale -> what they are."""
    notes: list[str] = Field(default_factory=list)
    """Notes for the reader about this scale."""
    takes: str = ""
    """How long all of its runs take, and where."""


class Recipe(Settings):
    """A table of a paper."""

    title: str
    paper: str
    method: str | None = None
    """The row that is the paper's own method."""
    table: Literal["scores", "curves", "communication", "partitions", "languages", "statistics"] = "scores"
    """The last scores; these and the scores of every round; bytes. Or, with nothing trained: who holds which rows; how
    the clients' languages differ; how many rows there are."""
    asks: dict[str, str] = Field(default_factory=dict)
    """Keys that must be given on the command line -> what they are."""
    notes: list[str] = Field(default_factory=list)
    experiment: Keys = Field(default_factory=dict)
    scales: dict[str, Scale] = Field(min_length=1)
    groups: dict[str, Variation] = Field(default_factory=lambda: {"": Variation()})
    rows: dict[str, RecipeRow] = Field(min_length=1)
    columns: dict[str, RecipeColumn] = Field(min_length=1)
    values: dict[str, dict[str, list[str | int | float]]] = Field(default_factory=dict)
    """The paper's numbers as printed: group -> row -> one value per column. A group has the rows listed here."""
    brief: bool = False
    """Lines of the evidence hold what the table shows and nothing else, because there are thousands of them."""

    @property
    def is_trained(self) -> bool:
        """Whether the table is made from runs."""
        return self.table in ("scores", "curves", "communication")

    def remarks(self, scale: str) -> list[str]:
        """What a reader of the table should know."""
        takes = self.scales[scale].takes
        return [*self.notes, *self.scales[scale].notes, *([f"All of it takes {takes}."] if takes else [])]

    def rows_of(self, group: str) -> list[str]:
        """The rows of a group; all rows if the paper gives no numbers for it."""
        if group not in self.values:
            return list(self.rows)
        printed = self.values[group]
        with_ours = self.method is None or self.method in printed
        return [row for row, spec in self.rows.items() if row in printed or (with_ours and spec.ours)]

    def printed(self, group: str, row: str, column: str) -> str | None:
        """The paper's number for a cell."""
        values = self.values.get(group, {}).get(row)
        return None if values is None else str(values[list(self.columns).index(column)])


def is_grid(values: Mapping[str, Any]) -> bool:
    """Whether a file describes a grid, and not one experiment."""
    return "rows" in values and "columns" in values


def recipe_files() -> dict[str, Path]:
    """The files of the recipes that ship with fedstill, by name."""
    root = Path(str(resources.files("fedstill.papers") / "recipes"))
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.yaml"))}


def recipe_path(name: str) -> Path | None:
    """The file of a recipe that ships with fedstill."""
    return recipe_files().get(name.removesuffix(".yaml"))


def read_recipe(source: Source) -> Recipe:
    """The typed recipe; an error names the line of every mistake."""
    try:
        recipe = Recipe.model_validate(source.values)
    except ValidationError as error:
        raise FedstillError("\n".join(_sentence(source, item) for item in error.errors())) from error
    for path, problem in _problems(recipe):
        raise FedstillError(f"{source.place(path)}: {problem}")
    return recipe


def slug(name: str) -> str:
    """A name as part of a folder name: readable and safe."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


def _problems(recipe: Recipe) -> Iterator[tuple[Sequence[str | int], str]]:
    """Mistakes that types cannot express: unknown names, rows of the wrong length, folders with the same name."""
    if recipe.method is not None and recipe.method not in recipe.rows:
        yield ["method"], f"there is no row {recipe.method!r}; {nearest(recipe.method, recipe.rows)}"
    for scale, spec in recipe.scales.items():
        for kind in ("groups", "rows", "columns"):
            known = getattr(recipe, kind)
            for name in getattr(spec, kind) or ():
                if name not in known:
                    yield ["scales", scale, kind], f"the table has no {name!r} among its {kind}; {nearest(name, known)}"
    for group, rows in recipe.values.items():
        if group not in recipe.groups:
            yield ["values", group], f"there is no group {group!r}; {nearest(group, recipe.groups)}"
        for row, values in rows.items():
            if row not in recipe.rows:
                yield ["values", group, row], f"there is no row {row!r}; {nearest(row, recipe.rows)}"
            if len(values) != len(recipe.columns):
                yield ["values", group, row], f"{len(values)} values for {len(recipe.columns)} columns."
    for column, shown in recipe.columns.items():
        if shown.against is not None and shown.against not in recipe.rows:
            yield (
                ["columns", column, "against"],
                f"there is no row {shown.against!r}; {nearest(shown.against, recipe.rows)}",
            )
        for number, (_, metric) in enumerate(shown.shows):
            if metric not in METRICS:
                yield ["columns", column, "shows", number], f"there is no metric {metric!r}; {nearest(metric, METRICS)}"
    for kind in ("groups", "rows", "columns"):
        taken: dict[str, str] = {}
        for name in getattr(recipe, kind):
            if (twin := taken.setdefault(slug(name), name)) != name:
                yield [kind, name], f"{twin!r} and {name!r} would share a folder; rename one of them."


def _sentence(source: Source, item: Any) -> str:
    """One of pydantic's errors as a sentence, with its place."""
    path = [part for part in item["loc"] if part not in ("str", "int", "float")]  # branches of a union, not keys
    dotted = ".".join(map(str, path))
    if item["type"] == "extra_forbidden":
        inside: dict[Any, type[Settings]] = {
            "groups": Variation,
            "rows": RecipeRow,
            "columns": RecipeColumn,
            "scales": Scale,
        }
        known = Recipe if len(path) == 1 else inside[path[0]]
        return f"{source.place(path)}: unknown key {dotted!r}; {nearest(str(path[-1]), known.model_fields)}"
    if item["type"] == "missing":
        return f"{source.place(path[:-1])}: a recipe needs the key {dotted!r}."
    message = item["msg"].removeprefix("Value error, ")
    return f"{source.place(path)}: {dotted}: {message[:1].lower() + message[1:]}."
