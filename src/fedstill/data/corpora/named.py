"""Tables by name that a program gives as a corpus: its parts, as in a `datasets.DatasetDict`, or its domains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from fedstill.common.words import listed
from fedstill.data.corpora.memory import column_names, is_table, records

PARTS = {"train": "table", "test": "test", **dict.fromkeys(("validation", "valid", "val", "dev"), "validation")}
"""The parts of a corpus, by the names that data sets have for them."""
DOMAIN = "__domain__"
"""The column that has a table's name, where tables are domains."""


def are_tables(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value is tables by name, and not settings."""
    if not isinstance(value, Mapping) or not value or {"table", "path", "name"} & set(value):
        return False
    return all(is_table(table) for table in value.values())


def settings(value: Any) -> Any:
    """What a program gives as a corpus, as settings in which every part is one table; anything else unchanged."""
    if is_table(value) or are_tables(value):
        given = _one_table_each(_in_parts({"table": value}))
        return {key: key for key in ("domain", "group") if key in column_names(given["table"])} | given
    return _one_table_each(_in_parts(value)) if isinstance(value, dict) else value


def _in_parts(given: dict[str, Any]) -> dict[str, Any]:
    """Tables that are named after parts of a corpus become these parts."""
    tables = given.get("table")
    if not are_tables(tables) or _are_domains(tables):
        return given
    names = listed(list(tables), 8)
    if others := [name for name in tables if name not in PARTS]:
        raise ValueError(
            f"the tables are {names}: give those of a corpus (train, validation, test), or only domains; leave "
            f"{listed(others)} out"
        )
    parts = {PARTS[name]: table for name, table in tables.items()}
    if "table" not in parts or len(parts) < len(tables) or parts.keys() & (given.keys() - {"table"}):
        raise ValueError(f"the tables are {names}: a corpus has one train, and at most one validation and one test")
    return given | parts


def _one_table_each(given: dict[str, Any]) -> dict[str, Any]:
    """Tables by domain become one, with a column that has their names."""
    parts = {key: given[key] for key in ("table", "test", "validation") if key in given}
    by_domain = {key: part for key, part in parts.items() if _are_domains(part)}
    if by_domain and len(by_domain) < len(parts) and not given.get("domain"):
        raise ValueError(f"give tables by domain for each of {listed(list(parts))}, or a `domain` column")
    joined = {key: _joined(tables) for key, tables in by_domain.items()}
    return given | joined | ({"domain": given.get("domain") or DOMAIN} if joined else {})


def _are_domains(value: object) -> bool:
    """Whether no table is named after a part of a corpus; the files of a folder are domains in the same way."""
    return are_tables(value) and not PARTS.keys() & set(value)


def _joined(tables: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**row, DOMAIN: str(name)} for name, table in tables.items() for row in records(table)]
