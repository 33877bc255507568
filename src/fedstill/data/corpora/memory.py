"""Rows that a program gives instead of a file; a run keeps them in its folder, in a file named after their content."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedstill.common.errors import FedstillError

TABLE = "the table"
"""What rows in memory are called in errors, where a file has its name."""
FORMS = "a DataFrame, a datasets.Dataset, or a list of mappings from column to value"
READERS: dict[str, tuple[str, ...]] = {"to_pylist": (), "to_dicts": (), "to_dict": ("records",)}
"""How tables of pyarrow, polars and pandas give their rows."""
KEPT = re.compile(r"rows-([0-9a-f]{16})\.jsonl")


@dataclass(frozen=True)
class Held:
    """Rows in memory: the columns that are used, and the names of all."""

    records: list[dict[str, Any]]
    names: tuple[str, ...]

    @classmethod
    def of(cls, table: Any, wanted: Iterable[str]) -> Held:
        """The wanted columns of a table."""
        names = column_names(table)
        columns = [name for name in dict.fromkeys(wanted) if name in names]
        return cls([{name: plain(row.get(name)) for name in columns} for row in records(table)], tuple(names))

    @cached_property
    def data(self) -> bytes:
        """The rows as JSON lines."""
        lines = (json.dumps(record, ensure_ascii=False, default=repr) for record in self.records)
        return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")

    @cached_property
    def file(self) -> str:
        """The name of the file that they are kept in; another name for other rows."""
        return f"rows-{_digest(self.data)}.jsonl"


def is_table(value: object) -> bool:
    """Whether a value holds rows itself: neither a name nor settings."""
    if isinstance(value, list | tuple):
        return all(isinstance(row, Mapping) for row in value)
    is_frame = hasattr(value, "columns") and (hasattr(value, "to_dict") or hasattr(value, "to_dicts"))
    return not isinstance(value, Mapping) and (is_frame or hasattr(value, "column_names"))


def column_names(table: Any) -> Sequence[str]:
    """The names of a table's columns."""
    if isinstance(table, list | tuple):
        return list(dict.fromkeys(name for row in table for name in row))
    names = table.column_names if hasattr(table, "column_names") else table.columns
    return [str(name) for name in names]


def records(table: Any) -> Sequence[Mapping[str, Any]]:
    """The rows of a table as mappings; class numbers of the `datasets` package become class names."""
    if isinstance(table, list | tuple):
        return table
    if hasattr(table, "features"):
        return [_named(row, table.features) for row in table]
    name, arguments = next((name, more) for name, more in READERS.items() if hasattr(table, name))
    rows: Sequence[Mapping[str, Any]] = getattr(table, name)(*arguments)
    return rows


def _named(row: Mapping[str, Any], features: Mapping[str, Any]) -> dict[str, Any]:
    known = {column: getattr(features[column], "names", None) for column in row}
    return {column: _class_name(value, known[column]) for column, value in row.items()}


def _class_name(value: Any, names: Sequence[str] | None) -> Any:
    if not names or not isinstance(value, int):
        return value
    return names[value] if value >= 0 else None  # the Hub's convention for a hidden label is -1


def plain(value: Any) -> Any:
    """A cell as Python has it: numpy's numbers as numbers, every kind of missing value as None."""
    if type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
        return None
    is_number = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return plain(value.item()) if is_number else value


def check_kept(path: Path) -> None:
    """Refuse a file of kept rows whose content is not the one that it is named after."""
    named = KEPT.fullmatch(path.name)
    if named and path.is_file() and _digest(path.read_bytes()) != named[1]:
        raise FedstillError(
            f"{path} was changed since its run began: its name no longer tells its content. Restore it."
        )


def kept_name(path: str) -> str:
    """The name alone, for a file of kept rows, which may be in any folder; other paths unchanged."""
    return Path(path).name if KEPT.fullmatch(Path(path).name) else path


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
