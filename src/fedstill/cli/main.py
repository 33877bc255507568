"""The commands of `fedstill`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fedstill.cli.federation import app as federation
from fedstill.cli.figure import figure
from fedstill.cli.predict import predict
from fedstill.cli.push import push
from fedstill.cli.report import page_of, report, tell_rounds
from fedstill.cli.show import show
from fedstill.cli.watch import watch
from fedstill.common.errors import FedstillError
from fedstill.common.traces import in_words, own_frames
from fedstill.common.trust import trusting, trusts_all
from fedstill.common.version import VERSION

app = typer.Typer(
    help="Federated distillation for text: organisations teach each other without moving their data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
console = Console()
errors = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables; all else goes to standard error.")]
Out = Annotated[Path | None, typer.Option(help="Where the run goes instead of runs/<name>.")]

app.add_typer(federation, name="federation")


class Stopped(Exception):
    """The user interrupted the command; the message says how to go on."""


def main() -> None:
    """The entry point; of the ranks that torchrun started, only the first runs the command and prints."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        _main()
        return
    from fedstill.engines import ranks, runner

    place = ranks.Place.here()
    try:
        ranks.join(place)
    except FedstillError as error:
        if not place.rank:
            _print_error(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(1)
    if place.rank:
        runner.follow(place)
    with ranks.conducting(place):
        _main()


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(f"fedstill {VERSION}")
        raise typer.Exit


@app.callback()
def everywhere(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and end.")
    ] = False,
    trust_code: Annotated[
        bool,
        typer.Option(
            "--trust-code", help="Run classes that the files you give name (own.py:Class); may stand last, too."
        ),
    ] = False,
) -> None:
    """Before every command."""
    context.with_resource(trusting(trust_code))


def _main() -> None:
    """Run the command; a user's mistake becomes one message, and an interruption says how to go on."""
    words = sys.argv[1:]
    trusted = [word for word in words if word == "--trust-code"][:1]
    try:
        app([*trusted, *(word for word in words if word != "--trust-code")])
    except FedstillError as error:
        _print_error(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(1)
    except OSError as error:
        if error.errno is None:
            raise
        _print_error(f"[bold red]error:[/] {escape(f'{error.filename}: {error.strerror}')}")
        sys.exit(1)
    except Stopped as stop:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C must not kill what is ending already
        _print_error(f"stopped. {stop}")
        sys.exit(130)
    except Exception as error:
        if not (frames := own_frames(error)):
            raise
        _print_error(f"[bold red]error:[/] {escape(in_words(error))}")
        _print_error(escape("".join(traceback.format_list(frames)).rstrip()))
        sys.exit(1)


def _print_error(line: str) -> None:
    errors.print(line, highlight=False, soft_wrap=True, emoji=False)


@app.command()
def demo(
    full: Annotated[
        bool, typer.Option("--full", help="All methods, all rows, three seeds (hours; resumes what was interrupted).")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where the runs go.")] = Path("runs/demo"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what is finished already.")] = False,
    as_json: Json = False,
) -> None:
    """Five organisations teach each other on two CPU cores, in a few minutes; what is finished is used again."""
    from fedstill.cli.demo import demo as run_demo

    try:
        run_demo(errors if as_json else console, out, full, fresh, as_json)
    except KeyboardInterrupt as stop:
        raise Stopped(f"Go on with: fedstill demo{' --full' if full else ''}") from stop


