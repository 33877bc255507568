"""The evidence folder: a line for each finished run, and pages made from the lines alone."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath
from statistics import fmean
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole
from fedstill.common.words import counted
from fedstill.config.experiment import Experiment
from fedstill.config.source import Source
from fedstill.papers.communication import Account
from fedstill.papers.curves import by_step, curve, losses, weights
from fedstill.papers.grid import Grid, GridRun, cell_run, check_scale, selected
from fedstill.papers.kept import KeptRun
from fedstill.papers.machine import machine_of
from fedstill.papers.recipe import Recipe, read_recipe
from fedstill.papers.side_by_side import Outcomes, setting
from fedstill.results.record import Record
from fedstill.results.runs import POOLED, Run

ANY_MACHINE = ("engine", "workers", "device", "precision", "memory", "save_every", "report_to", "seed")
"""Keys that say where and how a run computes, and its seed, which a line names itself."""
OF_PAPERS = {"max_share": None, "blend": "mean"}
"""Keys whose defaults are not the papers', which nothing says in lines from before there were such keys."""
MAIN_SCALE = "medium"
DIGITS = 10
CORES_FOR_A_CARD = 30
"""How many times as long as a GPU that has other runs beside it a core takes for a run, in bf16. FedID's Figure 4 was
run on both, with twice as many clients on cores: 20 to 50 times. No number but a time depends on it."""

Line = dict[str, Any]
Key = tuple[str, str, str, str, int]
"""Scale, group, row, name and seed: a run has one line."""


@dataclass(frozen=True)
class Evidence:
    """The lines of one recipe in an evidence folder, at one scale."""

    folder: Path
    name: str
    scale: str

    @property
    def lines(self) -> Path:
        """The file of the lines, of all scales."""
        return self.folder / f"{self.name}.jsonl"

    @property
    def page(self) -> Path:
        """The page of this scale."""
        return self.folder / f"{self.name}{'' if self.scale == MAIN_SCALE else f'-{self.scale}'}.md"

    @property
    def command(self) -> str:
        """The command that makes the runs."""
        return f"fedstill reproduce {self.name} --scale {self.scale}"


def fingerprint(experiment: Experiment) -> str:
    """A hash of what an experiment sets, the same on any machine and for any seed: without the paths of folders."""
    return hash_of(_settings(experiment))


def _settings(experiment: Experiment) -> Line:
    values = experiment.resolved().model_dump(mode="json", exclude_defaults=True)
    values = {key: value for key, value in values.items() if key not in ANY_MACHINE}
    for key, of_papers in OF_PAPERS.items():
        values.pop(key, None)
        if (chosen := getattr(experiment, key)) != of_papers:
            values[key] = chosen
    portable: Line = _portable(values)
    return portable


def settings_by_name(runs: Iterable[GridRun]) -> dict[str, Line]:
    """The settings of every cell, by the name of its runs: their seeds differ in nothing else."""
    return {name: _settings(run.experiment) for name, run in {run.experiment.name: run for run in runs}.items()}


def hash_of(settings: Line) -> str:
    """A short hash of settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _portable(value: Any) -> Any:
    """Without what `path:` names, and with only the last part of other absolute paths."""
    if isinstance(value, dict):
        return {key: _portable(inner) for key, inner in value.items() if key != "path"}
    if isinstance(value, list):
        return [_portable(inner) for inner in value]
    return PurePath(value).name if isinstance(value, str) and os.path.isabs(value) else value


def refuse_overrides(grid: Grid, source: Source) -> None:
    """Refuse to keep runs whose experiment is not the recipe's own."""
    for run in grid.runs:
        planned = cell_run(source, grid.recipe, grid.scale, (run.group, run.row, run.columns), Path())
        if fingerprint(run.experiment) != fingerprint(planned.experiment):
            raise FedstillError(
                f"--keep: {run} is not the recipe's experiment, because of a key=value on the command line; the "
                "evidence is of the recipe as it is. Change the recipe, or leave --keep out."
            )


