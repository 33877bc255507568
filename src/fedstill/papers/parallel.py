"""Independent runs side by side, each in its own process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from fedstill.common.errors import FedstillError
from fedstill.common.events import Tell, tell_nobody
from fedstill.engines import runner
from fedstill.engines.processes import context, follow_parent, how_it_died, stop
from fedstill.papers.grid import GridRun
from fedstill.papers.machine import note_machine
from fedstill.results.record import Record


class EndedRun(NamedTuple):
    """What came of a run; `reason` says why it failed."""

    run: GridRun
    reason: str | None
    seconds: float
    others: Mapping[Path, float] = {}
    """The runs that still go on, by folder, and for how many seconds they have."""


def run_all(
    runs: Sequence[GridRun], at_once: int, force: bool = False, environment: Mapping[str, str] | None = None
) -> Iterator[EndedRun]:
    """Every run as it ends; whoever stops listening, by Ctrl-C too, ends those that still run.

    The processes have the variables of `environment` besides this process's.
    """
    waiting, busy = deque(runs), dict[Any, tuple[GridRun, Any, float]]()
    try:
        while waiting or busy:
            while waiting and len(busy) < at_once:
                run = waiting.popleft()
                pipe, process = _start(run, force, environment or {})
                busy[pipe] = (run, process, time.monotonic())
            for ready in wait(list(busy)):
                run, process, started = busy.pop(ready)
                now = time.monotonic()
                others = {other.folder: now - since for other, _, since in busy.values()}
                yield EndedRun(run, _hear(ready, process), now - started, others)
    finally:
        stop([process for _, process, _ in busy.values()])


def attempt(run: GridRun, force: bool = False, tell: Tell = tell_nobody) -> str | None:
    """Begin or go on with a run; the reason where that fails."""
    was_finished = Record(run.folder).is_finished and not force
    try:
        runner.begin_or_finish(run.experiment, run.folder, force, tell)
    except FedstillError as error:
        return str(error)
    if not was_finished:
        note_machine(run.folder, run.experiment.device)
    return None


def _start(run: GridRun, force: bool, environment: Mapping[str, str]) -> tuple[Connection, Any]:
    how = context(["fedstill.papers.parallel"])
    pipe, other = how.Pipe(duplex=False)
    process = how.Process(target=_work, args=(other, run, force, environment))
    process.start()
    other.close()
    return pipe, process


def _work(pipe: Connection, run: GridRun, force: bool, environment: Mapping[str, str]) -> None:
    """A process's life: one run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides
    os.environ.update(environment)  # the fork server was started before, so that nothing is inherited from it
    threading.Thread(target=follow_parent, daemon=True).start()
    try:
        pipe.send(attempt(run, force))
    except KeyboardInterrupt:  # SIGTERM: the parent has said why
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
