"""The runs of tables, done side by side: how many at once, in which order, and what is said on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from fedstill.common.words import counted
from fedstill.learning.metrics import METRICS
from fedstill.papers.card import fitting, on_card, shared
from fedstill.papers.grid import Grid, GridRun
from fedstill.papers.parallel import EndedRun, attempt, run_all
from fedstill.papers.side_by_side import score
from fedstill.papers.work import Pace, expected, in_order
from fedstill.plan.plan import default_workers
from fedstill.results.progress import Progress
from fedstill.results.record import Record
from fedstill.results.runs import load_runs
from fedstill.results.watch.planned import Planned

Say = Callable[[str], None]


def sayer(console: Console) -> Say:
    """Prints sentences as they are."""

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)

    return say


def reasons_of(runs: Sequence[GridRun], failures: Mapping[Path, str]) -> list[str]:
    """Every reason once, with the runs that failed for it."""
    stopped: dict[str, list[str]] = {}
    for run in runs:
        if (reason := failures.get(run.folder)) is not None:
            stopped.setdefault(reason, []).append(str(run))
    return [
        f"{reason} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
        for reason, names in stopped.items()
    ]


@dataclass(frozen=True)
class Todo:
    """The runs of a table that are to be done, the folder they are in, and who hears of those that end well."""

    grid: Grid
    out: Path
    ended: Callable[[GridRun], None] = lambda run: None


def default_jobs(runs: Sequence[GridRun]) -> int:
    """As many as a card holds; else one per core if each has one worker, which is faster than two workers for one."""
    if on_card(runs):
        return fitting(runs)
    return default_workers() if all(run.experiment.workers == 1 for run in runs) else 1


def run_missing(
    todos: Sequence[Todo], console: Console, jobs: int | None = None, force: bool = False, until: float = math.inf
) -> dict[Path, str]:
    """Do the runs that are not finished, one table after the other; none is started after `until`.

    Returns why runs failed, by folder. Processes go on from one table's runs to the next one's.
    """
    say = sayer(console)
    todo_of = {run.folder: todo for todo in todos for run in todo.grid.runs}
    missing = {run.folder: run for todo in todos for run in todo.grid.runs if force or not _is_finished(run)}
    at_once = max(1, min(jobs or default_jobs(list(missing.values())), len(missing)))
    many = len(todo_of)
    done = f"; {many - len(missing)} are finished already" if len(missing) < many else ""
    say(f"{counted(len(missing), 'run')} to do, {at_once} at once{done}.")
    takes = {folder: seconds for todo in todos for folder, seconds in expected(todo.grid.runs).items()}
    own = [[run for run in todo.grid.runs if run.folder in missing] for todo in todos]
    ordered = [run for runs in own for run in in_order(runs, takes, at_once)]
    plans = {todo.out: _planned(todo) for todo in todos}
    for plan in plans.values():
        plan.write()
    pace, failures = Pace(ordered, takes, at_once), dict[Path, str]()
    with closing(_ends(ordered, at_once, console, say, force, until)) as ends:
        for number, end in enumerate(ends, 1):
            todo = todo_of[end.run.folder]
            left_s = pace.left_after(end.run.folder, end.seconds if end.reason is None else None, end.others)
            left = f"; about {_duration(left_s)} left" if number < len(missing) else ""
            say(f"{number}/{len(missing)} {end.run}: {_headline(todo.grid, end)}, {end.seconds:.0f} s{left}")
            if end.reason is not None:
                failures[end.run.folder] = end.reason
            else:
                todo.ended(end.run)
            plan = plans[todo.out]
            failed = {
                _place(run.folder, todo.out): failures[run.folder] for run in todo.grid.runs if run.folder in failures
            }
            replace(plan, failed=failed, left_s=left_s, at=time.time()).write()
    return failures


def _is_finished(run: GridRun) -> bool:
    return Record(run.folder).is_finished


def _planned(todo: Todo) -> Planned:
    """What `fedstill watch` wants to know of the runs that have not begun."""
    title = f"{todo.grid.recipe.paper}, scale {todo.grid.scale}: {todo.grid.recipe.title}"
    return Planned(todo.out, title, {_place(run.folder, todo.out): str(run) for run in todo.grid.runs})


def _place(folder: Path, out: Path) -> str:
    return folder.relative_to(out).as_posix()


def _ends(
    runs: Sequence[GridRun], at_once: int, console: Console, say: Say, force: bool, until: float
) -> Generator[EndedRun, None, None]:
    if at_once == 1:
        yield from _one_by_one(runs, console, force, until)
        return
    if not on_card(runs):
        yield from run_all(runs, at_once, force, until=until)
        return
    with shared(say) as environment:
        yield from run_all(runs, at_once, force, environment, until)


def _one_by_one(
    runs: Sequence[GridRun], console: Console, force: bool, until: float
) -> Generator[EndedRun, None, None]:
    """In this process, with all its progress to see."""
    for run in runs:
        started = time.monotonic()
        if started > until:
            return
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
