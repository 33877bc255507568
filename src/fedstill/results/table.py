"""A comparison as a table for a wide or narrow terminal."""

from collections.abc import Callable, Sequence

from rich import box, get_console
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedstill.common.units import size_text
from fedstill.results.compare import Comparison, Difference, MethodRow, Spread
from fedstill.results.fitting import fit, least_width, natural_width
from fedstill.results.significance import p_text

MISSING = "–"

MANY = 8
"""With more clients or domains than this, they get no columns."""

TableColumn = tuple[str, Callable[[MethodRow], str]]


def render(comparison: Comparison, width: int | None = None) -> Table:
    """A rich table in points, with the notes as its caption; two tables or more if the terminal is narrow."""
    width = width or get_console().width
    table = _table(comparison, [*_score_columns(comparison, " "), *_worth_columns(comparison)])
    for between in (" ", "\n"):
        if natural_width(table) <= width:
            break
        table = Table.grid()
        columns = (_score_columns(comparison, between), _worth_columns(comparison))
        for number, block in enumerate(block for each in columns for block in _blocks(comparison, each, width)):
            if number:
                table.add_row("")
            table.add_row(fit(_table(comparison, block), width))
    hidden = len(comparison.domains) > MANY
    left_out = [f"Each of the {len(comparison.domains)} clients or domains is in --json."] if hidden else []
    table.caption = Text("\n".join(("", *comparison.notes, *left_out)), style="dim")
    table.caption_justify = "left"
    return table


def text(comparison: Comparison, width: int = 160) -> str:
    """The same without colours, for `print`."""
    console = Console(width=width, color_system=None, force_terminal=False, force_jupyter=False)
    with console.capture() as shown:
        console.print(render(comparison, width))
    return shown.get()


def _table(comparison: Comparison, columns: Sequence[TableColumn]) -> Table:
    # Text everywhere: a model named minilm[:3] must not be read as markup
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("method", overflow="fold", min_width=8)
    for header, _ in columns:
        table.add_column(Text(header), overflow="fold", min_width=5)
    for row in comparison.rows:
        table.add_row(Text(row.method), *(Text(cell(row)) for _, cell in columns))
    return table


def _blocks(comparison: Comparison, columns: Sequence[TableColumn], width: int) -> list[list[TableColumn]]:
    """The columns in as many blocks as it takes for words to stay whole."""
    blocks: list[list[TableColumn]] = [[]]
    for column in columns:
        if blocks[-1] and least_width(_table(comparison, [*blocks[-1], column])) > width:
            blocks.append([])
        blocks[-1].append(column)
    return blocks


def _score_columns(comparison: Comparison, between: str) -> list[TableColumn]:
    def marked(row: MethodRow, spread: Spread | None) -> str:
        return _points(spread, between) + ("" if row.has_server or spread is None else "*")

    def domain(name: str) -> TableColumn:
        return name, lambda row: marked(row, row.domains[name])

    is_pooled = any(row.clients_mean is not None for row in comparison.rows)
    is_own = any(row.clients_mean is None and row.clients_own is not None for row in comparison.rows)
    mean: TableColumn = ("clients'\nmean", lambda row: _points(row.clients_mean, between))
    own: TableColumn = ("own\ntest", lambda row: _points(row.clients_own, between))
    return [
        ("global", lambda row: marked(row, row.overall)),
        *(domain(name) for name in comparison.domains if len(comparison.domains) <= MANY),
        *([mean] if is_pooled or not is_own else []),
        *([own] if is_own else []),
    ]


def _worth_columns(comparison: Comparison) -> list[TableColumn]:
    against: list[TableColumn] = [
        (
            f"vs {comparison.against}\n(p seeds; p rows)",
            lambda row: "" if row.method == comparison.against else _worth(row.difference),
        )
    ]
    return [
        *(against if comparison.against is not None else []),
        ("bytes up\n+ down", lambda row: f"{size_text(row.bytes_up)} + {size_text(row.bytes_down)}"),
        ("seconds", lambda row: f"{row.seconds:.0f}" if row.seconds >= 10 else f"{row.seconds:.1f}"),
        ("seeds", lambda row: str(len(row.seeds))),
    ]


def _points(spread: Spread | None, between: str) -> str:
    if spread is None:
        return MISSING
    deviation = "" if spread.deviation is None else f"{between}± {100 * spread.deviation:.1f}"
    return f"{100 * spread.mean:.1f}{deviation}"


def _worth(difference: Difference | None) -> str:
    if difference is None:
        return MISSING
    p_rows = None if difference.bootstrap is None else difference.bootstrap.p
    return f"{100 * difference.mean:+.1f} ({_p_or_none(difference.p_seeds)}; {_p_or_none(p_rows)})"


def _p_or_none(value: float | None) -> str:
    return MISSING if value is None else p_text(value)
