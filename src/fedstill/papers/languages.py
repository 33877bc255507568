"""How the clients' languages differ: TF-IDF features of their training texts. Nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator, svds
from sklearn.feature_extraction.text import TfidfVectorizer

from fedstill.config.experiment import Experiment
from fedstill.data import corpora, partition
from fedstill.papers.grid import Grid
from fedstill.papers.side_by_side import SideBySide

FEATURES = 5000

Floats = npt.NDArray[np.float64]


Texts = Mapping[str, Sequence[str]]
"""Client -> its training texts."""


def languages(grid: Grid) -> tuple[SideBySide, list[str]]:
    """For every client its texts, where they lie on two principal components, and how alike it is to the others."""
    groups, clients = [], tuple[str, ...]()
    for group in grid.selection.groups:
        texts = texts_of(next(run.experiment for run in grid.runs if run.group == group))
        clients = tuple(texts)
        groups.append((group, tuple(_rows(texts))))
    headings = ("client", "texts", "component 1", "component 2", *(f"like {client}" for client in clients))
    said = "A component is mean ± standard deviation over texts; like: the cosine between the clients' mean features."
    return SideBySide(headings, tuple(groups)), [said]


def texts_of(experiment: Experiment) -> Texts:
    """The clients' training texts."""
    corpus = corpora.load(experiment.corpus, experiment.labels)
    parts = partition.split(corpus, experiment.partition, experiment.seed)
    return {client: [corpus.texts[row] for row in parts.train[client]] for client in parts.clients}


def clouds(texts: Texts) -> dict[str, Floats]:
    """Where the texts of each client lie on two principal components, [texts, 2]."""
    ends = np.cumsum([len(own) for own in texts.values()])
    return dict(zip(texts, np.split(components(_features(texts)), ends[:-1]), strict=True))


def _features(texts: Texts) -> Any:
    return TfidfVectorizer(max_features=FEATURES).fit_transform([text for own in texts.values() for text in own])


def _rows(texts: Texts) -> list[tuple[str, ...]]:
    features = _features(texts)
    places = components(features)
    owners = np.repeat(np.arange(len(texts)), [len(own) for own in texts.values()])
    means = np.stack([np.asarray(features[owners == number].mean(axis=0)).ravel() for number in range(len(texts))])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    rows = []
    for number, (client, own) in enumerate(texts.items()):
        cloud = places[owners == number]
        spread = [f"{mean:+.3f} ± {wide:.3f}" for mean, wide in zip(cloud.mean(0), cloud.std(0), strict=True)]
        rows.append((client, f"{len(own):,}", *spread, *(f"{like:.2f}" for like in means @ means[number])))
    return rows


def components(features: Any) -> Floats:
    """Every row on the first two principal components, without making the features dense; signs are fixed."""
    mean = np.asarray(features.mean(axis=0)).ravel()
    centred = LinearOperator(
        features.shape,
        matvec=lambda v: features @ np.ravel(v) - mean @ np.ravel(v),
        rmatvec=lambda u: features.T @ np.ravel(u) - mean * np.sum(u),
        dtype=np.float64,
    )
    left, sizes, right = svds(centred, k=2, v0=np.ones(min(features.shape)))
    signs = np.sign(right[np.arange(2), np.abs(right).argmax(axis=1)])
    return (left * sizes * signs)[:, ::-1]  # type: ignore[no-any-return]
