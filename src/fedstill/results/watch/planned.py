"""The runs that a folder will hold: `reproduce` writes them down, and whoever watches reads them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from fedstill.common.files import write_whole
from fedstill.common.locks import is_locked
from fedstill.results.pace import Left
from fedstill.results.report.page import Panel
from fedstill.results.watch.state import State

PLAN = "runs.json"


@dataclass(frozen=True)
class Planned:
    """The runs that are to be in a folder, as `reproduce` writes them down; without them all is as it is found."""

    path: Path
    title: str = ""
    runs: Mapping[str, str] = field(default_factory=dict)
    """Folder -> name, in the order of the table."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Folder -> why."""
    left_s: float | None = None
    """About how long all of it took on, at this time."""
    at: float = 0.0

    @classmethod
    def read(cls, path: Path) -> Planned:
        """What is written there; nothing if that is not whole."""
        try:
            return cls(path, **json.loads((path / PLAN).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return cls(path)

    def write(self) -> None:
        """Write it down."""
        values = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "path"}
        write_whole(self.path / PLAN, (json.dumps(values, indent=1) + "\n").encode())

    @property
    def is_at_work(self) -> bool:
        """Whether `reproduce` is."""
        return bool(self.runs) and is_locked(self.path)

    def words(self, states: Sequence[State]) -> str:
        """How many runs stand how."""
        many = Counter(self._stand(state) for state in states)
        counted = ", ".join(f"{number} {stand}" for stand, number in many.items())
        if not self.runs:
            return f"runs: {counted}"
        stopped = "stopped; resume with the same command" if many["finished"] < len(states) else "finished"
        return f"{'running' if self.is_at_work else stopped}: {counted} of {len(states)} runs"

    def left(self, states: Sequence[State]) -> str:
        """About how long all of it still takes."""
        if self.left_s is None or not self.is_at_work:
            return ""
        return str(Left(self.left_s).after(max(0.0, time.time() - self.at)))

    def panel(self, states: Sequence[State]) -> Panel:
        """Every run and how it stands."""
        rows = []
        for state in states:
            where = self._place(state)
            stand = self._stand(state)
            said = {"failed": f"failed: {self.failed.get(where)}", "missing": stand}.get(stand, state.words)
            rows.append((self.runs.get(where, where), said, str(state.left or "")))
        return Panel("All runs", ("run", "state", ""), tuple(rows))

    def _stand(self, state: State) -> str:
        """The state in a word; a run that was given up has failed."""
        if state.stand in ("stopped", "waiting") and self._place(state) in self.failed:
            return "failed"
        return {"waiting": "missing", "preparing": "running"}.get(state.stand, state.stand)

    def _place(self, state: State) -> str:
        return state.folder.relative_to(self.path).as_posix()
