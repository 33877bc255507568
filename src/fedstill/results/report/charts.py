"""Charts as data: every function makes one figure for Plotly, with the same numbers as a table beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from fedstill.common.units import size_text
from fedstill.results.drawing.ink import COLOURS
from fedstill.results.report.answers import calibration_error
from fedstill.results.report.board import Board
from fedstill.results.report.series import MANY, Curves, Grid, RunSeries, fewer
from fedstill.results.significance import p_text
from fedstill.wire.messages import SERVER

Figure = dict[str, Any]

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagon")
PATTERNS = ("", "/", "x", ".", "-", "+", "\\", "|")
SHADES = ((0, "#eef5fc"), (0.5, "#6aaed6"), (1, "#08306b"))
MOST_BARS = 30
"""Domains; for more, the table of clients has the numbers."""
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


def run_charts(run: RunSeries) -> dict[str, list[Chart]]:
    """The charts of one run, by the part of the page in which they stand."""
    found: dict[str, list[Chart | None]] = {
        "trained": [holdings(run)],
        "went": [scores(run), domains(run), losses(run), weights(run), spent(run), bytes_by_round(run), seconds(run)],
        "out": [gains(run), confusion(run), reliability(run)],
    }
    return {part: [chart for chart in charts if chart is not None] for part, charts in found.items()}


def board_charts(board: Board) -> list[Chart]:
    """The charts of several runs."""
    found = [
        scores_by_method(board),
        against_rounds(board),
        against(board, board.bytes, "bytes so far", "Score against bytes"),
        against(board, board.seconds, "seconds so far", "Score against seconds"),
        against_epsilon(board),
        critical_difference(board),
    ]
    return [chart for chart in found if chart is not None]


def holdings(run: RunSeries) -> Chart | None:
    """How many training rows each client has of each label."""
    says = "Training rows: one column a client, one row a label (or task). The darker, the more."
    return None if run.holdings is None else _heat("Who holds what", says, run.holdings, "client", "label", "rows")


def scores(run: RunSeries) -> Chart | None:
    """Every party's score on the pooled test by round."""
    says = f"{run.caption}, on the pooled test, at the end of every round."
    return _lines("Score by round", says, _points(fewer(run.scores)), "points", _order(run))


def domains(run: RunSeries) -> Chart | None:
    """The score on every domain by round."""
    who = "The server's model" if run.run.server is not None else "Each client's own model"
    says = f"{who} on the test rows of each domain; {run.caption[0].lower()}{run.caption[1:]}."
    return _lines("Score by domain and round", says, _points(fewer(run.by_domain)), "points", _order(run))


def losses(run: RunSeries) -> Chart | None:
    """The losses that the method observed, by round."""
    return _lines("Loss by round", "Losses that parties told each other.", fewer(run.losses), "loss", _order(run))


def spent(run: RunSeries) -> Chart | None:
    """Every client's epsilon by round."""
    says = "The privacy that every client had spent after each round: the smaller, the less can be known of one row."
    return _lines("Epsilon by round", says, fewer(run.spent), "epsilon", _order(run))


def weights(run: RunSeries) -> Chart | None:
    """Every teacher's weight by round."""
    says = "The share that every teacher has in the blend of each round; equal shares would all have the same shade."
    return None if run.weights is None else _heat("Teachers' weights", says, run.weights, "round", "teacher", "weight")


def bytes_by_round(run: RunSeries) -> Chart | None:
    """Bytes by round, direction and message."""
    says = "Everything that crossed, for all recipients; up is to the server. Round 0 is the greeting."
    return _bars("Bytes by round", says, run.bytes, "round", "bytes", size_text)


def seconds(run: RunSeries) -> Chart | None:
    """Seconds by round and part."""
    return _bars("Seconds by round", "Where the time of every round went.", run.seconds, "round", "seconds")


