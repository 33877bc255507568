"""`fedstill figure`: the papers' figures by name, from finished runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedstill.common.errors import FedstillError


def figure(
    name: Annotated[str | None, typer.Argument(help="Which: adafd/fig4; without a name all are listed.")] = None,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Run folders or folders of them, or a file of kept lines; default: runs/<recipe>/<scale>. Where "
            "nothing is trained, key=value for the recipe: corpus.path=FOLDER"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="FILE.png, .svg or .pdf instead of <name>.png.")] = None,
    kept: Annotated[Path | None, typer.Option("--from", help="A folder of kept lines (`reproduce --keep`).")] = None,
    scale: Annotated[str | None, typer.Option(help="Which of the recipe's scales, where there are several.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Without a name: print the list as JSON.")] = False,
) -> None:
    """Draw a figure of a paper from runs of yours, as PNG, SVG or PDF."""
    from fedstill.papers.figures import table
    from fedstill.papers.figures.material import Given

    console = Console()
    headings = ("name", "shows", "made by", "takes")
    if as_json:
        if name is not None:
            raise FedstillError("--json is for the list of all figures: leave the name out.")
        print(json.dumps([dict(zip(headings, line, strict=True)) for line in table.lines()], indent=1))
        return
    if name is None:
        shown = Table(title="figures", title_justify="left", caption_justify="left")
        for heading in headings:
            shown.add_column(heading, overflow="fold")
        for line in table.lines():
            shown.add_row(*map(escape, line))
        console.print(shown)
        console.print("After the runs: fedstill figure NAME RUNS --out FILE.png, .svg or .pdf", highlight=False)
        return
    found = table.find(name)
    path = out or Path(f"{found.replace('/', '-')}.png")
    table.draw(found, Given(runs or (), kept, scale), path)
    console.print(f"Drawn: {path}", highlight=False, soft_wrap=True, markup=False)