@app.command()
def run(
    experiment: Annotated[Path | None, typer.Argument(help="An experiment file, or the name of a recipe.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, dotted: rounds=5 algorithm.weighting.beta=1")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to run, from the experiment's seed on.")] = 1,
    out: Out = None,
    force: Annotated[bool, typer.Option("--force", help="Replace runs that exist already.")] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with an interrupted run, or with rounds=N for more rounds with any run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run an experiment, or go on with one."""
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
        folders.append(resume)
        with _saying_how_to_go_on(resume, command(f"run --resume {resume}")), Progress(shown) as tell:
            runner.resume(resume, tell, rounds)
    else:
        if experiment is None:
            raise FedstillError("give an experiment file to run, or --resume DIR to go on with a run (not both).")
        source = experiment_source(experiment, overrides or [])
        first = from_source(source)
        for seed in range(first.seed, first.seed + seeds):
            chosen = first.model_copy(update={"seed": seed})
            folder = (out or Path("runs") / first.name) / f"seed-{seed}"
            folders.append(folder)
            again = "the same command" if seeds > 1 else command(f"run --resume {folder}")
            with _saying_how_to_go_on(folder, again), Progress(shown, f"seed {seed}: " if seeds > 1 else "") as tell:
                (runner.begin_or_finish if seeds > 1 else runner.run)(chosen, folder, force, tell)
    if as_json:
        page_of(errors, folders, folders[0] if len(folders) == 1 else folders[0].parent)
        print(json.dumps(to_json(folders), indent=1))
        return
    console.print(render(compare_runs(load_runs(folders)), console.width))
    tell_members(console, folders)
    tell_rounds(console, folders)
    page_of(console, folders, folders[0] if len(folders) == 1 else folders[0].parent)


@app.command()
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

    source = _read(Path(recipe))
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
        with _saying_how_to_go_on(folder, "the same command"):
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


@app.command()
def check(
    experiment: Annotated[Path, typer.Argument(help="An experiment file, or the name of a recipe.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, dotted.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Where the partition's picture goes instead of <name>-partition.png.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check an experiment and say what it would do, without training; draw which client holds which rows."""
    from fedstill.cli.check import report
    from fedstill.config.experiment import from_source

    if picture is not None and picture.suffix.lower() != ".png":
        raise FedstillError(f"--picture {picture}: pictures are written as PNG; give a name that ends in .png.")
    if picture is not None and not picture.parent.is_dir():
        raise FedstillError(f"--picture {picture}: there is no folder {picture.parent}.")
    checked = from_source(experiment_source(experiment, overrides or []))
    found = report(checked, errors if as_json else console, picture or Path(f"{checked.name}-partition.png"))
    if as_json:
        print(json.dumps(found, indent=1))


@app.command()
def trust(
    files: Annotated[list[Path], typer.Argument(help="Python files whose classes experiments may name.")],
) -> None:
    """Trust the code in these files, until they change."""
    from fedstill.common.trust import remember

    for file in files:
        console.print(f"{file} is trusted as it is now (sha256 {remember(file)[:16]}...).", highlight=False)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    against: Annotated[str | None, typer.Option(help="Compare with this method instead of the best baseline.")] = None,
    as_json: Json = False,
) -> None:
    """Compare finished runs: F1, whether differences are significant, bytes and seconds."""
    from fedstill.cli.gains import tell_methods
    from fedstill.results.compare import compare as compare_runs
    from fedstill.results.compare import load_runs, to_dict
    from fedstill.results.table import render

    loaded = load_runs(runs)
    comparison = compare_runs(loaded, against)
    if as_json:
        print(json.dumps(to_dict(comparison), indent=1))
        return
    console.print(render(comparison, console.width))
    tell_methods(console, loaded)
    console.print(f"As a page: fedstill report {' '.join(map(str, runs))}", soft_wrap=True, markup=False)


app.command()(report)
app.command()(figure)
app.command()(watch)


app.command()(predict)
app.command()(push)


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="The folder of a finished simulation that kept its models.")],
    shadows: Annotated[int, typer.Option(min=0, max=256, help="Shadow models a client, for LiRA; 0: without it.")] = 16,
    stand_in: Annotated[
        str | None, typer.Option(help="The attacker's model; default: the server's if small, else bow.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Attack what the clients of a run send: who was a training row, which tokens, which shares of labels."""
    from dataclasses import asdict

    from fedstill.cli import audit as auditing

    if shadows % 2:
        raise FedstillError(f"--shadows {shadows}: half of the models are trained on a row, so give an even number.")
    findings = auditing.run(run, errors if as_json else console, stand_in, shadows)
    if as_json:
        print(json.dumps(asdict(findings), indent=1))
        return
    auditing.tell(findings, console)


app.command()(show)


@app.command()
def fetch(names: Annotated[list[str], typer.Argument(help="minilm, bert-tiny, tweets, reviews, or a Hub id.")]) -> None:
    """Download models and corpora into the cache, to work offline later."""
    from fedstill.data.artefacts import fetch as fetch_artefact

    for name in names:
        console.print(f"{name}: {fetch_artefact(name)}", highlight=False, soft_wrap=True)


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


def experiment_source(experiment: Path, overrides: list[str]) -> Any:
    """An experiment file or recipe with overrides; a table is an error."""
    from fedstill.engines.table import check_name
    from fedstill.papers.recipe import is_grid

    source = _read(experiment)
    if is_grid(source.values):
        raise FedstillError(f"{experiment} is a table of many experiments: use `fedstill reproduce {experiment}`.")
    source.override(overrides)
    if isinstance(engine := source.values.get("engine"), str):
        try:
            check_name(engine)
        except FedstillError as error:
            raise FedstillError(f"{source.place(['engine'])}: {error}") from error
    return source


def _read(path: Path) -> Any:
    """A file, or a recipe by its name."""
    from fedstill.common.plugins import nearest
    from fedstill.config.source import Source
    from fedstill.papers.recipe import recipe_files, recipe_path

    found = path if path.is_file() else recipe_path(path.as_posix())
    if found is None and path.suffix not in (".yaml", ".yml"):
        raise FedstillError(f"there is no file or recipe {str(path)!r}; {nearest(path.as_posix(), recipe_files())}")
    return Source.read(found or path)


@contextmanager
def _saying_how_to_go_on(folder: Path, again: str) -> Iterator[None]:
    """Turn an interruption, or the loss of a rank, into an error with the command that continues the run."""
    from fedstill.engines import ranks
    from fedstill.engines.runner import stopping_on_sigterm

    if trusts_all() and "--resume" in again:
        again = f"{again} --trust-code"
    try:
        with stopping_on_sigterm(for_good=True):
            yield
    except (KeyboardInterrupt, ranks.LostRank) as stop:
        begun = (folder / "experiment.yaml").exists()
        if (lost := stop if isinstance(stop, ranks.LostRank) else ranks.loss()) is not None:
            raise FedstillError(
                f"{lost} The last checkpoint is whole; go on with: {again}" if begun else str(lost)
            ) from stop
        raise Stopped(f"Go on with: {again}" if begun else "Nothing was written yet.") from stop
