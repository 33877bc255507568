"""GLUE's classification tasks, from the original files or the Hugging Face Hub, each with its own metrics."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedstill.common.errors import FedstillError
from fedstill.data.corpora.embedded import Embedded, Source
from fedstill.data.corpora.files import Columns, Row, read, read_dataset

if TYPE_CHECKING:
    from fedstill.data.corpora.spec import CorpusSpec

HUB = "nyu-mll/glue"


@dataclass(frozen=True)
class Split:
    """Where a split is: its file in the task's folder, its name on the Hub."""

    file: str
    hub: str
    domain: str | None = None


@dataclass(frozen=True)
class GlueTask:
    """A task's labels in the order of their numbers (of two, the second is the positive one), metrics and columns."""

    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    columns: Columns
    """Of the original files."""
    hub_columns: Columns
    header: tuple[str, ...] | None = None
    """Column names, for files without a header row."""
    has_short_rows: bool = False
    """Some published rows lack fields: they are left out and counted."""
    train: Split = Split("train.tsv", "train")
    development: tuple[Split, ...] = (Split("dev.tsv", "validation"),)


_ENTAILMENT = ("entailment", "not_entailment")
_SENTENCES = Columns("sentence1", "sentence2")

TASKS = {
    "WNLI": GlueTask(("not_entailment", "entailment"), ("accuracy",), _SENTENCES, _SENTENCES),
    "RTE": GlueTask(_ENTAILMENT, ("accuracy",), _SENTENCES, _SENTENCES),
    "MRPC": GlueTask(
        ("not_equivalent", "equivalent"),
        ("positive_f1", "accuracy"),
        Columns("#1 String", "#2 String", "Quality"),
        _SENTENCES,
    ),
    "CoLA": GlueTask(
        ("unacceptable", "acceptable"),
        ("matthews",),
        Columns("sentence"),
        Columns("sentence"),
        header=("source", "label", "mark", "sentence"),
    ),
    "SST-2": GlueTask(("negative", "positive"), ("accuracy",), Columns("sentence"), Columns("sentence")),
    "QNLI": GlueTask(_ENTAILMENT, ("accuracy",), Columns("question", "sentence"), Columns("question", "sentence")),
    "QQP": GlueTask(
        ("not_duplicate", "duplicate"),
        ("positive_f1", "accuracy"),
        Columns("question1", "question2", "is_duplicate"),
        Columns("question1", "question2"),
        has_short_rows=True,
    ),
    "MNLI": GlueTask(
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        Columns("sentence1", "sentence2", "gold_label"),
        Columns("premise", "hypothesis"),
        train=Split("train.tsv", "train", "matched"),
        development=(
            Split("dev_matched.tsv", "validation_matched", "matched"),
            Split("dev_mismatched.tsv", "validation_mismatched", "mismatched"),
        ),
    ),
}


def spelled(task: str) -> str:
    """GLUE's own spelling of a task: sst2 is SST-2."""
    known = {_plain(name): name for name in TASKS}
    if _plain(task) in known:
        return known[_plain(task)]
    nearest = difflib.get_close_matches(_plain(task), known, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"there is no GLUE task called {task!r}, did you mean {known[nearest]}? There are {', '.join(TASKS)}"
    )


def _source(spec: CorpusSpec, is_public: bool) -> Source:
    """Training and development rows; a public task gives its training texts alone."""
    name, folder = str(spec.task), spec.folder
    task = TASKS[name]
    development = () if is_public else task.development
    if folder is not None:
        _check_files(folder, name, [split.file for split in (task.train, *development)])
    if is_public:
        task = replace(
            task, columns=replace(task.columns, label=None), hub_columns=replace(task.hub_columns, label=None)
        )
    counts = {"rows read": 0}
    train, *rest = [_read(name, task, split, folder, counts) for split in (task.train, *development)]
    test = None if is_public else [row for part in rest for row in part]
    order = "in GLUE's order, which its metrics go by"
    return Source(name, train, test, counts, task.labels, task.metrics, order)


def _plain(task: str) -> str:
    return "".join(filter(str.isalnum, task.lower()))


def _check_files(folder: Path, name: str, names: Sequence[str]) -> None:
    if not (folder / name).is_dir():
        is_task = (folder / names[0]).is_file()
        holds = f"the folder above, {folder.parent}" if is_task else f"the folder that holds {name}/{names[0]}"
        raise FedstillError(f"{folder / name} is not a folder; set `path:` to {holds}.")
    for file in names:
        if not (folder / name / file).is_file():
            raise FedstillError(
                f"{folder / name / file} is missing; {name} needs {' and '.join(names)} as GLUE publishes them, or no "
                "`path:` to take them from the Hugging Face Hub."
            )


def _read(name: str, task: GlueTask, split: Split, folder: Path | None, counts: dict[str, int]) -> list[Row]:
    short: list[int] = []
    if folder is None:
        found = read_dataset(HUB, name.replace("-", "").lower(), split.hub, task.hub_columns)
    else:
        file = folder / name / split.file
        found = read(file, task.columns, header=task.header, short=short if task.has_short_rows else None)
    is_labelled = task.columns.label is not None
    result = [row._replace(label=_label(row, name) if is_labelled else "", domain=split.domain) for row in found]
    counts["rows read"] += len(result) + len(short)
    if short:
        counts["too few fields"] = counts.get("too few fields", 0) + len(short)
    return result


def _label(row: Row, name: str) -> str:
    labels = TASKS[name].labels
    if row.label in labels:
        return row.label
    if row.label in map(str, range(len(labels))):
        return labels[int(row.label)]
    raise row.fault(f"the label is {row.label!r}; {name} has {', '.join(labels)}, or their numbers from 0.")


CORPUS = Embedded(
    f"GLUE; needs `task:` ({', '.join(TASKS)}), and `path:` or the Hub",
    "each task's own",
    ("each task's own",),
    frozenset({"task", "path"}),
    _source,
)
