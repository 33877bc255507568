"""Reproducing a table of a paper: do the missing runs, then print our numbers beside the paper's."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from fedstill.common.errors import FedstillError
from fedstill.common.files import MODELS, write_whole
from fedstill.common.locks import at_work_in
from fedstill.common.words import counted
from fedstill.config.source import Source
from fedstill.engines import checkpoint
from fedstill.engines.runner import differences
from fedstill.engines.stopping import stopping_on_sigterm
from fedstill.papers import curves as drawing
from fedstill.papers.borrowing import borrow, experiments_of
from fedstill.papers.communication import communication
from fedstill.papers.domains import other_domains
from fedstill.papers.evidence import Evidence, already_kept, keep, origins, recall
from fedstill.papers.grid import Grid, GridRun, selected
from fedstill.papers.kept import KeptRun
from fedstill.papers.languages import languages
from fedstill.papers.ordering import orderings
from fedstill.papers.partitions import partitions
from fedstill.papers.remarks import remarks
from fedstill.papers.running import Say, Todo, reasons_of, run_missing, sayer
from fedstill.papers.side_by_side import (
    Outcomes,
    SideBySide,
    how_to_read,
    markdown,
    render,
    settings,
    side_by_side,
)
from fedstill.papers.statistics import statistics
from fedstill.results.drawing.draw import save
from fedstill.results.record import Record
from fedstill.results.runs import Run, load_runs

COUNTED: Mapping[str, Callable[[Grid], tuple[SideBySide, list[str]]]] = {
    "languages": languages,
    "statistics": statistics,
}
"""Tables that are read from the corpora, with remarks."""


@dataclass(frozen=True)
class Table:
    """A table that is to be made: its runs, the folder for them and, where lines are kept, the evidence."""

    grid: Grid
    out: Path
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Wishes:
    """How tables are made."""

    jobs: int | None = None
    force: bool = False
    models: bool = False
    """Whether runs keep their models, which needs the runs themselves."""
    minutes: float | None = None
    """After this time no run is started."""
    as_json: bool = False
    """Whether the table is printed as JSON on standard output."""


def reproduce(tables: Sequence[Table], console: Console, wishes: Wishes = Wishes()) -> bool:  # noqa: B008
    """Finish every run of the tables and print them; whether all runs were done and succeeded, and the tables hold.

    With evidence, a line for each run is kept there as soon as it ends; runs whose lines are kept already are not done
    again, and what several tables show is done for the first of them.
    """
    trained = [table for table in tables if table.grid.recipe.is_trained]
    for table in tables:
        if table not in trained:
            _count(table, console, wishes.as_json)
    if not wishes.force:
        _refuse_other_experiments([run for table in trained for run in table.grid.runs])
    say, kept = sayer(console), dict[Path, KeptRun]()
    until = math.inf if wishes.minutes is None else time.monotonic() + 60 * wishes.minutes
    with stopping_on_sigterm(), ExitStack() as places:
        for table in trained:
            places.enter_context(at_work_in(table.out))
            say(f"{table.grid.recipe.paper}, scale {table.grid.scale}: {table.grid.recipe.title}")
        todos, waits = _todos(trained, kept, {}, say, wishes)
        failures = run_missing(todos, console, wishes.jobs, wishes.force, until) if trained else {}
        while waits:
            todos, waits = _todos(trained, kept, failures, say, wishes)
            if time.monotonic() > until:
                break
            if any(not Record(run.folder).is_finished for todo in todos for run in todo.grid.runs):
                failures |= run_missing(todos, console, wishes.jobs, wishes.force, until)
    is_whole, hopeless = True, list[str]()
    for table in trained:
        try:
            is_whole &= _finish(table, kept, failures, console, wishes)
        except FedstillError as error:  # the other tables are shown before
            hopeless.append(str(error))
    if hopeless:
        raise FedstillError("\n".join(hopeless))
    return is_whole


def _count(table: Table, console: Console, as_json: bool) -> None:
    """Make a table that is read from the corpora."""
    grid, out = table.grid, table.out
    if grid.recipe.table == "partitions":
        if as_json:
            raise FedstillError(f"--json: {grid.recipe.title} is drawn, and has no table.")
        partitions(grid, out, console)
        return
    found, notes = COUNTED[grid.recipe.table](grid)
    every = [*grid.recipe.remarks(grid.scale), *notes, "Nothing was trained."]
    _publish(grid, [found], {"": every}, console, _Page(out / "table.md", None, as_json=as_json))


def _todos(
    tables: Sequence[Table], kept: dict[Path, KeptRun], failures: Mapping[Path, str], say: Say, wishes: Wishes
) -> tuple[list[Todo], bool]:
    """What is to be done for each table now, and whether runs of some wait for another table's, whose lines serve."""
    todos, planned, waits = list[Todo](), set[tuple[str, int]](), False
    for table in tables:
        grid, evidence = table.grid, table.evidence
        now = [run for run in grid.runs if run.folder not in failures]
        if evidence is not None and not wishes.force and not wishes.models:
            if many := borrow(grid, evidence):
                say(f"Taken from the lines of other tables: {counted(many, 'run')} of the same experiments.")
            found = already_kept(grid, evidence)
            if not found.keys() <= kept.keys():
                say(f"Kept in {evidence.lines} already: {counted(len(found), 'run')}; --force does them again.")
            kept |= found
            missing = [run for run in now if run.folder not in kept and not Record(run.folder).is_finished]
            same = dict(zip((run.folder for run in missing), experiments_of(missing), strict=True))
            later = {folder for folder, key in same.items() if key in planned}
            planned |= set(same.values())
            waits |= bool(later)
            now = [run for run in now if run.folder not in kept and run.folder not in later]
        ended = partial(_ended, grid, evidence=evidence, models=wishes.models)
        todos.append(Todo(replace(grid, runs=tuple(now)), table.out, ended))
    return todos, waits


