"""Tables that fit a narrow terminal without breaking words."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_WIDE = Console(width=10_000)


def natural_width(table: Table) -> int:
    """The width of a table whose every cell has its longest line whole."""
    return _WIDE.measure(table).maximum


def least_width(table: Table) -> int:
    """The width of a table whose every word is whole."""
    return natural_width(table) - sum(cell.maximum - cell.minimum for cell in _columns(table))


def fit(table: Table, width: int) -> Table:
    """The same table, its columns set so that words stay whole where there is room for that, if need be unframed."""
    if natural_width(table) <= width:
        return table
    if least_width(table) > width:
        table.box, table.show_edge, table.pad_edge, table.padding = box.SIMPLE_HEAD, False, False, (0, 1, 0, 0)
    columns = _columns(table)
    room = width - natural_width(table) + sum(column.maximum for column in columns)
    if sum(column.minimum for column in columns) <= room:
        for column, chosen in zip(table.columns, _shared(columns, room), strict=True):
            column.width = chosen
    return table


def _columns(table: Table) -> list[Measurement]:
    """The longest word and the longest line of every column."""
    found = []
    for column in table.columns:
        sizes = [Measurement.get(_WIDE, _WIDE.options, cell) for cell in (column.header, *column.cells)]
        found.append(Measurement(max(size.minimum for size in sizes), max(size.maximum for size in sizes)))
    return found


def _shared(columns: Sequence[Measurement], room: int) -> list[int]:
    """Widths with this sum: each at least its longest word and, as far as there is room, the same for all."""
    level = max(column.maximum for column in columns)
    while sum(chosen := [max(column.minimum, min(column.maximum, level)) for column in columns]) > room:
        level -= 1
    return chosen
