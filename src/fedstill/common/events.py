"""What a run reports while it runs. Events change nothing; any of them may be ignored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Event:
    """The base class of all events."""


@dataclass(frozen=True)
class Preparing(Event):
    """The corpus is being read, divided and tokenised for the run in this folder."""

    folder: str


@dataclass(frozen=True)
class Begun(Event):
    """Round `after + 1` is about to begin: the first one, or the one a resumed run continues with."""

    rounds: int
    metric: str
    """The headline metric."""
    models: Mapping[str, str]
    """Party -> model, the server first."""
    after: int = 0
    bytes: int = 0
    """Sent in the rounds before."""
    private: int = 0
    public: int = 0
    """Rows."""
    hosts: str = ""
    """A phrase that says what the clients are spread over."""
    corpus: Mapping[str, int] = field(default_factory=dict)
    """Rows read, and rows dropped by reason."""


@dataclass(frozen=True)
class Step(Event):
    """How many steps of a phase a party has done; `loss` is that of its last finished epoch."""

    party: str
    phase: str
    done: int
    steps: int
    epochs: int = 1
    loss: float = math.nan


@dataclass(frozen=True)
class Rested(Event):
    """A party has finished what it was asked to do."""

    party: str


@dataclass(frozen=True)
class Measured(Event):
    """A line of the record's metrics: scores of a party on a split, or something that the method itself observed."""

    metric: Mapping[str, Any]


@dataclass(frozen=True)
class Noted(Event):
    """A sentence for the user: a fallback, a failure."""

    note: str


@dataclass(frozen=True)
class Said(Event):
    """A line about work that is not one of the run's rounds."""

    line: str


@dataclass(frozen=True)
class RoundDone(Event):
    """A round is over; `bytes` were sent since the run began."""

    round: int
    rounds: int
    bytes: int
    seconds: float = 0.0
    digest_s: float = 0.0
    """Of these, what all clients need to learn from the last answer; it comes once more after the last round."""


@dataclass(frozen=True)
class Saving(Event):
    """The last round is over; models and predictions are being written."""


@dataclass(frozen=True)
class Finished(Event):
    """The record in this folder is complete; `was_before`: nothing was left to run."""

    folder: str
    was_before: bool = False


@dataclass(frozen=True)
class SiteSaid(Event):
    """The state of the request that a site of a federation is working on."""

    site: str
    state: Literal["asked", "working", "answered", "failed"]
    what: str = ""
    progress: object = None
    """As the site tells it: it may be anything."""
    reason: str = ""


Tell = Callable[[Event], None]


def tell_nobody(event: Event) -> None:
    """Ignore the event."""


PROGRESS: dict[str, type[Step] | type[Rested]] = {kind.__name__: kind for kind in (Step, Rested)}
"""The events that a worker process sends to the process that shows the run."""


def to_json(event: Event) -> dict[str, Any]:
    """A progress event as plain values."""
    return {"event": type(event).__name__, **asdict(event)}


def from_json(values: Mapping[str, Any]) -> Event:
    """The progress event that `to_json` wrote."""
    kind = PROGRESS[values["event"]]
    return kind(**{name: value for name, value in values.items() if name != "event"})
