"""What every figure shows: functions from runs to a sheet of panels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from fedstill.data import corpora, partition
from fedstill.learning.metrics import METRICS
from fedstill.papers import curves
from fedstill.papers.figures.cells import Panels, axis, heading, joined, number, only, rows, scores, shows, spread
from fedstill.papers.grid import Grid
from fedstill.papers.languages import clouds, texts_of
from fedstill.papers.side_by_side import CLIENTS, Outcomes, score
from fedstill.results import picture
from fedstill.results.drawing.panels import Bar, Bars, Clouds, Heat, Line, Lines
from fedstill.results.runs import Run, complete

MOST_TEXTS = 400
"""Points of a cloud that are drawn."""


def languages(grid: Grid, outcomes: Outcomes) -> Panels:
    """The texts of every client on two principal components."""
    found: Panels = []
    for group in grid.selection.groups:
        texts = texts_of(next(run.experiment for run in grid.runs if run.group == group))
        points = {name: cloud[:: -(-len(cloud) // MOST_TEXTS)] for name, cloud in clouds(texts).items() if len(cloud)}
        shown = {name: [(float(x), float(y)) for x, y in cloud] for name, cloud in points.items()}
        found.append(Clouds(group, "first principal component", "second principal component", shown))
    return found


def holdings(grid: Grid, outcomes: Outcomes) -> Panels:
    """Who holds how many rows of which label or task, a heat map for each group, column and way of dividing."""
    found: dict[str, Heat] = {}
    for group in grid.selection.groups:
        for column in grid.selection.columns:
            for run in grid.runs:
                divided = run.experiment.corpus, run.experiment.partition, run.experiment.seed
                if run.group != group or column not in run.columns or (key := repr((group, column, divided))) in found:
                    continue
                corpus = corpora.load(run.experiment.corpus, run.experiment.labels)
                parts = partition.split(corpus, run.experiment.partition, run.experiment.seed)
                counts, names = picture.holdings(corpus, parts)
                title = joined(group, heading(grid, column)) or run.experiment.name
                found[key] = picture.heat(counts, names, parts.clients, title)
    return list(found.values())


def losses_and_weights(grid: Grid, outcomes: Outcomes) -> Panels:
    """For every group its clients' losses and weights, means over rounds, a series of bars for each row."""
    found: Panels = []
    for group in grid.selection.groups:
        for what, read in (("training loss", curves.losses), ("weight", curves.weights)):
            seeds = {
                row: [_over_rounds(each) for run in runs if (each := read(run))]
                for row, runs in rows(grid, outcomes, group)
            }
            known = {row: each for row, each in seeds.items() if each}
            clients = sorted({client for each in known.values() for seed in each for client in seed})
            bars = [
                Bar(row, *spread([[seed[client] for seed in each if client in seed] or [0.0] for client in clients]))
                for row, each in known.items()
            ]
            if bars:
                found.append(Bars(joined(group, what), "client", what, tuple(clients), tuple(bars)))
    return found


def weights(grid: Grid, outcomes: Outcomes) -> Panels:
    """A heat map of clients' weights by round for every row, with its score."""
    found: Panels = []
    for group in grid.selection.groups:
        for row, runs in rows(grid, outcomes, group):
            seeds = [each for run in runs if (each := curves.weights(run))]
            if not seeds:
                continue
            rounds = sorted({number for seed in seeds for number in seed})
            clients = sorted({client for seed in seeds for values in seed.values() for client in values})
            values = [[_mean_of(seeds, number, client) for number in rounds] for client in clients]
            title = joined(group, row) + _score_in_title(grid, runs)
            named = tuple(map(str, rounds))
            found.append(Heat(title, "round", "", tuple(clients), named, values, "weight", digits=2, floor=0))
    return found


def by_round(grid: Grid, outcomes: Outcomes) -> Panels:
    """The score after every round, a panel for each group and column."""
    return list(curves.sheet(curves.curves(grid, outcomes)[0], "").panels)


def first_by_round(grid: Grid, outcomes: Outcomes) -> Panels:
    """The same for the first column alone."""
    return by_round(only(grid, columns=grid.selection.columns[:1]), outcomes)


def epochs(grid: Grid, outcomes: Outcomes) -> Panels:
    """The clients' mean training loss and mean score on their own test rows by epochs of training."""
    found: Panels = []
    for group in grid.selection.groups:
        _, metric = shows(grid)
        told: list[Line] = []
        scored: list[Line] = []
        for row, runs in rows(grid, outcomes, group):
            each = next(run.experiment.train.epochs for run in grid.runs if (run.group, run.row) == (group, row))
            known = [
                {number: fmean(values.values()) for number, values in seed.items() if values}
                for run in runs
                if (seed := curves.losses(run))
            ]
            told += _line(row, known, each, 1)
            scored += _line(
                row, [points for run in runs if (points := curves.curve(run, CLIENTS, metric)[0])], each, 100
            )
        across = "epochs of training"
        ticks = {place: str(place) for line in [*told, *scored] for place in line.across}
        if told:
            title = joined(group, "training loss")
            found.append(Lines(title, across, "loss, mean over clients", tuple(told), _few(ticks)))
        if scored:
            name = METRICS[metric].title
            title, up = joined(group, f"clients' {name}"), f"{name} on own test rows (points)"
            found.append(Lines(title, across, up, tuple(scored), _few(ticks)))
    return found


