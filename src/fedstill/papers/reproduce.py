"""Reproducing a table of a paper: do the missing runs, then print our numbers beside the paper's."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from fedstill.common.errors import FedstillError
from fedstill.common.files import MODELS, write_whole
from fedstill.common.locks import at_work_in
from fedstill.common.words import counted
from fedstill.config.source import Source
from fedstill.engines import checkpoint
from fedstill.engines.runner import differences, stopping_on_sigterm
from fedstill.learning.metrics import METRICS
from fedstill.papers import curves as drawing
from fedstill.papers.card import fitting, on_card, shared
from fedstill.papers.communication import communication
from fedstill.papers.evidence import Evidence, already_kept, borrow, keep, origins, recall
from fedstill.papers.grid import Grid, GridRun
from fedstill.papers.kept import KeptRun
from fedstill.papers.languages import languages
from fedstill.papers.ordering import orderings
from fedstill.papers.parallel import EndedRun, attempt, run_all
from fedstill.papers.partitions import partitions
from fedstill.papers.side_by_side import (
    Outcomes,
    SideBySide,
    how_to_read,
    markdown,
    render,
    score,
    settings,
    side_by_side,
)
from fedstill.papers.statistics import statistics
from fedstill.papers.work import Pace, expected, in_order
from fedstill.plan.plan import default_workers
from fedstill.results.drawing.draw import save
from fedstill.results.progress import Progress
from fedstill.results.record import Record
from fedstill.results.runs import Run, load_runs
from fedstill.results.watch.planned import Planned

Say = Callable[[str], None]
COUNTED: Mapping[str, Callable[[Grid], tuple[SideBySide, list[str]]]] = {
    "languages": languages,
    "statistics": statistics,
}
"""Tables that are read from the corpora, with remarks."""
TIMES = re.compile(r" \(\d+x\)$")
"""How often a run says a note."""


def reproduce(
    grid: Grid,
    out: Path,
    console: Console,
    jobs: int | None = None,
    force: bool = False,
    evidence: Evidence | None = None,
    models: bool = False,
    as_json: bool = False,
) -> bool:
    """Finish every run of the grid and print the table; whether all runs succeeded and the table holds.

    With `evidence`, a line for each run is kept there as soon as it ends, and runs whose lines are kept already are
    not done again. Runs keep their `models` only if asked to, which needs the runs themselves.
    `as_json` prints the table as JSON on standard output.
    """
    say = _sayer(console)
    if grid.recipe.table == "partitions":
        if as_json:
            raise FedstillError(f"--json: {grid.recipe.title} is drawn, and has no table.")
        partitions(grid, out, console)
        return True
    if grid.recipe.table in COUNTED:
        table, notes = COUNTED[grid.recipe.table](grid)
        every = [*grid.recipe.remarks(grid.scale), *notes, "Nothing was trained."]
        _publish(grid, [table], {"": every}, console, _Page(out / "table.md", None, as_json=as_json))
        return True
    if not force:
        _refuse_other_experiments(grid.runs)
    say(f"{grid.recipe.paper}, scale {grid.scale}: {grid.recipe.title}")
    kept = dict[Path, KeptRun]()
    if evidence is not None and not force and not models:
        if many := borrow(grid, evidence):
            say(f"Taken from the lines of other tables: {counted(many, 'run')} of the same experiments.")
        kept = already_kept(grid, evidence)
    here = replace(grid, runs=tuple(run for run in grid.runs if run.folder not in kept))
    if evidence is not None and kept:
        say(f"Kept in {evidence.lines} already: {counted(len(kept), 'run')}; --force does them again.")
    with stopping_on_sigterm(), at_work_in(out):
        plan = _planned(here, out)
        plan.write()
        failures = run_missing(here, console, jobs, force, lambda run: _ended(grid, run, evidence, models), plan)
    ended = {run.folder: failures.get(run.folder) or load_runs([run.folder])[0] for run in here.runs}
    outcomes: Outcomes = {**kept, **ended}
    if not any(isinstance(outcome, Run) for outcome in outcomes.values()):
        raise FedstillError("\n".join(_reasons(grid.runs, failures)))
    holds = _present(grid, outcomes, console, _Page(out / "table.md", out / "curves.png", as_json=as_json))
    if evidence is not None:
        many = keep(here, outcomes, evidence)
        say(f"{many} lines kept in {evidence.lines}; the page: {evidence.command} --from {evidence.folder}")
    return holds and not failures


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


def _planned(grid: Grid, out: Path) -> Planned:
    """What `fedstill watch` wants to know of the runs that have not begun."""
    title = f"{grid.recipe.paper}, scale {grid.scale}: {grid.recipe.title}"
    return Planned(out, title, {_place(run.folder, out): str(run) for run in grid.runs})


def _place(folder: Path, out: Path) -> str:
    return folder.relative_to(out).as_posix()


def _sayer(console: Console) -> Say:
    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)

    return say


def default_jobs(runs: Sequence[GridRun]) -> int:
    """As many as a card holds; else one per core if each has one worker, which is faster than two workers for one."""
    if on_card(runs):
        return fitting(runs)
    return default_workers() if all(run.experiment.workers == 1 for run in runs) else 1


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


def run_missing(
    grid: Grid,
    console: Console,
    jobs: int | None = None,
    force: bool = False,
    ended: Callable[[GridRun], None] = lambda run: None,
    plan: Planned | None = None,
) -> dict[Path, str]:
    """Do the runs that are not finished, and tell whoever waits for those that end well; why runs failed, by folder."""
    say = _sayer(console)
    missing = [run for run in grid.runs if force or not Record(run.folder).is_finished]
    at_once = max(1, min(jobs or default_jobs(missing), len(missing)))
    done = f"; {len(grid.runs) - len(missing)} are finished already" if len(missing) < len(grid.runs) else ""
    say(f"{counted(len(missing), 'run')} to do, {at_once} at once{done}.")
    takes = expected(grid.runs)
    ordered = in_order(missing, takes, at_once)
    pace, failures = Pace(ordered, takes, at_once), dict[Path, str]()
    with closing(_ends(ordered, at_once, console, say, force)) as ends:
        for number, end in enumerate(ends, 1):
            left_s = pace.left_after(end.run.folder, end.seconds if end.reason is None else None, end.others)
            left = f"; about {_duration(left_s)} left" if number < len(missing) else ""
            say(f"{number}/{len(missing)} {end.run}: {_headline(grid, end)}, {end.seconds:.0f} s{left}")
            if end.reason is not None:
                failures[end.run.folder] = end.reason
            else:
                ended(end.run)
            if plan is not None:
                failed = {_place(folder, plan.path): reason for folder, reason in failures.items()}
                replace(plan, failed=failed, left_s=left_s, at=time.time()).write()
    return failures


def _ends(
    runs: Sequence[GridRun], at_once: int, console: Console, say: Say, force: bool
) -> Generator[EndedRun, None, None]:
    if at_once == 1:
        yield from _one_by_one(runs, console, force)
        return
    if not on_card(runs):
        yield from run_all(runs, at_once, force)
        return
    with shared(say) as environment:
        yield from run_all(runs, at_once, force, environment)


def _one_by_one(runs: Sequence[GridRun], console: Console, force: bool) -> Generator[EndedRun, None, None]:
    """In this process, with all its progress to see."""
    for run in runs:
        started = time.monotonic()
        with Progress(console, f"{run.experiment.name}: ", tells_corpus=False) as tell:
            reason = attempt(run, force, tell)
        yield EndedRun(run, reason, time.monotonic() - started)


def _headline(grid: Grid, end: EndedRun) -> str:
    if end.reason is not None:
        return "failed"
    split, metric = grid.recipe.columns[end.run.columns[0]].shows[0]
    value = score(load_runs([end.run.folder])[0], split, metric)
    return "done" if value is None else f"{METRICS[metric].title} {100 * value:.1f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


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
    tables = [table]
    if grid.recipe.table == "curves":
        shown, parts["Curves"] = _curves(grid, outcomes, page.picture)
        tables += [shown, *([blend] if (blend := drawing.weights_by_round(grid, outcomes)) else [])]
    failures = {folder: outcome for folder, outcome in outcomes.items() if isinstance(outcome, str)}
    parts |= {"Notes of the runs": _notes(grid, outcomes), "Failed": _reasons(grid.runs, failures), **page.more}
    _publish(grid, tables, parts, console, page)
    return holds


def _publish(
    grid: Grid, tables: Sequence[SideBySide], parts: dict[str, list[str]], console: Console, page: _Page
) -> None:
    """Print tables and remarks, and write them to a page."""
    say = _sayer(console)
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


def _notes(grid: Grid, outcomes: Outcomes) -> list[str]:
    """The runs' notes: what is said of several parties of a method in one sentence, with the number of runs."""
    parties, runs = dict[tuple[str, str], dict[str, None]](), dict[tuple[str, str], set[Path]]()
    for run in grid.runs:
        if not isinstance(end := outcomes[run.folder], Run):
            continue
        for note in end.notes:
            who, _, what = TIMES.sub("", note).partition(" ")
            known = who in end.client_names or who == "server"
            said = run.row, what if known else f"{who} {what}".strip()
            parties.setdefault(said, {}).update({who: None} if known else {})
            runs.setdefault(said, set()).add(run.folder)
    return [
        f"{row}: {', '.join(sorted(who))}{': ' if who else ''}{what} ({counted(len(runs[row, what]), 'run')})"
        for (row, what), who in parties.items()
    ]


def _reasons(runs: Sequence[GridRun], failures: Outcomes) -> list[str]:
    """Every reason once, with the runs that failed for it."""
    stopped: dict[str, list[str]] = {}
    for run in runs:
        if isinstance(reason := failures.get(run.folder), str):
            stopped.setdefault(reason, []).append(str(run))
    return [
        f"{reason} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
        for reason, names in stopped.items()
    ]


def _write(grid: Grid, tables: Sequence[SideBySide], parts: dict[str, list[str]], path: Path) -> None:
    lines = [f"# {grid.recipe.paper}, scale {grid.scale}: {grid.recipe.title}"]
    for table in tables:
        lines += ["", markdown(table)]
    for heading, points in parts.items():
        if points:
            lines += ["", *([f"## {heading}", ""] if heading else []), *(f"- {point}" for point in points)]
    write_whole(path, ("\n".join(lines) + "\n").encode())
