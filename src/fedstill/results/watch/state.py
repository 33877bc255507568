"""How a run stands, from its folder alone: it may be running, killed, finished, or not there yet."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedstill.common.locks import is_locked
from fedstill.results.pace import Left, Took, left
from fedstill.results.record import Record

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
    left: Left | None = None
    """How long it still takes; None if nothing is known."""

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
        since = record.log[begun[-1]]["round"], *_rounds(record, begun[-1])
        done = min(max(since), rounds)
        if not is_going:
            return cls(folder, "stopped", done, rounds)
        return cls(folder, "running", done, rounds, _left(record, begun[-1], rounds))

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


def _rounds(record: Record, first: int = 0) -> list[int]:
    """The numbers of the rounds that are done, of the log's lines from this one on."""
    return [line["round"] for line in record.log[first:] if "seconds" in line]


def _left(record: Record, begun: int, rounds: int) -> Left | None:
    """How long it takes from now on, if the last digest has not been done, too."""
    log = record.log
    if rounds + 1 in _rounds(record, begun):
        return None
    many = len(log[begun]["begun"]["clients"])
    took = {
        line["round"]: Took(spent["total"], spent.get("digest", 0.0) * many / max(1, line["active"]))
        for line in log
        if (spent := line.get("seconds")) and 0 < line["round"] <= rounds
    }
    found = left(took, rounds)
    since = time.time() - max(float(line.get("at", 0.0)) for line in log)  # the last round ended
    return found and found.after(max(0.0, since))


def _written(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
