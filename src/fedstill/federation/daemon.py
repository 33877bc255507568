"""FLARE's processes: started from a kit, restarted when they die, and ended together with their children."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import psutil

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole
from fedstill.federation.kits import CONFIG, organisation

STOP_S = 10.0
TRIES = 5
"""A process that dies more often than this within TRIES_S is not restarted again."""
TRIES_S = 120.0


class Daemon:
    """One of FLARE's processes, and its children."""

    def __init__(self, kit: Path, kind: Literal["centre", "site"], name: str) -> None:
        self.kit, self.kind, self.name = kit.resolve(), kind, name
        self.log = self.kit / "log" / "flare.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, with output to the kit's log; processes left over from an earlier start are ended first."""
        for process in left_behind(self.kit):
            end_tree(process.pid)
        self.log.parent.mkdir(exist_ok=True)
        organised = [] if self.kind == "centre" else [f"uid={self.name}"]
        command = [sys.executable, "-u", "-m", "fedstill.federation.flare", self.kind, "-m", str(self.kit)]
        options = [
            "-s",
            CONFIG[self.kind],
            "--set",
            "secure_train=true",
            *organised,
            f"org={organisation(self.name)}",
            "config_folder=config",
        ]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.kit,
                env=os.environ | {"NVFLARE_SECURE_LOGGING": "true"},  # no values in FLARE's logs and tracebacks
                start_new_session=True,  # so that Ctrl-C reaches only us, and we end it
            )

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """End it and its children: SIGTERM first, then SIGKILL."""
        if self.process is not None:
            end_tree(self.process.pid)
            self.process.wait()

    def keep_alive(self, watch: Callable[[], None], every_s: float = 0.5) -> None:
        """Start it, and again whenever it dies, until an interruption; an error if it dies too often."""
        starts: list[float] = []
        while True:
            if not self.is_alive:
                starts = [*(moment for moment in starts if time.monotonic() - moment < TRIES_S), time.monotonic()]
                if len(starts) > TRIES:
                    raise FedstillError(f"FLARE died {TRIES} times in {TRIES_S:g} s; {self.log} says why.")
                self.start()
            watch()
            time.sleep(every_s)


def left_behind(kit: Path) -> list[psutil.Process]:
    """FLARE's processes that run from a kit: a job's processes may outlive the one that started them."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(kit) in words and any("nvflare" in word or "fedstill.federation.flare" in word for word in words):
            found.append(process)
    return found


def end_tree(pid: int) -> None:
    """End a process and all its descendants, also those in their own sessions."""
    try:
        top = psutil.Process(pid)
        family = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        _signal(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(family, STOP_S)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, STOP_S)


def _signal(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


class Presence:
    """A file that says which process runs a kit: no second one can start, and another command can end it."""

    def __init__(self, kit: Path) -> None:
        self.path = kit / "running.json"

    def __enter__(self) -> Presence:
        if (running := self.pid) is not None:
            raise FedstillError(f"{self.path.parent} is in use already, by process {running}.")
        own = psutil.Process()
        write_whole(self.path, json.dumps({"pid": own.pid, "since": own.create_time()}).encode())
        return self

    def __exit__(self, *exception: object) -> None:
        self.path.unlink(missing_ok=True)

    @property
    def pid(self) -> int | None:
        """The id of the process that runs the kit; None if there is none."""
        try:
            said = json.loads(self.path.read_text())
            process = psutil.Process(said["pid"])
            return int(said["pid"]) if abs(process.create_time() - said["since"]) < 1 else None
        except (OSError, ValueError, KeyError, psutil.NoSuchProcess):
            return None

    def end(self, within_s: float = 60.0) -> bool:
        """Tell that process to stop and wait until it has; False if there is none."""
        if (pid := self.pid) is None:
            return False
        process = psutil.Process(pid)
        process.terminate()
        try:
            process.wait(within_s)
        except psutil.TimeoutExpired:
            raise FedstillError(f"process {pid} does not stop; look at {self.path.parent / 'log'}.") from None
        return True


def detach(words: Sequence[str], log: Path, is_up: Callable[[], bool], within_s: float = 60.0) -> int:
    """Run a fedstill command in the background; returns its process id as soon as `is_up()` is true."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedstill", *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    until = time.monotonic() + within_s
    while not is_up():
        if process.poll() is not None:
            raise FedstillError(_last_line(log))
        if time.monotonic() > until:
            raise FedstillError(f"it did not start in time; {log} says more.")
        time.sleep(0.2)
    return process.pid


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else f"it ended immediately; {log} is empty."


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on that port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def answers(host: str, port: int, within_s: float = 5.0) -> str:
    """Empty if a connection can be made, else the reason why not."""
    try:
        with socket.create_connection((host, port), within_s):
            return ""
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
