"""Rows of labelled text from CSV, TSV, JSON lines, Parquet or a Hugging Face data set; errors name file and row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedstill.common.errors import FedstillError
from fedstill.data.artefacts import offline
from fedstill.data.corpora import tables
from fedstill.data.corpora.tables import Columns, Form, check_columns, fault

__all__ = ["ONE_LABEL", "Columns", "Row", "fault", "hub_dataset", "read", "read_dataset", "read_records", "row_of"]

ONE_LABEL = "fedstill learns one label for a text, not several (multi-label) and not one for each token"


class Row(NamedTuple):
    """One labelled text and where it was read; the label is empty if it was missing."""

    file: str
    line: int
    text: str
    pair: str | None
    label: str
    domain: str | None = None
    group: str | None = None
    validates: bool = False
    """Whether it came from a separate validation file."""

    @property
    def has_text(self) -> bool:
        """Whether there is something to read, in both texts of a pair."""
        return bool(self.text.strip()) and (self.pair is None or bool(self.pair.strip()))

    def fault(self, what: str) -> FedstillError:
        """An error about this row."""
        return fault(self.file, self.line, what)


def read(
    path: Path,
    columns: Columns,
    encoding: str = "utf-8",
    header: Sequence[str] | None = None,
    short: list[int] | None = None,
    delimiter: str | None = None,
) -> Iterator[Row]:
    """The rows of a file, or of a folder where each file is a domain, named by the file's stem.

    If a list is given as `short`, the numbers of rows with too few fields are added to it; else they are an error.
    """
    for file in tables.files_of(path):
        for line, record in tables.records(file, columns, Form(encoding, header, delimiter), short):
            row = row_of(str(file), line, record, columns)
            yield row if columns.domain or file == path else row._replace(domain=file.stem)


def read_records(
    name: str, records: Iterable[Mapping[str, object]], names: Iterable[str], columns: Columns
) -> Iterator[Row]:
    """The rows of a table with these column names; `name` stands for the file in errors."""
    check_columns(name, 0, names, columns)
    line = 0
    for line, record in enumerate(records, start=1):
        yield row_of(name, line, record, columns)
    if not line:
        raise FedstillError(f"{name} holds no rows.")


def hub_dataset(name: str, config: str | None, split: str) -> Any:
    """One split of a Hugging Face data set, as an object of the `datasets` package."""
    try:
        import datasets
    except ImportError as error:
        raise FedstillError(
            f"{name} is read as a Hugging Face data set, which needs the `datasets` package: "
            'run `pip install "fedstill[datasets]"`, or give a file or folder with `path:`.'
        ) from error
    switch = offline()
    if switch:
        # The library reads only its own variable, and only when it is imported.
        datasets.config.HF_HUB_OFFLINE = True
    try:
        return datasets.load_dataset(name, config, split=split)
    except Exception as error:  # which errors the library raises depends on its version
        reason = str(error).strip().partition("\n")[0].rstrip(".") + (f"; {switch} is set" if switch else "")
        which = f"{config}, split {split}" if config else f"split {split}"
        raise FedstillError(
            f"The data set {name} ({which}) could not be loaded: {reason}. Check its name (fedstill's own are in "
            "`fedstill show corpora`), `config:`, `split:` and the connection, or give a file or folder with `path:`."
        ) from error


def read_dataset(name: str, config: str | None, split: str, columns: Columns) -> Iterator[Row]:
    """The rows of one split of a Hugging Face data set; class numbers become class names."""
    data = hub_dataset(name, config, split)
    source = f"{name}[{split}]"
    check_columns(source, 0, data.column_names, columns)
    names = getattr(data.features[columns.label], "names", None) if columns.label else None
    for line, record in enumerate(data, start=1):
        number = record[columns.label] if columns.label else None
        if names and isinstance(number, int):
            # The Hub's convention for a hidden label is -1.
            record = {**record, columns.label: names[number] if number >= 0 else None}
        yield row_of(source, line, record, columns)


def row_of(file: str, line: int, record: Mapping[str, object], columns: Columns) -> Row:
    """The columns of a record that are wanted, as text."""

    def value(column: str | None) -> str | None:
        return None if column is None else _as_text(record[column], file, line, column)

    if columns.label is not None and isinstance(found := record[columns.label], list | tuple | dict):
        what = "several values" if isinstance(found, dict) else "a list"
        raise fault(file, line, f"column {columns.label!r} holds {what}; {ONE_LABEL}.")
    return Row(
        file=file,
        line=line,
        text=value(columns.text) or "",
        pair=value(columns.pair),
        label=(value(columns.label) or "").strip(),
        domain=value(columns.domain),
        group=value(columns.group),
    )


def _as_text(value: object, file: str, line: int, column: str) -> str:
    """A cell as text: `true` for True, `3` for 3.0, empty for a missing value."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise fault(
                file, line, f"column {column!r} holds half a character ({error.reason}); correct its escape sequence."
            ) from error
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (int, float)):
        return str(value)
    raise fault(file, line, f"column {column!r} holds a {type(value).__name__}; fedstill reads texts and numbers.")