def gains(run: RunSeries) -> Chart | None:
    """Alone, after, and the server's model, on every client's own rows."""
    own = {member.name: member.own for member in run.members if member.own is not None}
    series: dict[str, Mapping[str, float]] = {
        "client alone": {name: score.alone for name, score in own.items()},
        "client after": {name: score.after for name, score in own.items()},
        "server": run.server_by_domain,
    }
    names = list(dict.fromkeys(name for values in series.values() for name in values))
    if not names or len(names) > MOST_BARS:
        return None
    shown = {what: {name: 100 * value for name, value in values.items()} for what, values in series.items() if values}
    says = f"{run.caption} on each domain's test rows: its client alone and at the end, and the server's model."
    traces = [
        {
            "type": "bar",
            "name": what,
            "x": names,
            "y": [values.get(name) for name in names],
            "marker": _filled(number),
            "hovertemplate": "%{x}: %{y:.1f}",
        }
        for number, (what, values) in enumerate(shown.items())
    ]
    layout = {
        "barmode": "group",
        "xaxis": {"type": "category"},
        "yaxis": {"title": {"text": "points"}, "rangemode": "tozero"},
    }
    rows = tuple((name, *(_number(values.get(name)) for values in shown.values())) for name in names)
    return Chart("Score by domain", says, {"data": traces, "layout": layout}, Table(("domain", *shown), rows))


def confusion(run: RunSeries) -> Chart | None:
    """What was predicted for rows of every label."""
    says = f"Rows of the pooled test by true and predicted label, for {run.answered_by}; the diagonal is right."
    if run.confusion is None:
        return None
    return _heat("Confusion matrix", says, run.confusion, "predicted", "true", "rows")


def reliability(run: RunSeries) -> Chart | None:
    """How sure the model is, against how often it is right."""
    if not run.reliability:
        return None
    sure, right = ([100 * getattr(one, what) for one in run.reliability] for what in ("sure", "right"))
    rows = [one.rows for one in run.reliability]
    traces = [
        {"type": "scatter", "mode": "lines", "name": "sure as often as right", "x": [0, 100], "y": [0, 100]}
        | {"line": {"dash": "dot", "color": "#888888"}, "hoverinfo": "skip"},
        {"type": "scatter", "mode": "lines+markers", "name": run.answered_by, "x": sure, "y": right, "customdata": rows}
        | {"marker": {"symbol": "circle", "size": 9, "color": COLOURS[0]}, "line": {"color": COLOURS[0]}}
        | {"hovertemplate": "sure %{x:.1f}%, right %{y:.1f}%, %{customdata} rows"},
    ]
    layout = {
        "xaxis": {"title": {"text": "mean confidence, %"}, "range": [0, 103]},
        "yaxis": {"title": {"text": "right, %"}, "range": [0, 103]},
    }
    error = 100 * calibration_error(run.reliability)
    says = f"Below the dotted line the model is surer than it is right. Expected calibration error: {error:.1f} points."
    table = tuple(
        (f"{one:.1f}", f"{other:.1f}", f"{many:,}") for one, other, many in zip(sure, right, rows, strict=True)
    )
    heading = ("mean confidence, %", "right, %", "rows")
    return Chart("Reliability", says, {"data": traces, "layout": layout}, Table(heading, table))


def scores_by_method(board: Board) -> Chart | None:
    """Every method's score, with its spread over seeds."""
    rows = [row for row in board.comparison.rows if row.overall is not None]
    means = [100 * row.overall.mean for row in rows if row.overall is not None]
    spreads = [100 * (row.overall.deviation or 0.0) for row in rows if row.overall is not None]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": means,
        "y": [row.method for row in rows],
        "error_x": {"type": "data", "array": spreads, "visible": any(spreads)},
        "marker": {"size": 11, "color": COLOURS[0], "symbol": _symbols(row.role for row in rows)},
        "hovertemplate": "%{y}: %{x:.1f}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "points"}},
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": [row.method for row in rows]},
        "height": 140 + 28 * len(rows),
    }
    says = (
        f"{board.caption}; bars are one standard deviation over seeds. Circles are methods, squares baselines, "
        "stars upper bounds."
    )
    table = tuple(
        (row.method, f"{mean:.1f}", f"{spread:.1f}") for row, mean, spread in zip(rows, means, spreads, strict=True)
    )
    figure = {"data": [trace], "layout": layout}
    return Chart("Scores", says, figure, Table(("method", "mean", "standard deviation"), table)) if rows else None


