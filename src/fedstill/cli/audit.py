"""`fedstill audit`: what a curious server could learn from a finished run, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from fedstill.common.trust import trusts_all
from fedstill.engines.replay import hear
from fedstill.results import audit
from fedstill.results.audit import Findings
from fedstill.results.fitting import fit


def run(folder: Path, console: Console, stand_in: str | None, shadows: int) -> Findings:
    """Audit a run, with progress, and write the findings into its folder."""
    plan, record = audit.plan_of(folder)
    torch.set_num_threads(plan.experiment.threads)  # as in the run: the numbers depend on it
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("asking the clients", total=None)

        def watch(what: str, done: int, steps: int) -> None:
            progress.update(task, description=f"attacking {what}", completed=done, total=steps)

        heard = list(hear(plan, record, trusts_all()))
        findings = audit.audit(plan, record.summary["method"], heard, stand_in, shadows, watch)
    audit.write(findings, folder)
    return findings


def tell(findings: Findings, console: Console) -> None:
    """Print what was found."""
    console.print(
        f"{findings.method}: {findings.leaves} leave; the attacker has {findings.stand_in} and {findings.shadows} "
        "shadow models a client.",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    console.print(_membership(findings))
    if any(line["named"] for line in findings.tokens):
        console.print(
            _table(
                "Private tokens named by embeddings that moved",
                ["named", "private", "precision", "recall"],
                [
                    [
                        line["client"],
                        f"{line['named']:,}",
                        f"{line['private']:,}",
                        f"{line['precision'] or 0:.3f}",
                        f"{line['recall']:.3f}",
                    ]
                    for line in findings.tokens
                ],
            )
        )
    else:
        console.print("No private token is named: no embeddings leave, or none moved.", highlight=False)
    if findings.label_shares:
        rows = [[line["client"], f"{line['error']:.3f}", f"{line['guess']:.3f}"] for line in findings.label_shares]
        console.print(_table("Shares of labels: mean absolute error", ["of the attack", "of equal shares"], rows))
    for note in findings.notes:
        console.print(note, style="dim", highlight=False, soft_wrap=True, markup=False)


def _membership(findings: Findings) -> Table:
    rows = [
        [
            line["client"],
            line["attack"],
            f"{line['members']:,} / {line['others']:,}",
            _said(line["auc"]),
            _said(line["tpr"]),
        ]
        for line in findings.membership
    ]
    title = "Was this row trained on? 0.5 is a coin; 95% intervals over rows"
    return _table(title, ["attack", "trained on / not", "AUC", "TPR at 0.1% FPR"], rows)


def _said(measured: dict[str, Any]) -> str:
    return f"{measured['value']:.3f} [{measured['low']:.3f}, {measured['high']:.3f}]"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("client", *columns):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return fit(table, Console().width)
