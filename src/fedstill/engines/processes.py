"""Processes of our own: started alike, and gone when whoever started them is gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from typing import Any

STOP_S = 3.0


def context(preload: Sequence[str]) -> Any:
    """How processes start: from a server that has these modules loaded already, where the system has such a thing."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    found: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        found.set_forkserver_preload([*preload, "transformers"])
        _start_server()
    return found


def _start_server() -> None:
    """Deaf to Ctrl-C from its first moment on, as are all that it starts: it reaches the whole group."""
    resource_tracker.ensure_running()  # first, because it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop(processes: Sequence[Any]) -> None:
    """End them, kindly at first."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(STOP_S)
        if process.is_alive():
            process.kill()


def how_it_died(code: int | None) -> str:
    """An exit code in words."""
    return f"killed by signal {-code}; out of memory?" if code is not None and code < 0 else f"exit code {code}"


def follow_parent() -> None:
    """Die with the parent, however it dies."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