def against_rounds(board: Board) -> Chart | None:
    """Every method's score by round."""
    says = f"{board.caption} on the pooled test, mean over seeds: the server's, or the clients' mean without one."
    return _lines("Score against rounds", says, _points(board.by_round), "points")


def against(board: Board, costs: Curves, across: str, title: str) -> Chart | None:
    """Every method's score against what it had cost by then; a point a round."""
    curves = {
        name: [(costs[name][number], 100 * value) for number, value in curve.items() if number in costs[name]]
        for name, curve in board.by_round.items()
    }
    traces = [
        _line(name, [cost for cost, _ in curve], [value for _, value in curve], number)
        | {"hovertemplate": f"%{{y:.1f}} at %{{x:.3s}} {across.split()[0]}"}
        for number, (name, curve) in enumerate(curves.items())
        if curve
    ]
    if not traces:
        return None
    layout = {
        "xaxis": {"title": {"text": across}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "points"}},
        "height": _height(traces),
    }
    show = size_text if across.startswith("bytes") else _number
    rows = tuple((name, show(cost), _number(value)) for name, curve in curves.items() for cost, value in curve)
    says = "A point a round, mean over seeds: up and to the left is better."
    return Chart(title, says, {"data": traces, "layout": layout}, _cut(("method", across, "points"), rows))


def against_epsilon(board: Board) -> Chart | None:
    """Every method's score against the privacy it spent."""
    means = {row.method: 100 * row.overall.mean for row in board.comparison.rows if row.overall is not None}
    spent = {name: value for name, value in board.epsilon.items() if name in means}
    if not spent:
        return None
    traces = [
        _line(name, [spent[name]], [means[name]], number) | {"mode": "markers"}
        for number, name in enumerate(board.by_round)
        if name in spent
    ]
    layout = {"xaxis": {"title": {"text": "epsilon"}, "rangemode": "tozero"}, "yaxis": {"title": {"text": "points"}}}
    rows = tuple((name, f"{value:.2f}", _number(means[name])) for name, value in spent.items())
    says = "The smaller epsilon, the less a message can tell about a row. Methods without it are not shown."
    figure = {"data": traces, "layout": layout}
    return Chart("Score against epsilon", says, figure, Table(("method", "epsilon", "points"), rows))


def critical_difference(board: Board) -> Chart | None:
    """Mean ranks on a line, with bars over methods that do not differ."""
    if (found := board.ranks) is None:
        return None
    order = sorted(found.means, key=lambda name: found.means[name])
    places = {name: -1.0 - number for number, name in enumerate(order)}
    traces: list[Figure] = [
        {
            "type": "scatter",
            "mode": "markers+text",
            "x": [found.means[name] for name in order],
            "y": [places[name] for name in order],
            "text": [f"  {name} ({found.means[name]:.2f})" for name in order],
            "textposition": [
                "middle right" if found.means[name] <= (1 + len(order)) / 2 else "middle left" for name in order
            ],
            "marker": {"size": 9, "color": COLOURS[0]},
            "cliponaxis": False,
            "hoverinfo": "skip",
        }
    ]
    for number, group in enumerate(found.groups):
        ends = [found.means[group[0]] - 0.04, found.means[group[-1]] + 0.04]
        height = 0.9 + 0.5 * number
        traces.append(
            {"type": "scatter", "mode": "lines", "x": ends, "y": [height, height], "hoverinfo": "skip"}
            | {"line": {"width": 5, "color": COLOURS[5]}}
        )
    top = 1.2 + 0.5 * len(found.groups)
    traces.append(
        {"type": "scatter", "mode": "lines+markers", "x": [1, 1 + found.critical], "y": [top, top], "hoverinfo": "skip"}
        | {"line": {"width": 2, "color": COLOURS[2]}, "marker": {"symbol": "line-ns-open", "size": 10}}
    )
    layout = {
        "showlegend": False,
        "xaxis": {
            "title": {"text": "mean rank, 1 is best"},
            "range": [0.6, len(order) + 0.4],
            "side": "top",
            "dtick": 1,
        },
        "yaxis": {"visible": False, "range": [-len(order) - 0.6, top + 0.6]},
        "height": 190 + 26 * (len(order) + len(found.groups)),
    }
    says = (
        f"Mean ranks over {found.blocks} blocks, one a seed and domain. The thin bar on top is the critical difference "
        f"({found.critical:.2f}, Nemenyi, 5%); thick bars join methods that differ by less. "
        f"Friedman's p: {p_text(found.p)}. "
        "Domains of one seed share a training, so take this as a rough guide."
    )
    rows = tuple((name, f"{found.means[name]:.2f}") for name in order)
    return Chart("Critical difference", says, {"data": traces, "layout": layout}, Table(("method", "mean rank"), rows))


