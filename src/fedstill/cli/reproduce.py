"""`fedstill reproduce`: the tables of the papers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedstill.cli.common import Json, Stopped, console, errors, read_source, saying_how_to_go_on
from fedstill.common.errors import FedstillError

if TYPE_CHECKING:
    from fedstill.config.source import Source
    from fedstill.papers.reproduce import Table


def reproduce(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|KEY=VALUE",
            help="Tables: their names (fedstill show recipes), or files of your own. Then keys for every run: "
            "corpus.path=FOLDER rounds=3",
        ),
    ],
    scale: Annotated[
        str, typer.Option(help="paper: its models and sizes; medium: a GPU; small: minutes on two cores.")
    ] = "small",
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds per cell instead of the scale's.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="This column, row or group only; may be repeated.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at once; default: what a GPU holds, else one per core.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs go instead of runs/<recipe>/<scale>.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace runs that exist already.")] = False,
    models: Annotated[
        bool,
        typer.Option("--models", help="Leave the runs their models, for `predict`: tens of gigabytes for a table."),
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(help="Also keep a line for each run in this folder; runs that are kept there are not done again."),
    ] = None,
    kept: Annotated[
        Path | None, typer.Option("--from", help="Make the page from the lines in this folder; nothing is run.")
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(
            "--tune", help="Try the scale's `tries` on validation rows instead; the scores go to this folder."
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Start no run after so many minutes; the same command goes on later.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make tables of the papers: run what is missing and print paper | ours."""
    from fedstill.papers.evidence import Evidence
    from fedstill.papers.figures.table import of_recipe
    from fedstill.papers.reproduce import Wishes, reproduce_from
    from fedstill.papers.reproduce import reproduce as make_tables
    from fedstill.papers.tuning import tune

    recipes, overrides = _recipes_and_keys(words)
    shown = errors if as_json else console
    if len(recipes) > 1 and (kept or tuned or out or as_json):
        raise FedstillError("--from, --tune, --out and --json are for one table: give them one at a time.")
    sources = {_name(recipe): _source(recipe) for recipe in recipes}
    name, source = next(iter(sources.items()))
    if kept is not None:
        if overrides or seeds or only or jobs or out or force or keep or models or minutes is not None:
            raise FedstillError("--from makes the page of all lines that are kept: it takes only --scale beside it.")
        if not reproduce_from(source, Evidence(kept, name, scale), shown, as_json):
            raise typer.Exit(1)
        return
    if tuned is not None:
        folder = out or Path("runs") / name / f"{scale}-tuning"
        with saying_how_to_go_on(folder, "the same command"):
            found = tune(source, name, scale, folder, tuned, shown, overrides, only or [], jobs)
        if as_json:
            print(json.dumps(found, indent=1))
        if any("failed" in line for line in found["tried"]):
            raise typer.Exit(1)
        return
    tables = [_table(name, source, scale, out, overrides, seeds, only or [], keep) for name, source in sources.items()]
    try:
        is_whole = make_tables(tables, shown, Wishes(jobs, force, models, minutes, as_json))
    except KeyboardInterrupt as stop:
        raise Stopped(f"Go on with the same command{', without --force' if force else ''}.") from stop
    for name, table in zip(sources, tables, strict=True):
        if table.grid.recipe.is_trained and (drawn := of_recipe(name)) is not None:
            said = f"As a figure: fedstill figure {drawn} {table.out}"
            shown.print(said, highlight=False, soft_wrap=True, markup=False)
    if not is_whole:
        raise typer.Exit(1)


def _recipes_and_keys(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that name tables, and those that set keys of every run."""
    recipes = list(dict.fromkeys(word for word in words if "=" not in word))
    if not recipes:
        raise FedstillError("name a table: `fedstill show recipes` lists them.")
    return recipes, [word for word in words if "=" in word]


def _name(recipe: str) -> str:
    return Path(recipe).stem if Path(recipe).is_file() else recipe.removesuffix(".yaml")


def _source(recipe: str) -> Source:
    from fedstill.papers.recipe import is_grid

    source: Source = read_source(Path(recipe))
    if not is_grid(source.values):
        raise FedstillError(f"{recipe} is one experiment, not a table: use `fedstill run {recipe}`.")
    return source


def _table(
    name: str,
    source: Source,
    scale: str,
    out: Path | None,
    overrides: Sequence[str],
    seeds: int | None,
    only: Sequence[str],
    keep: Path | None,
) -> Table:
    from fedstill.papers.evidence import Evidence, refuse_overrides
    from fedstill.papers.grid import plan_grid
    from fedstill.papers.reproduce import Table

    folder = out or Path("runs") / name / scale
    grid = plan_grid(source, scale, folder, overrides, seeds, only)
    if keep is not None:
        if not grid.recipe.is_trained:
            raise FedstillError(f"--keep: nothing is trained for {name}, so there is nothing to keep.")
        refuse_overrides(grid, source)
    return Table(grid, folder, Evidence(keep, name, scale) if keep else None)
