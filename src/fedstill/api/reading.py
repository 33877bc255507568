"""Finished runs in a program: comparing them, and labelling texts with their models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.common.words import listed
from fedstill.data.corpora import files, memory
from fedstill.data.corpora.files import Columns, Row
from fedstill.data.corpora.memory import Held
from fedstill.models.labelling import Predictions, Texts
from fedstill.results.compare import Comparison, load_runs
from fedstill.results.compare import compare as compare_runs
from fedstill.results.record import Record
from fedstill.wire.messages import SERVER

Run = Record | str | os.PathLike[str]
"""A record, or the path of a run folder."""


def compare(runs: Run | Iterable[Run], against: str | None = None) -> Comparison:
    """Finished runs side by side: a row a method, with means over seeds and the significance of differences.

    Runs are records, run folders, or folders of them; `against` names the method to compare with instead of the best
    baseline. `print` shows the table of `fedstill compare`; `.to_pandas()` is a DataFrame.

    >>> print(fedstill.compare([record, "runs/alone"]))
    """
    several = [runs] if isinstance(runs, Record | str | os.PathLike) else list(runs)
    return compare_runs(load_runs([_folder(run) for run in several]), against)


def predict(
    run: Run,
    texts: Texts | Any,
    party: str = SERVER,
    *,
    text: str | Sequence[str] | None = None,
    encoding: str = "utf-8",
    task: str | None = None,
    trust_code: bool = False,
    int8: bool = False,
) -> Predictions:
    """The labels of new texts by a model of a finished run, and the probabilities of all labels.

    `texts` is a list of texts or of pairs; a DataFrame, a `datasets.Dataset` or a list of mappings; or the path of a
    CSV, TSV, JSONL or Parquet file. `text` names the columns where they are not those of the run's corpus, `task` the
    task of the texts where a run has several. A model of somebody's own class needs `trust_code`. `int8` computes with
    weights in eight bits: faster for encoders on a CPU, and nearly the same.

    >>> fedstill.predict("runs/shops/seed-0", ["lovely, thank you"]).labels
    ['good']
    """
    record = run if isinstance(run, Record) else Record(run)
    model = record.model(party, trust_code)
    named = record.settings["corpus"]["text"] if text is None else text
    columns = [named] if isinstance(named, str) else list(named)
    return model.predict(_texts(texts, columns, encoding), record.labels_of(task), int8)


def _folder(run: Run) -> Path:
    return run.folder if isinstance(run, Record) else Path(run)


def _texts(given: Any, columns: Sequence[str], encoding: str) -> Texts:
    named = Columns(columns[0], columns[1] if len(columns) == 2 else None, None)
    if isinstance(given, str | os.PathLike):
        return _pairs(files.read(Path(given), named, encoding))
    if isinstance(given, Mapping):
        raise FedstillError(f"these are {listed(list(given))}: give one table, or a list of texts.")
    if len(given) and memory.is_table(given):
        held = Held.of(given, columns)
        return _pairs(files.read_records(memory.TABLE, held.records, held.names, named))
    texts: Texts = list(given)
    return texts


def _pairs(rows: Iterable[Row]) -> Texts:
    found = list(rows)
    return [row.text for row in found] if found[0].pair is None else [(row.text, row.pair or "") for row in found]
