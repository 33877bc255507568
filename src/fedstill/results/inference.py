"""Labelling new texts with a model of a finished run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedstill.common.errors import FedstillError
from fedstill.common.files import MODELS
from fedstill.common.plugins import nearest
from fedstill.common.trust import trusts_all
from fedstill.data.corpora import CorpusSpec, files
from fedstill.data.corpora.files import Columns
from fedstill.models import Model
from fedstill.results.record import Record


def label_file(
    run: Path, file: Path, party: str, text: Sequence[str] | None, encoding: str = "utf-8", task: str | None = None
) -> Iterator[list[str]]:
    """A header, then for every text of the file: the text, its label, and the probability of that label."""
    record = checked(run, party)
    columns = list(text or text_columns(record))
    if len(columns) > 2:
        raise FedstillError("--text is given once, or twice for a pair of texts.")
    rows = list(files.read(file, Columns(columns[0], columns[1] if len(columns) == 2 else None, None), encoding))
    model = record.model(party, trust_code=trusts_all())
    texts = [row.text for row in rows] if len(columns) == 1 else [(row.text, row.pair or "") for row in rows]
    found = model.predict(texts, allowed=answers(record, model, task))
    yield [*columns, "label", "probability"]
    for row, label, probabilities in zip(rows, found.labels, found.probabilities, strict=True):
        pair = [row.pair or ""] if len(columns) == 2 else []
        yield [row.text, *pair, label, f"{probabilities.max():.4f}"]


def checked(run: Path, party: str) -> Record:
    """The record of a run that has a model of this party."""
    record = Record(run)
    if not (run / "experiment.yaml").exists():
        raise FedstillError(f"{run} is not a run folder: give one such as runs/<name>/seed-0.")
    if not record.model_folder(party).is_dir():
        parties = [path.name for path in (run / MODELS).glob("*")]
        gone = "it keeps its models with `reproduce --models`." if record.is_finished else "the run is not finished."
        raise FedstillError(f"{run} has no model of {party!r}; {nearest(party, parties) or gone}")
    return record


def text_columns(record: Record) -> list[str]:
    """The columns that held the texts of the run's corpus."""
    text = record.settings["corpus"]["text"]
    return [text] if isinstance(text, str) else list(text)


def answers(record: Record, model: Model, task: str | None) -> list[str] | None:
    """Which labels are allowed: all (None), or with several tasks those of the named task."""
    is_of_tasks = CorpusSpec.model_validate(record.settings["corpus"]).is_of_tasks
    tasks = sorted({label.partition("/")[0] for label in model.labels}) if is_of_tasks else []
    if task is None and not tasks:
        return None
    if task not in tasks:
        wanted = f"it has no task {task!r}" if task is not None else "name one of them with --task"
        raise FedstillError(f"this run has {'the tasks ' + ', '.join(tasks) if tasks else 'one task only'}: {wanted}.")
    return [label for label in model.labels if label.partition("/")[0] == task]
