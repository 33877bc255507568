"""`fedstill report`: finished runs as one page; and what other commands say of it and of the score by round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedstill.common.errors import FedstillError

BARS = "▁▂▃▄▅▆▇█"


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the page goes instead of RUN/report.html, or report.html for several.")
    ] = None,
    texts: Annotated[
        bool, typer.Option("--texts/--no-texts", help="Show some texts on which a client and the server disagree.")
    ] = True,
) -> None:
    """Make one page of finished runs: curves, weights, bytes, gains, what went wrong, how to repeat it."""
    from fedstill.results.report.page import write_page

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise FedstillError(f"--out {out}: a report is an HTML page; give a name that ends in .html.")
    _tell_page(Console(), write_page(runs, out, texts))


def page_of(console: Console, runs: Sequence[Path], folder: Path) -> None:
    """Write the page of some runs into a folder and say where it is, where the packages for it are installed."""
    from fedstill.results.report.page import NAME, is_available, write_page

    if not is_available():
        return
    try:
        _tell_page(console, write_page(runs, folder / NAME))
    except (FedstillError, OSError) as error:  # the runs are finished and whole
        console.print(f"No page: {error}", style="yellow", soft_wrap=True, markup=False)


def tell_rounds(console: Console, folders: Sequence[Path]) -> None:
    """The score by round of every run, as a row of bars from its lowest to its highest, where a terminal has them."""
    from fedstill.learning.metrics import METRICS
    from fedstill.results.report.series import score_by_round
    from fedstill.results.runs import load_runs

    if not (console.encoding or "").lower().startswith("utf"):
        return
    for run in load_runs(folders):
        scores = [100 * value for value in score_by_round(run).values()]
        if len(scores) > 1:
            seed = f", seed {run.seed}" if len(folders) > 1 else ""
            said = f"{METRICS[run.metric].title} by round{seed}: {scores[0]:.1f} {sparkline(scores)} {scores[-1]:.1f}"
            console.print(said, highlight=False, soft_wrap=True, markup=False)


def sparkline(values: Sequence[float]) -> str:
    """Values as a row of bars, from the lowest to the highest of them."""
    low, high = min(values), max(values)
    step = (high - low) or 1.0
    return "".join(BARS[round((len(BARS) - 1) * (value - low) / step)] for value in values)


def _tell_page(console: Console, page: Path) -> None:
    console.print(f"Page: {page}", highlight=False, soft_wrap=True, markup=False)
