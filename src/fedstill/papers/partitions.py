"""Figures that show only partitions: who holds which rows, for every group and column. Nothing is trained."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole
from fedstill.data import corpora, partition
from fedstill.papers.grid import Grid
from fedstill.papers.recipe import slug
from fedstill.results import picture

PAGE = 110
"""The width of the written page, in characters."""


def partitions(grid: Grid, out: Path, console: Console) -> None:
    """Draw every partition on the terminal, as a PNG, and in the written page."""
    recipe = grid.recipe
    notes = recipe.remarks(grid.scale)
    page = [f"# {recipe.paper}: {recipe.title}", "", *(f"- {note}" for note in notes)]
    _say(console, f"{recipe.paper}, scale {grid.scale}: {recipe.title}")
    lacking = ""
    for group in grid.selection.groups:
        for column in grid.selection.columns:
            run = next(iter(run for run in grid.runs if run.group == group and column in run.columns))
            corpus = corpora.load(run.experiment.corpus, run.experiment.labels)
            parts = partition.split(corpus, run.experiment.partition, run.experiment.seed)
            counts, names = picture.holdings(corpus, parts)
            where = ", ".join(filter(None, (group, recipe.columns[column].heading or column)))
            title = f"{where} ({corpus.name}, seed {run.experiment.seed})"
            _say(console, f"\n{title}")
            console.print(picture.lines(counts, names, parts.clients, console.width))
            page += ["", f"## {title}", "", "```", _text(picture.lines(counts, names, parts.clients, PAGE)), "```"]
            path = out / f"{'-'.join(filter(None, (slug(group), slug(column))))}.png"
            try:
                picture.save(counts, names, parts.clients, title, path)
                page += ["", f"![{where}]({path.name})"]
                _say(console, f"Picture: {path}")
            except FedstillError as error:  # without matplotlib the printed table has to do
                lacking = str(error)
    for note in [*notes, *([lacking] if lacking else [])]:
        _say(console, f"- {note}")
    write_whole(out / "table.md", ("\n".join(page) + "\n").encode())
    _say(console, f"\nWritten to {out / 'table.md'}. Nothing was trained.")


def _text(table: object) -> str:
    plain = Console(width=PAGE, no_color=True)
    with plain.capture() as capture:
        plain.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
