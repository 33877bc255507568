"""What the user sees during a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedstill.common.events import (
    Begun,
    Event,
    Finished,
    Measured,
    Noted,
    Preparing,
    Rested,
    RoundDone,
    Said,
    Saving,
    Step,
)
from fedstill.common.units import size_text
from fedstill.common.words import counted
from fedstill.learning.metrics import METRICS
from fedstill.results.pace import Took, left
from fedstill.wire.messages import SERVER

IDLE = Step(party="", phase="", done=0, steps=1)


@dataclass
class _Watched:
    """A party, as far as it was heard of."""

    model: str = ""
    step: Step = IDLE
    score: float | None = None

    def take(self, event: Step | Rested) -> None:
        at_rest = replace(self.step, phase="", done=self.step.steps)
        self.step = event if isinstance(event, Step) else at_rest


class Progress:
    """Listens to a run's events; `with Progress(console) as tell: run(..., tell=tell)`."""

    def __init__(self, console: Console, title: str = "", tells_corpus: bool = True) -> None:
        self.console, self.title, self.tells_corpus = console, title, tells_corpus
        self.live: Live | None = None
        self.started = time.monotonic()
        self.rounds, self.round = 0, 0
        self.parties: dict[str, _Watched] = {}
        self.took: dict[int, Took] = {}
        self.boundary_s = 0.0
        self.bytes = 0
        self.state = "starting"
        self.metric = "f1"
        self.noted: set[str] = set()

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self.live = Live(get_renderable=self._table, console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case Preparing(folder):
                self.state = f"reading and tokenising for {folder}"
            case Begun():
                self._begin(event)
            case Step(party) | Rested(party):
                self._watched(party).take(event)
            case Measured(metric):
                self._measured(metric)
            case Noted(note):
                if note not in self.noted:  # the log has every time it was noted
                    self.noted.add(note)
                    self._say(f"note: {note}", style="yellow")
            case Said(line):
                self._say(f"{self.title}{line}")
            case RoundDone():
                self._round_done(event)
            case Saving():
                self.state, self.took = "saving models", {}
            case Finished(folder, was_before=True):
                self._say(f"{self.title}finished already: {folder}")
            case Finished(folder):
                self._say(f"{self.title}done in {time.monotonic() - self.started:.0f} s: {folder}")

    def _begin(self, event: Begun) -> None:
        self.rounds, self.round, self.metric = event.rounds, event.after, event.metric
        self.parties = {name: _Watched(model) for name, model in event.models.items()}
        self.state = f"round {event.after + 1} of {event.rounds}"
        going_on = f", going on after round {event.after}" if event.after else ""
        self._say(
            f"{self.title}{counted(len(event.models) - 1, 'client')}, {event.private} private and "
            f"{event.public} public rows, {counted(event.rounds, 'round')}, {event.hosts}{going_on}"
        )
        dropped = {what: number for what, number in event.corpus.items() if what != "rows read"}
        if self.tells_corpus and not event.after and dropped:
            said = ", ".join(f"{what}: {number:,}" for what, number in dropped.items())
            self._say(f"corpus: {event.corpus.get('rows read', 0):,} rows read; {said}", style="dim")

    def _watched(self, party: str) -> _Watched:
        return self.parties.setdefault(party, _Watched())

    def _measured(self, metric: Mapping[str, Any]) -> None:
        if metric.get("split") != "test":
            return
        score = self._watched(metric["party"]).score = metric[self.metric]
        if self.live is None:
            what = f"{metric['party']} {metric['stage']}, {METRICS[self.metric].title} {100 * score:.1f}"
            self._say(f"  round {metric['round']}: {what}")

    def _round_done(self, event: RoundDone) -> None:
        self.round, self.bytes = event.round, event.bytes
        self.took[event.round] = Took(event.seconds, event.digest_s)
        self.boundary_s = time.monotonic() - self.started
        scores = {name: party.score for name, party in self.parties.items() if party.score is not None}
        own = f"server {METRICS[self.metric].title} {100 * scores[SERVER]:.1f}, " if SERVER in scores else ""
        clients = [score for name, score in scores.items() if name != SERVER]
        mean = f"clients' mean after training {100 * sum(clients) / len(clients):.1f}, " if clients else ""
        self._say(f"{self.title}round {self.round}/{self.rounds}: {own}{mean}{size_text(self.bytes)}, {self._times()}")
        self.state = (
            f"round {min(self.round + 1, self.rounds)} of {self.rounds}" if self.round < self.rounds else "finishing"
        )

    def _times(self) -> str:
        elapsed = time.monotonic() - self.started
        known = left(self.took, self.rounds)
        return f"{elapsed:.0f} s" + (f", {known.after(elapsed - self.boundary_s)}" if known else "")

    def _say(self, line: str, style: str | None = None) -> None:
        self.console.print(line, style=style, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def _table(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("party", "model", "doing", "", "loss", METRICS[self.metric].title):
            table.add_column(
                column,
                justify="right" if column in ("loss", METRICS[self.metric].title) else "left",
                style="dim" if column == "model" else None,
            )
        for name, party in self.parties.items():
            step = party.step
            table.add_row(
                Text(name),
                Text(party.model),
                step.phase,
                ProgressBar(total=step.steps or 1, completed=step.done, width=20),
                "" if math.isnan(step.loss) else f"{step.loss:.3f}",
                "" if party.score is None or math.isnan(party.score) else f"{100 * party.score:.1f}",
            )
        return Group(Text(f"{self.title}{self.state} · {size_text(self.bytes)} · {self._times()}"), table)
