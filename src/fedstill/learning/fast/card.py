"""The entry to the fast path on a GPU ("the card"): phases, steps, predictions, and several clients that learn at once.

A method describes the work of one client at a time. In a meeting each client's work has its own thread, and only one
thread runs at a time. A client that reaches a phase or a step which can be stacked waits there; when all the others
wait too, or have finished, what they wait for is run together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore
from fedstill.learning.fast.settings import fast_of

if TYPE_CHECKING:
    from fedstill.learning.phases import Phase

T = TypeVar("T")
Losses = tuple[list[float], list[list[float]]]
"""Mean losses by epoch, and by epoch and class."""

WIDEST = 16
"""The most clients in one stack: with more, matrix products do not get faster."""

FEW = 4
"""The most batches for which models that learn step by step predict together; for more, large batches are faster."""

HEAR_S = 0.5
"""A signal that comes just before a thread falls asleep is heard when it wakes: not later than this."""

_here = threading.local()


def learn(phase: Phase, targets: Tensor, loss: Any, class_weights: Tensor | None) -> Losses | None:
    """Run a whole phase on the card, in a meeting together with others; None where the card cannot run it."""
    settings = phase.settings
    is_usual = settings.optimiser == "adamw" and settings.restart == "never" and settings.epochs > 0
    if not is_usual or not _can(phase.model, phase.data, phase.precision):
        return None
    from fedstill.learning.fast.gpu import schedule, together

    if not together.can_stack(phase.model):
        return None
    job = schedule.Job(phase, targets, loss, class_weights)
    guest: _Guest | None = getattr(_here, "guest", None)
    return together.run_all([job])[0] if guest is None else guest.wait_for(job)


def can_step(phase: Phase, *parts: Examples) -> bool:
    """Whether the card can take a phase's steps, on these examples."""
    is_usual = phase.settings.optimiser == "adamw" and fast_of(phase.model).steps
    if not is_usual or not all(_can(phase.model, part, phase.precision) for part in parts):
        return False
    from fedstill.learning.fast.gpu import open, together

    return open.is_home(phase) is not None or together.can_stack(phase.model)  # who is there could be stacked


def step(phase: Phase, parts: Sequence[Examples], loss: Callable[..., Tensor]) -> Tensor | None:
    """One step of a phase on the card, in a meeting together with others; None where the card cannot take it."""
    if not can_step(phase, *parts):
        return None
    from fedstill.learning.fast.gpu import open, turns

    turn = open.Turn(phase, parts, loss)
    guest: _Guest | None = getattr(_here, "guest", None)
    if guest is not None:
        return guest.wait_for(turn)  # type: ignore[no-any-return]
    (found,) = turns.take_all([turn])
    if isinstance(found, Exception):
        raise found
    return found


def gradient_norm(phase: Phase, value: Tensor) -> float | None:
    """Inside the loss of a step that the card takes: the norm of this value's gradient; None outside of one."""
    if not phase.is_on_card:
        return None
    from fedstill.learning.fast.gpu import open

    place = open.is_home(phase)
    return None if place is None else place[0].gradient_norm(place[1], value)


def spoken(phase: Phase, data: Examples) -> Tensor | None:
    """The logits of the data with dropout, on the CPU; None where the card cannot compute them."""
    if not can_step(phase, data):
        return None
    from fedstill.learning.fast.gpu import turns

    return _answer(turns.Question(phase, data, True))


def predict(model: nn.Module, data: Examples, precision: str) -> Tensor | None:
    """The logits of the data, computed on the card, returned in fp32 on the CPU; None where the card cannot run it."""
    if not _can(model, data, precision):
        return None
    from fedstill.learning.fast.gpu import open, together, turns

    if (phase := open.phase_of(model)) is not None and len(data) <= FEW * phase.settings.batch:
        return _answer(turns.Question(phase, data, False))
    return together.predict_packed(model, data) if together.can_stack(model) else None


def _answer(question: Any) -> Tensor:
    from fedstill.learning.fast.gpu import turns

    guest: _Guest | None = getattr(_here, "guest", None)
    return turns.answer_all([question])[0] if guest is None else guest.wait_for(question)


