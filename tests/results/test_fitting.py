"""Tables in narrow terminals: words stay whole as long as there is any way."""

from __future__ import annotations

import pytest
from rich import box
from rich.console import Console
from rich.table import Table

from fedstill.results.fitting import fit, least_width, natural_width

ROWS = [["federated distillation in few bits", "entropy-coded; P once"], ["x", "NC(K+1) codes, decentralised"]]


def table() -> Table:
    made = Table()
    for column in ("what", "numbers per round"):
        made.add_column(column, overflow="fold")
    for row in ROWS:
        made.add_row(*row)
    return made


def printed(shown: Table, width: int) -> list[str]:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(shown)
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [30, 36, 44, 60, 200])
def test_no_word_is_broken_where_there_is_room_for_the_longest(width: int) -> None:
    lines = printed(fit(table(), width), width)
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.replace("│", " ").replace("┃", " ").split()}
    assert {word for row in ROWS for cell in row for word in cell.split()} <= words


def test_a_table_that_fits_stays_as_it_is() -> None:
    wide = fit(table(), 200)
    assert wide.box is box.HEAVY_HEAD
    assert [column.width for column in wide.columns] == [None, None]
    # Two columns with a space on either side of each and three lines of the frame.
    assert natural_width(table()) == 34 + 28 + 7
    assert least_width(table()) == 12 + 14 + 7
