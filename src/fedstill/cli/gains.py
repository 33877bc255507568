"""The end of a run: what every client gained, and whether the federation did harm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedstill.learning.metrics import METRICS
from fedstill.results.members import table
from fedstill.results.record import Record


def tell_members(console: Console, folders: Sequence[Path]) -> None:
    """What was spent of epsilon; what every client had alone and has now; for each run, who is worse off and why."""
    for folder in folders:
        if (line := Record(folder).privacy) is not None:
            console.print(line, highlight=False, soft_wrap=True)
    records = [record for folder in folders if (record := Record(folder)).members]
    if not records:
        return
    metric = METRICS[records[0].summary["metrics"][0]]
    console.print()
    console.print(
        table(
            [record.members for record in records],
            f"What each client gained: {metric.caption}, on its own test and on all",
        )
    )
    for record in records:
        seed = f"seed {record.summary['seed']}: " if len(records) > 1 else ""
        style = "yellow" if any(member.is_worse_off for member in record.members) else None
        console.print(f"{seed}{record.verdict}", style=style, highlight=False, soft_wrap=True, markup=False)
