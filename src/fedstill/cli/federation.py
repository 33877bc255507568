"""`fedstill federation`: the commands of the centre, of the sites, and the rehearsal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fedstill.common.errors import FedstillError

if TYPE_CHECKING:
    from fedstill.federation.operate import Centre

app = typer.Typer(
    help="""A real federation: organisations on their own machines, which trust only certificates.

    Try it on one machine first: [bold]fedstill federation rehearse tweets[/].
    Then the centre runs [bold]init[/], [bold]serve[/] and [bold]submit[/], and every site [bold]join[/].""",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
console = Console()

Folder = Annotated[Path, typer.Option("--folder", help="The federation's folder, made by `init`.")]
JobName = Annotated[str | None, typer.Argument(help="A job's id, or its first characters; default: the newest job.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, once, instead of a table.")]
Detach = Annotated[bool, typer.Option("--detach", help="Run in the background.")]
HERE = Path("federation")


def say(line: str) -> None:
    """Print a line for the operator."""
    console.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)


def tell(line: str) -> None:
    """Print it where it is not in the way of what a script reads."""
    Console(stderr=True).print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)


@app.command()
def init(
    file: Annotated[
        Path, typer.Argument(help="name, host, port, admin_port, bind, sites, days: see docs/federation.md")
    ],
    out: Annotated[Path, typer.Option(help="Where the federation goes.")] = HERE,
    renew: Annotated[bool, typer.Option("--renew", help="New certificates for everybody.")] = False,
) -> None:
    """Centre: make a kit with certificates and locked-down policies for everybody.

    Next: send every site its kit over a secure channel, then [bold]fedstill federation serve --server server.yaml[/].
    """
    from fedstill.federation import kits
    from fedstill.federation.files import FederationFile, read_file

    made = kits.init(read_file(file, FederationFile), out, renew)
    for name, kit in made.sites.items():
        say(f"{name}: {kit}")
    for name in made.removed:
        say(f"{name} is no longer in {file}: the centre refuses it from its next start on.")
    say(f"certificates are good until {made.good_until:%Y-%m-%d}; {out / 'state'} holds all keys: keep it to yourself")
    say("next: hand every site its kit, then run: fedstill federation serve --server server.yaml")


@app.command()
def serve(
    server: Annotated[Path | None, typer.Option(help="server.yaml; default: as given the last time.")] = None,
    folder: Folder = HERE,
    detach: Detach = False,
) -> None:
    """Centre: check everything and run the federation's server until Ctrl-C.

    Next: [bold]fedstill federation submit EXPERIMENT[/] in another terminal; sites join whenever they like.
    """
    from fedstill.federation.daemon import Presence, answers
    from fedstill.federation.daemon import detach as go_on
    from fedstill.federation.operate import Centre, prepare_centre
    from fedstill.federation.operate import serve as run_server

    centre = Centre(folder)
    if (pid := Presence(folder / "centre").pid) is not None:
        raise FedstillError(f"this federation is being served already, by process {pid}.")
    prepare_centre(centre, server, say)
    if detach:
        port = centre.file.admin_port
        pid = go_on(
            ["federation", "serve", "--folder", str(folder)],
            folder / "centre" / "log" / "serve.log",
            lambda: not answers("127.0.0.1", port, 1.0),
        )
        say(f"serving in process {pid}; end it with: fedstill federation stop --server")
        return
    with _until_interrupted("The server has stopped; `serve` starts it again."):
        run_server(centre, say)


@app.command()
def submit(
    experiment: Annotated[Path, typer.Argument(help="An experiment file, or the name of a recipe.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, dotted.")] = None,
    folder: Folder = HERE,
    detach: Annotated[bool, typer.Option("--detach", help="Submit it and do not follow it.")] = False,
) -> None:
    """Centre: run an experiment with the sites, and follow it; the same command continues an interrupted one.

    While this command runs, a job that ends early is submitted again and continues after its last finished round.
    Next: [bold]fedstill federation status[/] to look, [bold]fedstill federation fetch[/] when it is finished.
    """
    from fedstill.config.experiment import from_source
    from fedstill.federation import submission

    chosen = from_source(_source(experiment, overrides))
    centre = _centre(folder)
    job = submission.make_job(centre, chosen)
    say(f"{job.id}; its hash, for sites that list the experiments they accept: {job.hash[:16]}")
    try:
        with _showing() as show:
            record = submission.submit(centre, job, say, chosen.quorum, follows=not detach, show=show)
    except KeyboardInterrupt:
        if submission.under_way(centre, centre.runs / job.id) is None:
            say("nothing is running: the job was not handed in; run this command again to submit it.")
        else:
            say("the job continues, but is not submitted again if it ends early; run this command again to follow it.")
        raise typer.Exit(130) from None
    if record is not None:
        say(f"finished; next: fedstill federation fetch {job.id}")


@app.command()
def status(
    job: JobName = None,
    folder: Folder = HERE,
    once: Annotated[bool, typer.Option("--once", help="Print it once, instead of keeping it up to date.")] = False,
    as_json: Json = False,
) -> None:
    """Centre: show sites, round, score, bytes, and who is late; updated until Ctrl-C.

    Next: [bold]fedstill federation fetch[/] when it is finished, [bold]fedstill federation stop[/] to end it.
    """
    from rich.live import Live

    from fedstill.federation.operate import AdminLine
    from fedstill.federation.view import facts, picture

    centre = _centre(folder)
    with AdminLine(centre) as line:
        if as_json:
            print(json.dumps(facts(line, job), indent=1))
            return
        if once or not console.is_terminal:
            console.print(picture(line, job), highlight=False)
            return
        try:
            with Live(picture(line, job), console=console, auto_refresh=False) as live:
                while True:
                    time.sleep(1.0)
                    live.update(picture(line, job), refresh=True)
        except KeyboardInterrupt:
            return


@app.command()
def stop(
    job: JobName = None,
    folder: Folder = HERE,
    now: Annotated[bool, typer.Option("--now", help="Immediately; the current round is repeated later.")] = False,
    server: Annotated[bool, typer.Option("--server", help="Stop the server instead of a job.")] = False,
) -> None:
    """Centre: end a job after its current round, or end the server.

    Next: [bold]fedstill federation submit[/] with the same experiment continues after the last finished round.
    """
    from fedstill.federation.daemon import Presence
    from fedstill.federation.operate import stop as end_job

    centre = _centre(folder)
    if not server:
        end_job(centre, job, now, say)
    elif Presence(folder / "centre").end():
        say("the server has stopped; start it again with: fedstill federation serve")
    else:
        say("the server was not running.")


@app.command()
def fetch(
    job: JobName = None,
    folder: Folder = HERE,
    out: Annotated[Path | None, typer.Option(help="Where it goes instead of runs/<name>/seed-<n>.")] = None,
    as_json: Json = False,
) -> None:
    """Centre: copy the record of a finished job; it has the same files as a local run's.

    Next: [bold]fedstill compare[/] and [bold]fedstill predict[/] with its folder.
    """
    from fedstill.cli.gains import tell_members, to_json
    from fedstill.federation.operate import fetch as fetch_record

    centre = _centre(folder)
    target = fetch_record(centre, job, out)
    if as_json:
        print(json.dumps(to_json([target]), indent=1))
        return
    tell_members(console, [target])
    say(f"{target}; next: fedstill compare {target}")


@app.command()
def join(
    kit: Annotated[Path, typer.Argument(help="The folder that the centre has handed out.")],
    site: Annotated[Path, typer.Option(help="site.yaml: what this site has and allows.")],
    check: Annotated[bool, typer.Option("--check", help="Only check that everything is in order.")] = False,
    detach: Detach = False,
) -> None:
    """Site: check kit, data, disk, versions and connection, then take part until Ctrl-C.

    Next: nothing; the centre begins. [bold]fedstill federation leave KIT[/] ends it from another terminal.
    """
    from fedstill.federation.daemon import Presence
    from fedstill.federation.daemon import detach as go_on
    from fedstill.federation.joining import join as take_part
    from fedstill.federation.joining import prepare_site, takes_part_already

    if not check and (pid := takes_part_already(kit, site)) is not None:
        say(f"it takes part already, in process {pid}; leave with: fedstill federation leave {kit}")
        return
    name = prepare_site(kit, site, say, is_kept=not check)
    if check:
        say(f"everything is in order; next: fedstill federation join {kit} --site {site}")
        return
    if detach:
        words = ["federation", "join", str(kit), "--site", str(site)]
        pid = go_on(words, kit / "log" / "join.log", lambda: Presence(kit).pid is not None)
        say(f"{name} takes part in process {pid}; leave with: fedstill federation leave {kit}")
        return
    with _until_interrupted(f"{name} has left; `join` continues where it stopped."):
        take_part(kit, name, say)


@app.command()
def sent(
    place: Annotated[Path, typer.Argument(help="The site's kit, or the folder with its sent.jsonl.")] = Path(),
    last: Annotated[int, typer.Option(help="How many of the last answers are listed; 0: all.", min=0)] = 20,
    as_json: Json = False,
) -> None:
    """Site: show everything that has left, and what is left of its budgets.

    Next: [bold]limits:[/] in site.yaml sets budgets of rounds, calls and bytes; see docs/federation.md.
    """
    from fedstill.federation.budget import read_sent, sent_by
    from fedstill.federation.view import what_left

    if as_json:
        print(json.dumps(list(read_sent(sent_by(place)))[-last:], indent=1))
        return
    console.print(what_left(place, last), highlight=False)


@app.command()
def leave(
    kit: Annotated[Path, typer.Argument(help="The folder that the centre has handed out.")],
    forget: Annotated[
        bool, typer.Option("--forget", help="Also remove states, models, tokens, public samples and logs.")
    ] = False,
) -> None:
    """Site: stop taking part; its state is kept unless you say --forget.

    Next: [bold]fedstill federation join[/] with the same kit takes part again.
    """
    from fedstill.common.units import size_text
    from fedstill.federation import joining

    has_left = joining.leave(kit)
    say("it has left." if has_left else "it was not taking part.")
    for line in joining.gained(kit, forget):
        say(line)
    remains = joining.remains(kit)
    if forget:
        joining.forget(kit)
    if remains:
        named = f"{', '.join(remains)} ({size_text(sum(remains.values()))})"
        say(f"removed from {kit}: {named}" if forget else f"{kit} still has {named}; `leave --forget` removes that.")
    if has_left and not forget:
        say("`join` continues where it stopped.")


@app.command()
def rehearse(
    experiment: Annotated[Path, typer.Argument(help="An experiment file, or the name of a recipe.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, dotted.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where everything goes instead of rehearsals/<name>.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Delete an earlier rehearsal there.")] = False,
    as_json: Json = False,
) -> None:
    """Run a whole federation on this machine, with real processes and real certificates, and tear it down.

    Every client of the simulated experiment becomes a site. The files that remain are examples for a real federation:
    the kits, every site's site.yaml, the centre's server.yaml, and the record.
    Next: [bold]fedstill compare[/] its record with that of a local run.
    """
    from fedstill.cli.gains import tell_members, to_json
    from fedstill.config.experiment import from_source
    from fedstill.federation.rehearsal import rehearse as run_all
    from fedstill.results.compare import compare, load_runs
    from fedstill.results.table import render

    chosen = from_source(_source(experiment, overrides))
    folder = out or Path("rehearsals") / chosen.name
    with _until_interrupted(f"The rehearsal was ended; its files are in {folder}.", 130), _showing() as show:
        record = run_all(chosen, folder, tell if as_json else say, force, show)
    if as_json:
        print(json.dumps(to_json([record]), indent=1))
        return
    console.print(render(compare(load_runs([record])), console.width))
    tell_members(console, [record])
    say(f"{record}; the sites' and the centre's own files are beside it.")


def _centre(folder: Path) -> Centre:
    """The federation in a folder; an error if there is none."""
    from fedstill.federation.kits import kits_in
    from fedstill.federation.operate import Centre

    kits_in(folder)
    return Centre(folder)


def _source(experiment: Path, overrides: list[str] | None) -> Any:
    from fedstill.cli.common import experiment_source

    return experiment_source(experiment, overrides or [])


@contextmanager
def _showing() -> Iterator[Callable[[str], None]]:
    """On a terminal, a last line that is kept up to date."""
    if not console.is_terminal:
        yield lambda line: None
        return
    with console.status("") as spinner:
        yield lambda line: spinner.update(escape(line))


@contextmanager
def _until_interrupted(farewell: str, code: int = 0) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the command with a message instead of a traceback."""
    from fedstill.engines.stopping import stopping_on_sigterm

    try:
        with stopping_on_sigterm():
            yield
    except KeyboardInterrupt:
        say(farewell)
        raise typer.Exit(code) from None
