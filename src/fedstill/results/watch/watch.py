"""Follows runs by their folders: what is new, and the page of it. It reads only, and needs nothing of who runs them."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstill.results.record import Record
from fedstill.results.report.board import Board, boards
from fedstill.results.report.material import reading_once
from fedstill.results.report.page import Live, Panel, alone, render, render_panels
from fedstill.results.report.series import RunSeries, series
from fedstill.results.runs import Run, load_run, run_folders
from fedstill.results.watch.planned import Planned
from fedstill.results.watch.state import State

SOON_S, LATER_S = 2.0, 5.0
"""How long an open page waits before it asks again, while runs go on and otherwise."""


@dataclass(frozen=True)
class Followed:
    """What is to be followed: run folders, and what is said of them together."""

    folders: tuple[Path, ...]
    title: str
    words: Callable[[Sequence[State]], str]
    left: Callable[[Sequence[State]], str]
    panels: Callable[[Sequence[State]], tuple[Panel, ...]]


class Watch:
    """The runs at or below a path, which need not exist yet; `find` says what to follow there."""

    def __init__(self, path: Path, has_texts: bool = True, find: Callable[[Path], Followed] | None = None) -> None:
        self.path, self.has_texts, self.find = path, has_texts, find or follow
        self.lock = threading.Lock()
        self.read = reading_once()
        self.kept: dict[Path, tuple[object, RunSeries]] = {}
        """Runs as they were last read, which is done again when their files have changed."""
        self.compared: tuple[object, list[Board]] = (None, [])
        self.took_s = 0.0

    def news(self) -> dict[str, Any]:
        """What an open page asks for: how the runs stand, and a stamp that changes with what they have written."""
        live, states = self._look()
        is_going = any(state.stand != "finished" for state in states) or not states
        return {
            "stamp": live.stamp,
            "words": live.words,
            "left": live.left,
            "panels": render_panels(live.panels),
            "wait_s": max(SOON_S if is_going else LATER_S, 5 * self.took_s),
        }

    def page(self, is_whole: bool = True) -> str:
        """The page as the runs are now."""
        with self.lock:
            started = time.monotonic()
            live, states = self._look()
            shown, left_out = self._series(states)
            compared = self._boards([one for one in shown if one.is_finished])
            html = render(shown, compared, left_out, live, is_whole)
            self.took_s = time.monotonic() - started
            return html

    def _look(self) -> tuple[Live, list[State]]:
        followed = self.find(self.path)
        states = [State.of(folder) for folder in followed.folders]
        stamp = hashlib.sha256(repr([state.stamp for state in states]).encode()).hexdigest()[:24]
        words, left = followed.words(states), followed.left(states)
        return Live(followed.title, stamp, words, left, followed.panels(states)), states

    def _series(self, states: Sequence[State]) -> tuple[list[RunSeries], list[str]]:
        """All runs that have begun; and a sentence for every one that cannot be read now."""
        runs: dict[Path, tuple[object, Run]] = {}
        left_out = []
        for state in states:
            try:
                if about := Record(state.folder).so_far:
                    runs[state.folder] = state.stamp, load_run(state.folder, about)
            except Exception as error:  # it may be removed, or written in just now; the next look may be luckier
                left_out.append(f"{state.folder} cannot be read ({type(error).__name__}: {error})")
        every = [run for _, run in runs.values()]
        shown = []
        for folder, (stamp, run) in runs.items():
            try:
                shown.append(self._one(stamp, run, alone(run, every)))
            except Exception as error:
                left_out.append(f"{folder} cannot be read ({type(error).__name__}: {error})")
        return shown, left_out

    def _one(self, stamp: object, run: Run, by_itself: Run | None) -> RunSeries:
        known = stamp, None if by_itself is None else by_itself.folder
        if self.kept.get(run.folder, (None,))[0] != known:
            self.kept[run.folder] = known, series(run, self.read, by_itself, self.has_texts)
        return self.kept[run.folder][1]

    def _boards(self, finished: list[RunSeries]) -> list[Board]:
        known = [(one.run.folder, self.kept[one.run.folder][0]) for one in finished]
        if self.compared[0] != known:
            self.compared = known, boards(finished)
        return self.compared[1]


def follow(path: Path) -> Followed:
    """The run in a folder, or the runs below it, and those that `reproduce` says there will be."""
    planned = Planned.read(path)
    found = tuple(dict.fromkeys([*(path / name for name in planned.runs), *run_folders(path)]))
    if not planned.runs and found in ((), (path,)):
        return Followed((path,), "", _one_in_words, _one_left, lambda states: ())
    return Followed(
        found, planned.title or str(path), planned.words, planned.left, lambda states: (planned.panel(states),)
    )


def _one_in_words(states: Sequence[State]) -> str:
    (state,) = states
    if state.stand == "waiting":
        return f"waiting for a run in {state.folder}"
    if state.stand == "stopped":
        return f"{state.words}; resume with: fedstill run --resume {state.folder}"
    return state.words


def _one_left(states: Sequence[State]) -> str:
    return str(states[0].left or "")
