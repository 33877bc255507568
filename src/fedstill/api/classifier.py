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
from fedstill.common.words import listed
from fedstill.config.experiment import Experiment
from fedstill.data.corpora import memory
from fedstill.data.corpora.files import ONE_LABEL
from fedstill.data.corpora.named import PARTS
from fedstill.models.labelling import Predictions
from fedstill.models.model import Model
from fedstill.results.record import Record
from fedstill.wire.messages import SERVER

DOMAIN = "__client__"
"""The column that says whose a row is."""
DEALT = 3
"""How many clients rows are dealt among where nothing says it."""
Given = tuple[list[dict[str, Any]], list[Any], list[Any] | None]
"""Texts by column, labels, and whose each row is, if that is known."""


class FederatedClassifier:
    """Texts and labels of several clients in, one classifier out that they taught each other, without sharing rows.

    >>> taught = FederatedClassifier(clients="bow", server="bow", rounds=2)
    >>> taught.fit({"north": (texts, labels), "south": (more_texts, more_labels)}).predict(["lovely, thank you"])
    array(['good'], dtype='<U4')
    >>> taught.fit(texts, labels, domains=shops)  # as scikit-learn has it; without `domains` the rows are dealt out

    What is set here is kept as it is (`get_params`, `set_params`), and `fit` changes none of it, so that scikit-learn's
    `clone`, `cross_val_score` and `GridSearchCV` work. After `fit` there are `classes_`, `record_` (the run's record)
    and `model_`.
    """

    _estimator_type = "classifier"  # for scikit-learn before 1.6
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
        self, X: Any, y: Iterable[Any] | None = None, *, domains: Iterable[Any] | None = None, public: Any = None
    ) -> FederatedClassifier:
        """Run the federation of texts `X` with labels `y`, or of clients by name or in a list, and no `y`.

        Texts are a list, a Series, or a table with the columns `text`; `domains` says whose each row is. Without it
        the rows are dealt among as many clients as `clients` lists, or three, or as `settings["partition"]` says. A
        client is a table or (texts, labels). `public` are texts without labels that all may see; by default a fifth of
        all rows, without their labels, is.
        """
        rows, labels, holders = self._of_clients(X) if y is None else self._of_rows(X, y, domains)
        classes, names = _classes(labels)
        table = [{**cells, self.label: names[memory.plain(label)]} for cells, label in zip(rows, labels, strict=True)]
        corpus: dict[str, Any] = {"table": table, "text": self._columns, "label": self.label}
        settings = dict(self.settings or {})
        if holders is None:
            settings["partition"] = {"kind": "iid", "clients": self._number, **settings.get("partition", {})}
        else:
            owned = [{**row, DOMAIN: who} for row, who in zip(table, holders, strict=True)]
            corpus |= {"table": owned, "domain": DOMAIN}
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
                **settings,
            }
        )
        self.record_ = run(experiment, self._folder() if self.out is None else self.out, progress=self.progress)
        self.model_ = self.record_.model(self.party, trust_code=True)
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The label of every text; texts as `fit` takes them."""
        best = self.predict_proba(X).argmax(-1)
        found: npt.NDArray[Any] = self.classes_[best]
        return found

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """The probability of every class, in the order of `classes_`, for every text: [texts, classes]."""
        return self._predicted(X).probabilities

    def score(self, X: Any, y: Iterable[Any]) -> float:
        """The share of the texts `X` whose label is the one in `y`."""
        return float(np.mean(self.predict(X) == np.asarray([memory.plain(label) for label in y])))

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

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks of every estimator since 1.6: this one labels texts."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        reads = InputTags(one_d_array=True, two_d_array=True, string=True, allow_nan=True)
        return Tags("classifier", TargetTags(required=False), classifier_tags=ClassifierTags(), input_tags=reads)

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

    def _predicted(self, texts: Any) -> Predictions:
        model = self._ready().model_
        values = [[memory.plain(cell) or "" for cell in row.values()] for row in self._cells(texts)]
        return model.predict([row[0] for row in values] if len(self._columns) == 1 else [(a, b) for a, b in values])

    @property
    def _columns(self) -> list[str]:
        return [self.text] if isinstance(self.text, str) else list(self.text)

    @property
    def _number(self) -> int:
        """Of clients, where rows are dealt out."""
        return DEALT if isinstance(self.clients, str | Mapping) else len(self.clients)

    def _cells(self, texts: Any, where: str = "texts") -> list[dict[str, Any]]:
        """Texts by column."""
        columns = self._columns
        if isinstance(texts, str | Mapping):
            raise FedstillError(f"{where}: give a list of texts, or one table.")
        if memory.is_table(texts) and len(texts):
            rows = memory.records(self._checked(texts, columns, where))
            return [{column: row[column] for column in columns} for row in rows]
        cells = [[text] if isinstance(text, str) or memory.plain(text) is None else text for text in texts]
        if odd := [cell for cell in cells if not isinstance(cell, Sequence | np.ndarray) or len(cell) != len(columns)]:
            form = "a text" if len(columns) == 1 else f"{len(columns)} texts"
            raise FedstillError(f"{where}: a row is {form} ({', '.join(columns)}), and one is {str(odd[0])[:60]!r}.")
        return [dict(zip(columns, cell, strict=True)) for cell in cells]

    def _checked(self, table: Any, columns: Sequence[str], where: str) -> Any:
        """The table, if it has these columns."""
        names = memory.column_names(table)
        if missing := [column for column in columns if column not in names]:
            raise FedstillError(f"{where}: there is no column {missing[0]!r}; {nearest(missing[0], names)}")
        return table

    def _of_rows(self, texts: Any, labels: Iterable[Any], domains: Iterable[Any] | None) -> Given:
        """Texts and labels of all, and whose each row is."""
        if isinstance(texts, Mapping):
            raise FedstillError("give `fit` clients with their labels, and no `y`; or texts, and their labels as `y`.")
        rows, given = self._cells(texts), list(labels)
        holders = None if domains is None else list(domains)
        for what, many in (("labels", given), ("domains", holders)):
            if many is not None and len(many) != len(rows):
                raise FedstillError(f"there are {len(rows)} texts and {len(many)} {what}.")
        return rows, given, holders

    def _of_clients(self, clients: Any) -> Given:
        """The same of clients that were given one by one."""
        if memory.is_table(clients) and len(clients):
            raise FedstillError(
                "this is one table: give its labels as `y`, or tables by client, {'north': table, ...}."
            )
        named = clients if isinstance(clients, Mapping) else _numbered(clients)
        if PARTS.keys() & set(named):
            raise FedstillError(f"{listed(list(named))} are parts, not clients: fit one, with its labels as `y`.")
        parts = {str(name): self._part(str(name), part) for name, part in named.items()}
        return (
            [cells for rows, _ in parts.values() for cells in rows],
            [label for _, labels in parts.values() for label in labels],
            [name for name, (rows, _) in parts.items() for _ in rows],
        )

    def _part(self, name: str, part: Any) -> tuple[list[dict[str, Any]], list[Any]]:
        """One client's texts by column, and its labels."""
        if memory.is_table(part) and len(part):
            rows = memory.records(self._checked(part, [*self._columns, self.label], name))
            return self._cells(part, name), [row[self.label] for row in rows]
        try:
            texts, labels = part
        except (TypeError, ValueError) as error:
            raise FedstillError(f"{name}: give each client as (texts, labels), or as {memory.FORMS}.") from error
        if len(texts) != len(labels):
            raise FedstillError(f"{name}: there are {len(texts)} texts and {len(labels)} labels.")
        return self._cells(texts, name), list(labels)


def _numbered(parts: Sequence[Any]) -> dict[str, Any]:
    """Clients that have no names; their numbers have as many digits each, so that they sort."""
    return {f"client-{number:0{len(str(len(parts)))}}": part for number, part in enumerate(parts, 1)}


def _classes(labels: Iterable[Any]) -> tuple[npt.NDArray[Any], dict[Any, str]]:
    """The different labels in order, and the name of each in the experiment."""
    try:
        found = {memory.plain(label) for label in labels}
    except TypeError as error:
        raise FedstillError(f"{ONE_LABEL}: give one value for each text.") from error
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
