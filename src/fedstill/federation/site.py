"""A site's front: it answers the centre quickly, decides what is allowed, and keeps a worker process alive."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedstill.common.events import Event, Step, Tell
from fedstill.common.files import write_whole
from fedstill.common.plugins import is_own
from fedstill.engines.hosting import Request
from fedstill.federation import own_record
from fedstill.federation.budget import Budget, measured_in
from fedstill.federation.consent import refuse_unwanted
from fedstill.federation.data import PublicSet, site_public
from fedstill.federation.files import SiteFile, to_values
from fedstill.federation.job import Job
from fedstill.federation.requests import LARGE, WAIT_S, Refusal, frame, unframe
from fedstill.federation.worker import Died, Errand, Failed, Worker
from fedstill.plan.plan import PRIVATE
from fedstill.wire.messages import BadMessage

SHOWN = ("phase", "done", "steps", "epochs")
"""What a site tells about its progress: how far it is, but no scores."""
GIVEN_UP = "it took too long and was given up."
DEATHS = 2
"""How often a worker may die during one request before the request fails."""


class SiteTask:
    """A request that the site is working on."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.round = 0
        """Of a call."""
        self.done = threading.Event()
        self.is_superseded = False
        self.header: dict[str, Any] = {"state": "working"}
        self.payload = b""
        self.notes: list[str] = []

    def reply(self, takes_large: bool) -> bytes:
        """The task's state or result; a large result is announced before it is sent."""
        if len(self.payload) > LARGE and not takes_large:
            return frame({"state": "ready", "bytes": len(self.payload)})
        return frame(self.header, self.payload)


