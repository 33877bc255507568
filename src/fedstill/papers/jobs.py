"""Independent runs side by side, each in its own process."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from fedstill.common.errors import FedstillError
from fedstill.common.events import Tell, tell_nobody
from fedstill.config.experiment import Experiment
from fedstill.engines import runner
from fedstill.engines.processes import context, follow_parent, how_it_died, stop


class Job(NamedTuple):
    """An experiment and the folder that it runs in."""

    experiment: Experiment
    folder: Path


class Ended(NamedTuple):
    """A job that has ended; `reason` says why it failed, if it did."""

    job: Job
    reason: str | None
    seconds: float


def run_all(jobs: Sequence[Job], at_once: int, force: bool = False) -> Iterator[Ended]:
    """Yield every job as it ends; when the iteration is stopped, also by Ctrl-C, the jobs still running are ended."""
    waiting, busy = deque(jobs), dict[Any, tuple[Job, Any, float]]()
    try:
        while waiting or busy:
            while waiting and len(busy) < at_once:
                job = waiting.popleft()
                pipe, process = _start(job, force)
                busy[pipe] = (job, process, time.monotonic())
            for ready in wait(list(busy)):
                job, process, started = busy.pop(ready)
                yield Ended(job, _hear(ready, process), time.monotonic() - started)
    finally:
        stop([process for _, process, _ in busy.values()])


def attempt(job: Job, force: bool = False, tell: Tell = tell_nobody) -> str | None:
    """Begin or go on with a run; the reason where that fails."""
    try:
        runner.begin_or_finish(job.experiment, job.folder, force, tell)
    except FedstillError as error:
        return str(error)
    return None


def _start(job: Job, force: bool) -> tuple[Connection, Any]:
    how = context(["fedstill.engines.runner"])
    pipe, other = how.Pipe(duplex=False)
    process = how.Process(target=_work, args=(other, job, force))
    process.start()
    other.close()
    return pipe, process


def _work(pipe: Connection, job: Job, force: bool) -> None:
    """The main function of a process: one run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the parent decides what to do
    threading.Thread(target=follow_parent, daemon=True).start()
    try:
        pipe.send(attempt(job, force))
    except KeyboardInterrupt:  # SIGTERM: the parent has reported the reason
        return


def _hear(pipe: Any, process: Any) -> str | None:
    try:
        reason: str | None = pipe.recv()
    except EOFError:
        process.join()
        above = "; its error is above" if process.exitcode >= 0 else ""
        return f"its process died ({how_it_died(process.exitcode)}{above})."
    process.join()
    return reason
