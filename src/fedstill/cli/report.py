"""`fedstill report`: finished runs as one page, and where other commands say that it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedstill.common.errors import FedstillError

console = Console()


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the page goes instead of RUN/report.html, or report.html for several.")
    ] = None,
    texts: Annotated[
        bool, typer.Option("--texts/--no-texts", help="Show some texts on which a client and the server disagree.")
    ] = True,
) -> None:
    """Make one page of finished runs: curves, weights, bytes, gains, confusion, what went wrong, how to repeat it."""
    from fedstill.results.report.page import write_page

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise FedstillError(f"--out {out}: a report is an HTML page; give a name that ends in .html.")
    tell_page(console, write_page(runs, out, texts))


def page_of(say: Console, folder: Path) -> None:
    """Write the page of the runs below a folder and say where it is; nothing where the packages for it are absent."""
    from fedstill.results.report.page import is_available, write_page

    if is_available():
        tell_page(say, write_page([folder]))


def tell_page(say: Console, page: Path) -> None:
    """Say where a page is."""
    say.print(f"Page: {page} (open it in a browser)", highlight=False, soft_wrap=True, markup=False)


def sparkline(values: Sequence[float]) -> str:
    """Values as a row of bars, from the lowest to the highest of them."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    step = (high - low) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (value - low) / step)] for value in values)
