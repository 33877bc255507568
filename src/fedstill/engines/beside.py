"""Work in a thread beside that of this one, which waits for other processes; it can be told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedstill.learning.fast.card import heeding


@contextmanager
def beside(work: Callable[[], None], waited: Callable[[float], None]) -> Iterator[None]:
    """Do work while the block runs; what it raises is raised at the end of the block.

    `waited` is told for how many seconds the end of the block had to wait. A block that fails ends the work too, which
    stops at its next batch.
    """
    stop = threading.Event()
    errors: list[BaseException] = []

    def live() -> None:
        try:
            with heeding(stop):
                work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        yield
        began = time.perf_counter()
        thread.join()
        waited(time.perf_counter() - began)
    except BaseException:
        stop.set()
        thread.join()
        raise
    if errors:
        raise errors[0]
