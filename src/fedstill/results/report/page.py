"""The page: one HTML file with everything in it, which opens from disk and asks nothing of a network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole
from fedstill.common.units import size_text
from fedstill.common.version import VERSION
from fedstill.results.compare import Difference, MethodRow, Spread
from fedstill.results.members import ALONE
from fedstill.results.record import Record
from fedstill.results.report.board import Board, boards
from fedstill.results.report.board_charts import board_charts
from fedstill.results.report.charts import run_charts
from fedstill.results.report.forms import Chart
from fedstill.results.report.material import reading_once
from fedstill.results.report.series import RunSeries, series
from fedstill.results.runs import Run, Runs, load_run, load_runs
from fedstill.results.significance import p_text

HERE = Path(__file__).parent
NAME = "report.html"
MANY_DOMAINS = 8
"""With more domains than this, the leaderboard has no column for each."""
TEMPLATES = ("hovertemplate", "texttemplate")
"""Keys of figures whose values are ours and hold Plotly's markup; every other text is shown as it is."""


@dataclass(frozen=True)
class Panel:
    """A table of what goes on now: runs, or the sites of a federation."""

    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class Live:
    """What a page that follows runs shows beside them."""

    title: str
    stamp: str
    """Of the runs as the page shows them."""
    words: str
    """How they stand."""
    left: str = ""
    """About how long they still take."""
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True)
class Cell:
    """A cell of a table that can be sorted: what is shown, and the number or word to sort by."""

    shown: str
    value: float | str | None = None


def write_page(paths: Sequence[Path], out: Path | None = None, has_texts: bool = True) -> Path:
    """Write the page of all finished runs at or below the paths; returns where it is."""
    target = out or (paths[0] / NAME if len(paths) == 1 else Path(NAME))
    write_whole(target, page(load_runs(paths), has_texts).encode())
    return target


def is_available() -> bool:
    """Whether the packages that pages are made with are installed."""
    try:
        packages()
    except FedstillError:
        return False
    return True


def page(runs: Runs, has_texts: bool = True) -> str:
    """The page of finished runs: of one, or of several compared and one after the other."""
    read = reading_once()
    shown = [series(run, read, alone(run, runs), has_texts) for run in runs]
    return render(shown, boards(shown), [f"{folder} is not finished" for folder in runs.skipped])


def render(
    shown: Sequence[RunSeries],
    compared: Sequence[Board],
    left_out: Sequence[str] = (),
    live: Live | None = None,
    is_whole: bool = True,
) -> str:
    """The page of runs and comparisons; with `live` it follows them. Not whole: only what changes of an open page."""
    jinja2, plotly = packages()
    figures = _Figures()
    context = {
        "runs": [(run, figures.of(run_charts(run))) for run in shown],
        "boards": [(board, _leaderboard(board), figures.of({"": board_charts(board)})[""]) for board in compared],
        "left_out": left_out,
        "live": live,
        "version": VERSION,
        "size_text": size_text,
        "points": lambda value: "–" if value is None else f"{100 * value:.1f}",
    }
    data = json.dumps(figures.plain, allow_nan=False, separators=(",", ":"))
    html: str = (
        _environment(jinja2)
        .get_template("page.html")
        .render(
            context,
            # Inside a script element only "</" and "<!--" mean something; in JSON, < may be written as an escape.
            data=data.replace("<", "\\u003c"),
            nonce=hashlib.sha256(data.encode()).hexdigest()[:24] if live is None else secrets.token_hex(12),
            style=(HERE / "page.css").read_text(encoding="utf-8") if is_whole else "",
            script=(HERE / "page.js").read_text(encoding="utf-8") if is_whole else "",
            plotly=_packed(plotly.get_plotlyjs()) if is_whole else "",
        )
    )
    return html.lstrip()


def render_panels(panels: Sequence[Panel]) -> str:
    """The panels alone, as they stand on the page."""
    module = _environment(packages()[0]).get_template("page.html").make_module({"live": None, "runs": [], "boards": []})
    html: str = module.panels(panels)
    return html


@cache
def _environment(jinja2: Any) -> Any:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )


