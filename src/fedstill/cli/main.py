"""The commands of `fedstill`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedstill.cli.common import Json, Stopped, console, errors, experiment_source
from fedstill.cli.federation import app as federation
from fedstill.cli.figure import figure
from fedstill.cli.predict import predict
from fedstill.cli.push import push
from fedstill.cli.report import report
from fedstill.cli.reproduce import reproduce
from fedstill.cli.run import run
from fedstill.cli.show import show
from fedstill.cli.watch import watch
from fedstill.common.allocator import keep_freed_memory
from fedstill.common.errors import FedstillError
from fedstill.common.traces import in_words, own_frames
from fedstill.common.trust import trusting
from fedstill.common.version import VERSION

app = typer.Typer(
    help="Federated distillation for text: organisations teach each other without moving their data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(federation, name="federation")


def main() -> None:
    """The entry point; of the ranks that torchrun started, only the first runs the command and prints."""
    keep_freed_memory()
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
    finally:
        # A KeyboardInterrupt in code that comes from a string, as an import's dataclasses do, makes `python -m` end by
        # the signal whatever the exit code, even if it was caught; running any such code makes it forget that.
        exec("")


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


app.command()(run)
app.command()(reproduce)


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
