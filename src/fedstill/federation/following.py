"""A federation as `fedstill watch` follows it at its centre: what `status` knows, and nothing that comes from rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.federation.operate import AdminLine, Centre, newest
from fedstill.federation.status import doing, last_notes, late, metric_title, points, read_status, round_line
from fedstill.federation.view import connection
from fedstill.results.report.page import Panel
from fedstill.results.watch import watch
from fedstill.results.watch.state import State
from fedstill.results.watch.watch import Followed

ASK_S = 5.0
"""How often the server is asked which sites are connected."""
AGAIN = "continue with: fedstill federation submit EXPERIMENT"


@contextmanager
def following() -> Iterator[Callable[[Path], Followed]]:
    """What to follow at a path: the newest job of a federation whose folder it is, or of a rehearsal; else its runs."""
    lines: dict[Path, Connections] = {}

    def find(path: Path) -> Followed:
        place = next((one for one in (path, path / "federation") if (one / "federation.yaml").is_file()), None)
        if place is None or not (place / "centre").is_dir():
            return watch.follow(path)
        if place not in lines:
            lines[place] = Connections(Centre(place))
            lines[place].start()
        return _federation(lines[place])

    try:
        yield find
    finally:
        for line in lines.values():
            line.is_over.set()
        for line in lines.values():
            line.join(2 * ASK_S)


class Connections(threading.Thread):
    """Keeps asking a federation's server which sites are connected; None: it does not answer."""

    def __init__(self, centre: Centre) -> None:
        super().__init__(daemon=True)
        self.centre = centre
        self.is_over = threading.Event()
        self.known: dict[str, float] | None = None

    def run(self) -> None:
        """Ask until it is over."""
        with AdminLine(self.centre) as line:
            while not self.is_over.is_set():
                try:
                    self.known = line.ask(lambda admin: dict(admin.connected()))
                except FedstillError:
                    self.known = None
                self.is_over.wait(ASK_S)


def _federation(line: Connections) -> Followed:
    file = line.centre.file
    try:
        folder = newest(line.centre, None)
    except FedstillError:
        folder = None
    status = {} if folder is None else read_status(folder)
    slow = late(status["sites"], time.time()) if status.get("state") == "running" else []

    def words(states: Sequence[State]) -> str:
        if not states:
            return "no job yet; begin one with: fedstill federation submit EXPERIMENT"
        return _in_words(states[0], status, slow)

    def left(states: Sequence[State]) -> str:
        return str(states[0].left or "") if states else ""

    says = [round_line(status)] if status else []
    says += [f"note: {note}" for note in last_notes(status)]
    panel = _sites(file.sites, line.known, status, slow, says)
    folders = () if folder is None else (folder,)
    return Followed(folders, f"Federation {file.name}", words, left, lambda states: (panel,))


def _in_words(state: State, status: Mapping[str, Any], slow: Sequence[str]) -> str:
    if state.stand == "waiting":
        return "submitted, not started yet"
    if state.stand == "stopped":
        reason = f" ({status['reason']})" if status.get("reason") else ""
        return f"{state.words}{reason}; {AGAIN}"
    if state.stand == "finished":
        return f"finished; next: fedstill federation fetch {state.folder.name}"
    return f"{state.words}{'; late: ' + ', '.join(slow) if slow and state.stand == 'running' else ''}"


def _sites(
    names: Sequence[str],
    connected: dict[str, float] | None,
    status: dict[str, Any],
    slow: Sequence[str],
    says: Sequence[str],
) -> Panel:
    """Every site: whether it is connected, what it does, its last score."""
    places, is_running = status.get("sites", {}), status.get("state") == "running"
    rows = []
    for name in names:
        place = places.get(name, {})
        does = doing(place, name in slow, has_steps=False) if is_running else ""
        rows.append((name, connection(name, connected), does, points(status, place)))
    heading = ("site", "connection", "doing", metric_title(status))
    return Panel("Sites", heading, tuple(rows), tuple(says))
