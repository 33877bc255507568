"""Child processes: all are started in the same way, and end when their parent ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from typing import Any

STOP_S = 3.0
UNGUARDED = 77
"""The exit code of a worker whose program would run the experiment again."""
SLOW_TO_LOAD = ("transformers.modeling_utils", "torch._dynamo")
"""What every process would load by itself; PyTorch loads the second, for seconds, with a process's first optimiser."""
WORKERS = ("fedstill.engines.local",)
"""What the workers of a run need besides."""


def context(preload: Sequence[str]) -> Any:
    """How processes start: from a fork server that has already loaded these modules, if the system supports it."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    found: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        found.set_forkserver_preload([*preload, *SLOW_TO_LOAD])
        _start_server()
    return found


def load_too() -> None:
    """Load here what the fork server is loading: this process would only wait for it, and need it later."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        for name in SLOW_TO_LOAD:
            import_module(name)


def _start_server() -> None:
    """With SIGINT blocked, also in its children: Ctrl-C reaches all processes, and the parent decides."""
    resource_tracker.ensure_running()  # first, because it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop(processes: Sequence[Any]) -> None:
    """Terminate the processes, and kill those that do not end."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(STOP_S)
        if process.is_alive():
            process.kill()


def how_it_died(code: int | None) -> str:
    """An exit code in words."""
    if code == UNGUARDED:
        return (
            "workers import the program's file, which runs the experiment again: put what runs under "
            "`if __name__ == '__main__':`, or set workers=1"
        )
    return f"killed by signal {-code}; out of memory?" if code is not None and code < 0 else f"exit code {code}"


def leave_if_unguarded() -> None:
    """End this process if it is a worker that is still importing the program: nothing may be run from there."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)


def follow_parent() -> None:
    """End this process when its parent ends, for whatever reason."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