class Site:
    """Answers the centre. Any thread may call `answer`; requests are worked on one after the other."""

    def __init__(self, name: str, job: Job, file: SiteFile, folder: Path) -> None:
        self.name, self.job, self.file = name, job, file
        self.folder = folder / job.id
        self.folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        keep_private(self.folder)
        self.budget = Budget(folder, job, file.limits)
        self.public = self.folder / "public.bin"
        self.worker: Worker | None = None
        self.boundary = 0
        """The round after which the state on disk was saved."""
        self.since: list[tuple[int, bytes]] = []
        """The calls since then: they are repeated after a worker died, to bring the new one to the same state."""
        self.is_open = False
        self.round = -1
        self.task = SiteTask(0)
        self.lock, self.working = threading.Lock(), threading.Lock()

    def answer(self, raw: object) -> bytes:
        """Start a new request, or tell the state of the one with its number; waits a short time for the result."""
        try:
            header, payload = unframe(raw)
            number, what = int(header["number"]), str(header["what"])
        except (BadMessage, KeyError, TypeError, ValueError) as error:
            return frame({"state": "failed", "reason": f"the request is unreadable ({error})."})
        with self.lock:
            if what != "poll" and number > self.task.number:
                self._begin(number, header, payload)
            task = self.task
        if task.number != number:
            return frame({"state": "unknown"})
        task.done.wait(WAIT_S)
        return task.reply(bool(header.get("takes_large")))

    def close(self) -> None:
        """End the worker."""
        with self.lock:
            self.task.is_superseded = True
            self._end_worker()

    def _begin(self, number: int, header: dict[str, Any], payload: bytes) -> None:
        """Start a new request; if the centre has given up the one before, the site does as if it had not been."""
        before, self.task = self.task, SiteTask(number)
        before.is_superseded = True
        if not before.done.is_set():
            self._end_worker()
        elif before.round and before.number in _numbers(header.get("given_up")):
            self._log(f"round {before.round}: {GIVEN_UP}")
            self._leave_out(before.round)
            self._end_worker()
        threading.Thread(target=self._work, args=(self.task, header, payload), daemon=True).start()

    def _work(self, task: SiteTask, header: dict[str, Any], payload: bytes) -> None:
        with self.working:
            try:
                verbs: dict[str, Callable[[SiteTask, dict[str, Any], bytes], tuple[dict[str, Any], bytes]]] = {
                    "open": self._open,
                    "public": self._take_public,
                    "call": self._call,
                    "save": self._save,
                    "restore": self._restore,
                    "export": self._export,
                }
                if header["what"] not in ("open", "public") and not self.is_open:
                    raise Refusal("it has not opened for this experiment.")
                more, task.payload = verbs[header["what"]](task, header, payload)
                task.header = {"state": "done", "notes": task.notes, **more}
            except (Failed, Refusal) as error:
                self._log(f"{header['what']}: {error}")
                task.header = {"state": "failed", "reason": str(error)}
            except Exception as error:  # the centre is told its type but not its message, which may be private
                self._log(f"{type(error).__name__}: {error}")
                task.header = {"state": "failed", "reason": f"{type(error).__name__}; the site's own log says more."}
            finally:
                task.done.set()

    # The requests

    def _open(self, task: SiteTask, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Check that the experiment is allowed, and whether the public samples are here already."""
        self.is_open = False
        experiment = refuse_unwanted(self.job, self.file, self.name)
        self.budget.open(experiment.privacy, has_noise=(self.folder / PRIVATE).exists())
        own = site_public(self.file, self.job.samples)
        if own is not None:
            self._keep_public(own)
        wants = not self.public.exists() or not PublicSet.unpack(self.public.read_bytes()).is_of(self.job)
        self.is_open = True
        self._log(f"takes part in {self.job.experiment['algorithm']['name']}, hash {self.job.hash[:16]}")
        chosen = {} if self.file.model is None else {"model": _public_name(str(self.file.model))}
        return {"wants_public": wants, **chosen}, b""

    def _take_public(self, task: SiteTask, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        self._keep_public(PublicSet.unpack(payload))
        return {}, b""

    def _keep_public(self, public: PublicSet) -> None:
        if not public.is_of(self.job):
            raise Refusal(
                "its public samples are not the experiment's: opinions on them could not be combined. Compare the "
                "files row by row."
            )
        write_whole(self.public, public.pack())
        keep_private(self.public)

    def _call(self, task: SiteTask, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        round = int(header["round"])
        verb = self.budget.admit(round, payload)
        if round != self.round:
            self._log(f"round {round} of {self.budget.rounds}" if 0 < round <= self.budget.rounds else verb)
        self.round = task.round = round
        try:
            reply = self._ask(task, Request("call", self.name, round, payload))
            self._count(round, verb, reply, len(payload))
            own_record.keep_scores(self.folder, self.name, measured_in(reply))
        except BaseException:
            self._leave_out(round)
            raise
        self.since.append((round, payload))
        return {}, reply

    def _leave_out(self, round: int) -> None:
        """A site that fails in a round does not take part in it: its earlier calls in the round do not count."""
        self.since = [(number, raw) for number, raw in self.since if number != round]

    def _count(self, round: int, verb: str, reply: bytes, received: int) -> None:
        try:
            self.budget.send(round, verb, reply, received)
        except BaseException:
            with self.lock:
                self._end_worker()  # it has gone on as if the answer had left
            raise

    def _save(self, task: SiteTask, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        round = int(header["round"])
        self._ask(task, Request("save", self.name, round))
        self.boundary, self.since = round, []
        return {}, b""

    def _restore(self, task: SiteTask, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        wanted = self.boundary = int(header["round"])
        self.since = []
        self.boundary = int(json.loads(self._ask(task, Request("restore", self.name, wanted))))
        return {"round": self.boundary}, b""

    def _export(self, task: SiteTask, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        return {}, self._ask(task, Request("export", self.name))

    # The worker

    def _ask(self, task: SiteTask, request: Request) -> bytes:
        """The worker's answer; a worker that dies is started again and brought to the same state."""

        def tell(event: Event) -> None:
            if isinstance(event, Step):
                task.header = {"state": "working", "progress": {name: getattr(event, name) for name in SHOWN}}

        deaths: list[str] = []
        while True:
            try:
                return self._living(task, tell).ask(request, tell)
            except Died as death:
                self.worker = None
                if task.is_superseded:
                    raise Failed(GIVEN_UP) from death
                deaths.append(str(death))
                task.notes.append(f"its worker died ({death}) and was started again.")
                self._log(f"the worker died during {request.what} ({death}); it is started again.")
                if len(deaths) > DEATHS:
                    raise Failed(f"its worker died {len(deaths)} times during one request ({deaths[-1]}).") from death

    def _living(self, task: SiteTask, tell: Tell) -> Worker:
        """The running worker, or a new one that is brought to the same state."""
        with self.lock:  # a superseded task's worker has been ended: no new one may start for it
            if task.is_superseded:
                raise Failed(GIVEN_UP)
            if self.worker is not None:
                if self.worker.is_alive:
                    return self.worker
                task.notes.append(f"its worker died ({self.worker.kill()}) and was started again.")
            errand = Errand(
                self.name, self.job.to_json(), to_values(self.file), str(self.folder.resolve()), str(self.public)
            )
            worker = self.worker = Worker(errand, self.folder / "worker.log")
        try:
            self._bring_back(worker, task, tell)
        except Failed:
            worker.kill()  # it does not have the site's state and must not be used
            self.worker = None
            raise
        return worker

    def _bring_back(self, worker: Worker, task: SiteTask, tell: Tell) -> None:
        if self.boundary:
            reached = int(json.loads(worker.ask(Request("restore", self.name, self.boundary), tell)))
            if reached != self.boundary:
                task.notes.append(
                    f"its state after round {self.boundary} is lost; it uses the one after round {reached} instead."
                )
                self.boundary = reached
        for round, raw in self.since:
            worker.ask(Request("call", self.name, round, raw), tell)

    def _end_worker(self) -> None:
        if self.worker is not None:
            self.worker.process.kill()
            self.worker = None

    def _log(self, line: str) -> None:
        with (self.folder / "site.log").open("a", encoding="utf-8") as out:
            keep_private(self.folder / "site.log")
            out.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


def _public_name(model: str) -> str:
    """A model's name for the centre: of a path or an own file only the last part."""
    return model.rpartition(":")[2] if is_own(model) else Path(model).name if Path(model).is_absolute() else model


def _numbers(given_up: object) -> list[object]:
    return given_up if isinstance(given_up, list) else []


def keep_private(path: Path) -> None:
    """Let nobody but the site's own user read a folder and all that is in it, or a file."""
    for one in (path, *(path.rglob("*") if path.is_dir() else ())):
        one.chmod(0o700 if one.is_dir() else 0o600)
