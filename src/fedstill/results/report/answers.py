"""What models answered on the pooled test: confusion, reliability, and texts on which two of them disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file
from scipy.special import softmax

from fedstill.common.files import file_name
from fedstill.learning.metrics import Floats, Integers

MOST_TEXTS = 20
LONGEST_TEXT = 400
BINS = 10


@dataclass(frozen=True)
class Answers:
    """A party's predictions for rows of the pooled test, sorted by row."""

    rows: Integers
    labels: Integers
    predicted: Integers
    sure: Floats | None
    """How probable each prediction is, by the model itself; None if its logits are not kept."""


@dataclass(frozen=True)
class Bin:
    """Predictions of similar confidence: how sure they are on average, the share that is right, and their number."""

    sure: float
    right: float
    rows: int


@dataclass(frozen=True)
class Disagreement:
    """A text on which a client and the server disagree; `alone` is what the client said when it learnt from nobody."""

    text: str
    label: str
    client: str
    client_says: str
    server_says: str
    alone: str | None = None


def answers(run: Path, party: str) -> Answers | None:
    """A party's stored predictions; None if there are none that can be read."""
    try:
        stored = load_file(run / "predictions" / f"{file_name(party)}.safetensors")
        order = np.argsort(stored["rows"], kind="stable")
        rows, labels, predicted = (stored[key][order] for key in ("rows", "labels", "predicted"))
    except (OSError, SafetensorError, KeyError):
        return None
    sure = None
    if "logits" in stored:
        chances = softmax(stored["logits"][order].astype(np.float64), axis=1)
        sure = chances[np.arange(len(rows)), predicted]
    return Answers(rows, labels, predicted, sure)


def confusion(found: Sequence[Answers], classes: int) -> Integers:
    """Rows [true, predicted], over all the models given."""
    cells = np.concatenate([one.labels * classes + one.predicted for one in found])
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def reliability(found: Sequence[Answers]) -> list[Bin]:
    """Predictions in ten bins of confidence; bins without any are left out."""
    known = [(one.sure, one.labels == one.predicted) for one in found if one.sure is not None]
    if not known:
        return []
    sure, right = (np.concatenate(parts) for parts in zip(*known, strict=True))
    places = np.minimum((sure * BINS).astype(int), BINS - 1)
    return [
        Bin(float(sure[inside].mean()), float(right[inside].mean()), int(inside.sum()))
        for place in range(BINS)
        if (inside := places == place).any()
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """The mean distance between how sure and how right predictions are, weighted by rows."""
    return sum(one.rows * abs(one.sure - one.right) for one in bins) / sum(one.rows for one in bins)


def disagreements(
    server: Answers,
    clients: Mapping[str, Answers],
    alone: Mapping[str, Answers],
    own: Mapping[str, Integers],
    texts: Sequence[str],
    labels: Sequence[str],
) -> list[Disagreement]:
    """Texts on which a client and the server are surest of different labels; `own` has every client's test rows.

    A client is asked about its own rows where it has any among the pooled test, otherwise about all.
    """
    found = []
    for name, client in clients.items():
        if not np.array_equal(client.rows, server.rows):
            continue
        mine = np.isin(client.rows, own[name]) if name in own else np.ones(len(client.rows), bool)
        both = sum((one.sure for one in (client, server) if one.sure is not None), np.zeros(len(client.rows)))
        other = alone.get(name)
        is_same = other is not None and np.array_equal(other.rows, client.rows)
        for place in np.flatnonzero(mine & (client.predicted != server.predicted)):
            text = texts[client.rows[place]]
            found.append(
                (
                    -float(both[place]),
                    int(client.rows[place]),
                    Disagreement(
                        text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…",
                        labels[client.labels[place]],
                        name,
                        labels[client.predicted[place]],
                        labels[server.predicted[place]],
                        labels[other.predicted[place]] if is_same and other is not None else None,
                    ),
                )
            )
    return [one for _, _, one in sorted(found, key=lambda item: item[:2])[:MOST_TEXTS]]
