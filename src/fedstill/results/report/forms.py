"""Forms of charts: lines, stacked bars and heat maps, as figures for Plotly, each with its numbers as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from fedstill.results.drawing.ink import COLOURS
from fedstill.results.report.series import Curves, Grid
from fedstill.wire.messages import SERVER

Figure = dict[str, Any]

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagon")
PATTERNS = ("", "/", "x", ".", "-", "+", "\\", "|")
SHADES = ((0, "#eef5fc"), (0.5, "#6aaed6"), (1, "#08306b"))
NUMBERS_FIT = 120
"""Heat maps of at most so many cells have a number in each."""
LONGEST_TABLE = 400
"""Rows; a longer table is in the record only."""


@dataclass(frozen=True)
class Table:
    """Headings, and rows of as many cells."""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Chart:
    """A figure, what it shows, how to read it, and its numbers."""

    title: str
    says: str
    figure: Figure
    table: Table


def lines_chart(title: str, says: str, curves: Curves, unit: str, order: Sequence[str] = ()) -> Chart | None:
    """Lines by round, each with its own dash and marker; names keep the looks of their place in `order`."""
    known = {name: curve for name, curve in curves.items() if curve}
    if not known:
        return None
    places = {name: place for place, name in enumerate(dict.fromkeys((*order, *known)))}
    traces = [
        line(name, list(curve), list(curve.values()), places[name]) | {"hovertemplate": "%{y:.2f}"}
        for name, curve in known.items()
    ]
    rounds = sorted({number for curve in known.values() for number in curve})
    layout = {
        "xaxis": {"title": {"text": "round"}, **({"dtick": 1} if len(rounds) <= 12 else {})},
        "yaxis": {"title": {"text": unit}},
        "hovermode": "x unified",
        "height": height_for(known),
    }
    rows = ((str(number), *(shown(curve.get(number), unit) for curve in known.values())) for number in rounds)
    return Chart(title, says, {"data": traces, "layout": layout}, cut(("round", *known), rows))


def bars_chart(
    title: str, says: str, curves: Curves, across: str, unit: str, show: Any = lambda value: f"{value:.2f}"
) -> Chart | None:
    """Bars by round, stacked, each part with its own pattern."""
    known = {name: curve for name, curve in curves.items() if any(curve.values())}
    if not known:
        return None
    rounds = sorted({number for curve in known.values() for number in curve})
    traces = [
        {
            "type": "bar",
            "name": name,
            "x": rounds,
            "y": [curve.get(number, 0.0) for number in rounds],
            "marker": filling(number),
            "hovertemplate": "%{y:.3s}",
        }
        for number, (name, curve) in enumerate(known.items())
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": across}, **({"dtick": 1} if len(rounds) <= 12 else {})},
        "yaxis": {"title": {"text": unit}},
        "hovermode": "x unified",
    }
    rows = ((str(number), *(show(curve.get(number, 0.0)) for curve in known.values())) for number in rounds)
    return Chart(title, says, {"data": traces, "layout": layout}, cut((across, *known), rows))


def heat_map(title: str, says: str, grid: Grid, across: str, down: str, what: str) -> Chart:
    """A heat map; with a number in each cell where they fit."""
    has_numbers = len(grid.rows) * len(grid.columns) <= NUMBERS_FIT and len(grid.columns) <= 14
    whole = what == "rows"
    trace = {
        "type": "heatmap",
        "z": grid.values,
        "x": grid.columns,
        "y": grid.rows,
        "colorscale": SHADES,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"title": {"text": what}, "thickness": 12},
        "hovertemplate": f"{down} %{{y}}, {across} %{{x}}: %{{z}}<extra></extra>",
        "zmin": 0,
        "zmax": max((value for row in grid.values for value in row if value is not None), default=1) or 1,
        **({"texttemplate": "%{z}" if whole else "%{z:.3f}"} if has_numbers else {}),
    }
    layout = {
        "xaxis": {"title": {"text": across}, "type": "category", "showgrid": False},
        "yaxis": {"title": {"text": down}, "type": "category", "showgrid": False, "autorange": "reversed"},
        "height": max(280, 150 + min(28 * len(grid.rows), 600)),
    }
    rows = (
        (name, *("–" if value is None else f"{value:,}" if whole else f"{value:.3f}" for value in values))
        for name, values in zip(grid.rows, grid.values, strict=True)
    )
    heading = (f"{down} \\ {across}", *grid.columns)
    return Chart(title, says, {"data": [trace], "layout": layout}, cut(heading, rows))


def height_for(named: Sized) -> int:
    """Room for a legend of so many names above the lines."""
    return 340 + 12 * max(0, len(named) - 6)


def line(name: str, across: Sequence[float], up: Sequence[float], number: int) -> Figure:
    """A line with the looks of its number; the server's is thicker."""
    is_server = name == SERVER
    colour = COLOURS[number % len(COLOURS)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": across,
        "y": up,
        "line": {"color": colour, "dash": DASHES[number % len(DASHES)], "width": 4 if is_server else 2},
        "marker": {"color": colour, "symbol": MARKERS[number % len(MARKERS)], "size": 10 if is_server else 8},
    }


def filling(number: int) -> Figure:
    """The looks of bars of a number."""
    pattern = {"shape": PATTERNS[number % len(PATTERNS)], "solidity": 0.3, "fillmode": "overlay"}
    return {"color": COLOURS[number % len(COLOURS)], "pattern": pattern}


def in_points(curves: Curves) -> Curves:
    """Shares as points."""
    return {name: {number: 100 * value for number, value in curve.items()} for name, curve in curves.items()}


def shown(value: float | None, unit: str = "points") -> str:
    """A number of this unit in a table."""
    return "–" if value is None else f"{value:.1f}" if unit == "points" else f"{value:.3f}"


def cut(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    """A table, or only its first rows and a line that says so."""
    every = tuple(rows)
    if len(every) <= LONGEST_TABLE:
        return Table(heading, every)
    more = (f"and {len(every) - LONGEST_TABLE} more, in the record", *("" for _ in heading[1:]))
    return Table(heading, (*every[:LONGEST_TABLE], more))
