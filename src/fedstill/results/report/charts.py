"""The charts of one run: every function makes one figure, with the same numbers as a table beside it."""

from __future__ import annotations

from collections.abc import Mapping

from fedstill.common.units import size_text
from fedstill.results.drawing.ink import COLOURS
from fedstill.results.report.answers import calibration_error
from fedstill.results.report.forms import Chart, Table, bars_chart, filling, heat_map, in_points, lines_chart, shown
from fedstill.results.report.series import MANY, RunSeries, fewer
from fedstill.wire.messages import SERVER

MOST_BARS = 30
"""Domains; for more, the table of clients has the numbers."""


def run_charts(run: RunSeries) -> dict[str, list[Chart]]:
    """The charts of one run, by the part of the page in which they stand."""
    found: dict[str, list[Chart | None]] = {
        "trained": [holdings(run)],
        "went": [scores(run), domains(run), losses(run), weights(run), spent(run), bytes_by_round(run), seconds(run)],
        "out": [gains(run), confusion(run), reliability(run)],
    }
    return {part: [chart for chart in charts if chart is not None] for part, charts in found.items()}


def holdings(run: RunSeries) -> Chart | None:
    """How many training rows each client has of each label."""
    says = "Training rows: one column a client, one row a label (or task). The darker, the more."
    return None if run.holdings is None else heat_map("Who holds what", says, run.holdings, "client", "label", "rows")


def scores(run: RunSeries) -> Chart | None:
    """Every party's score on the pooled test by round."""
    says = f"{run.caption}, on the pooled test, at the end of every round."
    return lines_chart("Score by round", says, in_points(fewer(run.scores)), "points", _order(run))


def domains(run: RunSeries) -> Chart | None:
    """The score on every domain by round."""
    who = "The server's model" if run.run.server is not None else "Each client's own model"
    says = f"{who} on the test rows of each domain; {run.caption[0].lower()}{run.caption[1:]}."
    return lines_chart("Score by domain and round", says, in_points(fewer(run.by_domain)), "points", _order(run))


def losses(run: RunSeries) -> Chart | None:
    """The losses that the method observed, by round."""
    return lines_chart("Loss by round", "Losses that parties told each other.", fewer(run.losses), "loss", _order(run))


def spent(run: RunSeries) -> Chart | None:
    """Every client's epsilon by round."""
    says = "The privacy that every client had spent after each round: the smaller, the less can be known of one row."
    return lines_chart("Epsilon by round", says, fewer(run.spent), "epsilon", _order(run))


def weights(run: RunSeries) -> Chart | None:
    """Every teacher's weight by round."""
    says = "The share that every teacher has in the blend of each round; equal shares would all have the same shade."
    return (
        None if run.weights is None else heat_map("Teachers' weights", says, run.weights, "round", "teacher", "weight")
    )


def bytes_by_round(run: RunSeries) -> Chart | None:
    """Bytes by round, direction and message."""
    says = "Everything that crossed, for all recipients; up is to the server. Round 0 is the greeting."
    return bars_chart("Bytes by round", says, run.bytes, "round", "bytes", size_text)


def seconds(run: RunSeries) -> Chart | None:
    """Seconds by round and part."""
    return bars_chart("Seconds by round", "Where the time of every round went.", run.seconds, "round", "seconds")


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
    known = {what: {name: 100 * value for name, value in values.items()} for what, values in series.items() if values}
    says = f"{run.caption} on each domain's test rows: its client alone and at the end, and the server's model."
    traces = [
        {
            "type": "bar",
            "name": what,
            "x": names,
            "y": [values.get(name) for name in names],
            "marker": filling(number),
            "hovertemplate": "%{x}: %{y:.1f}",
        }
        for number, (what, values) in enumerate(known.items())
    ]
    layout = {
        "barmode": "group",
        "xaxis": {"type": "category"},
        "yaxis": {"title": {"text": "points"}, "rangemode": "tozero"},
    }
    rows = tuple((name, *(shown(values.get(name)) for values in known.values())) for name in names)
    return Chart("Score by domain", says, {"data": traces, "layout": layout}, Table(("domain", *known), rows))


def confusion(run: RunSeries) -> Chart | None:
    """What was predicted for rows of every label."""
    says = f"Rows of the pooled test by true and predicted label, for {run.answered_by}; the diagonal is right."
    if run.confusion is None:
        return None
    return heat_map("Confusion matrix", says, run.confusion, "predicted", "true", "rows")


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


def _order(run: RunSeries) -> tuple[str, ...]:
    """Parties as all charts of a run order them; with so many that they have no lines of their own, only the server."""
    return (SERVER, *(run.run.client_names if len(run.run.client_names) <= MANY else ()))
