"""The centre's engine: clients on other machines are asked, left out when they fail, and included again when they
answer."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedstill.common import plugins
from fedstill.common.errors import FedstillError
from fedstill.common.events import Noted, SiteSaid, Tell
from fedstill.common.files import FileReference, write_whole
from fedstill.engines import checkpoint, runner
from fedstill.engines.books import Books
from fedstill.engines.conductor import needed
from fedstill.engines.engine import Engine
from fedstill.federation.data import PublicSet, centre_plan
from fedstill.federation.files import CentreFile
from fedstill.federation.job import Job
from fedstill.federation.line import Ask, Asked, Line, Said, Stall, plain
from fedstill.federation.patience import Patience
from fedstill.plan.plan import Plan
from fedstill.results.record import Record
from fedstill.wire.encoding import Sizes
from fedstill.wire.replies import Failure

STOPPED = "stopped by the operator"
END = "end-after-this-round"
"""The name of a file that tells a job to end after the current round; the operator's commands write it."""
LEFT_OUT = "left out"
LONGEST_NAME = 80
"""Of a model that a site says it has chosen."""
PING_S = 5.0
"""How long a site that was left out may take to answer again."""
AT_ONCE = 4
"""Threads for each site: one that is not waited for any more may hang for some time."""


class Lost(FedstillError):
    """Too few sites could be reached; the job can be submitted again when they are back, and continues."""


class Ended(Exception):
    """The job was told to end after this round, by the operator or because a site is back; it can be continued."""


