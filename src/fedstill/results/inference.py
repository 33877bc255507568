"""Labelling new texts with a model of a finished run, a piece of the file at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.common.files import MODELS
from fedstill.common.plugins import nearest
from fedstill.common.trust import trusts_all
from fedstill.config.experiment import Experiment, load_experiment
from fedstill.data.corpora import tables
from fedstill.data.corpora.files import row_of
from fedstill.data.corpora.tables import Columns, Form, Record
from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore
from fedstill.learning.fast import accelerate
from fedstill.learning.predict import predict
from fedstill.models import Model, load
from fedstill.results import record as runs

AT_ONCE = 4096
"""Rows in memory; the longer texts among them are computed together."""
PREDICTED = "predicted"


@dataclass(frozen=True)
class Texts:
    """A file of texts that was read through once: whatever is wrong with it is said before a model starts."""

    path: Path
    columns: Columns
    form: Form
    names: list[str]
    """All columns, in the order in which they come."""
    rows: int
    is_flat: bool
    """Whether no cell holds a tab or a line break."""

    @classmethod
    def survey(cls, path: Path, columns: Columns, form: Form) -> Texts:
        """Read the file, or all files of a folder, once."""
        names: dict[str, None] = {}
        rows, is_flat = 0, True
        for file, line, record in _records(path, columns, form):
            row_of(str(file), line, record, columns)
            names |= dict.fromkeys(record)
            rows += 1
            is_flat = is_flat and not any(
                isinstance(value, str) and any(end in value for end in "\t\r\n") for value in record.values()
            )
        return cls(path, columns, form, list(names), rows, is_flat)

    def pieces(self) -> Iterator[list[tuple[Path, int, Record]]]:
        """The rows again, some at a time."""
        found = _records(self.path, self.columns, self.form)
        while piece := list(islice(found, AT_ONCE)):
            yield piece


@dataclass(frozen=True)
class Labeller:
    """A party's model and what it may answer."""

    model: Model
    length: int
    allowed: Tensor
    """[C] which labels"""

    @property
    def headings(self) -> list[str]:
        """The columns that it adds."""
        return [PREDICTED, *(f"probability_{self.model.labels[number]}" for number in self._numbers())]

    def label(self, texts: Texts) -> Iterator[dict[str, object]]:
        """Every row with all its columns, its label and the probability of each label."""
        if taken := [name for name in self.headings if name in texts.names]:
            raise FedstillError(f"{texts.path} has a column {taken[0]!r} already: rename or remove it.")
        numbers, headings = self._numbers(), self.headings
        for piece in texts.pieces():
            chances = self._probabilities(piece, texts.columns)[:, numbers]
            best = chances.argmax(-1).tolist()
            for (_, _, record), number, row in zip(piece, best, chances.tolist(), strict=True):
                values = [self.model.labels[numbers[number]], *(round(chance, 6) for chance in row)]
                yield {**record, **dict(zip(headings, values, strict=True))}

    def _numbers(self) -> list[int]:
        return self.allowed.nonzero().flatten().tolist()

    def _probabilities(self, piece: Sequence[tuple[Path, int, Record]], columns: Columns) -> Tensor:
        assert self.model.tokenizer is not None
        rows = [row_of(str(file), line, record, columns) for file, line, record in piece]
        pairs = [row.pair or "" for row in rows] if columns.pair is not None else None
        encoded = self.model.tokenizer.encode([row.text for row in rows], pairs, self.length)
        store = TokenStore(*encoded, pad_id=self.model.tokenizer.pad_id, pads_left=self.model.pads_left)
        logits = predict(self.model.module, Examples(store, np.arange(len(rows))))
        return logits.masked_fill(~self.allowed, -torch.inf).softmax(-1)


def text_columns(run: Path, text: Sequence[str] | None) -> Columns:
    """The columns of the texts: those that are named, or those of the run's experiment."""
    if not (run / "experiment.yaml").exists():
        raise FedstillError(f"{run} is not a run folder: give one such as runs/<name>/seed-0.")
    own = load_experiment(run / "experiment.yaml").corpus.text
    columns = list(text or ([own] if isinstance(own, str) else own))
    if len(columns) > 2:
        raise FedstillError("--text is given once, or twice for a pair of texts.")
    return Columns(columns[0], columns[1] if len(columns) == 2 else None, None)


def labeller(run: Path, party: str, task: str | None = None) -> Labeller:
    """The model of a party of a finished run, ready to label texts."""
    record = runs.Record(run)
    folder = record.model_folder(party)
    if not folder.is_dir():
        parties = [path.name for path in (run / MODELS).glob("*")]
        gone = "it keeps its models with `reproduce --models`." if record.is_finished else "the run is not finished."
        raise FedstillError(f"{run} has no model of {party!r}; {nearest(party, parties) or gone}")
    experiment = load_experiment(run / "experiment.yaml")
    model = load(folder, trust_code=trusts_all())
    accelerate(model.module, experiment.fast)
    if model.tokenizer is None:
        raise FedstillError(f"{run}: the models of this run read images, and `fedstill predict` labels texts.")
    clients = record.summary["clients"]
    spec = experiment.client_specs(clients)[party] if party in clients else experiment.server_spec()
    return Labeller(model, spec.train.max_length, _answers(model, experiment, task))


def _records(path: Path, columns: Columns, form: Form) -> Iterator[tuple[Path, int, Record]]:
    for file in tables.files_of(path):
        for line, record in tables.records(file, columns, form, whole=True):
            yield file, line, record


def _answers(model: Model, experiment: Experiment, task: str | None) -> Tensor:
    """Which labels are allowed: all, or with several tasks those of the named task."""
    tasks = sorted({label.partition("/")[0] for label in model.labels}) if experiment.corpus.is_of_tasks else []
    if task is None and not tasks:
        return torch.ones(len(model.labels), dtype=torch.bool)
    if task not in tasks:
        wanted = f"it has no task {task!r}" if task is not None else "name one of them with --task"
        raise FedstillError(f"this run has {'the tasks ' + ', '.join(tasks) if tasks else 'one task only'}: {wanted}.")
    return torch.tensor([label.partition("/")[0] == task for label in model.labels])
