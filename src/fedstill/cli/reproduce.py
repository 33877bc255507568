"""`fedstill reproduce`: the tables of the papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli.common import Json, Stopped, console, errors, read_source, saying_how_to_go_on
from fedstill.common.errors import FedstillError


def reproduce(
    recipe: Annotated[str, typer.Argument(help="A table: its name (fedstill show recipes), or a file of your own.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, for every run: corpus.path=FOLDER rounds=3")
    ] = None,
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
    as_json: Json = False,
) -> None:
    """Make a table of a paper: run what is missing and print paper | ours."""
    from fedstill.papers.evidence import Evidence, refuse_overrides
    from fedstill.papers.figures.table import of_recipe
    from fedstill.papers.grid import plan_grid
    from fedstill.papers.recipe import is_grid
    from fedstill.papers.reproduce import reproduce as make_table
    from fedstill.papers.reproduce import reproduce_from
    from fedstill.papers.tuning import tune

    source = read_source(Path(recipe))
    if not is_grid(source.values):
        raise FedstillError(f"{recipe} is one experiment, not a table: use `fedstill run {recipe}`.")
    name = Path(recipe).stem if Path(recipe).is_file() else recipe.removesuffix(".yaml")
    if kept is not None:
        if overrides or seeds or only or jobs or out or force or keep or models:
            raise FedstillError("--from makes the page of all lines that are kept: it takes only --scale beside it.")
        if not reproduce_from(source, Evidence(kept, name, scale), errors if as_json else console, as_json):
            raise typer.Exit(1)
        return
    folder = out or Path("runs") / name / (scale if tuned is None else f"{scale}-tuning")
    if tuned is not None:
        with saying_how_to_go_on(folder, "the same command"):
            shown = errors if as_json else console
            found = tune(source, name, scale, folder, tuned, shown, overrides or [], only or [], jobs)
        if as_json:
            print(json.dumps(found, indent=1))
        return
    grid = plan_grid(source, scale, folder, overrides or [], seeds, only or [])
    if keep is not None:
        if not grid.recipe.is_trained:
            raise FedstillError(f"--keep: nothing is trained for {recipe}, so there is nothing to keep.")
        refuse_overrides(grid, source)
    try:
        evidence = Evidence(keep, name, scale) if keep else None
        shown = errors if as_json else console
        is_whole = make_table(grid, folder, shown, jobs, force, evidence, models, as_json)
    except KeyboardInterrupt as stop:
        raise Stopped(f"Go on with the same command{', without --force' if force else ''}.") from stop
    if grid.recipe.is_trained and (drawn := of_recipe(name)) is not None:
        shown.print(f"As a figure: fedstill figure {drawn} {folder}", highlight=False, soft_wrap=True, markup=False)
    if not is_whole:
        raise typer.Exit(1)