class RemoteEngine(Engine):
    """An engine whose clients are sites on other machines; each site stores its own state."""

    def __init__(self, plan: Plan, books: Books, public: PublicSet, file: CentreFile, ask: Ask) -> None:
        torch.set_num_threads(plan.experiment.threads)
        super().__init__(plan, books)
        books.clean = plain
        self.public, self.file, self.line = public, file, Line(ask, file, books)
        self.failed: Counter[str] = Counter()
        """The number of a site's failures since its last answer."""
        self.left_out: set[str] = set()
        self.behind: dict[str, int] = {}
        """Sites that must still be restored, and the round whose state they need."""
        self.admitted: set[str] = set()
        """Sites that have given a good answer."""
        self.spoke: set[str] = set()
        """Sites that answered this call in time."""
        self.doubtful: set[str] = set()
        """Sites whose last answer was of no use."""
        self.patience = Patience()
        self.threads = ThreadPoolExecutor(AT_ONCE * len(plan.clients), thread_name_prefix="site")

    def deliver(self, calls: Mapping[str, bytes], round: int) -> Mapping[str, bytes | Failure]:
        self.line.away.clear()
        if round > self.plan.experiment.rounds:
            self.patience.ask_all()  # there is no later round in which to ask again
        is_greeting = round > 0 and not self.admitted & set(calls)
        requests = {name: ({"what": "call", "round": round}, raw) for name, raw in calls.items()}
        said = self._ask_all(requests, 0 if is_greeting else self._needed(calls))
        self.spoke = {name for name, reply in said.items() if not isinstance(reply, Failure)}
        return {name: reply if isinstance(reply, Failure) else reply.payload for name, reply in said.items()}

    def save(self, round: int) -> Mapping[str, FileReference]:
        """Each site saves its own state; one that cannot takes part nevertheless, and would restore an older state."""
        self._order({"what": "save", "round": round}, "its state was not saved")
        return {}

    def restore(self, files: Mapping[str, FileReference], round: int) -> None:
        self.behind = dict.fromkeys(self.plan.clients, round)  # also sites that are not connected yet
        self._order({"what": "ping"}, "it did not restore the state from which the run continues")

    def export(self) -> None:
        self._order({"what": "export"}, "its model was not written")

    def close(self) -> None:
        self.line.is_over.set()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def open(self) -> None:
        """Let the sites check the experiment before the greetings."""
        said = self._ask_all(
            {name: ({"what": "open"}, b"") for name in self.plan.clients}, self._needed(self.plan.clients)
        )
        failures = [reply for reply in said.values() if isinstance(reply, Failure)]
        self.judge((), failures)
        self.left_out |= {failure.client for failure in failures}

    def enter(self, round: int) -> None:
        """End the job here if the operator has asked for it."""
        self.patience.begin_round()
        done = round - 1
        if (wish := self.plan.folder / END).exists() and done and done % self.plan.experiment.save_every == 0:
            why = wish.read_text()
            wish.unlink()
            raise Ended(why)

    def judge(self, answered: Collection[str], failures: Sequence[Failure]) -> None:
        news = [failure for failure in failures if not failure.reason.startswith(LEFT_OUT)]
        super().judge(answered, news)
        self.admitted |= set(answered)
        self.doubtful = (self.doubtful | (self.spoke & {failure.client for failure in news})) - set(answered)
        for name in answered:
            self.failed[name] = 0
            self.patience.answer(name)
        for name in (failure.client for failure in news):
            self.failed[name] += 1
            if self.failed[name] >= self.file.failures and name not in self.left_out:
                self.left_out.add(name)
                self.books.note(name, f"left out after {self.failed[name]} failures, until it answers again.")

    def explain(self, error: Exception) -> Exception:
        """Too few replies because sites are away is `Lost`, which does not mean that the job failed."""
        return Lost(str(error)) if self.line.away else error

    def _order(self, header: Mapping[str, Any], otherwise: str) -> None:
        """Ask all sites to do something for themselves; failures are only noted."""
        there = [name for name in self.plan.clients if name not in self.left_out and name not in self.patience.rests]
        said = self._ask_all(dict.fromkeys(there, (header, b"")), self._needed(there))
        for name, reply in said.items():
            if isinstance(reply, Failure):
                self.books.note(name, f"{otherwise}: {reply.reason}")

    # One site

    def _needed(self, names: Collection[str]) -> int:
        return needed(self.plan.experiment.quorum, len(names))

    def _ask_all(self, requests: Mapping[str, Asked], enough: int) -> dict[str, Said | Failure]:
        """Ask all sites at the same time; those that stalled only if there would be too few answers without them."""
        resting = {name for name in requests if name in self.patience.rests}
        if len(requests) - len(resting) < enough:
            resting = set()
        said = self._gather({name: asked for name, asked in requests.items() if name not in resting}, enough)
        here = sum(not isinstance(reply, Failure) for reply in said.values())
        if resting and here < enough:
            return said | self._gather({name: requests[name] for name in resting}, enough - here)
        return said | {name: self._skip(name) for name in resting}

    def _gather(self, requests: Mapping[str, Asked], enough: int) -> dict[str, Said | Failure]:
        """What these sites say; when enough have answered, the others have the grace time left."""
        given_up = {name: threading.Event() for name in requests}
        begun = {
            self.threads.submit(self._converse, name, header, payload, given_up[name]): name
            for name, (header, payload) in requests.items()
        }
        said: dict[str, Said | Failure] = {}
        waiting, until = set(begun), None
        while waiting:
            # A site whose last answer was of no use may give such a one again: others are not cut off for it.
            good = sum(not isinstance(reply, Failure) and name not in self.doubtful for name, reply in said.items())
            if until is None and good >= enough:
                until = time.monotonic() + self.file.grace
            done, waiting = wait(
                waiting, None if until is None else max(0.0, until - time.monotonic()), return_when=FIRST_COMPLETED
            )
            said |= {begun[future]: future.result() for future in done}  # errors that are no site's failure end the run
            if not done:
                break
        for name in (begun[future] for future in waiting):
            given_up[name].set()
            self.line.away.add(name)
            late = said[name] = Stall(name, f"late: enough others had answered {self.file.grace:g} s before.")
            self._tell_failed(late)
        for name, reply in said.items():
            if isinstance(reply, Stall):
                self.patience.stall(name, reply.reason.removeprefix(f"{LEFT_OUT}; "))
        return said

    def _skip(self, site: str) -> Failure:
        """A site that stalled is not asked now."""
        rounds = self.patience.rests[site]
        skipped = Failure(site, f"{LEFT_OUT}, rounds until it is asked again: {rounds}; {self.patience.reasons[site]}")
        self._tell_failed(skipped)
        return skipped

    def _tell_failed(self, failure: Failure) -> None:
        self.books.tell(SiteSaid(failure.client, "failed", reason=failure.reason))

    def _converse(
        self, site: str, header: Mapping[str, Any], payload: bytes, given_up: threading.Event
    ) -> Said | Failure:
        reply = self._bring(site, header, payload, given_up)
        if isinstance(reply, Failure):
            if not given_up.is_set():
                self._tell_failed(reply)
        else:
            self.books.tell(SiteSaid(site, "answered"))
        return reply

    def _bring(self, site: str, header: Mapping[str, Any], payload: bytes, given_up: threading.Event) -> Said | Failure:
        """Send a request; before that, include a site that was left out, and restore its state, if necessary."""
        if header["what"] == "open":
            return self._open_site(site, given_up)
        if site in self.left_out:
            back = self._open_site(site, given_up, PING_S)
            if isinstance(back, Failure):
                return type(back)(site, f"{LEFT_OUT}; {back.reason}")
            self.left_out.discard(site)
            self.failed[site] = 0
            self.books.note(site, "answers again and takes part again.")
        if site in self.behind:
            restored = self.line.request(site, {"what": "restore", "round": self.behind[site]}, b"", given_up)
            if isinstance(restored, Failure):
                return restored
            self._went_back(site, restored.header.get("round"))
        if header["what"] == "ping":
            return Said({}, b"")
        largest = self.largest if header["what"] == "call" else 0
        return self.line.request(site, header, payload, given_up, largest=largest)

    def _open_site(self, site: str, given_up: threading.Event, within_s: float | None = None) -> Said | Failure:
        """Let the site check the experiment, and send it the public samples if it lacks them."""
        said = self.line.request(site, {"what": "open"}, b"", given_up, within_s)
        if not isinstance(said, Failure) and "model" in said.header:
            self.own_models[site] = plain(said.header["model"])[:LONGEST_NAME]
        if isinstance(said, Failure) or not said.header.get("wants_public"):
            return said
        packed = self.public.pack()
        with self.books.lock:
            self.books.ledger.count("down", "public", "PublicSet", Sizes(0, 0, len(packed)), len(packed))
        return self.line.request(site, {"what": "public"}, packed, given_up)

    def _went_back(self, site: str, round: object) -> None:
        wanted = self.behind.pop(site)
        if round != wanted:
            self.books.note(
                site, f"continues from its state after round {round}, the run from the state after round {wanted}."
            )


def conduct(job: Job, file: CentreFile, runs: Path, ask: Ask, tell: Tell) -> Record:
    """Run a job, or continue it after its last finished round; its record is in a folder named after it."""
    folder = (runs / job.id).resolve()
    if Record(folder).is_finished:
        checkpoint.clear(folder)
        return Record(folder)
    plugins.allow_only(file.own)
    plan, public = centre_plan(job, file, folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "experiment.yaml", plan.experiment.to_yaml().encode())
    manifest, passed = checkpoint.latest(folder)
    for sentence in passed:
        tell(Noted(sentence))
    if manifest is not None:
        runner.refuse_changes(folder, manifest, plan)
    tell(runner.begun(plan, manifest, f"{len(plan.clients)} sites"))
    return runner.conduct(plan, folder, tell, manifest, partial(RemoteEngine, public=public, file=file, ask=ask))
