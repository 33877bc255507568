"""The charts of several runs beside each other."""

from __future__ import annotations

from collections.abc import Iterable

from fedstill.common.units import size_text
from fedstill.results.drawing.ink import COLOURS
from fedstill.results.report.board import Board
from fedstill.results.report.forms import Chart, Figure, Table, cut, height_for, in_points, line, lines_chart, shown
from fedstill.results.report.series import Curves
from fedstill.results.significance import p_text


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
    return lines_chart("Score against rounds", says, in_points(board.by_round), "points")


def against(board: Board, costs: Curves, across: str, title: str) -> Chart | None:
    """Every method's score against what it had cost by then; a point a round."""
    curves = {
        name: [(costs[name][number], 100 * value) for number, value in curve.items() if number in costs[name]]
        for name, curve in board.by_round.items()
    }
    traces = [
        line(name, [cost for cost, _ in curve], [value for _, value in curve], number)
        | {"hovertemplate": f"%{{y:.1f}} at %{{x:.3s}} {across.split()[0]}"}
        for number, (name, curve) in enumerate(curves.items())
        if curve
    ]
    if not traces:
        return None
    layout = {
        "xaxis": {"title": {"text": across}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "points"}},
        "height": height_for(traces),
    }
    tell = size_text if across.startswith("bytes") else shown
    rows = tuple((name, tell(cost), shown(value)) for name, curve in curves.items() for cost, value in curve)
    says = "A point a round, mean over seeds: up and to the left is better."
    return Chart(title, says, {"data": traces, "layout": layout}, cut(("method", across, "points"), rows))


def against_epsilon(board: Board) -> Chart | None:
    """Every method's score against the privacy it spent."""
    means = {row.method: 100 * row.overall.mean for row in board.comparison.rows if row.overall is not None}
    spent = {name: value for name, value in board.epsilon.items() if name in means}
    if not spent:
        return None
    traces = [
        line(name, [spent[name]], [means[name]], number) | {"mode": "markers"}
        for number, name in enumerate(board.by_round)
        if name in spent
    ]
    layout = {"xaxis": {"title": {"text": "epsilon"}, "rangemode": "tozero"}, "yaxis": {"title": {"text": "points"}}}
    rows = tuple((name, f"{value:.2f}", shown(means[name])) for name, value in spent.items())
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


def _symbols(roles: Iterable[str]) -> list[str]:
    return [{"baseline": "square", "upper bound": "star"}.get(role, "circle") for role in roles]
