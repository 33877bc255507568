"""Independent runs side by side, in processes that last for several runs.

What a process has read, compiled or captured for one run serves its next: the corpus, kernels, a card's graphs.
"""

from __future__ import annotations

import gc
import math
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedstill.common.allocator import keep_freed_memory
from fedstill.common.errors import FedstillError
from fedstill.common.events import Tell, tell_nobody
from fedstill.data import corpora
from fedstill.engines import runner
from fedstill.engines.processes import context, follow_parent, how_it_died, stop
from fedstill.papers.grid import GridRun
from fedstill.papers.machine import note_machine
from fedstill.results.record import Record

FULL = re.compile("CUDA.*out of memory")
"""What torch says when a card has not enough memory left."""


class EndedRun(NamedTuple):
    """What came of a run; `reason` says why it failed."""

    run: GridRun
    reason: str | None
    seconds: float
    others: Mapping[Path, float] = {}
    """The runs that still go on, by folder, and for how many seconds they have."""


def run_all(
    runs: Sequence[GridRun],
    at_once: int,
    force: bool = False,
    environment: Mapping[str, str] | None = None,
    until: float = math.inf,
) -> Iterator[EndedRun]:
    """Every run as it ends; whoever stops listening, by Ctrl-C too, ends those that still run.

    A run that finds a card's memory full goes on once more when the others are done, beside fewer; as others end well,
    there are more again. The processes have the variables of `environment` besides this process's. No run is started
    after `until`, a time of the clock that only rises.
    """
    waiting, idle, busy = deque(runs), list[_Worker](), dict[Connection, tuple[_Worker, GridRun, float]]()
    again = set[Path]()
    most, calm = at_once, 0
    try:
        while busy or (waiting and time.monotonic() <= until):
            while waiting and len(busy) < at_once and time.monotonic() <= until:
                worker, run = idle.pop() if idle else _Worker.start(environment or {}), waiting.popleft()
                worker.pipe.send((run, force))
                busy[worker.pipe] = worker, run, time.monotonic()
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                worker, run, started = busy.pop(pipe)
                now = time.monotonic()
                others = {other.folder: now - since for _, other, since in busy.values()}
                reason, lives = worker.hear()
                if reason is None:
                    idle.append(worker)
                elif lives:  # what a failure leaves behind on a card can make every other run of the process fail
                    stop([worker.process])
                if reason is not None and FULL.search(reason) and run.folder not in again:
                    again.add(run.folder)
                    waiting.append(run)
                    at_once, calm = max(1, at_once - max(1, at_once // 4)), 0
                    continue
                calm += 1
                if calm >= at_once:  # the runs that were too large are through, or wait at the end
                    at_once, calm = min(most, at_once + 1), 0
                yield EndedRun(run, reason, now - started, others)
    finally:
        stop([worker.process for worker in (*idle, *(each for each, _, _ in busy.values()))])


def attempt(run: GridRun, force: bool = False, tell: Tell = tell_nobody) -> str | None:
    """Begin or go on with a run; the reason where that fails."""
    was_finished = Record(run.folder).is_finished and not force
    try:
        runner.begin_or_finish(run.experiment, run.folder, force, tell)
    except FedstillError as error:
        return str(error)
    except RuntimeError as error:
        if FULL.search(str(error)) is None:
            raise
        return str(error)
    if not was_finished:
        note_machine(run.folder, run.experiment.device, run.experiment.precision)
    return None


class _Worker(NamedTuple):
    """A process that does one run after another."""

    pipe: Connection
    process: Any

    @classmethod
    def start(cls, environment: Mapping[str, str]) -> _Worker:
        how = context(["fedstill.papers.parallel"])
        pipe, other = how.Pipe()
        process = how.Process(target=_work, args=(other, environment))
        process.start()
        other.close()
        return cls(pipe, process)

    def hear(self) -> tuple[str | None, bool]:
        """The reason why the run failed, if it did, and whether the process can take another."""
        try:
            return self.pipe.recv(), True
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode
            above = "; its error is above" if code >= 0 else ""
            return f"its process died ({how_it_died(code)}{above}).", False


def _work(pipe: Connection, environment: Mapping[str, str]) -> None:
    """A process's life: runs, until nobody has more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides
    os.environ.update(environment)  # the fork server was started before, so that nothing is inherited from it
    threading.Thread(target=follow_parent, daemon=True).start()
    keep_freed_memory()
    with corpora.remembered():
        try:
            while True:
                run, force = pipe.recv()
                pipe.send(attempt(run, force))
                gc.collect()  # models refer to each other
                torch.cuda.empty_cache()  # for the runs beside this process's next one
        except (EOFError, KeyboardInterrupt):  # by SIGTERM: the parent has said why
            return
