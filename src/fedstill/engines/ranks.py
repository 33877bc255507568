"""The ranks that torchrun starts: rank 0 conducts the run, the others work for it until it dismisses them.

A message is a JSON list (`words`) and bytes. It is sent over gloo, so ranks may have different GPUs or none. When a
process dies, its connections close, which is noticed at once; when a machine is lost they do not, so every rank gives a
sign of life every few seconds. Nothing limits how long a client may work.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from fedstill.common.errors import FedstillError
from fedstill.common.events import Event, Tell, from_json, tell_nobody, to_json
from fedstill.common.traces import in_words
from fedstill.engines.hosting import Outcome, Reason, Request

BEAT_S = 5.0
SILENCE_S = 300.0
"""After this time without a sign of life a rank counts as lost."""
FOREVER = timedelta(days=365)
OBEY_S = 10.0
"""How long a rank that gets a signal waits for rank 0 to dismiss it before it ends by itself."""
LEAVE_S = 5.0
NOTICE_S = 0.5
"""How long rank 0 waits, after a signal, for the news that a rank died: torchrun then ends all ranks, and its signal
may come before the news."""

SAME = -1
"""Instead of a length: the bytes are the same as in the last message that had bytes."""

current: FirstRank | None = None
"""Set in rank 0 of a command that torchrun started."""


Own = Callable[[Sequence[Request]], Iterator[tuple[Request, Outcome]]]
"""How rank 0 answers its own requests."""


class LostRank(FedstillError):
    """A rank is gone, so the round cannot be finished."""


@dataclass(frozen=True)
class Place:
    """Which of the ranks this process is."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    machines: int

    @classmethod
    def here(cls) -> Place:
        """From the environment variables that torchrun sets."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
        return cls(*(int(os.environ[name]) for name in names))

    def device(self, wanted: str) -> str:
        """This rank's device: ranks take the machine's GPUs in turn, unless a particular device is wanted."""
        if wanted in ("auto", "cuda") and torch.cuda.is_available():
            return f"cuda:{self.local_rank % torch.cuda.device_count()}"
        return wanted

    def command(self, words: str) -> str:
        """The command line that runs a fedstill command on these ranks."""
        machines = f"--nnodes {self.machines} ... " if self.machines > 1 else ""
        return f"torchrun {machines}--nproc-per-node {self.local_ranks} -m fedstill {words}"


def command(words: str) -> str:
    """The command line of a fedstill command, with torchrun if this process was started by it."""
    return f"fedstill {words}" if current is None else current.place.command(words)


def loss() -> LostRank | None:
    """The lost rank that caused the signal which has just come, if one did."""
    if current is None:
        return None
    until = time.monotonic() + NOTICE_S
    while not current.lost and time.monotonic() < until:
        time.sleep(0.02)
    return current.loss() if current.lost else None


class RankLine:
    """Sends and receives messages between this rank and another one, in order, in its own threads.

    A signal can interrupt the main thread anywhere, and after half a message nothing more could be understood.
    """

    def __init__(self, rank: int, heard: Callable[[list[Any], bytes], None], broke: Callable[[str], None]) -> None:
        self.rank, self.heard, self.broke = rank, heard, broke
        self.outbox: SimpleQueue[tuple[list[Any], bytes]] = SimpleQueue()
        self.sent = self.received = b""
        self.heard_at = time.monotonic()
        self.is_over = threading.Event()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()
        for task in (self._speak, self._watch):
            threading.Thread(target=task, daemon=True).start()

    def send(self, words: list[Any], raw: bytes = b"") -> None:
        """Queue a message; the listener notices if the other rank is gone."""
        self.outbox.put((words, raw))

    def close(self) -> None:
        """From now on a closed connection is not a loss."""
        self.is_over.set()

    def _listen(self) -> None:
        try:
            while True:
                words, length = self._receive(torch.empty(2, dtype=torch.int64)).tolist()
                if not words:
                    continue
                said = self._receive(torch.empty(words, dtype=torch.uint8)).numpy().tobytes()
                if length > 0:
                    self.received = self._receive(torch.empty(length, dtype=torch.uint8)).numpy().tobytes()
                self.heard(json.loads(said), self.received if length else b"")
        except RuntimeError:  # what gloo raises for a closed connection
            self._break("its process ended")
        except Exception as error:  # after any error nothing more can be received
            self._break(in_words(error))

    def _receive(self, room: torch.Tensor) -> torch.Tensor:
        work = dist.irecv(room, self.rank)
        assert work is not None
        work.wait(FOREVER)
        self.heard_at = time.monotonic()
        return room

    def _speak(self) -> None:
        """Send queued messages, and a sign of life when there are none."""
        with suppress(RuntimeError):
            while True:
                try:
                    words, raw = self.outbox.get(timeout=BEAT_S)
                except Empty:
                    if self.is_over.is_set():
                        return
                    dist.send(torch.zeros(2, dtype=torch.int64), self.rank)
                    continue
                said = json.dumps(words).encode()
                length = SAME if raw and raw is self.sent else len(raw)
                dist.send(torch.tensor([len(said), length]), self.rank)
                dist.send(_tensor(said), self.rank)
                if length > 0:
                    dist.send(_tensor(raw), self.rank)
                    self.sent = raw

    def _watch(self) -> None:
        """Notice silence, in a thread of its own: `_speak` blocks until the other side receives."""
        while not self.is_over.wait(BEAT_S):
            if time.monotonic() - self.heard_at > SILENCE_S:
                self._break(f"nothing was heard of it for {SILENCE_S:.0f} s")

    def _break(self, reason: str) -> None:
        if not self.is_over.is_set():
            self.is_over.set()
            self.broke(reason)


def _tensor(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


class FirstRank:
    """Rank 0's side: gives the others their work and notices when one is lost."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.tell: Tell = tell_nobody
        self.turn = 0
        self.todo: dict[int, deque[Request]] = {}
        self.doing: dict[int, deque[Request]] = {}
        self.at_once: dict[int, int] = {}
        """How many requests a rank answers together; one, where nothing is said."""
        self.changing = threading.Lock()
        self.inbox: SimpleQueue[tuple[int, Request, Outcome] | None] = SimpleQueue()
        self.lost: dict[int, str] = {}
        self.is_stopping = False
        self.lines = {rank: self._line(rank) for rank in range(1, place.ranks)}

    def work(self, requests: Mapping[int, deque[Request]], own: Own) -> Iterator[tuple[Request, Outcome]]:
        """Keep every rank busy, this one too, until its queue is empty; yields requests with their outcomes."""
        with self.changing:
            self.turn += 1  # late replies to a call that failed are ignored
            self.todo = {rank: deque(requests.get(rank, ())) for rank in self.lines}
            left = sum(map(len, self.todo.values()))
        for rank in self.lines:
            self._next(rank)
        for answered in own(list(requests.get(0, ()))):
            self.refuse_losses()
            yield answered
        while left:
            self.refuse_losses()
            news = self.inbox.get()
            if news is not None and news[0] == self.turn:
                left -= 1
                yield news[1:]

    def refuse_losses(self) -> None:
        """Raise if a rank is gone."""
        if self.lost:
            self.is_stopping = True
            raise self.loss()

    def loss(self) -> LostRank:
        """The exception that says which rank is gone."""
        rank, how = next(iter(self.lost.items()))
        return LostRank(f"rank {rank} of {self.place.ranks} was lost: {how}.")

    def stop(self, signum: int, frame: object) -> None:
        """On a signal: stop the run, once, and not if it is ending already."""
        if not self.is_stopping:
            self.is_stopping = True
            raise KeyboardInterrupt(signum)

    def dismiss(self, code: int) -> bool:
        """Tell all ranks to end with this code; returns whether all did."""
        for line in self.lines.values():
            line.close()
        present = [line for rank, line in self.lines.items() if rank not in self.lost]
        for line in present:
            line.send(["quit", code])
        for line in present:
            line.listener.join(LEAVE_S)
        return not self.lost and not any(line.listener.is_alive() for line in present)

    def _line(self, rank: int) -> RankLine:
        def heard(words: list[Any], raw: bytes) -> None:
            kind, about = words
            if kind == "progress":
                self.tell(from_json(about))
                return
            with self.changing:
                if about != self.turn:
                    return
                request = self.doing[rank].popleft()
                self.inbox.put((about, request, raw if kind == "reply" else Reason(raw.decode())))
                goes_on = bool(self.doing[rank])
            if not goes_on:
                self._next(rank)

        def broke(reason: str) -> None:
            self.lost[rank] = reason
            self.inbox.put(None)

        return RankLine(rank, heard, broke)

    def _next(self, rank: int) -> None:
        """Send a rank what it answers next: no more than it answers at once, so that it need not hold what waits."""
        with self.changing:
            turn, todo = self.turn, self.todo[rank]
            group = [todo.popleft() for _ in range(min(self.at_once.get(rank, 1), len(todo)))]
            self.doing[rank] = deque(group)
        for number, request in enumerate(group, 1):
            self.lines[rank].send([turn, request.header, len(group) - number], request.payload)


