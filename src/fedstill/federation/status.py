"""A job's status, in a small file in its folder: the centre's process writes it, `status` reads it."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.common.events import Begun, Event, Measured, Noted, RoundDone, Saving, SiteSaid
from fedstill.common.files import write_whole
from fedstill.common.units import size_text
from fedstill.federation.centre import Ended, Lost
from fedstill.federation.job import Job
from fedstill.federation.line import plain
from fedstill.learning.metrics import METRICS
from fedstill.wire.messages import SERVER

EVERY_S = 0.5
NOTES = 20


class Status:
    """Receives events from any thread and keeps the file up to date; at the end it writes why the job ended."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.path = folder / "status.json"
        self.lock = threading.Lock()
        self.written = 0.0
        self.state: dict[str, Any] = {
            "name": job.experiment["name"],
            "hash": job.hash,
            "state": "preparing",
            "round": 0,
            "rounds": job.experiment["rounds"],
            "bytes": 0,
            "metric": "",
            "server": {},
            "sites": {name: {"state": "waiting"} for name in job.sites},
            "notes": [],
            "forgotten": 0,
        }

    def __enter__(self) -> Status:
        self._write(at_once=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.lock:
            self.state["state"] = _last_word(error)
            self.state["reason"] = "" if error is None else str(error) or type(error).__name__
            self._write(at_once=True)

    def __call__(self, event: Event) -> None:
        with self.lock:
            self._take(event)
            # What a site says at the end must not be skipped: there may be nothing else to tell for a long time.
            is_answer = isinstance(event, SiteSaid) and event.state != "working"
            self._write(at_once=is_answer or isinstance(event, Begun | RoundDone | Saving | Noted))

    def _take(self, event: Event) -> None:
        state = self.state
        match event:
            case Begun():
                state |= {"state": "running", "round": event.after, "bytes": event.bytes, "metric": event.metric}
            case SiteSaid(site):
                self._site(state["sites"].setdefault(site, {}), event)
            case Measured(metric):
                self._measured(metric)
            case Noted(note):
                notes = [*state["notes"], note]
                state["forgotten"] += max(0, len(notes) - NOTES)
                state["notes"] = notes[-NOTES:]
            case RoundDone():
                state |= {"round": event.round, "bytes": event.bytes}

    def _measured(self, metric: Mapping[str, Any]) -> None:
        party, name = metric["party"], self.state["metric"]
        if metric.get("split") in ("test", f"test/{party}"):
            place = self.state["server"] if party == SERVER else self.state["sites"].setdefault(party, {})
            place["score"] = {key: metric[key] for key in ("round", "stage", name) if key in metric}

    def _site(self, place: dict[str, Any], event: SiteSaid) -> None:
        now = time.time()
        if event.state == "asked":
            place |= {"state": "asked", "what": event.what, "since": now, "heard": now, "progress": {}}
        elif event.state == "working":
            place |= {"state": "working", "heard": now, "progress": _shown(event.progress)}
        else:
            if event.state == "failed":
                place.setdefault("lost", now)
            else:
                place.pop("lost", None)
            place |= {"state": event.state, "took": now - place.get("since", now), "reason": event.reason}

    def _write(self, at_once: bool) -> None:
        if at_once or time.monotonic() - self.written > EVERY_S:
            self.written = time.monotonic()
            self.state["updated"] = time.time()
            write_whole(self.path, json.dumps(self.state).encode())


def _shown(progress: object) -> dict[str, Any]:
    """The expected parts of the progress that a site reports; everything else is dropped."""
    said = progress if isinstance(progress, dict) else {}
    steps = {key: said[key] for key in ("done", "steps") if type(said.get(key)) is int}
    return steps | ({"phase": plain(said["phase"])[:40]} if "phase" in said else {})


def _last_word(error: BaseException | None) -> str:
    if error is None:
        return "finished"
    if isinstance(error, Ended):
        return "stopped"
    return "failed" if isinstance(error, FedstillError) and not isinstance(error, Lost) else "interrupted"


def late(sites: dict[str, Any], now: float) -> list[str]:
    """Sites that have been working more than twice as long as the median of those that have answered."""
    took = [place["took"] for place in sites.values() if place["state"] == "answered"]
    usual = statistics.median(took) if took else float("inf")
    waiting = {name: now - place["since"] for name, place in sites.items() if place["state"] in ("asked", "working")}
    return [name for name, seconds in waiting.items() if seconds > max(2 * usual, 5.0)]


def doing(place: dict[str, Any], is_late: bool = False, has_steps: bool = True) -> str:
    """What a site is doing, in a few words; how many steps it does says about how many rows it has."""
    state, progress = place.get("state", "waiting"), place.get("progress") or {}
    if state in ("asked", "working"):
        seconds = time.time() - place["since"]
        steps = f" {progress['done']}/{progress['steps']}" if {"done", "steps"} <= set(progress) else ""
        if steps and not has_steps:
            steps = f" {100 * progress['done'] // max(1, progress['steps'])}%"
        does = f"{progress.get('phase', place.get('what', ''))}{steps}, {seconds:.0f} s"
        return f"late: {does}" if is_late else does
    if state == "failed":
        return f"failed: {place.get('reason', '')}"
    return str(state)


def in_a_line(status: dict[str, Any]) -> str:
    """What a job is doing, in one line."""
    if status["state"] != "running":
        return str(status["state"])
    sites = ", ".join(f"{name} {doing(place)}" for name, place in status["sites"].items())
    return f"round {min(status['round'] + 1, status['rounds'])} of {status['rounds']}: {sites}"


def round_line(status: dict[str, Any]) -> str:
    """The last finished round in one line."""
    score = points(status, status.get("server", {}))
    own = f"server {metric_title(status)} {score}, " if score else ""
    return f"round {status['round']}/{status['rounds']}: {own}{size_text(status['bytes'])}"


def metric_title(status: dict[str, Any]) -> str:
    """The title of the headline metric; empty before the job has started."""
    metric = METRICS.get(status.get("metric", ""))
    return "" if metric is None else metric.title


def points(status: dict[str, Any], place: dict[str, Any]) -> str:
    """The last score of the server or a site, by the headline metric."""
    score = place.get("score", {}).get(status.get("metric"))
    return "" if score is None else f"{100 * score:.1f}"


def last_notes(status: Mapping[str, Any], most: int = 5) -> list[str]:
    """A job's last notes, each once, with how often it was made."""
    counts = Counter(reversed(status.get("notes", [])))
    return [f"{note} ({times}x)" if times > 1 else note for note, times in list(counts.items())[:most][::-1]]


def read_status(folder: Path) -> dict[str, Any]:
    """A job's last written status; empty if there is none."""
    try:
        return dict(json.loads((folder / "status.json").read_text()))
    except (OSError, ValueError):
        return {}