def _finish(
    table: Table, kept: Mapping[Path, KeptRun], failures: Mapping[Path, str], console: Console, wishes: Wishes
) -> bool:
    """Print a table of the runs that were done; whether that is all of it and it holds."""
    say, grid, evidence = sayer(console), table.grid, table.evidence
    outcomes: dict[Path, Run | str] = {}
    for folder in (run.folder for run in grid.runs):
        if folder in kept or folder in failures:
            outcomes[folder] = kept.get(folder) or failures[folder]
        elif Record(folder).is_finished:
            outcomes[folder] = load_runs([folder])[0]
    reasons = reasons_of(grid.runs, {folder: each for folder, each in outcomes.items() if isinstance(each, str)})
    left = len(grid.runs) - len(outcomes)
    if left:
        say(f"{grid.recipe.paper}: {counted(left, 'run')} of {len(grid.runs)} not begun; the same command goes on.")
        there = tuple(run for run in grid.runs if run.folder in outcomes)
        grid = replace(grid, runs=there, selection=selected(grid.recipe, grid.scale, there))
    if not any(isinstance(outcome, Run) for outcome in outcomes.values()):
        if reasons:
            raise FedstillError("\n".join(reasons))
        return False
    page = _Page(table.out / "table.md", table.out / "curves.png", as_json=wishes.as_json)
    holds = _present(grid, outcomes, console, page)
    if evidence is not None:
        many = keep(replace(grid, runs=tuple(run for run in grid.runs if run.folder not in kept)), outcomes, evidence)
        say(f"{many} lines kept in {evidence.lines}; the page: {evidence.command} --from {evidence.folder}")
    return holds and not reasons and not left


def reproduce_from(source: Source, evidence: Evidence, console: Console, as_json: bool = False) -> bool:
    """Print the table and write its page from kept lines alone; whether the table holds."""
    grid, outcomes = recall(source, evidence)
    made = {"Where the numbers come from": origins(grid, outcomes, evidence)}
    return _present(grid, outcomes, console, _Page(evidence.page, None, made, as_json))


@dataclass(frozen=True)
class _Page:
    """Where a table is written, where its curves are drawn, and what else stands on the page."""

    path: Path
    picture: Path | None
    more: Mapping[str, list[str]] = field(default_factory=dict)
    as_json: bool = False
    """Whether it is printed as JSON."""


def _refuse_other_experiments(runs: Sequence[GridRun]) -> None:
    for run in runs:
        if changed := differences(run.experiment, run.folder):
            raise FedstillError(
                f"{run.folder} holds another experiment (it differs in {', '.join(changed[:3])}): use --force to run "
                "everything again, or --out DIR for another folder."
            )