def keep(grid: Grid, outcomes: Outcomes, evidence: Evidence) -> int:
    """Write a line for every finished run, in place of older lines of the same run; how many."""
    new = {
        _key(line): line
        for run in grid.runs
        if isinstance(outcome := outcomes.get(run.folder), Run)
        for line in [_line(grid, run, outcome)]
    }
    write_lines(evidence, lines_of(evidence) | new)
    return len(new)


def lines_of(evidence: Evidence) -> dict[Key, Line]:
    """The lines that are kept, of all scales."""
    return {_key(line): line for _, line in read_lines(evidence.lines)} if evidence.lines.exists() else {}


def write_lines(evidence: Evidence, lines: Mapping[Key, Line]) -> None:
    """Put these lines in the place of all that are kept."""
    every = (line for _, line in sorted(lines.items()))
    text = "".join(json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n" for line in every)
    write_whole(evidence.lines, text.encode())


def already_kept(grid: Grid, evidence: Evidence) -> dict[Path, KeptRun]:
    """The runs of the grid that have a line of the same experiment, and are not on this disk, by folder."""
    lines, found = lines_of(evidence), dict[Path, KeptRun]()
    runs = {(grid.scale, run.group, run.row, run.experiment.name, run.experiment.seed): run for run in grid.runs}
    there = {key: run for key, run in runs.items() if key in lines and not Record(run.folder).is_finished}
    cells = settings_by_name(there.values())
    for key, run in there.items():
        if hash_of(cells[run.experiment.name]) == lines[key]["experiment"]:
            found[run.folder] = _kept(run, lines[key])
    return found


def _key(line: Line) -> Key:
    """By which lines are sorted."""
    return line["scale"], line["group"], line["row"], line["name"], line["seed"]


def _line(grid: Grid, run: GridRun, outcome: Run) -> Line:
    """What is kept of a run."""
    shown = {metric for column in grid.recipe.columns.values() for _, metric in column.shows} | {outcome.metric}
    splits = {split for column in grid.recipe.columns.values() for split, _ in column.shows} | {POOLED}
    curves = {
        split: {metric: found for metric in sorted(shown) if (found := curve(outcome, split, metric)[0])}
        for split in sorted(splits | set(outcome.server or ()))
    }
    clients = {
        name: {split: _only(scores, shown) for split, scores in splits.items()}
        for name, splits in outcome.clients.items()
    }
    line = {
        "scale": grid.scale,
        "group": run.group,
        "row": run.row,
        "columns": list(run.columns),
        "name": run.experiment.name,
        "seed": run.experiment.seed,
        "experiment": fingerprint(run.experiment),
        **machine_of(run.folder),
        "method": outcome.method,
        "algorithm": outcome.algorithm,
        "role": outcome.role,
        "labels": list(outcome.labels),
        "metrics": list(outcome.metrics),
        "server": _rounded(outcome.server),
        "clients": _rounded(clients),
        "by_round": _rounded({split: each for split, each in curves.items() if each}),
        "origin": curve(outcome, POOLED, outcome.metric)[1],
        "weights": _rounded(weights(outcome)),
        "losses": _rounded(losses(outcome)),
        "sampling": _rounded({who: found for who in ("teacher", "student") if (found := by_step(outcome, who))}),
        "sent": _sent(run) if grid.recipe.table == "communication" else {},
        "setting": setting(run),
        "bytes": {"up": outcome.bytes_up, "down": outcome.bytes_down},
        "seconds": outcome.seconds,
        "notes": list(outcome.notes),
        "test": outcome.test_fingerprint,
    }
    return _shortened(line, splits, shown) if grid.recipe.brief else line


def _shortened(line: Line, splits: Set[str], metrics: Set[str]) -> Line:
    """A line with the scores that the table shows alone: the server's, or the clients' where there is no server."""

    def of(scores: Mapping[str, Any]) -> dict[str, Any]:
        return {split: _only(each, metrics) for split, each in scores.items() if split in splits}

    clients = {} if line["server"] else {name: of(scores) for name, scores in line["clients"].items()}
    shorter = {"server": line["server"] and of(line["server"]), "clients": clients, "by_round": of(line["by_round"])}
    return line | shorter | {"weights": {}, "losses": {}, "notes": []}


def _sent(run: GridRun) -> dict[str, int]:
    account = Account.of(run)
    return asdict(account.sizes) | {"counted": account.counted}


def _only(scores: Mapping[str, Any], metrics: Iterable[str]) -> dict[str, Any]:
    return {metric: scores[metric] for metric in sorted(metrics) if metric in scores}


def _rounded(value: Any) -> Any:
    """Numbers with few digits, and keys as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): _rounded(inner) for key, inner in value.items()}
    return round(value, DIGITS) if isinstance(value, float) else value


def recall(source: Source, evidence: Evidence) -> tuple[Grid, Outcomes]:
    """The runs of a recipe at a scale as they are kept; a line that the recipe no longer makes is refused by name."""
    if not evidence.lines.exists():
        raise FedstillError(
            f"{evidence.lines} is not there: no run of this recipe is kept in {evidence.folder}. Make it with: "
            f"{evidence.command} --keep {evidence.folder}"
        )
    recipe = read_recipe(source)
    check_scale(source, recipe, evidence.scale)
    runs, stale, taken = list[GridRun](), list[GridRun](), set[Any]()
    outcomes: dict[Path, Run | str] = {}
    cells: dict[tuple[str, ...], tuple[GridRun, str]] = {}
    for number, line in read_lines(evidence.lines):
        if line["scale"] != evidence.scale:
            continue
        if _key(line) in taken:
            raise FedstillError(f"{evidence.lines}:{number}: a second line of {line['name']}, seed {line['seed']}.")
        taken.add(_key(line))
        cell = (line["group"], line["row"], *line["columns"])
        if cell not in cells:  # its seeds differ in nothing else
            first = _run_of(source, recipe, evidence, line, number)
            cells[cell] = first, fingerprint(first.experiment)
        run = _seeded(cells[cell][0], line["seed"], evidence)
        if cells[cell][1] != line["experiment"]:
            stale.append(run)
        runs.append(run)
        outcomes[run.folder] = _kept(run, line)
    if stale:
        raise FedstillError(_about_stale(stale, evidence))
    if not runs:
        raise FedstillError(f"{evidence.lines} has no line of scale {evidence.scale}. Run: {evidence.command}")
    ordered = sorted(runs, key=lambda run: _place(recipe, run))
    grid = Grid(recipe, evidence.scale, selected(recipe, evidence.scale, ordered), tuple(ordered))
    return grid, outcomes


def kept_scales(evidence: Evidence) -> set[str]:
    """The scales of which lines are kept."""
    return {str(line["scale"]) for _, line in read_lines(evidence.lines)} if evidence.lines.exists() else set()


def read_lines(path: Path) -> Iterator[tuple[int, Line]]:
    """The lines with their numbers; one that is no line of ours is an error."""
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            _key(line)
        except (ValueError, KeyError, TypeError) as error:
            raise FedstillError(f"{path}:{number}: not a line of the evidence ({error!r}); delete it.") from error
        yield number, line


def _run_of(source: Source, recipe: Recipe, evidence: Evidence, line: Line, number: int) -> GridRun:
    """The run of a line as the recipe plans it now, with the recipe's own seed."""
    named: list[tuple[str, Iterable[str], str]] = [
        ("group", recipe.groups, line["group"]),
        ("row", recipe.rows, line["row"]),
        *(("column", recipe.columns, name) for name in line["columns"]),
    ]
    for kind, known, name in named:
        if name not in known:
            raise FedstillError(f"{evidence.lines}:{number}: the recipe has no {kind} {name!r} now; delete the line.")
    return cell_run(source, recipe, evidence.scale, (line["group"], line["row"], line["columns"]), Path())


def _seeded(run: GridRun, seed: int, evidence: Evidence) -> GridRun:
    experiment = run.experiment.model_copy(update={"seed": seed})
    # Below a file there is no folder: a run of the same name on this machine must not lend its predictions.
    return replace(run, experiment=experiment, folder=evidence.lines / experiment.name / f"seed-{seed}")


def _about_stale(stale: Sequence[GridRun], evidence: Evidence) -> str:
    more = f" and {len(stale) - 1} more" if len(stale) > 1 else ""
    cells = {name: None for run in stale for name in (run.row, run.group, run.columns[0]) if name}
    only = " ".join(f'--only "{name}"' for name in cells)
    return (
        f"{evidence.lines}: {stale[0]} (scale {evidence.scale}){more}: made by another experiment than the recipe's "
        f"now. Run again with: {evidence.command} {only} --keep {evidence.folder}, or delete the lines."
    )


def _kept(run: GridRun, line: Line) -> KeptRun:
    """A line as a run; the reverse of `_line`."""
    return KeptRun(
        folder=run.folder,
        name=line["name"],
        method=line["method"],
        algorithm=line["algorithm"],
        role=line["role"],
        seed=line["seed"],
        labels=tuple(line["labels"]),
        client_names=tuple(sorted(line["clients"])),
        server=line["server"],
        clients=line["clients"],
        bytes_up=line["bytes"]["up"],
        bytes_down=line["bytes"]["down"],
        seconds=line["seconds"],
        test_fingerprint=line["test"],
        metrics=tuple(line["metrics"]),
        notes=tuple(line["notes"]),
        setting=line["setting"],
        by_round={
            split: {metric: _numbered(scores) for metric, scores in each.items()}
            for split, each in line["by_round"].items()
        },
        origin=line["origin"],
        weights=_numbered(line["weights"]),
        losses=_numbered(line.get("losses", {})),  # lines of earlier versions have none
        sampling={who: _numbered(steps) for who, steps in line["sampling"].items()},
        sent=line["sent"],
        commit=line["commit"],
        device=line["device"],
        shared_with=line.get("shared_with", ""),
    )


def _numbered(by_number: Mapping[str, Any]) -> dict[int, Any]:
    return {int(number): value for number, value in by_number.items()}


def _place(recipe: Recipe, run: GridRun) -> tuple[int, ...]:
    """Seeds round by round, then as in the table."""
    names = (run.group, list(recipe.groups)), (run.row, list(recipe.rows)), (run.columns[0], list(recipe.columns))
    group, row, column = (known.index(name) for name, known in names)
    return run.experiment.seed, group, column, row


def on_two_cores(taken: Iterable[tuple[float, str]]) -> str:
    """How long runs that took so many seconds, each on a device, take two cores, one run on each."""
    seconds = sum(each * (1 if " cores of " in device else CORES_FOR_A_CARD) for each, device in taken) / 2
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.0f} hours"


def origins(grid: Grid, outcomes: Outcomes, evidence: Evidence) -> list[str]:
    """Where the numbers of a page come from: machines, versions, seconds, and the command that makes the page."""
    runs = [kept for run in grid.runs if isinstance(kept := outcomes[run.folder], KeptRun)]
    made = Counter((run.device, run.commit) for run in runs)
    shared = Counter(run.shared_with for run in runs if run.shared_with)
    return [
        *(f"{counted(many, 'run')} on {device}, fedstill {commit}." for (device, commit), many in sorted(made.items())),
        *(f"{many} of them are runs of {recipe} too: the same experiments." for recipe, many in sorted(shared.items())),
        f"A run took {fmean(run.seconds for run in runs):.0f} s on average, beside others on the same machine. "
        f"On two cores all of them take {on_two_cores((run.seconds, run.device) for run in runs)}, by an estimate.",
        f"Made from {evidence.lines.name} by `{evidence.command} --from {evidence.folder.name}`, without training; "
        f"what made the lines: `{evidence.command} --keep {evidence.folder.name}`.",
    ]
