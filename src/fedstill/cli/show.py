"""`fedstill show`: what there is to choose from, one method in full, advice, and the papers' claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedstill.common.errors import FedstillError

if TYPE_CHECKING:
    from fedstill.cli.method import Method

KINDS = ("corpora", "models", "algorithms", "recipes", "claims")


def show(
    what: Annotated[
        str, typer.Argument(help="corpora, models, algorithms, recipes, claims, or a method's name, as AdaFD.")
    ],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, dotted, for --advise.")] = None,
    advise: Annotated[
        Path | None, typer.Option(help="Algorithms: say which to try with this experiment or recipe, and why.")
    ] = None,
    most: Annotated[
        str | None, typer.Option("--bytes", help="With --advise: the most that may cross in a round, as 500KB.")
    ] = None,
    predictions_only: Annotated[
        bool, typer.Option("--predictions-only", help="With --advise: clients must not send their parameters.")
    ] = False,
    untrusted: Annotated[bool, typer.Option("--untrusted", help="With --advise: some clients may lie.")] = False,
    kept: Annotated[Path | None, typer.Option("--from", help="The folder of kept runs that judge the claims.")] = None,
    write: Annotated[Path | None, typer.Option(help="Write the page of the claims here instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List what can be chosen, with needs and costs; one method's options; what fits an experiment; the claims."""
    from dataclasses import asdict

    from fedstill.cli import catalogue
    from fedstill.cli.method import is_method, method

    console = Console()
    if advise or overrides or most or predictions_only or untrusted:
        if advise is None and overrides and is_method(overrides[0]):
            raise FedstillError(f"a method's options are shown by its name alone: fedstill show {overrides[0]}")
        if advise is None or what != "algorithms" or kept or write:
            raise FedstillError(
                "advice is about algorithms: fedstill show algorithms --advise EXPERIMENT [key=value ...]"
            )
        told = _advice(advise, overrides or [], most, predictions_only, untrusted)
        print(json.dumps(told, indent=1)) if as_json else catalogue.tell_advice(told, console, untrusted)
        return
    if what != "claims" and (kept or write):
        raise FedstillError(f"--from and --write are for the claims: `fedstill show claims`, not `show {what}`.")
    folder = kept or Path("evidence")
    if write is not None:
        catalogue.write_claims(folder, write)
        console.print(f"Written to {write}", highlight=False, soft_wrap=True)
    elif what in KINDS:
        _print_page(what, catalogue.page(what, folder), console, as_json)
    elif is_method(what):
        found = method(what)
        print(json.dumps(asdict(found), indent=1)) if as_json else _tell(found, console)
    else:
        raise FedstillError(f"there is nothing to show about {what!r}; {catalogue.near(what, KINDS)}")


def _print_page(what: str, page: Any, console: Console, as_json: bool) -> None:
    from fedstill.results.fitting import fit

    heading, rows = page
    if as_json:
        print(json.dumps([dict(zip(heading, row, strict=True)) for row in rows], indent=1, ensure_ascii=False))
        return
    table = Table(title=what, title_justify="left")
    for column in heading:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(fit(table, console.width))


def _tell(found: Method, console: Console) -> None:
    """A method, as text and a table of its options."""
    from fedstill.common.plugins import is_own
    from fedstill.results.fitting import fit

    letters = " (N public samples, C classes, K clients, P parameters)"
    lines = {
        "paper": found.paper or "none",
        "needs": ", ".join(found.needs) or "nothing",
        "clients send": " and ".join(found.sends) or "nothing",
        "numbers per round": found.cost + letters if found.cost else "not stated",
    }
    console.print(Text(f"{found.name}: {found.what}" if found.what else found.name, style="bold"))
    for key, value in lines.items():
        console.print(Text(f"{key}: {value}"))
    if found.about:
        console.print(Text(f"\n{found.about}\n"))
    if not found.options:
        console.print("It has no options.")
        return
    table = Table(title="options", title_justify="left")
    for column in ("option", "values", "default"):
        table.add_column(column, overflow="fold")
    for option in found.options:
        table.add_row(*map(Text, (option.name, option.type, option.default)))
    console.print(fit(table, console.width))
    first = found.options[0]
    said = f"fedstill run x.yaml 'algorithm={{name: {found.name}, {first.name}: {first.default}}}'"
    said += " --trust-code" if is_own(found.name) else ""
    console.print(f"In an experiment: {said}", highlight=False, soft_wrap=True, markup=False)


def _advice(
    path: Path, overrides: list[str], most: str | None, predictions_only: bool, untrusted: bool
) -> dict[str, Any]:
    """Which algorithms fit an experiment and what its users allow."""
    from fedstill.cli.catalogue import advice
    from fedstill.cli.common import experiment_source
    from fedstill.common.units import bytes_of
    from fedstill.config.experiment import from_source
    from fedstill.plan.advice import Wishes

    source = experiment_source(path, overrides)
    try:
        wishes = Wishes(bytes_of(most), predictions_only, untrusted)
    except ValueError as error:
        raise FedstillError(f"--bytes: {error}.") from error
    return advice(from_source(source), wishes)
