"""How a run stands, from its folder alone: it may be running, killed, finished, or not there yet."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from fedstill.common.locks import is_locked
from fedstill.results.record import Record

LAST = 5
"""Rounds whose mean says how long the next one takes."""
FILES = ("experiment.yaml", "metrics.jsonl", "ledger.jsonl", "log.jsonl", "summary.json")
"""What changes while a run goes on."""

Stand = Literal["waiting", "preparing", "running", "stopped", "finished"]


@dataclass(frozen=True)
class State:
    """How a run stands; `round` is the last one that is done."""

    folder: Path
    stand: Stand
    round: int = 0
    rounds: int = 0
    left_s: float | None = None
    """About how long it still takes; None if nothing is known."""

    @classmethod
    def of(cls, folder: Path) -> State:
        """The state of the run in a folder."""
        record = Record(folder)
        if record.is_finished:
            return cls(folder, "finished")
        is_going = is_locked(folder) or is_locked(folder / "log.jsonl")
        begun = [number for number, line in enumerate(record.log) if "begun" in line]
        if not begun:
            was_begun = (folder / "experiment.yaml").is_file()
            return cls(folder, "preparing" if is_going else "stopped" if was_begun else "waiting")
        rounds = int(record.log[begun[-1]]["begun"]["rounds"])
        since = record.log[begun[-1]]["round"], *_seconds(record, begun[-1])
        done = min(max(since), rounds)
        if not is_going:
            return cls(folder, "stopped", done, rounds)
        return cls(folder, "running", done, rounds, _left_s(record, done, rounds))

    @property
    def words(self) -> str:
        """The state in a few words."""
        match self.stand:
            case "preparing":
                return "reading and tokenising"
            case "running":
                return f"running, round {self.round + 1} of {self.rounds}" if self.round < self.rounds else "saving"
            case "stopped":
                return f"stopped after round {self.round} of {self.rounds}" if self.round else "stopped"
            case _:
                return self.stand

    @property
    def stamp(self) -> tuple[object, ...]:
        """Something else whenever the run has written something, or has begun or ended."""
        return (str(self.folder), self.stand, self.round, *(_written(self.folder / name) for name in FILES))


def duration(seconds: float) -> str:
    """About how long something still takes."""
    if seconds < 100:
        return f"about {max(1, round(seconds))} s left"
    return f"about {seconds / 60:.0f} min left" if seconds < 100 * 60 else f"about {seconds / 3600:.1f} h left"


def _seconds(record: Record, first: int = 0) -> dict[int, float]:
    """Round -> seconds, of the log's lines from this one on."""
    return {line["round"]: float(line["seconds"]["total"]) for line in record.log[first:] if "seconds" in line}


def _left_s(record: Record, done: int, rounds: int) -> float | None:
    """The rounds that are left, each as long as the last ones were on average."""
    took = [seconds for number, seconds in sorted(_seconds(record).items()) if 0 < number <= rounds][-LAST:]
    if not took or done >= rounds:
        return None
    since = time.time() - max(float(line.get("at", 0.0)) for line in record.log)  # the last round ended
    usual = fmean(took)
    return max(0.0, usual - max(0.0, since)) + usual * (rounds - done - 1)


def _written(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
