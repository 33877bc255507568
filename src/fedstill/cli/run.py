"""`fedstill run`: one experiment, with one seed or several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstill.cli.common import Json, console, errors, experiment_source, load_workers_early, saying_how_to_go_on
from fedstill.cli.report import page_of, tell_rounds
from fedstill.common.errors import FedstillError
from fedstill.common.words import listed

MOST_NAMED = 10


def run(
    experiment: Annotated[Path | None, typer.Argument(help="An experiment file, or the name of a recipe.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, dotted: rounds=5 algorithm.weighting.beta=1")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to run, from the experiment's seed on.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Where the run goes instead of runs/<name>.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace runs that exist already.")] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with an interrupted run, or with rounds=N for more rounds with any run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run an experiment, or go on with one."""
    source: Any = None
    if resume is not None:
        load_workers_early(resume / "experiment.yaml", [])
    elif experiment is not None:
        load_workers_early(experiment, overrides or [])
        source = experiment_source(experiment, overrides or [])  # a mistake in it is told before anything slow loads
    else:
        raise FedstillError("give an experiment file to run, or --resume DIR to go on with a run (not both).")
    from fedstill.cli.gains import tell_members, to_json
    from fedstill.config.experiment import from_source
    from fedstill.engines import runner
    from fedstill.engines.ranks import command
    from fedstill.results.compare import compare as compare_runs
    from fedstill.results.compare import load_runs
    from fedstill.results.progress import Progress
    from fedstill.results.table import render

    folders = []
    shown = errors if as_json else console
    if resume is not None:
        resume, rounds = _to_go_on(resume, experiment, overrides or [], out)
        _refuse_several(resume)
        folders.append(resume)
        with saying_how_to_go_on(resume, command(f"run --resume {resume}")), Progress(shown) as tell:
            runner.resume(resume, tell, rounds)
    else:
        first = from_source(source)
        if "alone" not in first.model_fields_set:
            first = first.model_copy(update={"alone": "rounds"})
        for seed in range(first.seed, first.seed + seeds):
            chosen = first.model_copy(update={"seed": seed})
            folder = (out or Path("runs") / first.name) / f"seed-{seed}"
            folders.append(folder)
            again = "the same command" if seeds > 1 else command(f"run --resume {folder}")
            with saying_how_to_go_on(folder, again), Progress(shown, f"seed {seed}: " if seeds > 1 else "") as tell:
                (runner.begin_or_finish if seeds > 1 else runner.run)(chosen, folder, force, tell)
    if as_json:
        page_of(errors, folders, folders[0] if len(folders) == 1 else folders[0].parent)
        print(json.dumps(to_json(folders), indent=1))
        return
    console.print(render(compare_runs(load_runs(folders)), console.width))
    tell_members(console, folders)
    tell_rounds(console, folders)
    page_of(console, folders, folders[0] if len(folders) == 1 else folders[0].parent)


def _to_go_on(resume: Path, experiment: Path | None, overrides: list[str], out: Path | None) -> tuple[Path, int | None]:
    """The folder to go on in, and how many rounds there are to be, if that was given.

    Beside a folder there may be `rounds=5`; beside an experiment, whose folder follows from it, there must be.
    """
    from fedstill.config.experiment import from_source

    words = [*([str(experiment)] if experiment is not None and "=" in experiment.name else []), *overrides]
    folder = resume
    if "=" in resume.name and not resume.is_dir() and experiment is not None:
        words.append(str(resume))
        named = from_source(experiment_source(experiment, []))
        folder = (out or Path("runs") / named.name) / f"seed-{named.seed}"
    elif experiment is not None and "=" not in experiment.name:
        raise FedstillError("give an experiment file to run, or --resume DIR to go on with a run (not both).")
    if not words:
        return folder, None
    key, _, value = words[0].partition("=")
    if len(words) > 1 or key != "rounds" or not value.isdecimal():
        raise FedstillError(
            f"{' '.join(words)}: a run goes on as it began; only more rounds can be asked for, as in rounds=5."
        )
    return folder, int(value)


def _refuse_several(folder: Path) -> None:
    """Name the runs in a folder that is none itself, as that of several seeds: one of them goes on."""
    from fedstill.results.runs import run_folders

    if (folder / "experiment.yaml").exists():
        return
    if runs := [str(run) for run in run_folders(folder) if run != folder and (run / "experiment.yaml").is_file()]:
        raise FedstillError(f"{folder} holds no run itself; go on with one that is in it: {listed(runs, MOST_NAMED)}.")
