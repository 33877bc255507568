"""What a card says about how good a model is: scores with 95% intervals."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import numpy as np

from fedstill.common.words import counted
from fedstill.data.partition import Partition
from fedstill.learning.metrics import METRICS, Integers
from fedstill.results.record import Record
from fedstill.results.report.answers import Answers, answers
from fedstill.results.runs import POOLED, Run
from fedstill.results.significance import interval_over_rows, interval_over_seeds
from fedstill.wire.messages import SERVER

SAME = 1e-9
OWN = "the site's own"


@dataclass(frozen=True)
class Scored:
    """A score as a fraction, and its interval over resampled test rows where the predictions for it were kept."""

    rows: str
    many: int | None
    metric: str
    value: float
    interval: tuple[float, float] | None


def scored(record: Record, run: Run, party: str, parts: Partition | None) -> list[Scored]:
    """All metrics on the rows of the pooled test, then the headline metric on those of each client.

    Without a partition the clients are others' sites, which are not named.
    """
    splits = (run.server if party == SERVER else run.clients.get(party)) or {}
    kept, found = answers(record.folder, party), []
    for split, scores in splits.items():
        if split != POOLED and (parts is None or not split.startswith(f"{POOLED}/")):
            continue
        domain = split.partition("/")[2]
        own = parts.test.get(domain) if parts is not None and domain else None if kept is None else kept.rows
        where = f"of {domain}" if domain else "of all"
        for metric in scores if split == POOLED else [run.metric]:
            if metric in METRICS and metric in scores:
                many, interval = _interval(kept, own, metric, scores[metric], len(run.labels))
                found.append(Scored(where, many, metric, scores[metric], interval))
    return sorted(found, key=lambda one: (one.rows != "of all", one.metric != run.metric))


def scored_by_itself(record: Record, run: Run, party: str) -> list[Scored]:
    """All metrics that a site measured of its own model on its own test rows, of which no predictions are kept."""
    split = f"{POOLED}/{party}"
    rows = [line.get("rows") for line in record.metrics if line.get("split") == split]
    found = [
        Scored(OWN, rows[-1] if rows else None, metric, value, None)
        for metric, value in run.clients.get(party, {}).get(split, {}).items()
        if metric in METRICS
    ]
    return sorted(found, key=lambda one: one.metric != run.metric)


def _interval(
    kept: Answers | None, own: Integers | None, metric: str, value: float, classes: int
) -> tuple[int | None, tuple[float, float] | None]:
    """How many of the kept predictions a score is about, and its interval; None where they do not give this score."""
    if kept is None or own is None or not METRICS[metric].is_of_classes:
        return None, None
    inside = np.isin(kept.rows, own)
    labels, predicted, measure = kept.labels[inside], kept.predicted[inside], METRICS[metric].measure
    if not len(labels):
        return None, None
    confusion = np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)
    if abs(float(measure(confusion)) - value) > SAME:
        return None, None
    return len(labels), interval_over_rows(labels, predicted, classes, measure)


def over_seeds(runs: list[Run], metric: str) -> str:
    """The mean over seeds with its interval, in a sentence; empty for one seed."""
    values = [run.overall for run in runs if run.overall is not None]
    if len(values) < 2:
        return ""
    interval = interval_over_seeds(values)
    within = f", 95% interval {_points(interval)} (Student's t)" if interval else ""
    title = METRICS[metric].title
    return f"Over {counted(len(values), 'seed')} of this experiment {title} is {100 * fmean(values):.1f}{within}."


def _points(interval: tuple[float, float]) -> str:
    return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"


def table(found: list[Scored]) -> list[str]:
    """The scores in points, as lines of Markdown."""
    lines = ["| test rows | number | metric | score | 95% interval |", "|---|---|---|---|---|"]
    for one in found:
        interval = "not known" if one.interval is None else _points(one.interval)
        many = "not known" if one.many is None else f"{one.many:,}"
        caption = METRICS[one.metric].caption
        lines.append(f"| {one.rows} | {many} | {caption} | {100 * one.value:.1f} | {interval} |")
    return lines