def _ended(grid: Grid, run: GridRun, evidence: Evidence | None, models: bool) -> None:
    """Keep what is wanted of a run: the models of a table's runs would fill a disk."""
    if evidence is not None:
        keep(grid, {run.folder: load_runs([run.folder])[0]}, evidence)
    if not models and grid.recipe.table != "communication":  # which counts the models' numbers
        shutil.rmtree(run.folder / MODELS, ignore_errors=True)
        checkpoint.clear(run.folder)


def _present(grid: Grid, outcomes: Outcomes, console: Console, page: _Page) -> bool:
    """Print the table and write it to a file; whether all its numbers are explained."""
    if grid.recipe.table == "communication":
        table, notes, holds = communication(grid, outcomes)
        parts = {"": [*notes, *grid.selection.left_out, *settings(grid, outcomes)]}
    else:
        table, holds = _with_something(grid, side_by_side(grid, outcomes)), True
        parts = {
            "": [*how_to_read(grid), *settings(grid, outcomes)],
            "Who is first, and what the difference is worth": orderings(grid, outcomes),
        }
    tables = [table, *([others] if (others := other_domains(grid, outcomes)) else [])]
    if grid.recipe.table == "curves":
        shown, parts["Curves"] = _curves(grid, outcomes, page.picture)
        tables += [shown, *([blend] if (blend := drawing.weights_by_round(grid, outcomes)) else [])]
    failures = {folder: outcome for folder, outcome in outcomes.items() if isinstance(outcome, str)}
    parts |= {"Notes of the runs": remarks(grid, outcomes), "Failed": reasons_of(grid.runs, failures), **page.more}
    _publish(grid, tables, parts, console, page)
    return holds


def _publish(
    grid: Grid, tables: Sequence[SideBySide], parts: dict[str, list[str]], console: Console, page: _Page
) -> None:
    """Print tables and remarks, and write them to a page."""
    say = sayer(console)
    _write(grid, tables, parts, page.path)
    if page.as_json:
        blocks = [{"headings": table.headings, "groups": dict(table.groups)} for table in tables]
        print(json.dumps({"tables": blocks, "remarks": parts, "page": str(page.path)}, indent=1, ensure_ascii=False))
        return
    for block in (block for each in tables for block in render(each, console.width)):
        console.print()
        console.print(block)
    for heading, lines in parts.items():
        if lines:
            say(f"\n{heading}:" if heading else "")
            for line in lines:
                say(f"- {line}")
    say(f"\nWritten to {page.path}")


def _with_something(grid: Grid, table: SideBySide) -> SideBySide:
    """The table without groups that have neither the paper's numbers nor runs of ours."""
    known = {*grid.recipe.values, *grid.selection.groups}
    return replace(table, groups=tuple((name, rows) for name, rows in table.groups if name in known))


def _curves(grid: Grid, outcomes: Outcomes, path: Path | None) -> tuple[SideBySide, list[str]]:
    """The scores by round as a table and, where that is wanted and matplotlib is installed, as a picture."""
    panels, notes = drawing.curves(grid, outcomes)
    if path is None:
        return drawing.by_round(grid, panels), notes
    try:
        title = f"{grid.recipe.paper}, scale {grid.scale}: {grid.recipe.title}"
        save(drawing.sheet([*panels, *drawing.samplings(grid, outcomes)], title), path)
        notes = [f"Drawn in {path.name}: mean over seeds, the band is their standard deviation.", *notes]
    except FedstillError as error:  # without matplotlib the table has to do
        notes = [str(error), *notes]
    return drawing.by_round(grid, panels), notes


def _write(grid: Grid, tables: Sequence[SideBySide], parts: dict[str, list[str]], path: Path) -> None:
    lines = [f"# {grid.recipe.paper}, scale {grid.scale}: {grid.recipe.title}"]
    for table in tables:
        lines += ["", markdown(table)]
    for heading, points in parts.items():
        if points:
            lines += ["", *([f"## {heading}", ""] if heading else []), *(f"- {point}" for point in points)]
    write_whole(path, ("\n".join(lines) + "\n").encode())