def _can(model: nn.Module, data: Examples, precision: str) -> bool:
    """Whether this is text in bf16, on a GPU with everything the fast path needs."""
    first = next(model.parameters(), None)
    return (
        first is not None
        and first.device.type == "cuda"
        and precision == "bf16"
        and fast_of(model).graphs
        and isinstance(data.store, TokenStore)
        and not data.store.pads_left
        and len(data) > 0
        and find_spec("triton") is not None
    )


def meet(works: Sequence[Callable[[], T]]) -> list[T]:
    """Do all works and return their results; when all have ended, the first error in their order is raised."""
    guests = [_Guest(work) for work in works]
    try:
        for guest in guests:
            guest.go_on()
        while waiting := [guest for guest in guests if guest.job is not None]:
            _work_together(waiting)
    except BaseException:  # a signal, which only the main thread hears
        for guest in sorted(guests, key=lambda guest: guest.paused.is_set()):
            guest.stop()
        raise
    for guest in guests:
        if guest.error is not None:
            raise guest.error
    return [guest.outcome for guest in guests]


def _work_together(waiting: Sequence[_Guest]) -> None:
    """Do what these guests wait for; those that wait for the same kind of work do it together."""
    from fedstill.learning.fast.gpu import open, schedule, together, turns

    kinds: dict[type, Callable[[Any], Sequence[Any]]] = {
        schedule.Job: together.run_all,
        open.Turn: turns.take_all,
        turns.Question: turns.answer_all,
    }
    for kind, do in kinds.items():
        own = [guest for guest in waiting if isinstance(guest.job, kind)]
        if not own:
            continue
        started = time.perf_counter()
        found: Sequence[Any]
        try:
            found = do([guest.job for guest in own])
        except Exception as error:  # nobody knows whose fault it was
            found = [error] * len(own)
        share_s = (time.perf_counter() - started) / len(own)
        for guest, outcome in zip(own, found, strict=True):
            guest.found = outcome
            guest.waited_s -= share_s
    for guest in waiting:
        guest.go_on()


def heed_stop() -> None:
    """Called at every batch: raise KeyboardInterrupt where this thread, or its meeting, was told to stop."""
    guest: _Guest | None = getattr(_here, "guest", None)
    stop: threading.Event | None = getattr(_here, "stop", None)
    if (guest is not None and guest.is_stopped) or (stop is not None and stop.is_set()):
        raise KeyboardInterrupt


@contextmanager
def heeding(stop: threading.Event) -> Iterator[None]:
    """Inside, this thread stops at the next batch after the event is set."""
    _here.stop = stop
    try:
        yield
    finally:
        _here.stop = None


def waited_s() -> float:
    """How long this thread's work has waited for others in its meeting, less its share of the phases run together."""
    guest: _Guest | None = getattr(_here, "guest", None)
    return 0.0 if guest is None else guest.waited_s


class _Guest:
    """One client's work in a thread, which runs only between `go_on` and the next wait."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.turn, self.paused = threading.Event(), threading.Event()
        self.job: Any = None
        self.found: Any = None
        self.waited_s = 0.0
        self.is_stopped = False
        self.outcome: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._live, daemon=True)
        self.thread.start()

    def go_on(self) -> None:
        """Let the thread run until it waits for something, or ends."""
        self.job = None
        self.paused.clear()
        self.turn.set()
        while not self.paused.wait(HEAR_S):
            pass

    def stop(self) -> None:
        """Let it end: at its next batch where it is at work, at once where it waits or has not begun."""
        self.is_stopped = True
        self.turn.set()
        self.thread.join()

    def wait_for(self, job: Any) -> Any:
        """Called in the guest's thread: hand over the job and wait until it is done; what came of it."""
        started = time.perf_counter()
        self.job = job
        self.turn.clear()
        heed_stop()  # before it waits: the turn that told it to is cleared
        self.paused.set()
        self.turn.wait()
        self.waited_s += time.perf_counter() - started
        heed_stop()
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found

    def _live(self) -> None:
        self.turn.wait()
        _here.guest = self
        try:
            heed_stop()
            self.outcome = self.work()
        except BaseException as error:
            self.error = error
        finally:
            self.paused.set()
