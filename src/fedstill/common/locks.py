"""Locks on files and folders, which end with the process that holds them, however it ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]

TRIES, PAUSE_S = 10, 0.05
"""Whoever asks whether a file is locked has to lock it for a moment, which must not keep anybody out."""


def lock(file: int) -> bool:
    """Lock an open file for this process; whether nobody else has it. True where there are no locks."""
    if fcntl is None:
        return True
    for _ in range(TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(PAUSE_S)
        except OSError:
            return True  # a file system without locks: two runs in one folder are not noticed there
    return False


def is_locked(path: Path) -> bool:
    """Whether a process has locked this file or folder; False where that cannot be known."""
    if fcntl is None:
        return False
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


@contextmanager
def at_work_in(folder: Path) -> Iterator[None]:
    """Show others that a process is at work in this folder; a second one is not kept out."""
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder, os.O_RDONLY) if fcntl is not None else None
    try:
        if file is not None:
            lock(file)
        yield
    finally:
        if file is not None:
            os.close(file)
