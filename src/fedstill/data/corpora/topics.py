"""AG News and DBpedia: texts labelled by topic, from the publishers' CSV files or the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedstill.common.errors import FedstillError
from fedstill.data.corpora.embedded import Embedded, Source
from fedstill.data.corpora.files import Columns, Row, read, read_dataset

if TYPE_CHECKING:
    from fedstill.data.corpora.spec import CorpusSpec

METRICS = ("accuracy", "f1")


@dataclass(frozen=True)
class Topics:
    """A corpus of topics: its labels in the order of their numbers, and where its splits are."""

    title: str
    labels: tuple[str, ...]
    hub: str
    hub_columns: Columns
    train: tuple[tuple[str, str], ...] = (("train.csv", "train"),)
    """The file and the Hub's split of each part; only the first file is required."""
    test: tuple[str, str] = ("test.csv", "test")
    needs_test: bool = False
    has_header: bool = False


AGNEWS = Topics(
    "AG News",
    ("World", "Sports", "Business", "Sci/Tech"),
    "fancyzhx/ag_news",
    Columns("text"),
    needs_test=True,
)
_DBPEDIA_14 = Topics(
    "DBpedia",
    (
        "Company",
        "EducationalInstitution",
        "Artist",
        "Athlete",
        "OfficeHolder",
        "MeanOfTransportation",
        "Building",
        "NaturalPlace",
        "Village",
        "Animal",
        "Plant",
        "Album",
        "Film",
        "WrittenWork",
    ),
    "fancyzhx/dbpedia_14",
    Columns("title", "content"),
)
_DBPEDIA_9 = Topics(
    "DBpedia of 9 classes",
    (
        "Agent",
        "Device",
        "Event",
        "Place",
        "Species",
        "SportsSeason",
        "TopicalConcept",
        "UnitWork",
        "Work",
    ),
    "DeveloperOats/DBPedia_Classes",
    Columns("text", None, "l1"),
    # A partition draws its own validation rows, so the published ones are used for training.
    train=(("DBPEDIA_train.csv", "train"), ("DBPEDIA_val.csv", "validation")),
    test=("DBPEDIA_test.csv", "test"),
    has_header=True,
)
DBPEDIA = {14: _DBPEDIA_14, 9: _DBPEDIA_9}


def _agnews(spec: CorpusSpec, is_public: bool) -> Source:
    return Source("agnews", *_rows(AGNEWS, spec.folder, is_public), labels=AGNEWS.labels, metrics=METRICS)


def _dbpedia(spec: CorpusSpec, is_public: bool) -> Source:
    topics = DBPEDIA[spec.classes]
    return Source("dbpedia", *_rows(topics, spec.folder, is_public), labels=topics.labels, metrics=METRICS)


def _rows(topics: Topics, folder: Path | None, is_public: bool) -> tuple[list[Row], list[Row] | None]:
    """Training rows, and test rows where there are any; public topics give their training texts alone."""
    if folder is None:
        train = [row for _, split in topics.train for row in _from_hub(topics, split, is_public)]
        return train, None if is_public else list(_from_hub(topics, topics.test[1], is_public))
    needed = [topics.train[0][0], *([topics.test[0]] if topics.needs_test and not is_public else [])]
    for name in needed:
        if not (folder / name).is_file():
            raise FedstillError(
                f"{folder / name} is missing; set `path:` to the folder with {topics.title}'s {' and '.join(needed)}, "
                "or leave it out to take them from the Hugging Face Hub."
            )
    files = [folder / name for name, _ in topics.train if (folder / name).is_file()]
    train = [row for file in files for row in _from_file(topics, file, is_public)]
    test = folder / topics.test[0]
    return train, None if is_public or not test.is_file() else list(_from_file(topics, test, is_public))


def _from_hub(topics: Topics, split: str, is_public: bool) -> Iterator[Row]:
    columns = replace(topics.hub_columns, label=None) if is_public else topics.hub_columns
    for row in read_dataset(topics.hub, None, split, columns):
        yield _as_one_text(row, topics, is_public, first=0)


def _from_file(topics: Topics, file: Path, is_public: bool) -> Iterator[Row]:
    columns, header, first = topics.hub_columns, None, 0
    if not topics.has_header:
        columns, header, first = _form(file)
    if is_public:
        columns = replace(columns, label=None)
    for row in read(file, columns, header=header):
        yield _as_one_text(row, topics, is_public, first)


def _form(file: Path) -> tuple[Columns, tuple[str, ...], int]:
    """Columns, their names and the first label's number: the publisher's three columns, or label and text.

    The publisher counts labels from 1; the common copies with a single text column count from 0.
    """
    # Bytes that are not UTF-8 and broken quotes are reported later, when the whole file is read.
    with file.open(encoding="utf-8", errors="replace", newline="") as opened, contextlib.suppress(csv.Error):
        if len(next(csv.reader(opened), [])) == 3:
            return Columns("title", "description"), ("label", "title", "description"), 1
    return Columns(), ("label", "text"), 0


def _as_one_text(row: Row, topics: Topics, is_public: bool, first: int) -> Row:
    text = " ".join(part.strip() for part in (row.text, row.pair or "")).strip()
    return row._replace(text=text, pair=None, label="" if is_public else _label(row, topics, first))


def _label(row: Row, topics: Topics, first: int) -> str:
    if row.label in topics.labels:
        return row.label
    numbers = {str(number): label for number, label in enumerate(topics.labels, start=first)}
    if row.label in numbers and not topics.has_header:
        return numbers[row.label]
    known = ", ".join(topics.labels) if topics.has_header else f"{first} to {first + len(topics.labels) - 1}"
    header = " (the file must have no header row)" if row.line == 1 and not topics.has_header else ""
    raise row.fault(f"the label is {row.label!r}; {topics.title} has {known}{header}.")


CORPORA = {
    "agnews": Embedded(
        "AG News by topic; `path:` or the Hub", "your own copy is read", AGNEWS.labels, frozenset({"path"}), _agnews
    ),
    "dbpedia": Embedded(
        "DBpedia articles by kind, `classes:` 14 or 9; `path:` or the Hub",
        "CC BY-SA 3.0",
        ("14 or 9 kinds of things",),
        frozenset({"path", "classes"}),
        _dbpedia,
    ),
}
