"""What a run tells whoever watches it. Events change nothing; any of them may be ignored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Event:
    """The base of everything that is told."""


@dataclass(frozen=True)
class Preparing(Event):
    """The corpus is being read, divided and tokenised for a run in that folder."""

    folder: str


@dataclass(frozen=True)
class Begun(Event):
    """The first round is about to begin, or the one after `after`."""

    rounds: int
    metric: str
    """The headline metric."""
    models: Mapping[str, str]
    """By party, the server first."""
    after: int = 0
    bytes: int = 0
    """Crossed in the rounds before."""
    private: int = 0
    public: int = 0
    """Rows."""
    hosts: str = ""
    """What the clients are spread over, in words."""
    corpus: Mapping[str, int] = field(default_factory=dict)
    """Rows read, and rows dropped by reason."""


@dataclass(frozen=True)
class Step(Event):
    """A party is so far in a phase; `loss` is that of its last finished epoch."""

    party: str
    phase: str
    done: int
    steps: int
    epochs: int = 1
    loss: float = math.nan


@dataclass(frozen=True)
class Rested(Event):
    """A party has done what it was asked for."""

    party: str


@dataclass(frozen=True)
class Measured(Event):
    """A line of the record's metrics: scores of a party on a split, or an observation of the method's own."""

    metric: Mapping[str, Any]


@dataclass(frozen=True)
class Noted(Event):
    """A sentence for the person who waits: a fallback, a failure."""

    note: str


@dataclass(frozen=True)
class RoundDone(Event):
    """A round is over, and so many bytes have crossed since the run began."""

    round: int
    rounds: int
    bytes: int


@dataclass(frozen=True)
class Saving(Event):
    """The last round is over; models and predictions are being written."""


@dataclass(frozen=True)
class Finished(Event):
    """The record in that folder is whole; it may have been so before."""

    folder: str
    was_before: bool = False


@dataclass(frozen=True)
class SiteSaid(Event):
    """How it stands with the request that a site of a federation was given."""

    site: str
    state: Literal["asked", "working", "answered", "failed"]
    what: str = ""
    progress: object = None
    """As the site tells it: it may be anything."""
    reason: str = ""


Tell = Callable[[Event], None]


def tell_nobody(event: Event) -> None:
    """For who does not want to watch."""


PROGRESS: dict[str, type[Step] | type[Rested]] = {kind.__name__: kind for kind in (Step, Rested)}
"""What crosses from a worker process to whoever watches the run."""


def to_json(event: Event) -> dict[str, Any]:
    """A progress event as plain values."""
    return {"event": type(event).__name__, **asdict(event)}


def from_json(values: Mapping[str, Any]) -> Event:
    """The progress event again."""
    kind = PROGRESS[values["event"]]
    return kind(**{name: value for name, value in values.items() if name != "event"})
