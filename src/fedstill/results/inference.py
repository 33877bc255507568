"""Labelling new texts with a model of a finished run, a piece of the file at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fedstill.common.errors import FedstillError
from fedstill.common.trust import trusts_all
from fedstill.config.experiment import load_experiment
from fedstill.data.corpora import tables
from fedstill.data.corpora.files import row_of
from fedstill.data.corpora.tables import Columns, Form, Record
from fedstill.models import Model
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
    allowed: list[str]
    int8: bool = False
    """With weights in eight bits."""

    @property
    def headings(self) -> list[str]:
        """The columns that it adds."""
        return [PREDICTED, *(f"probability_{label}" for label in self.allowed)]

    def label(self, texts: Texts) -> Iterator[dict[str, object]]:
        """Every row with all its columns, its label and the probability of each label."""
        headings, columns = self.headings, texts.columns
        if taken := [name for name in headings if name in texts.names]:
            raise FedstillError(f"{texts.path} has a column {taken[0]!r} already: rename or remove it.")
        places = [self.model.labels.index(label) for label in self.allowed]
        for piece in texts.pieces():
            rows = [row_of(str(file), line, record, columns) for file, line, record in piece]
            first = [row.text for row in rows]
            pairs = first if columns.pair is None else [(row.text, row.pair or "") for row in rows]
            found = self.model.predict(pairs, self.allowed, self.int8)
            chances = found.probabilities[:, places].round(6).tolist()
            for (_, _, record), label, row in zip(piece, found.labels, chances, strict=True):
                yield {**record, **dict(zip(headings, [label, *row], strict=True))}


def text_columns(run: Path, text: Sequence[str] | None) -> Columns:
    """The columns of the texts: those that are named, or those of the run's experiment."""
    if not (run / "experiment.yaml").exists():
        raise FedstillError(f"{run} is not a run folder: give one such as runs/<name>/seed-0.")
    own = load_experiment(run / "experiment.yaml").corpus.text
    columns = list(text or ([own] if isinstance(own, str) else own))
    if len(columns) > 2:
        raise FedstillError("--text is given once, or twice for a pair of texts.")
    return Columns(columns[0], columns[1] if len(columns) == 2 else None, None)


def labeller(run: Path, party: str | None = None, task: str | None = None, int8: bool = False) -> Labeller:
    """The model of a party of a finished run, ready to label texts; by default the server's, or the only one."""
    record = runs.Record(run)
    model = record.model(party or record.usual_party, trusts_all())
    if model.tokenizer is None:
        raise FedstillError(f"{run}: the models of this run read images, and `fedstill predict` labels texts.")
    return Labeller(model, record.labels_of(task), int8)


def _records(path: Path, columns: Columns, form: Form) -> Iterator[tuple[Path, int, Record]]:
    for file in tables.files_of(path):
        for line, record in tables.records(file, columns, form, whole=True):
            yield file, line, record