def sweep(across: str) -> Callable[[Grid, Outcomes], Panels]:
    """The last score against a number that the columns vary."""

    def drawn(grid: Grid, outcomes: Outcomes) -> Panels:
        found: Panels = []
        places = {column: number(column) for column in grid.selection.columns}
        ticks = {place: column.removesuffix(f" {across}") for column, place in places.items()}
        for group in grid.selection.groups:
            lines = []
            for row in grid.recipe.rows_of(group):
                at = {places[column]: scores(grid, outcomes, group, row, column) for column in places}
                known = {place: values for place, values in sorted(at.items()) if values}
                lines += (
                    [Line(row, list(known), *spread([[100 * value for value in each] for each in known.values()]))]
                    if known
                    else []
                )
            if lines:
                found.append(Lines(group, across, axis(grid), tuple(lines), ticks))
        return found

    return drawn


def hyperparameters(grid: Grid, outcomes: Outcomes) -> Panels:
    """FedSND's two sweeps by round: rows named xi=..., then rows named epochs=..., which have one run in common."""
    is_shared = "xi=0.001"
    found: Panels = []
    for prefix, also in (("xi=", ""), ("epochs=", is_shared)):
        for panel in by_round(grid, outcomes):
            assert isinstance(panel, Lines)
            shown = [line for line in panel.lines if line.name.startswith(prefix) or line.name == also]
            named = [
                Line("epochs=10", line.across, line.up, line.spread) if line.name == also else line for line in shown
            ]
            ordered = sorted(named, key=lambda line: -number(line.name) if prefix == "xi=" else number(line.name))
            if shown:
                title = f"{panel.title}: {'noise threshold' if prefix == 'xi=' else 'local epochs'}"
                found.append(Lines(title, panel.across, panel.up, tuple(ordered)))
    return found


def samples_and_balance(grid: Grid, outcomes: Outcomes) -> Panels:
    """FedDRS's quality of samples by step (teacher, student), and its score by round with and without balance."""
    without = next((row for row in grid.recipe.rows if "without balance" in row), None)
    sampled = curves.samplings(grid, outcomes)
    quality = [
        curves.Panel(
            f"({letter}) the {who}",
            panel.metric,
            tuple(line for line in panel.lines if line.row != without),
            panel.across,
        )
        for letter, who, panel in zip("ab", ("teacher on the samples", "student on the samples"), sampled, strict=False)
    ]
    balanced = [
        curves.Panel(
            f"(c) {panel.title}",
            panel.metric,
            tuple(line for line in panel.lines if line.row in (grid.recipe.method, without)),
        )
        for panel in curves.curves(grid, outcomes)[0]
    ]
    found = curves.sheet([panel for panel in [*quality, *balanced] if panel.lines], "").panels
    return list(found)


def _few(ticks: Mapping[float, str]) -> Mapping[float, str] | None:
    """The ticks, unless they are too many to read."""
    return ticks if len(ticks) <= 12 else None


def _mean_of(seeds: Sequence[Mapping[int, Mapping[str, float]]], number: int, client: str) -> float | None:
    """A client's mean in a round over the seeds in which it took part."""
    known = [seed[number][client] for seed in seeds if client in seed.get(number, {})]
    return fmean(known) if known else None


def _over_rounds(rounds: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Every client's mean over the rounds in which it took part."""
    clients = sorted({client for values in rounds.values() for client in values})
    return {client: fmean(values[client] for values in rounds.values() if client in values) for client in clients}


def _score_in_title(grid: Grid, runs: Sequence[Run]) -> str:
    """The score after the last round, mean over seeds."""
    split, metric = shows(grid)
    known = complete(score(run, split, metric) for run in runs)
    return f"\n{METRICS[metric].title} {100 * fmean(known):.1f}" if known else ""


def _line(name: str, seeds: Sequence[curves.Curve], stretched: int, unit: float) -> list[Line]:
    """Curves of some seeds as a line; its axis counts `stretched` for each round."""
    if not seeds:
        return []
    each = curves.MethodCurves(name, tuple(seeds), unit)
    across = [stretched * place for place in each.rounds]
    ups = [each.mean(place) for place in each.rounds], [each.deviation(place) for place in each.rounds]
    return [Line(name, across, *ups)] if across else []
