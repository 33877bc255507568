"""Everybody alone, for as many rounds as a federation takes: what its members are compared with (`alone: rounds`)."""

from __future__ import annotations

from statistics import fmean

from fedstill.algorithms.local import Local
from fedstill.common.events import Begun, Event, Measured, Preparing, Rested, RoundDone, Said, Step, Tell
from fedstill.common.words import counted
from fedstill.config.experiment import Experiment
from fedstill.config.specs import WireSpec


def experiment_alone(experiment: Experiment) -> Experiment | None:
    """The same rows, models and training without a federation; None if nobody wants it, or a run tells it by itself.

    Nothing leaves a client that works alone, so that it needs no noise; and nobody lies to itself.
    """
    method = experiment.method
    tells_itself = experiment.rounds == 1 and experiment.participation == 1
    if experiment.alone == "first" or tells_itself or isinstance(method, Local) or "pooled" in method.requires():
        return None
    without = {"wire": WireSpec(), "blend": "auto", "max_share": "auto", "privacy": None, "faults": []}
    return experiment.model_copy(update={"algorithm": {"name": "Local"}, "alone": "first", "report_to": [], **without})


class Aside:
    """Tells of the work alone in a line a round, so that nobody takes its rounds for the federation's."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.metric = ""
        self.scores: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        """Pass on what a display can show of any run, and the rounds as sentences."""
        match event:
            case Preparing():
                self.tell(event)
            case Begun():
                self.metric = event.metric
                many = f"{counted(event.rounds, 'round')}, {event.hosts}"
                self.tell(Said(f"alone: first everybody trains alone, to compare with: {many} (alone=first: not)"))
            case Step() | Rested():
                self.tell(event)
            case Measured(line):
                if line.get("split") == "test" and self.metric in line:
                    self.scores[line["party"]] = line[self.metric]
            case RoundDone():
                mean = f", clients' mean {100 * fmean(self.scores.values()):.1f}" if self.scores else ""
                self.tell(Said(f"alone: round {event.round}/{event.rounds}{mean}, {event.seconds:.0f} s"))
