"""AdaFD's Amazon reviews, as its authors publish them: for every domain a CSV, or a folder of CSVs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedstill.common.errors import FedstillError
from fedstill.data.corpora.embedded import Embedded, Source
from fedstill.data.corpora.files import Columns, Row, read

if TYPE_CHECKING:
    from fedstill.data.corpora.spec import CorpusSpec

LABELS = ("neutral", "positive", "negative")
"""In the files' order: label 0 first."""

SPLITS = {"train", "dev", "valid", "validation", "test"}


def _source(spec: CorpusSpec, is_public: bool) -> Source:
    """Every review below the folder, with its file's or folder's name as its domain."""
    if spec.folder is None:
        raise FedstillError("The amazon corpus is not shipped; give its folder: `corpus.path=FOLDER`.")
    rows = [
        row._replace(label=_label(row), domain=domain)
        for domain, file in _files(spec.folder)
        for row in read(file, Columns(), spec.encoding)
    ]
    return Source("amazon", rows, labels=LABELS)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    if not folder.is_dir():
        raise FedstillError(
            f"{folder} is not a folder; set `path:` to the one that holds automotive, baby and the rest."
        )
    files = sorted(folder.glob("*.csv")) + sorted(folder.glob("*/*.csv"))
    if not files:
        raise FedstillError(
            f"{folder} holds no CSV file; put a file or a folder for each domain into it (automotive.csv, ...)."
        )
    for file in files:
        domain = file.stem if file.parent == folder else file.parent.name
        if domain.lower() in SPLITS:
            raise FedstillError(f"{file} is a split, not a domain; set `path:` to the folder above, {folder.parent}.")
        yield domain, file


def _label(row: Row) -> str:
    names = {str(number): name for number, name in enumerate(LABELS)}
    if row.label not in names:
        raise row.fault(f"the label is {row.label!r}; it must be 0 (neutral), 1 (positive) or 2 (negative).")
    return names[row.label]


CORPUS = Embedded(
    "AdaFD's Amazon reviews, a domain a kind of product; needs `path:`",
    "your own copy is read",
    LABELS,
    frozenset({"path", "encoding"}),
    _source,
)
