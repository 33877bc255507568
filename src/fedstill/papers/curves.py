"""A metric by round: one panel per group and column of a paper's figure, one line per method; and sampling by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from fedstill.learning.metrics import METRICS
from fedstill.papers.grid import Grid
from fedstill.papers.kept import KeptRun
from fedstill.papers.side_by_side import CLIENTS, MISSING, Outcomes, SideBySide, finished, label
from fedstill.results.drawing.panels import Line, Lines, Sheet
from fedstill.results.record import Measurement, Record
from fedstill.results.runs import POOLED, Run, complete
from fedstill.wire.messages import SERVER

Curve = Mapping[int, float]
"""A score by round, or a loss by step."""

SAMPLING = "adversary sampling"
"""FedDRS's observation of the teacher's and the student's cross-entropy with the wanted labels, by sampling step."""

MOST_SHOWN = 8
"""The most rounds that a table shows; the picture shows all."""


@dataclass(frozen=True)
class MethodCurves:
    """One method's scores by round, a curve a seed; scores are shown in points, losses as they are."""

    row: str
    seeds: tuple[Curve, ...]
    unit: float = 100.0

    @property
    def rounds(self) -> list[int]:
        """The rounds in which every seed was measured."""
        return sorted(set.intersection(*(set(curve) for curve in self.seeds)))

    def mean(self, number: int) -> float:
        """The mean over seeds."""
        return self.unit * fmean(curve[number] for curve in self.seeds)

    def deviation(self, number: int) -> float:
        """The sample standard deviation over seeds; 0 for one seed."""
        return self.unit * stdev(curve[number] for curve in self.seeds) if len(self.seeds) > 1 else 0.0


@dataclass(frozen=True)
class Panel:
    """The lines of one group and column, and what they measure."""

    title: str
    metric: str
    lines: tuple[MethodCurves, ...]
    across: str = "round"


def curves(grid: Grid, outcomes: Outcomes) -> tuple[list[Panel], list[str]]:
    """A panel for every group and column that was run, and how methods without a server model were scored."""
    panels: list[Panel] = []
    origins: dict[str, list[str]] = {}
    for group in grid.selection.groups:
        for column in grid.selection.columns:
            split, metric = grid.recipe.columns[column].shows[0]
            lines = []
            for row in grid.recipe.rows_of(group):
                runs = finished(grid.of(group, row, column), outcomes)
                found = [curve(run, split, metric) for run in runs]
                lines += [MethodCurves(row, tuple(by_round for by_round, _ in found))] if found else []
                for origin in {origin for _, origin in found if origin}:
                    origins.setdefault(origin, []).append(row)
            if lines:
                heading = grid.recipe.columns[column].heading or column
                panels.append(Panel(", ".join(filter(None, (group, heading))), metric, tuple(lines)))
    notes = [f"{', '.join(dict.fromkeys(rows))} in the curves: {origin}." for origin, rows in origins.items()]
    return panels, notes


def samplings(grid: Grid, outcomes: Outcomes) -> list[Panel]:
    """Panels of the teacher's and the student's cross-entropy on sampled inputs by step, if methods observed it."""
    panels = []
    for who in ("teacher", "student"):
        lines = []
        for group in grid.selection.groups:
            for row in grid.recipe.rows_of(group):
                runs = finished(grid.of(group, row, grid.selection.columns[0]), outcomes)
                found = [steps for run in runs if (steps := by_step(run, who))]
                lines += [MethodCurves(row, tuple(found), unit=1.0)] if found else []
        if lines:
            panels.append(Panel(f"{SAMPLING}: the {who}", "cross-entropy (nats)", tuple(lines), "step"))
    return panels


def by_step(run: Run, who: str) -> Curve:
    """The mean over rounds and clients at every step that was observed."""
    if isinstance(run, KeptRun):
        return run.sampling.get(who, {})
    seen: dict[int, list[float]] = {}
    for line in Record(run.folder).metrics:
        if line.get("observation") == SAMPLING:
            seen.setdefault(int(line["values"]["step"]), []).append(line["values"][who])
    return {step: fmean(values) for step, values in seen.items()}


