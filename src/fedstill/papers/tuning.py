"""Choosing settings on validation rows: every row of a table gets the same tries, and all of them are written down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole
from fedstill.config.source import Source
from fedstill.papers.evidence import fingerprint
from fedstill.papers.grid import Grid, GridRun, check_scale, plan_grid
from fedstill.papers.machine import machine_of
from fedstill.papers.recipe import read_recipe, slug
from fedstill.papers.running import Todo, reasons_of, run_missing, sayer
from fedstill.papers.side_by_side import score
from fedstill.results.record import Record
from fedstill.results.runs import load_runs

FILE = "tuning.json"
FIRST_SEED = 1000
"""Far from the seeds that tables are made with."""

Try = Mapping[str, Any]
"""Dotted key -> the value that is tried."""
Line = dict[str, Any]


def tries(options: Mapping[str, Sequence[Any]]) -> list[Try]:
    """Every combination of the values."""
    return [dict(zip(options, values, strict=True)) for values in product(*options.values())]


def tune(
    source: Source,
    name: str,
    scale: str,
    out: Path,
    evidence: Path,
    console: Console,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    jobs: int | None = None,
) -> dict[str, list[Line]]:
    """Run every row with every try, measured on validation rows, and write down what each scored.

    Returns what was `tried` and which of it is `chosen`; if all of it failed, nothing is written.
    """
    recipe = read_recipe(source)
    check_scale(source, recipe, scale)
    settings = recipe.scales[scale]
    if not settings.tries:
        raise FedstillError(f"{source.name}: scale {scale} names no settings to try (`tries:`).")
    planned = [(each, _grid(source, scale, out, overrides, only, each)) for each in tries(settings.tries)]
    runs = [run for _, grid in planned for run in grid.runs]
    whole = replace(planned[0][1], runs=tuple(runs))
    console.print(f"{recipe.paper}, scale {scale}: {len(planned)} tries for each of {len(runs) // len(planned)} runs.")
    failures = run_missing([Todo(whole, out)], console, jobs)
    reasons = reasons_of(runs, failures)
    if len(failures) == len(runs):
        raise FedstillError("\n".join(reasons))
    found = [_line(name, grid, run, each, failures.get(run.folder)) for each, grid in planned for run in grid.runs]
    write_lines(evidence / FILE, found)
    best, say = list(chosen(found)), sayer(console)
    for line in best:
        said = ", ".join(f"{key} {value}" for key, value in line["try"].items())
        say(f"- {line['group']}, {line['row']}: {said} ({100 * line['score']:.1f})")
    if reasons:
        say("\nFailed:")
    for reason in reasons:
        say(f"- {reason}")
    return {"tried": found, "chosen": best}


def _grid(source: Source, scale: str, out: Path, overrides: Sequence[str], only: Sequence[str], each: Try) -> Grid:
    words = [f"{key}={value}" for key, value in each.items()]
    folder = out / slug("-".join(words))
    return plan_grid(source, scale, folder, [*overrides, "measure=validation", f"seed={FIRST_SEED}", *words], 1, only)


def _line(name: str, grid: Grid, run: GridRun, each: Try, failure: str | None) -> Line:
    about: Line = {
        "recipe": name,
        "scale": grid.scale,
        "group": run.group,
        "row": run.row,
        "columns": list(run.columns),
    }
    about |= {"try": dict(each), "seed": run.experiment.seed, "experiment": fingerprint(run.experiment)}
    if failure is not None or not Record(run.folder).is_finished:
        return about | {"score": None, "failed": failure or "not finished"}
    split, metric = grid.recipe.columns[run.columns[0]].shows[0]
    return about | {
        "metric": metric,
        "score": score(load_runs([run.folder])[0], split, metric),
        **machine_of(run.folder),
    }


def write_lines(path: Path, lines: Sequence[Line]) -> None:
    """Put these lines in the place of those of the same recipe, scale, group, row, columns, try and seed."""
    kept = {_key(line): line for line in [*read(path), *lines]}
    ordered = [kept[key] for key in sorted(kept)]
    text = ",\n".join(json.dumps(line, sort_keys=True) for line in ordered)
    write_whole(path, f"[\n{text}\n]\n".encode())


def read(path: Path) -> list[Line]:
    """Everything that was tried."""
    if not path.exists():
        return []
    try:
        lines: list[Line] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FedstillError(f"{path} is not JSON ({error}): restore it, or delete it and tune again.") from error
    return lines


def chosen(lines: Iterable[Line]) -> Iterator[Line]:
    """For each row of a group, the try with the best score, which is the mean over its runs; the first of equals."""
    rows: dict[str, dict[str, list[Line]]] = {}
    for line in lines:
        row = json.dumps([line[key] for key in ("recipe", "scale", "group", "row")])
        rows.setdefault(row, {}).setdefault(json.dumps(line["try"], sort_keys=True), []).append(line)
    for tried in rows.values():
        means = {
            each: fmean(line["score"] for line in same)
            for each, same in tried.items()
            if all(line["score"] is not None for line in same)
        }
        if means:
            best = max(means, key=lambda each: means[each])
            yield tried[best][0] | {"score": means[best]}


def _key(line: Line) -> str:
    return json.dumps(
        [line[key] for key in ("recipe", "scale", "group", "row", "columns", "try", "seed")], sort_keys=True
    )
