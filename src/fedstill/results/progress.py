"""What the user sees during a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedstill.common.units import size_text
from fedstill.plan.plan import SERVER, Plan

NAMES = {"f1": "F1", "macro_f1": "macro F1", "accuracy": "accuracy", "matthews": "Matthews", "positive_f1": "F1"}


class Progress:
    """Listens to a run's events; `with Progress(console) as tell: run(..., tell=tell)`."""

    def __init__(self, console: Console, title: str = "", tells_corpus: bool = True) -> None:
        self.console, self.title, self.tells_corpus = console, title, tells_corpus
        self.live: Live | None = None
        self.started = time.monotonic()
        self.rounds, self.round, self.first = 0, 0, 0
        self.parties: dict[str, dict[str, Any]] = {}
        self.boundary_s = 0.0
        self.bytes = 0
        self.state = "starting"
        self.metric = "f1"

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self.live = Live(get_renderable=self._table, console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        if "preparing" in event:
            self.state = f"reading and tokenising for {event['preparing']}"
        elif "plan" in event:
            hosts = f"{event['plan'].workers} workers" if "ranks" not in event else f"{event['ranks']} ranks"
            self._begin(event["plan"], event.get("after", 0), event["corpus"].counts, hosts)
        elif "metric" in event:
            self._measured(event["metric"])
        elif "note" in event:
            self._say(f"note: {event['note']}", style="yellow")
        elif "finishing" in event:
            self.state = "saving models"
        elif "round" in event:
            self._round_done(event)
        elif "party" in event:
            self.parties.setdefault(event["party"], {}).update(event)
        elif "already" in event:
            self._say(f"{self.title}finished already: {event['already']}")
        elif "finished" in event:
            elapsed = time.monotonic() - self.started
            self._say(f"{self.title}done in {elapsed:.0f} s: {event['finished']}")

    def _begin(self, plan: Plan, after: int, counts: dict[str, int], hosts: str) -> None:
        self.rounds, self.round, self.first = plan.rounds, after, after
        self.metric = plan.metrics[0]
        models = {SERVER: plan.server.model, **{name: spec.model for name, spec in plan.clients.items()}}
        self.parties = {name: {"model": str(model)} for name, model in models.items()}
        self.state = f"round {after + 1} of {plan.rounds}"
        going_on = f", going on after round {after}" if after else ""
        parts = plan.partition
        private = sum(len(rows) for rows in parts.train.values())
        self._say(
            f"{self.title}{len(plan.clients)} clients, {private} private and {len(parts.public)} public rows, "
            f"{plan.rounds} rounds, {hosts}{going_on}"
        )
        if (
            self.tells_corpus
            and not after
            and (dropped := {what: n for what, n in counts.items() if what != "rows read"})
        ):
            said = ", ".join(f"{what}: {number:,}" for what, number in dropped.items())
            self._say(f"corpus: {counts.get('rows read', 0):,} rows read; {said}", style="dim")

    def _measured(self, metric: dict[str, Any]) -> None:
        if metric.get("split") != "test":
            return
        score = metric[self.metric]
        self.parties.setdefault(metric["party"], {})["score"] = score
        if self.live is None:
            what = f"{metric['party']} {metric['stage']}, {NAMES[self.metric]} {100 * score:.1f}"
            self._say(f"  round {metric['round']}: {what}")

    def _round_done(self, event: dict[str, Any]) -> None:
        self.round, self.bytes = event["round"], sum(event["bytes"].values())
        self.boundary_s = time.monotonic() - self.started
        server = self.parties.get(SERVER, {}).get("score")
        clients = [party["score"] for name, party in self.parties.items() if name != SERVER and "score" in party]
        own = f"server {NAMES[self.metric]} {100 * server:.1f}, " if server is not None else ""
        mean = f"clients' mean after training {100 * sum(clients) / len(clients):.1f}, " if clients else ""
        self._say(f"{self.title}round {self.round}/{self.rounds}: {own}{mean}{size_text(self.bytes)}, {self._times()}")
        self.state = (
            f"round {min(self.round + 1, self.rounds)} of {self.rounds}" if self.round < self.rounds else "finishing"
        )

    def _times(self) -> str:
        elapsed = time.monotonic() - self.started
        done = self.round - self.first
        if not done or self.round == self.rounds:
            return f"{elapsed:.0f} s"
        left_at_boundary = self.boundary_s / done * (self.rounds - self.round)
        return f"{elapsed:.0f} s, about {max(0.0, left_at_boundary - (elapsed - self.boundary_s)):.0f} s left"

    def _say(self, line: str, style: str | None = None) -> None:
        self.console.print(line, style=style, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def _table(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("party", "model", "doing", "", "loss", NAMES[self.metric]):
            table.add_column(
                column,
                justify="right" if column in ("loss", NAMES[self.metric]) else "left",
                style="dim" if column == "model" else None,
            )
        for name, party in self.parties.items():
            phase = party.get("phase", "")
            steps = party.get("steps") or 1
            done = steps if phase == "done" else party.get("done", 0)
            loss, score = party.get("loss", math.nan), party.get("score", math.nan)
            table.add_row(
                Text(name),
                Text(party.get("model", "")),
                "" if phase == "done" else phase,
                ProgressBar(total=steps, completed=done, width=20),
                "" if math.isnan(loss) else f"{loss:.3f}",
                "" if math.isnan(score) else f"{100 * score:.1f}",
            )
        return Group(Text(f"{self.title}{self.state} · {size_text(self.bytes)} · {self._times()}"), table)