def curve(run: Run, split: str, metric: str) -> tuple[Curve, str]:
    """The server's score after every round; without a server model the clients' mean, and a phrase that says which."""
    if isinstance(run, KeptRun):
        return run.by_round.get(split, {}).get(metric, {}), "" if split == CLIENTS else run.origin
    measured = [line for line in Record(run.folder).metrics if "split" in line]
    if split == CLIENTS:
        theirs = [line for line in measured if line["split"] == f"{POOLED}/{line['party']}" and metric in line]
        stage = "distilled" if any(line["stage"] == "distilled" for line in theirs) else "trained"
        return _means([line for line in theirs if line["stage"] == stage], metric), ""
    if run.server is not None:
        own = (line for line in measured if line["party"] == SERVER and line["split"] == split)
        return {line["round"]: line[metric] for line in own if line["stage"] == "distilled" and metric in line}, ""
    theirs = [line for line in measured if line["party"] != SERVER and metric in line]
    is_pooled = any(line["split"] == split for line in theirs)
    shown = [line for line in theirs if line["split"] == (split if is_pooled else f"{POOLED}/{line['party']}")]
    distilled = [line for line in shown if line["stage"] == "distilled"]
    stage = "distilled" if distilled else "trained"
    tested = f"on {split}" if is_pooled else "each on its own test rows"
    origin = f"no server model, so the mean over the clients measured in a round, once {stage}, {tested}"
    return _means([line for line in shown if line["stage"] == stage], metric), origin


def weights(run: Run) -> Mapping[int, Mapping[str, float]]:
    """Round -> client -> its weight, where the method observed it."""
    return run.weights if isinstance(run, KeptRun) else _observed(run, "weights")


def losses(run: Run) -> Mapping[int, Mapping[str, float]]:
    """Round -> client -> the loss that it told, where the method observed it."""
    return run.losses if isinstance(run, KeptRun) else _observed(run, "losses")


def _observed(run: Run, what: str) -> Mapping[int, Mapping[str, float]]:
    lines = (line for line in Record(run.folder).metrics if line.get("observation") == what)
    return {line["round"]: line["values"] for line in lines if line["party"] == SERVER}


def weights_by_round(grid: Grid, outcomes: Outcomes) -> SideBySide | None:
    """The clients' weights, mean over seeds, for a few rounds from the first to the last; None if nobody has any."""
    found: dict[str, list[Mapping[int, Mapping[str, float]]]] = {}
    for group in grid.selection.groups:
        for row in grid.recipe.rows_of(group):
            runs = finished(grid.of(group, row, grid.selection.columns[0]), outcomes)
            if known := [by_round for run in runs if (by_round := weights(run))]:
                found[", ".join(filter(None, (group, row)))] = known
    shown = _few(sorted({number for seeds in found.values() for by_round in seeds for number in by_round}))
    groups = tuple((f"{title}: weight in round", tuple(_weight_rows(seeds, shown))) for title, seeds in found.items())
    return SideBySide(("client", *map(str, shown)), groups) if found else None


def _weight_rows(seeds: Sequence[Mapping[int, Mapping[str, float]]], shown: Sequence[int]) -> Iterator[tuple[str, ...]]:
    for client in sorted({client for by_round in seeds for values in by_round.values() for client in values}):
        values = [[by_round.get(number, {}).get(client) for by_round in seeds] for number in shown]
        yield client, *(f"{fmean(known):.3f}" if (known := complete(each)) else MISSING for each in values)


def _few(rounds: Sequence[int]) -> list[int]:
    """All, or as many as a table shows, evenly from the first to the last."""
    places = {round(place * (len(rounds) - 1) / (MOST_SHOWN - 1)) for place in range(MOST_SHOWN)}
    return list(rounds) if len(rounds) <= MOST_SHOWN else [rounds[place] for place in sorted(places)]


def _means(lines: Sequence[Measurement], metric: str) -> Curve:
    by_round: dict[int, list[float]] = {}
    for line in lines:
        by_round.setdefault(line["round"], []).append(line[metric])
    return {number: fmean(values) for number, values in by_round.items()}


def by_round(grid: Grid, panels: Sequence[Panel]) -> SideBySide:
    """The curves as a table: the mean over seeds, for a few rounds from the first to the last."""
    shown = _few(sorted({number for panel in panels for line in panel.lines for number in line.rounds}))
    groups = []
    for panel in panels:
        rows = [
            (
                label(grid.recipe, line.row),
                *(f"{line.mean(number):.1f}" if number in line.rounds else MISSING for number in shown),
            )
            for line in panel.lines
        ]
        groups.append((f"{panel.title}: {panel.metric} after round", tuple(rows)))
    return SideBySide(("method", *map(str, shown)), tuple(groups))


def sheet(panels: Sequence[Panel], title: str, abreast: int = 2) -> Sheet:
    """The panels as a picture: means over seeds, with a band of their standard deviation."""
    return Sheet(title, tuple(_drawn(panel) for panel in panels), abreast)


def _drawn(panel: Panel) -> Lines:
    lines = tuple(
        Line(
            line.row,
            line.rounds,
            [line.mean(number) for number in line.rounds],
            [line.deviation(number) for number in line.rounds],
        )
        for line in panel.lines
    )
    named = METRICS[panel.metric].title if panel.metric in METRICS else panel.metric
    return Lines(panel.title, panel.across, f"{named} (points)" if panel.metric in METRICS else named, lines)
