"""The picture of a partition: how many training rows of each label (or task) every client has."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole
from fedstill.data.corpus import Corpus
from fedstill.data.partition import Partition, label_counts

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
        table = _numbers(counts, [_short(name, longest) for name in rows], names)
        if Console(width=10_000).measure(table).maximum <= width:
            meaning = f"{SHADES[-1]} is up to {_largest(counts):,}, {SHADES[0]} is none."
            return _explained(table, f"Training rows of {_span(columns)}; {meaning}", width)
    return _shades(counts, rows, columns, width)


def save(counts: Counts, rows: Sequence[str], columns: Sequence[str], title: str, path: Path) -> None:
    """A PNG with a shade in every cell, and with numbers if there are few cells."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FedstillError(
            'Drawing a picture needs the `matplotlib` package: run `pip install "fedstill[figures]"`.'
        ) from error
    many, clients = counts.shape
    has_numbers = counts.size <= 150
    across = 0.6 if has_numbers else 0.1
    figure = Figure((_between(2.6 + across * clients, 6, 16), _between(1.6 + 0.28 * many, 3, 24)), layout="constrained")
    axes = figure.subplots()
    drawn = axes.imshow(counts, cmap="Blues", aspect="auto", vmin=0, vmax=_largest(counts))
    figure.colorbar(drawn, label="training rows", pad=0.02, aspect=30)
    step = 1 if clients <= 25 else 5 * math.ceil(clients / 125)
    shown = [_short(name, 14) for name in _distinct(columns)[::step]]
    is_long = sum(map(len, shown)) > 40
    # No formulas: a name may contain a dollar sign.
    axes.set_xticks(range(0, clients, step), shown, rotation=90 if is_long else 0, fontsize=9, parse_math=False)
    axes.set_yticks(range(many), [_short(name, 24) for name in rows], fontsize=9, parse_math=False)
    axes.set_xlabel("client")
    axes.set_title(_short(title, 90), fontsize=11, parse_math=False)
    if has_numbers:
        for (row, column), number in np.ndenumerate(counts):
            colour = "white" if number > 0.6 * _largest(counts) else "black"
            axes.text(column, row, str(number), ha="center", va="center", fontsize=8, color=colour)
    drawing = io.BytesIO()
    figure.savefig(drawing, format="png", dpi=140)
    write_whole(path, drawing.getvalue())


def _numbers(counts: Counts, rows: Sequence[str], columns: Sequence[str]) -> Table:
    # Text everywhere: a label named [good] must not be read as markup
    table = _empty()
    for name in columns:
        table.add_column(Text(_short(name, 12)), justify="right", no_wrap=True)
    for name, cells in zip(rows, counts, strict=True):
        shown = (Text(f"{number:,} {_shade(number, counts)}") for number in cells.tolist())
        table.add_row(Text(name), *shown)
    return table


def _shades(counts: Counts, rows: Sequence[str], columns: Sequence[str], width: int) -> Table:
    clients = counts.shape[1]
    longest, left = max(4, width // 4), width - clients - 1
    # Labels are shortened somewhat more if that leaves one character for each client.
    labels = [_short(name, left if 8 <= left < longest else longest) for name in rows]
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


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _between(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
