"""Processes of our own: started alike, and gone when whoever started them is gone."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

STOP_S = 3.0


def context(preload: Sequence[str]) -> Any:
    """How processes start: from a server that has these modules loaded already, where the system has such a thing."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    found: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        found.set_forkserver_preload([*preload, "transformers"])
    return found


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
