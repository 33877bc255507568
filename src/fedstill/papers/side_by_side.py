"""A paper's table with our numbers beside the paper's in every cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from rich import box
from rich.table import Table
from rich.text import Text

from fedstill import algorithms
from fedstill.data.partition import Partition
from fedstill.papers.grid import Grid, GridRun
from fedstill.papers.kept import KeptRun
from fedstill.papers.recipe import Recipe
from fedstill.results.record import Record
from fedstill.results.runs import POOLED, Run, complete
from fedstill.results.significance import FEWEST_SEEDS, interval_over_seeds
from fedstill.wire.messages import SERVER

MISSING = "–"
EMPTY = (MISSING, f"{MISSING} | {MISSING}")
"""Cells in which nothing stands, without and with the paper's number."""
CLIENTS = "clients"
"""The split of the clients' own test rows, each client's for itself."""
LAST = "last5/"
"""In front of a split: the mean over the last five rounds."""

Outcomes = Mapping[Path, Run | str]
"""Folder -> the finished run, or the reason why there is none."""


@dataclass(frozen=True)
class SideBySide:
    """A table's cells as text; every row begins with the method's name."""

    headings: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]


def side_by_side(grid: Grid, outcomes: Outcomes) -> SideBySide:
    """The whole table of the paper; cells that were not run show only the paper's number."""
    recipe = grid.recipe
    headings = tuple(column.heading or name for name, column in recipe.columns.items())
    groups = []
    for group in recipe.groups:
        rows = [
            (label(recipe, row), *(_cell(grid, outcomes, group, row, column) for column in recipe.columns))
            for row in recipe.rows_of(group)
        ]
        groups.append((group, tuple(rows)))
    return SideBySide(("method", *headings), tuple(groups))


def label(recipe: Recipe, row: str) -> str:
    """The paper's name of a method, with our name if it differs."""
    ours = algorithms.make(recipe.rows[row].algorithm).title
    return row if _plain(ours) == _plain(row) else f"{row} (here: {ours})"


def score(run: Run, split: str, metric: str) -> float | None:
    """The server's score; without a server model, the mean over the clients that were measured on that split.

    The split `clients` is the mean over the clients of their scores on their own test rows, for every method.
    """
    if split == CLIENTS:
        known = complete(scores.get(f"{POOLED}/{name}", {}).get(metric) for name, scores in run.clients.items())
        return fmean(known) if known else None
    if split.startswith(LAST):
        return _last_rounds(run, split.removeprefix(LAST), metric)
    if run.server is not None:
        return run.server.get(split, {}).get(metric)
    known = complete(scores[split].get(metric) for scores in run.clients.values() if split in scores)
    return fmean(known) if known else None


def _last_rounds(run: Run, split: str, metric: str) -> float | None:
    """The mean over the last five rounds of the server's score, before any post-processing."""
    if isinstance(run, KeptRun):
        by_round = run.by_round.get(split, {}).get(metric, {})
    else:
        about = {"party": SERVER, "split": split, "stage": "distilled"}
        lines = [line for line in Record(run.folder).metrics if about.items() <= line.items()]
        by_round = {int(line["round"]): line[metric] for line in lines}
    last = [by_round[number] for number in sorted(by_round)[-5:]]
    return fmean(last) if last else None


def finished(runs: Sequence[GridRun], outcomes: Outcomes) -> list[Run]:
    """The runs that are finished."""
    return [run for each in runs if isinstance(run := outcomes.get(each.folder), Run)]


def _cell(grid: Grid, outcomes: Outcomes, group: str, row: str, column: str) -> str:
    ours = _ours(grid, outcomes, group, row, column)
    printed = grid.recipe.printed(group, row, column)
    return f"{printed or MISSING} | {ours}" if grid.recipe.values else ours


def _ours(grid: Grid, outcomes: Outcomes, group: str, row: str, column: str) -> str:
    planned = grid.of(group, row, column)
    runs = finished(planned, outcomes)
    if not runs:
        return "failed" if planned else MISSING
    spec = grid.recipe.columns[column]
    others = (
        {}
        if spec.against is None
        else {run.seed: run for run in finished(grid.of(group, spec.against, column), outcomes)}
    )
    pairs = [(run, others[run.seed]) for run in runs if run.seed in others]
    if spec.sent and spec.against is None:
        return f"{fmean(sent(run) for run in runs):,.0f}"
    if spec.sent:
        return f"{fmean(sent(other) / sent(run) for run, other in pairs):.1f}x" if pairs else MISSING
    if spec.against is None:
        shown = [spread(complete(score(run, *what) for run in runs)) for what in spec.shows]
    elif spec.against == row:
        shown = [MISSING]
    else:
        shown = [spread(_gains(pairs, *what), sign="+") for what in spec.shows]
    if set(shown) == {MISSING}:  # this is not measured for this method
        return MISSING
    lost = len(planned) - len(runs)
    return f"{'/'.join(shown)} ({len(runs)}{f'; {lost} failed' if lost else ''})"


def sent(run: Run) -> int:
    """The bytes of all messages, greetings and measurements included."""
    return run.bytes_up + run.bytes_down


def _gains(pairs: Sequence[tuple[Run, Run]], split: str, metric: str) -> list[float]:
    """The differences of the scores of every pair; none if one is missing."""
    ours, theirs = (complete(score(pair[side], split, metric) for pair in pairs) for side in (0, 1))
    return [own - other for own, other in zip(ours, theirs, strict=False)]


