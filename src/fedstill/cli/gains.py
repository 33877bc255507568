"""The end of a run: what every client gained, and whether the federation did harm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedstill.cli.report import has_bars, sparkline
from fedstill.learning.metrics import METRICS
from fedstill.results.compare import by_method, compare, load_runs, to_dict
from fedstill.results.fitting import fit
from fedstill.results.lengths import unequal_alone
from fedstill.results.members import Member, table
from fedstill.results.record import Record
from fedstill.results.report.series import mean_of, score_by_round
from fedstill.results.runs import Run


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
    everywhere = " and on all" if any(member.every for record in records for member in record.members) else ""
    title = f"What each client gained: {metric.caption}, on its own test{everywhere}"
    console.print(fit(table([record.members for record in records], title), console.width))
    rounds, alone = records[0].summary.get("rounds", 1), min(record.rounds_alone for record in records)
    if alone < rounds:
        is_real = records[0].summary.get("engine") == "flare"
        can = "" if is_real else "; with alone=rounds everybody first trains alone for all"
        console.print(f"Alone is one round of training, of {rounds}{can}.", style="dim", highlight=False)
    for record in records:
        seed = f"seed {record.summary['seed']}: " if len(records) > 1 else ""
        failed = record.summary.get("faults") or [m for m in record.members if m.is_worse_off or m.lost_elsewhere]
        style = "yellow" if failed else None
        console.print(f"{seed}{record.verdict}", style=style, highlight=False, soft_wrap=True, markup=False)


def to_json(folders: Sequence[Path]) -> dict[str, Any]:
    """What a run's last tables say: the comparison, and for every folder what each client gained."""
    clients = [
        {"folder": str(folder), "verdict": record.verdict, "clients": list(record.gain())}
        for folder in folders
        if (record := Record(folder))
    ]
    return {"comparison": to_dict(compare(load_runs(folders))), "runs": clients}


def tell_methods(console: Console, runs: Sequence[Run]) -> None:
    """A row for each method: its score by round, and what its clients had alone, have now and gained."""
    shown = Table(box=box.SIMPLE_HEAD, title="\nWhat clients gained, by method", title_justify="left", show_edge=False)
    for column in ("method", "by round", "alone", "after", "gain", "worse off"):
        shown.add_column(column, justify="left" if column in ("method", "by round") else "right", overflow="fold")
    methods = by_method(runs)
    for method, group in methods.items():
        scores = mean_of(score_by_round(run) for run in group).values()
        members = [member for run in group for member in Record(run.folder).members]
        bars = sparkline(list(scores)) if scores and has_bars(console) else ""
        if bars or members:
            shown.add_row(Text(method), bars, *_gained(members))
    if shown.row_count:
        console.print(fit(shown, console.width))
        console.print("Means over clients and seeds, on each client's own test rows where it has any.", style="dim")
    if (remark := unequal_alone(methods)) is not None:
        console.print(remark, style="dim", highlight=False, markup=False)


def _gained(members: Sequence[Member]) -> tuple[str, ...]:
    scores = [member.score for member in members if member.score is not None]
    if not scores:
        return ("–",) * 4
    means = (100 * fmean(getattr(score, what) for score in scores) for what in ("alone", "after"))
    gain = 100 * fmean(score.gain for score in scores)
    worse = sum(member.is_worse_off for member in members)
    return (*(f"{mean:.1f}" for mean in means), f"{gain:+.1f}", f"{worse} of {len(scores)}")