class Follower:
    """The side of every other rank: answers requests, as they were sent, until rank 0 dismisses it or is gone."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.advice = "Start again."
        self.requests: SimpleQueue[tuple[int, Request, int]] = SimpleQueue()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._end_soon)
        self.line = RankLine(0, self._heard, self._end)

    def serve(self, answer: Callable[[Sequence[Request]], Sequence[Outcome]]) -> None:
        """Answer requests, those that were sent together at once, for as long as the process lives."""
        while True:
            turn, request, more = self.requests.get()
            group = [request, *(self.requests.get()[1] for _ in range(more))]
            for came in answer(group):
                kind, raw = ("failure", came.sentence.encode()) if isinstance(came, Reason) else ("reply", came)
                self.line.send([kind, turn], raw)

    def tell(self, event: Event) -> None:
        """Report progress to rank 0."""
        self.line.send(["progress", to_json(event)])

    def _heard(self, words: list[Any], raw: bytes) -> None:
        if words[0] == "quit":
            _exit(words[1])
        turn, header, more = words
        self.requests.put((turn, Request.of(header, raw), more))

    def _end(self, reason: str) -> None:
        """Rank 0 is gone: rank 1 prints that, and all others end silently."""
        if self.place.rank == 1:
            print(f"error: rank 0, which conducts the run, was lost. {self.advice}", file=sys.stderr)
        _exit(1)

    def _end_soon(self, signum: int, frame: object) -> None:
        """torchrun signals all ranks at once: wait, so that rank 0 sees a run that stops, and not a rank that died."""
        timer = threading.Timer(OBEY_S, _exit, [1])
        timer.daemon = True
        timer.start()


def _exit(code: int) -> None:
    """End now, whatever the other threads are doing."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def join(place: Place) -> None:
    """Connect to the other ranks."""
    if place.ranks == 1:
        return
    if place.machines == 1 and "lo" in (name for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nothing needs to leave the machine
    try:
        # gloo's own timeout closes all connections, so it must come after ours, which tells the lost rank.
        dist.init_process_group("gloo", timeout=timedelta(seconds=2 * SILENCE_S))
    except RuntimeError as error:
        raise FedstillError(
            f"the ranks did not find each other ({str(error).splitlines()[0]}). Where machines have several networks, "
            "set GLOO_SOCKET_IFNAME to the one that connects them."
        ) from error


@contextmanager
def conducting(place: Place) -> Iterator[None]:
    """Inside, rank 0 can give the others work; afterwards they end with its exit code."""
    global current
    current = FirstRank(place)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, current.stop)
    code = 1
    try:
        yield
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # when the first rank ends, torchrun signals the others
        if not current.dismiss(code):
            _exit(code)  # on a normal exit gloo would abort, because a thread still waits for a rank