def spread(values: Sequence[float], sign: str = "") -> str:
    """Mean, sample standard deviation and, from three seeds on, the 95% interval of the mean, in points."""
    if not values:
        return MISSING
    within = interval_over_seeds(values)
    return (
        f"{100 * fmean(values):{sign}.1f}"
        + (f" ± {100 * stdev(values):.1f}" if len(values) > 1 else "")
        + (f" [{100 * within[0]:{sign}.1f}, {100 * within[1]:{sign}.1f}]" if within else "")
    )


def brief(table: SideBySide) -> SideBySide:
    """The table without columns in which nothing of ours stands, and rows in which nothing stands at all."""
    every = [rows for _, group in table.groups for rows in group]
    ours = [place for place in range(len(table.headings)) if any(not row[place].endswith(MISSING) for row in every)]
    if len(ours) < 2:  # nothing but names
        return table

    def short(row: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(row[place] for place in ours)

    groups = (
        (name, tuple(short(row) for row in rows if any(cell not in EMPTY for cell in short(row)[1:])))
        for name, rows in table.groups
    )
    return SideBySide(short(table.headings), tuple((name, rows) for name, rows in groups if rows))


def render(table: SideBySide, width: int) -> list[Table]:
    """Tables for a terminal: as many columns side by side as fit, the others in further tables."""
    table = brief(table)
    every = [rows for _, group in table.groups for rows in group]
    widths = [max(len(row[place]) for row in [table.headings, *every]) for place in range(len(table.headings))]
    blocks: list[list[int]] = [[]]
    for place in range(1, len(widths)):
        if blocks[-1] and widths[0] + sum(widths[other] + 2 for other in [*blocks[-1], place]) > width:
            blocks.append([])
        blocks[-1].append(place)
    return [_block(table, [0, *places]) for places in blocks]


def _block(table: SideBySide, places: Sequence[int]) -> Table:
    # Text everywhere: a name such as minilm[:3] must not be read as markup
    block = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1), pad_edge=False)
    for place in places:
        block.add_column(Text(table.headings[place]), overflow="fold")
    for name, rows in table.groups:
        if name:
            block.add_row(Text(name, style="bold"))
        for row in rows:
            block.add_row(*(Text(row[place]) for place in places))
    return block


def markdown(table: SideBySide) -> str:
    """The same as one Markdown table."""
    lines = [list(table.headings), ["---"] * len(table.headings)]
    for name, rows in table.groups:
        lines += [[f"**{name}**", *[""] * (len(table.headings) - 1)]] if name else []
        lines += [list(row) for row in rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def how_to_read(grid: Grid) -> list[str]:
    """What the cells mean, and how not to read them."""
    recipe = grid.recipe
    if not recipe.values:
        what = f"The paper prints no numbers for this ({recipe.paper}): every cell is ours"
    else:
        what = f"A cell is paper | ours: {recipe.paper} as printed, then ours"
    alone = "Ours is another scale than the paper's: compare our numbers only with each other."
    return [
        f"{what}, in points: mean ± sample standard deviation over seeds (number of seeds).",
        f"In brackets: the 95% interval over seeds (Student's t) of a mean or difference; needs {FEWEST_SEEDS} seeds.",
        *([alone] if grid.scale != "paper" else []),
        *recipe.remarks(grid.scale),
        *grid.selection.left_out,
    ]


def settings(grid: Grid, outcomes: Outcomes) -> list[str]:
    """The rows, clients, rounds, seeds and models of the cells, read from the records."""
    first: dict[tuple[str, tuple[str, ...]], tuple[GridRun, Run]] = {}
    for run in grid.runs:
        if isinstance(ended := outcomes.get(run.folder), Run):
            first.setdefault((run.group, run.columns), (run, ended))
    said: dict[str, list[str]] = {}
    for run, ended in first.values():
        sentence = ended.setting if isinstance(ended, KeptRun) else setting(run)
        said.setdefault(sentence, []).append(", ".join(filter(None, (run.group, _columns(grid, run)))))
    seeds = sorted({run.experiment.seed for run in grid.runs})
    listed = [f"{'; '.join(filter(None, places))}: {what}" if any(places) else what for what, places in said.items()]
    return [*listed, f"Seeds: {', '.join(map(str, seeds))}."]


def _columns(grid: Grid, run: GridRun) -> str:
    return "" if set(run.columns) >= set(grid.selection.columns) else "/".join(run.columns)


def setting(run: GridRun) -> str:
    """The rows, clients, rounds and models of a run, read from its folder."""
    parts = Partition.read(run.folder)
    experiment = run.experiment
    clients = experiment.client_specs(parts.clients)
    models = list(dict.fromkeys(str(spec.model) for spec in clients.values()))
    sizes = {
        "private": sum(map(len, parts.train.values())),
        "public": len(parts.public),
        "labelled": len(parts.labelled),
        "test": sum(map(len, parts.test.values())),
        "global test": sum(map(len, parts.global_test.values())),
    }
    rows = ", ".join(f"{size:,} {what}" for what, size in sizes.items() if size)
    length = f", {experiment.train.max_length} tokens" if experiment.server.reads == "text" else ""
    return (
        f"{rows} rows; K = {len(clients)} clients ({', '.join(models)}), server {experiment.server}; T = "
        f"{experiment.rounds} rounds, {experiment.train.epochs} epochs of training and "
        f"{experiment.resolved().distill.epochs} of distilling{length}."
    )


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
