"""Rows with named columns, for whoever wants a DataFrame of them."""

from __future__ import annotations

from typing import Any

from fedstill.common.errors import FedstillError


class Rows(list[dict[str, Any]]):
    """A list of rows, each a mapping from column to value; `to_pandas()` makes a DataFrame of them.

    >>> Rows([{"client": "books", "gain": 0.1}])[0]["gain"]
    0.1
    """

    def to_pandas(self) -> Any:
        """The rows as a `pandas.DataFrame`."""
        try:
            import pandas
        except ImportError as error:
            raise FedstillError("a DataFrame needs pandas: run `pip install pandas`, or use the rows.") from error
        return pandas.DataFrame(list(self))

    def __str__(self) -> str:
        columns = list(dict.fromkeys(column for row in self for column in row))
        lines = [columns, *([_cell(row.get(column)) for column in columns] for row in self)]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )


def _cell(value: object) -> str:
    return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