def _lines(title: str, says: str, curves: Curves, unit: str, order: Sequence[str] = ()) -> Chart | None:
    """Lines by round, each with its own dash and marker; names keep the looks of their place in `order`."""
    known = {name: curve for name, curve in curves.items() if curve}
    if not known:
        return None
    places = {name: place for place, name in enumerate(dict.fromkeys((*order, *known)))}
    traces = [
        _line(name, list(curve), list(curve.values()), places[name]) | {"hovertemplate": "%{y:.2f}"}
        for name, curve in known.items()
    ]
    rounds = sorted({number for curve in known.values() for number in curve})
    layout = {
        "xaxis": {"title": {"text": "round"}, **({"dtick": 1} if len(rounds) <= 12 else {})},
        "yaxis": {"title": {"text": unit}},
        "hovermode": "x unified",
        "height": _height(known),
    }
    rows = ((str(number), *(_number(curve.get(number), unit) for curve in known.values())) for number in rounds)
    return Chart(title, says, {"data": traces, "layout": layout}, _cut(("round", *known), rows))


def _bars(
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
            "marker": _filled(number),
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
    return Chart(title, says, {"data": traces, "layout": layout}, _cut((across, *known), rows))


def _heat(title: str, says: str, grid: Grid, across: str, down: str, what: str) -> Chart:
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
    return Chart(title, says, {"data": [trace], "layout": layout}, _cut(heading, rows))


def _height(named: Sized) -> int:
    """Room for a legend of so many names above the lines."""
    return 340 + 12 * max(0, len(named) - 6)


def _order(run: RunSeries) -> tuple[str, ...]:
    """Parties as all charts of a run order them; with so many that they have no lines of their own, only the server."""
    return (SERVER, *(run.run.client_names if len(run.run.client_names) <= MANY else ()))


def _line(name: str, across: Sequence[float], up: Sequence[float], number: int) -> Figure:
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


def _filled(number: int) -> Figure:
    pattern = {"shape": PATTERNS[number % len(PATTERNS)], "solidity": 0.3, "fillmode": "overlay"}
    return {"color": COLOURS[number % len(COLOURS)], "pattern": pattern}


def _symbols(roles: Iterable[str]) -> list[str]:
    return [{"baseline": "square", "upper bound": "star"}.get(role, "circle") for role in roles]


def _points(curves: Curves) -> Curves:
    return {name: {number: 100 * value for number, value in curve.items()} for name, curve in curves.items()}


def _number(value: float | None, unit: str = "points") -> str:
    return "–" if value is None else f"{value:.1f}" if unit == "points" else f"{value:.3f}"


def _cut(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    """A table, or only its first rows and a line that says so."""
    every = tuple(rows)
    if len(every) <= LONGEST_TABLE:
        return Table(heading, every)
    more = (f"and {len(every) - LONGEST_TABLE} more, in the record", *("" for _ in heading[1:]))
    return Table(heading, (*every[:LONGEST_TABLE], more))
