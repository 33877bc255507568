"""The picture of a partition: how many training rows of each label (or task) every client has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedstill.data.corpus import Corpus
from fedstill.data.partition import Partition, label_counts
from fedstill.results.drawing import draw
from fedstill.results.drawing.draw import short
from fedstill.results.drawing.panels import Heat, Sheet

SHADES = "·░▒▓█"
"""For zero, then for each quarter of the largest cell."""

Counts = npt.NDArray[np.integer]
"""[labels or tasks, clients]"""


def holdings(corpus: Corpus, parts: Partition) -> tuple[Counts, tuple[str, ...]]:
    """Training rows [labels, clients], or [tasks, clients] if there are several tasks; and the labels (or tasks)."""
    counts = np.stack([label_counts(corpus, parts.train[client]) for client in parts.clients], 1)
    if corpus.label_tasks is None:
        return counts, tuple(corpus.label_names)
    names = tuple(corpus.domain_names)
    return np.stack([counts[corpus.label_tasks == task].sum(0) for task in range(len(names))]), names


def lines(counts: Counts, rows: Sequence[str], columns: Sequence[str], width: int) -> Table:
    """A table, one row per label and one column per client: numbers if they fit, else shades of one or more clients."""
    tries = (columns, width // 3), (_distinct(columns), width // 3), (_distinct(columns), width // 5)
    for names, longest in tries:
        table = _numbers(counts, [short(name, longest) for name in rows], names)
        if Console(width=10_000).measure(table).maximum <= width:
            meaning = f"{SHADES[-1]} is up to {_largest(counts):,}, {SHADES[0]} is none."
            return _explained(table, f"Training rows of {_span(columns)}; {meaning}", width)
    return _shades(counts, rows, columns, width)


def heat(counts: Counts, rows: Sequence[str], columns: Sequence[str], title: str) -> Heat:
    """The same as a panel of a drawing: a shade in every cell, and numbers if there are few cells."""
    names = tuple(rows), tuple(_distinct(columns))
    return Heat(title, "client", "", *names, counts.tolist(), "training rows", floor=0, is_rooted=True)


def save(counts: Counts, rows: Sequence[str], columns: Sequence[str], title: str, path: Path) -> None:
    """Draw it into a file."""
    draw.save(Sheet("", (heat(counts, rows, columns, short(title, 90)),)), path)


def _numbers(counts: Counts, rows: Sequence[str], columns: Sequence[str]) -> Table:
    # Text everywhere: a label named [good] must not be read as markup
    table = _empty()
    for name in columns:
        table.add_column(Text(short(name, 12)), justify="right", no_wrap=True)
    for name, cells in zip(rows, counts, strict=True):
        shown = (Text(f"{number:,} {_shade(number, counts)}") for number in cells.tolist())
        table.add_row(Text(name), *shown)
    return table


def _shades(counts: Counts, rows: Sequence[str], columns: Sequence[str], width: int) -> Table:
    clients = counts.shape[1]
    longest, left = max(4, width // 4), width - clients - 1
    # Labels are shortened somewhat more if that leaves one character for each client.
    labels = [short(name, left if 8 <= left < longest else longest) for name in rows]
    room = max(1, width - max(map(len, labels), default=0) - 1)
    together = math.ceil(clients / room)
    grouped = np.add.reduceat(counts, range(0, clients, together), axis=1)
    table = _empty()
    table.add_column(Text(_ends(columns, grouped.shape[1])), no_wrap=True)
    for name, cells in zip(labels, grouped, strict=True):
        table.add_row(Text(name), Text("".join(_shade(number, grouped) for number in cells.tolist())))
    each = "A character is a client" if together == 1 else f"A character is {together} clients together"
    largest = f"{SHADES[-1]} is up to {_largest(grouped):,} training rows, {SHADES[0]} is none."
    return _explained(table, f"{each}, {_span(columns)}; {largest}", width)


def _empty() -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False)
    table.add_column("", no_wrap=True)
    return table


def _explained(table: Table, sentence: str, width: int) -> Table:
    # Not a caption, which is wrapped to the table's width: with few clients that is too narrow for a sentence.
    whole = Table.grid()
    whole.add_column(max_width=width)
    whole.add_row(table)
    whole.add_row(Text(sentence, style="dim"))
    return whole


def _distinct(columns: Sequence[str]) -> list[str]:
    """The clients' numbers if their names differ only in a number, else their names."""
    same = columns[0].rstrip("0123456789")
    numbers = [name.removeprefix(same) for name in columns]
    return numbers if all(map(str.isdigit, numbers)) else list(columns)


def _span(columns: Sequence[str]) -> str:
    return columns[0] if len(columns) == 1 else f"{columns[0]} to {columns[-1]}"


def _ends(columns: Sequence[str], width: int) -> str:
    """The first client's name at the left and the last one's at the right, if both fit."""
    between = width - len(columns[0]) - len(columns[-1])
    return f"{columns[0]}{' ' * between}{columns[-1]}" if between > 0 else ""


def _shade(number: int, counts: Counts) -> str:
    return SHADES[math.ceil(number / _largest(counts) * (len(SHADES) - 1))]


def _largest(counts: Counts) -> int:
    return max(1, int(counts.max(initial=0)))
