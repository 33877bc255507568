"""Ctrl-C and SIGTERM end what is being done, once, wherever they arrive."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from fedstill.engines import ranks

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN_S = 0.05
"""So long after Python dropped a signal it is sent again."""
_heard: list[int] = []
"""The signal that is ending what is being done."""


@contextmanager
def stopping_on_sigterm(for_good: bool = False) -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does; ranks handle both signals themselves.

    Only the first signal counts: what ends a run must not be interrupted. `for_good`: nor what follows it.
    """
    if ranks.current is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.getsignal(one) for one in SIGNALS}
    is_outermost = before[signal.SIGTERM] is not _stop
    if before[signal.SIGINT] == signal.SIG_IGN:  # a command in the background
        del before[signal.SIGINT]
    for one in before:
        signal.signal(one, _stop)
    try:
        if is_outermost:
            with _sent_again_if_dropped():
                yield
        else:
            yield
    finally:
        if is_outermost and not (for_good and _heard):
            _heard.clear()
            for one, handler in before.items():
                signal.signal(one, handler)


@contextmanager
def _sent_again_if_dropped() -> Iterator[None]:
    """Python drops what a signal raises inside of a destructor or an import's callback: then the signal comes again."""
    timers: list[threading.Timer] = []
    before = sys.unraisablehook

    def dropped(what: sys.UnraisableHookArgs) -> None:
        if not isinstance(what.exc_value, KeyboardInterrupt) or not _heard:
            before(what)
            return
        send = partial(signal.pthread_kill, threading.main_thread().ident or 0, _heard.pop())
        timers.append(threading.Timer(AGAIN_S, send))
        timers[-1].start()

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()
            timer.join()


def _stop(signum: int, frame: object) -> None:
    if not _heard:
        _heard.append(signum)
        raise KeyboardInterrupt(signum)