@cache
def _packed(script: str) -> str:
    return base64.b64encode(gzip.compress(script.encode(), 6, mtime=0)).decode()


class _Figures:
    """Charts with the names under which the page's script finds their figures."""

    def __init__(self) -> None:
        self.plain: dict[str, Any] = {}

    def of(self, charts: dict[str, list[Chart]]) -> dict[str, list[tuple[str, Chart]]]:
        """The charts, each with its name."""
        return {part: list(self._named(every)) for part, every in charts.items()}

    def _named(self, charts: Sequence[Chart]) -> Iterator[tuple[str, Chart]]:
        for chart in charts:
            name = f"chart-{len(self.plain)}"
            self.plain[name] = plain(chart.figure)
            yield name, chart


def plain(value: Any, key: str = "") -> Any:
    """A figure's part as JSON can hold it: finite numbers, shortened; text that Plotly does not take for markup."""
    if isinstance(value, dict):
        return {name: plain(inside, name) for name, inside in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inside, key) for inside in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, str) and key not in TEMPLATES:
        return value.replace("&", "&amp;").replace("<", "&lt;")
    return value


def alone(run: Run, runs: Sequence[Run]) -> Run | None:
    """The run of the same seed and test in which every client works alone: one of these, or the run's own."""
    among = next(
        (
            other
            for other in runs
            if other.algorithm == "Local"
            and run.algorithm != "Local"
            and (other.seed, other.test_fingerprint) == (run.seed, run.test_fingerprint)
        ),
        None,
    )
    own = run.folder / ALONE
    return among or (load_run(own) if Record(own).is_finished else None)


def _leaderboard(board: Board) -> tuple[list[str], list[list[Cell]]]:
    """Headings and cells: the best first, upper bounds last."""
    comparison = board.comparison
    domains = comparison.domains if len(comparison.domains) <= MANY_DOMAINS else ()
    heading = ["method", "score", *(["letters"] if board.letters else []), *domains, "clients' mean"]
    heading += [f"against {comparison.against} (p seeds; p rows)"] if comparison.against is not None else []
    heading += ["bytes up", "bytes down", "seconds", *(["epsilon"] if board.epsilon else []), "seeds"]
    order = sorted(
        comparison.rows,
        key=lambda row: (row.role == "upper bound", -row.overall.mean if row.overall is not None else math.inf),
    )
    return heading, [list(_cells(board, row, domains)) for row in order]


def _cells(board: Board, row: MethodRow, domains: Sequence[str]) -> Iterator[Cell]:
    yield Cell(row.method + (f" ({row.role})" if row.role == "upper bound" else ""), row.method)
    yield _spread(row.overall)
    if board.letters:
        yield Cell(board.letters[row.method], board.letters[row.method])
    for name in domains:
        yield _spread(row.domains[name])
    yield _spread(row.clients_mean)
    if board.comparison.against is not None:
        yield _difference(row.difference)
    yield Cell(size_text(row.bytes_up), row.bytes_up)
    yield Cell(size_text(row.bytes_down), row.bytes_down)
    yield Cell(f"{row.seconds:.1f}", row.seconds)
    if board.epsilon:
        spent = board.epsilon.get(row.method)
        yield Cell("–" if spent is None else f"{spent:.2f}", spent)
    yield Cell(str(len(row.seeds)), len(row.seeds))


def _spread(spread: Spread | None) -> Cell:
    if spread is None:
        return Cell("–")
    deviation = "" if spread.deviation is None else f" ± {100 * spread.deviation:.1f}"
    return Cell(f"{100 * spread.mean:.1f}{deviation}", spread.mean)


def _difference(found: Difference | None) -> Cell:
    if found is None:
        return Cell("–")
    both = (found.p_seeds, None if found.bootstrap is None else found.bootstrap.p)
    said = "; ".join("–" if value is None else p_text(value) for value in both)
    return Cell(f"{100 * found.mean:+.1f} ({said})", found.mean)


def packages() -> tuple[Any, Any]:
    try:
        import jinja2
        import plotly.offline
    except ImportError as error:
        raise FedstillError(
            'A report page needs the packages `jinja2` and `plotly`: run `pip install "fedstill[report]"`.'
        ) from error
    return jinja2, plotly.offline
