"""A federation on one machine to do things to: kill, stall, lie."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import fedstill
from fedstill.config.experiment import Experiment
from fedstill.config.source import dump
from fedstill.federation.daemon import Daemon
from fedstill.federation.files import SiteFile, read_file, to_values
from fedstill.federation.rehearsal import Rehearsal
from fedstill.federation.status import read_status
from fedstill.results.record import Record

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client of gRPC says first, before its settings."""


def quiet(line: str) -> None:
    """Nobody listens."""


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file."""
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def point_at(kit: Path, port: int) -> None:
    """Let a site look for the centre there."""
    edit(kit / "startup" / "fed_client.json", lambda v: v["servers"][0]["service"].update(target=f"localhost:{port}"))


def three_shops(reviews: Path, **changes: Any) -> Experiment:
    """Three sites with a small BERT each."""
    values: dict[str, Any] = {
        "name": "shops",
        "corpus": {"path": str(reviews), "text": "body", "label": "stars", "domain": "shop"},
        "clients": "bert-tiny",
        "server": "bert-tiny",
        "train": {"epochs": 1, "batch": 16, "max_length": 16},
        "rounds": 2,
        "workers": 1,
    }
    return Experiment.model_validate(values | changes)


class Submission:
    """A submission that runs while the test does things to the federation."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.folder = rehearsal.centre.runs / rehearsal.job.id
        self.lines: list[str] = []
        self.record: Record | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.record = self.rehearsal.submit(self.lines.append)
        except BaseException as error:
            self.error = error

    @property
    def status(self) -> dict[str, Any]:
        """What the job says of itself now."""
        return read_status(self.folder)

    def at_work(self, site: str, round: int) -> bool:
        """Whether that site has its call of that round."""
        status = self.status
        place = status.get("sites", {}).get(site, {})
        in_round = status.get("state") == "running" and status["round"] == round - 1
        return in_round and place.get("state") in ("asked", "working") and place["what"] == "call"

    def wait(self, within_s: float = 1800.0) -> Record:
        """The record, when it is there."""
        self.thread.join(within_s)
        if self.error is not None:
            raise self.error
        assert self.record is not None, "\n".join(["not finished:", *self.lines, str(self.status)])
        return self.record


def until(condition: Callable[[], object], within_s: float = 600.0) -> None:
    """Wait for it."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def worker_of(site: Daemon) -> psutil.Process:
    """The process in which a site learns."""
    assert site.process is not None
    family = psutil.Process(site.process.pid).children(recursive=True)
    return next(p for p in family if "fedstill.federation.worker" in p.cmdline())


def kill_all(daemon: Daemon) -> None:
    """End a daemon and everything below it without a word."""
    assert daemon.process is not None
    top = psutil.Process(daemon.process.pid)
    for process in (*top.children(recursive=True), top):
        process.kill()
    daemon.process.wait()


def server_model(record: Record) -> str:
    """The server's weights, in short."""
    return hashlib.sha256((record.model_folder() / "model.safetensors").read_bytes()).hexdigest()


def alone(experiment: Experiment, folder: Path) -> Record:
    """The same experiment in a simulation."""
    return fedstill.run(experiment, folder)


def differences(record: Record, simulated: Record) -> list[dict[str, Any]]:
    """What a federation measured otherwise than its simulation, which measures more."""
    return [line for line in record.metrics if line not in simulated.metrics]


def change_site(path: Path, **changes: object) -> None:
    """Write other values into a `site.yaml`."""
    file = read_file(path, SiteFile)
    path.write_text(dump(to_values(SiteFile.model_validate(to_values(file) | changes))))
