"""A federation as a classifier, in scikit-learn's manner: fit, predict, predict_proba, score."""

from __future__ import annotations

import inspect
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedstill.algorithms.base import Algorithm
from fedstill.api.running import run
from fedstill.common.errors import FedstillError
from fedstill.common.plugins import nearest
from fedstill.config.experiment import Experiment
from fedstill.data.corpora import memory
from fedstill.models.build import Model
from fedstill.models.labelling import Predictions, Texts
from fedstill.results.record import Record
from fedstill.wire.messages import SERVER

DOMAIN = "__client__"
"""The column that says whose a row is."""


class FederatedClassifier:
    """Texts and labels of several clients in, one classifier out that they taught each other, without sharing rows.

    >>> taught = FederatedClassifier(clients="bow", server="bow", rounds=2)
    >>> taught.fit({"north": (texts, labels), "south": (more_texts, more_labels)}).predict(["lovely, thank you"])
    array(['good'], dtype='<U4')

    What is set here is kept as it is (`get_params`, `set_params`), and `fit` changes none of it, so that scikit-learn's
    `clone` works. After `fit` there are `classes_`, `record_` (the run's record) and `model_`.
    """

    classes_: npt.NDArray[Any]
    record_: Record
    model_: Model

    def __init__(
        self,
        algorithm: str | Mapping[str, Any] | Algorithm = "AdaFD",
        clients: str | Sequence[Any] | Mapping[str, Any] = "bert-tiny",
        server: str | Mapping[str, Any] = "bert-tiny",
        rounds: int = 3,
        seed: int = 0,
        text: str | Sequence[str] = "text",
        label: str = "label",
        party: str = SERVER,
        workers: int | str = 1,
        out: str | os.PathLike[str] | None = None,
        progress: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`clients` are the clients' models, as in an experiment; `party` says whose model predicts in the end.

        `text` and `label` are the columns of frames. The record goes to the folder `out`, or to one that is removed
        with this object. `settings` are further keys of an experiment, such as `{"train": {"epochs": 5}}`. More than
        one of `workers` needs a program whose work stands under `if __name__ == "__main__":`.
        """
        self.algorithm = algorithm
        self.clients = clients
        self.server = server
        self.rounds = rounds
        self.seed = seed
        self.text = text
        self.label = label
        self.party = party
        self.workers = workers
        self.out = out
        self.progress = progress
        self.settings = settings

    def fit(
        self, clients: Mapping[str, Any] | Sequence[Any], public: Sequence[Any] | None = None
    ) -> FederatedClassifier:
        """Run the federation of these clients: by name or in a list, each a frame or (texts, labels).

        `public` are texts without labels that all may see; by default a fifth of all rows, without their labels, is.
        """
        named = clients if isinstance(clients, Mapping) else _numbered(clients)
        parts = {str(name): self._rows(str(name), part) for name, part in named.items()}
        classes, names = _classes(label for _, labels in parts.values() for label in labels)
        table = [
            {**cells, self.label: names[memory.plain(label)], DOMAIN: name}
            for name, (rows, labels) in parts.items()
            for cells, label in zip(rows, labels, strict=True)
        ]
        corpus = {"table": table, "text": self._columns, "label": self.label, "domain": DOMAIN}
        experiment = Experiment(
            **{
                "name": "classifier",
                "corpus": corpus,
                "labels": list(names.values()),
                "algorithm": self.algorithm,
                "clients": self.clients,
                "server": self.server,
                "rounds": self.rounds,
                "seed": self.seed,
                "workers": self.workers,
                **({} if public is None else {"public": {"table": self._cells(public), "text": self._columns}}),
                **(self.settings or {}),
            }
        )
        self.record_ = run(experiment, self._folder() if self.out is None else self.out, progress=self.progress)
        self.model_ = self.record_.model(self.party, trust_code=True)
        self.classes_ = classes
        return self

    def predict(self, texts: Texts) -> npt.NDArray[Any]:
        """The label of every text."""
        found: npt.NDArray[Any] = self._ready().classes_[self._predicted(texts).probabilities.argmax(-1)]
        return found

    def predict_proba(self, texts: Texts) -> npt.NDArray[np.float64]:
        """The probability of every class, in the order of `classes_`, for every text: [texts, classes]."""
        return self._predicted(texts).probabilities

    def score(self, texts: Texts, labels: Sequence[Any]) -> float:
        """The share of texts whose label is predicted."""
        return float(np.mean(self.predict(texts) == np.asarray([memory.plain(label) for label in labels])))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as they were given."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> FederatedClassifier:
        """Change some of the constructor's arguments."""
        for name, value in params.items():
            if name not in self.get_params():
                raise FedstillError(
                    f"{type(self).__name__} has no parameter {name!r}; {nearest(name, self.get_params())}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = {name: value for name, value in self.get_params().items() if value is not defaults[name].default}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def _folder(self) -> str:
        """A new folder that is removed with this object."""
        folder = tempfile.mkdtemp(prefix="fedstill-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _ready(self) -> FederatedClassifier:
        if not hasattr(self, "model_"):
            raise FedstillError(f"this {type(self).__name__} has learnt nothing yet: call `fit` first.")
        return self

    def _predicted(self, texts: Texts) -> Predictions:
        return self._ready().model_.predict(texts)

    @property
    def _columns(self) -> list[str]:
        return [self.text] if isinstance(self.text, str) else list(self.text)

    def _cells(self, texts: Iterable[Any]) -> list[dict[str, Any]]:
        return [dict(zip(self._columns, [text] if isinstance(text, str) else text, strict=True)) for text in texts]

    def _rows(self, name: str, part: Any) -> tuple[list[dict[str, Any]], list[Any]]:
        """One client's texts by column, and its labels."""
        if memory.is_table(part) and len(part):
            rows = memory.records(part)
            if missing := [
                column for column in (*self._columns, self.label) if column not in memory.column_names(part)
            ]:
                raise FedstillError(
                    f"{name}: there is no column {missing[0]!r}; {nearest(missing[0], memory.column_names(part))}"
                )
            return [{column: row[column] for column in self._columns} for row in rows], [
                row[self.label] for row in rows
            ]
        try:
            texts, labels = part
        except (TypeError, ValueError) as error:
            raise FedstillError(f"{name}: give each client as (texts, labels), or as {memory.FORMS}.") from error
        if len(texts) != len(labels):
            raise FedstillError(f"{name}: there are {len(texts)} texts and {len(labels)} labels.")
        return self._cells(texts), list(labels)


def _numbered(parts: Sequence[Any]) -> dict[str, Any]:
    """Clients that have no names; their numbers have as many digits each, so that they sort."""
    return {f"client-{number:0{len(str(len(parts)))}}": part for number, part in enumerate(parts, 1)}


def _classes(labels: Iterable[Any]) -> tuple[npt.NDArray[Any], dict[Any, str]]:
    """The different labels in order, and the name of each in the experiment."""
    found = {memory.plain(label) for label in labels}
    if missing := [label for label in found if label is None or not str(label).strip()]:
        raise FedstillError(f"some rows have no label ({missing[0]!r}): leave them out.")
    try:
        ordered = sorted(found)
    except TypeError as error:
        raise FedstillError("the labels are of several types, which have no order: make all of them text.") from error
    names = {label: str(label).strip() for label in ordered}
    if len(set(names.values())) < len(names):
        raise FedstillError("two labels differ only in spaces around them: make them the same, or different.")
    return np.asarray(ordered), names
