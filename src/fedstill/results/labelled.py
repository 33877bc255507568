"""Writing rows with their columns as CSV, TSV, JSON lines or Parquet, as they come."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from fedstill.common.errors import FedstillError
from fedstill.common.files import replacing

FORMS = (".csv", ".tsv", ".jsonl", ".parquet")
AT_ONCE = 4096
"""Rows of a Parquet file that are written together."""

Rows = Iterable[Mapping[str, object]]


def check_form(out: Path) -> None:
    """Refuse a name that does not say how to write the file."""
    if out.suffix.lower() not in FORMS:
        raise FedstillError(f"--out {out}: give a name that ends in {', '.join(FORMS[:-1])} or {FORMS[-1]}.")


def write_rows(out: Path, rows: Rows, names: Sequence[str], like: Path) -> None:
    """Write the rows in the form that the name's end says; all of them or nothing.

    Columns of a Parquet file `like` keep their types.
    """
    with replacing(out) as scratch:
        if out.suffix.lower() == ".parquet":
            _parquet(scratch, rows, names, like)
            return
        with scratch.open("w", newline="", encoding="utf-8") as target:
            if out.suffix.lower() == ".jsonl":
                target.writelines(json.dumps(_json(row), ensure_ascii=False) + "\n" for row in rows)
            else:
                write_delimited(target, rows, names, tabs=out.suffix.lower() == ".tsv")


def write_delimited(target: IO[str], rows: Rows, names: Sequence[str], tabs: bool = False) -> None:
    """Write the rows as CSV, or as TSV without any quotes."""
    form: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None} if tabs else {}
    writer = csv.writer(target, **form)
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        return json.dumps(_json(value), ensure_ascii=False)
    return "" if _is_missing(value) else str(value)


def _json(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_json(inner) for inner in value]
    if _is_missing(value):
        return None
    return value if isinstance(value, str | int | float | bool) else str(value)


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _parquet(path: Path, rows: Rows, names: Sequence[str], like: Path) -> None:
    from pyarrow import ArrowException, Table
    from pyarrow.parquet import ParquetWriter

    pieces = _pieces(rows)
    first = next(pieces)
    try:
        schema = _schema(first, names, like)
        with ParquetWriter(path, schema) as writer:
            for piece in chain([first], pieces):
                writer.write_table(
                    Table.from_pylist([{name: row.get(name) for name in names} for row in piece], schema)
                )
    except ArrowException as error:
        raise FedstillError(f"--out: a column has values of several kinds ({error}); write .jsonl or .csv.") from error


def _schema(first: Sequence[Mapping[str, object]], names: Sequence[str], like: Path) -> Any:
    """The types of the first rows; a column that is empty in all of them is text."""
    import pyarrow
    import pyarrow.parquet

    own = pyarrow.parquet.read_schema(like) if like.suffix.lower() == ".parquet" else []
    types = {field.name: field.type for field in own}
    found = pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in first]).schema
    kinds = {name: types.get(name, found.field(name).type) for name in names}
    return pyarrow.schema({name: pyarrow.string() if kind == pyarrow.null() else kind for name, kind in kinds.items()})


def _pieces(rows: Rows) -> Iterator[list[Mapping[str, object]]]:
    found = iter(rows)
    while piece := list(islice(found, AT_ONCE)):
        yield piece
