"""The books of a run: measurements, notes, bytes sent, and where the time went."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from fedstill.common.events import Event, Measured, Noted, Tell
from fedstill.engines.journal import Journal
from fedstill.wire.ledger import Ledger


class Books:
    """Writes to the record's journal and reports events. Any thread may write a note or report an event."""

    def __init__(self, journal: Journal, tell: Tell) -> None:
        self.journal, self.listener = journal, tell
        self.ledger = Ledger()
        self.lock = threading.RLock()
        self.clean: Callable[[str], str] = lambda words: words
        """Applied to notes before they are written and shown."""

    @property
    def round(self) -> int:
        """The round that new lines belong to."""
        return self.ledger.round

    def tell(self, event: Event) -> None:
        """Report an event; whoever listens hears one at a time."""
        with self.lock:
            self.listener(event)

    def enter(self, round: int) -> None:
        """From now on lines belong to this round."""
        self.ledger.round = round

    def take(self, party: str, metrics: list[dict[str, Any]], notes: list[str]) -> None:
        """Write a party's measurements and notes, always under its own name; empties both lists."""
        if not metrics and not notes:
            return
        measured = [metric | {"party": party} for metric in metrics]
        self.journal.write("metrics", measured)
        for metric in measured:
            self.tell(Measured(metric))
        for note in notes:
            self.note(party, note)
        metrics.clear()
        notes.clear()

    def note(self, party: str, note: str) -> None:
        """Write a sentence about a party."""
        note = self.clean(note)
        with self.lock:
            self.journal.write("log", [{"round": self.round, "party": party, "note": note}])
            self.tell(Noted(note if note.startswith(party) else f"{party}: {note}"))

    def caution(self, caution: str) -> None:
        """Write what the user should know before the first round."""
        self.journal.write("log", [{"round": self.round, "caution": caution}])
        self.tell(Noted(f"caution: {caution}"))

    def begin(self, about: Mapping[str, Any], after: int) -> None:
        """Write what the run is about, for whoever looks at it before it is finished; `after` rounds are done."""
        self.journal.write("log", [{"round": after, "begun": dict(about), "at": time.time()}])

    def write_ledger(self) -> None:
        """Write the round's bytes."""
        self.journal.write("ledger", self.ledger.lines())

    def write_seconds(self, active: int, seconds: Mapping[str, float]) -> None:
        """Write where a round's time went: to the log, which differs between runs of the same experiment."""
        line = {"round": self.round, "active": active, "seconds": dict(seconds), "at": time.time()}
        self.journal.write("log", [line])
