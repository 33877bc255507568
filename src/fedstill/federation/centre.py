"""The centre's engine: clients on other machines are polled, left out when they fail, and included again when they
answer."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
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
from fedstill.engines.engine import Engine
from fedstill.federation.data import PublicSet, centre_plan
from fedstill.federation.files import CentreFile
from fedstill.federation.job import Job
from fedstill.federation.requests import HEADER, WAIT_S, frame, transfer_s, unframe
from fedstill.plan.plan import Plan
from fedstill.results.record import Record
from fedstill.wire.encoding import Sizes
from fedstill.wire.messages import BadMessage
from fedstill.wire.replies import Failure

STOPPED = "stopped by the operator"
END = "end-after-this-round"
"""The name of a file that tells a job to end after the current round; the operator's commands write it."""
LEFT_OUT = "left out"
LONGEST = 500
"""The most characters of a site's text that are recorded."""
TOO_LARGE = "a reply that is too large: {:,} bytes at most are expected."
PING_S = 5.0
"""How long a site that was left out may take to answer again."""
PAUSE_S = 0.5
"""The pause between two attempts to reach a site."""

Ask = Callable[[str, bytes, float], bytes]
"""Send a request to a site and return its answer within a number of seconds; raises Unreachable."""


class Unreachable(Exception):
    """A site did not answer this time."""


class Lost(FedstillError):
    """Too few sites could be reached; the job can be submitted again when they are back, and continues."""


class Ended(Exception):
    """The job was told to end after this round, by the operator or because a site is back; it can be continued."""


@dataclass(frozen=True)
class Said:
    """A site's answer to a request."""

    header: Mapping[str, Any]
    payload: bytes


class RemoteEngine(Engine):
    """An engine whose clients are sites on other machines; each site stores its own state."""

    def __init__(self, plan: Plan, books: Books, public: PublicSet, file: CentreFile, ask: Ask) -> None:
        torch.set_num_threads(plan.experiment.threads)
        super().__init__(plan, books)
        books.clean = plain
        self.public, self.file, self.ask = public, file, ask
        self.numbers = itertools.count(1)
        self.failed: Counter[str] = Counter()
        """The number of a site's failures since its last answer."""
        self.left_out: set[str] = set()
        self.away: set[str] = set()
        """Sites that could not be reached in this call."""
        self.behind: dict[str, int] = {}
        """Sites that must still be restored, and the round whose state they need."""
        self.is_over = threading.Event()
        self.threads = ThreadPoolExecutor(len(plan.clients), thread_name_prefix="site")

    def deliver(self, calls: Mapping[str, bytes], round: int) -> Mapping[str, bytes | Failure]:
        self.away.clear()
        said = self._ask_all({name: ({"what": "call", "round": round}, raw) for name, raw in calls.items()})
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
        self.is_over.set()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def open(self) -> None:
        """Let the sites check the experiment before the greetings."""
        said = self._ask_all({name: ({"what": "open"}, b"") for name in self.plan.clients})
        failures = [reply for reply in said.values() if isinstance(reply, Failure)]
        self.judge((), failures)
        self.left_out |= {failure.client for failure in failures}

    def enter(self, round: int) -> None:
        """End the job here if the operator has asked for it."""
        done = round - 1
        if (wish := self.plan.folder / END).exists() and done and done % self.plan.experiment.save_every == 0:
            why = wish.read_text()
            wish.unlink()
            raise Ended(why)

    def judge(self, answered: Collection[str], failures: Sequence[Failure]) -> None:
        super().judge(answered, [failure for failure in failures if not failure.reason.startswith(LEFT_OUT)])
        for name in answered:
            self.failed[name] = 0
        for name in (failure.client for failure in failures):
            self.failed[name] += 1
            if self.failed[name] >= self.file.failures and name not in self.left_out:
                self.left_out.add(name)
                self.books.note(name, f"left out after {self.failed[name]} failures, until it answers again.")

    def explain(self, error: Exception) -> Exception:
        """Too few replies because sites are away is `Lost`, which does not mean that the job failed."""
        return Lost(str(error)) if self.away else error

    def _order(self, header: Mapping[str, Any], otherwise: str) -> None:
        """Ask all sites to do something for themselves; failures are only noted."""
        there = [name for name in self.plan.clients if name not in self.left_out]
        said = self._ask_all(dict.fromkeys(there, (header, b"")))
        for name, reply in said.items():
            if isinstance(reply, Failure):
                self.books.note(name, f"{otherwise}: {reply.reason}")

    # One site

    def _ask_all(self, requests: Mapping[str, tuple[Mapping[str, Any], bytes]]) -> dict[str, Said | Failure]:
        """Ask all sites at the same time; a site's failure does not affect the others."""
        begun = {
            name: self.threads.submit(self._converse, name, header, payload)
            for name, (header, payload) in requests.items()
        }
        for future in as_completed(begun.values()):
            future.result()  # an error that is not a site's failure ends the run immediately
        return {name: future.result() for name, future in begun.items()}

    def _converse(self, site: str, header: Mapping[str, Any], payload: bytes) -> Said | Failure:
        reply = self._bring(site, header, payload)
        is_failure = isinstance(reply, Failure)
        self.books.tell(SiteSaid(site, "failed" if is_failure else "answered", reason=getattr(reply, "reason", "")))
        return reply

    def _bring(self, site: str, header: Mapping[str, Any], payload: bytes) -> Said | Failure:
        """Send a request; before that, include a site that was left out, and restore its state, if necessary."""
        if header["what"] == "open":
            return self._open_site(site, None)
        if site in self.left_out:
            back = self._open_site(site, PING_S)
            if isinstance(back, Failure):
                return Failure(site, f"{LEFT_OUT}; {back.reason}")
            self.left_out.discard(site)
            self.failed[site] = 0
            self.books.note(site, "answers again and takes part again.")
        if site in self.behind:
            restored = self._request(site, {"what": "restore", "round": self.behind[site]}, b"")
            if isinstance(restored, Failure):
                return restored
            self._went_back(site, restored.header.get("round"))
        if header["what"] == "ping":
            return Said({}, b"")
        return self._request(site, header, payload)

    def _open_site(self, site: str, within_s: float | None) -> Said | Failure:
        """Let the site check the experiment, and send it the public samples if it lacks them."""
        said = self._request(site, {"what": "open"}, b"", within_s, within_s)
        if isinstance(said, Failure) or not said.header.get("wants_public"):
            return said
        packed = self.public.pack()
        with self.books.lock:
            self.books.ledger.count("down", "public", "PublicSet", Sizes(0, 0, len(packed)), len(packed))
        return self._request(site, {"what": "public"}, packed)

    def _went_back(self, site: str, round: object) -> None:
        wanted = self.behind.pop(site)
        if round != wanted:
            self.books.note(
                site, f"continues from its state after round {round}, the run from the state after round {wanted}."
            )

    def _request(
        self,
        site: str,
        header: Mapping[str, Any],
        payload: bytes,
        deadline: float | None = None,
        silence: float | None = None,
    ) -> Said | Failure:
        """Send a request and poll until it is done, the deadline has passed, or the site has been silent too long."""
        deadline_s, silence_s = deadline or self.file.deadline, silence or self.file.silence
        number = next(self.numbers)
        first = frame({**header, "number": number}, payload)
        poll = {"what": "poll", "number": number}
        most = 2 * HEADER + (self.largest if header["what"] == "call" else 0)
        begun = heard = time.monotonic()
        on_its_way_s, next_one, why = transfer_s(len(payload)), first, "no answer"
        self.books.tell(SiteSaid(site, "asked", header["what"]))
        while True:
            now = time.monotonic()
            if self.is_over.is_set():
                return Failure(site, "the job has ended.")
            left = min(begun + deadline_s, heard + silence_s + on_its_way_s) - now
            if left <= 0:
                self.away.add(site)
                if now >= heard + silence_s + on_its_way_s:
                    return Failure(site, f"silent for {silence_s:g} s ({why}).")
                return Failure(site, f"not done within the deadline of {deadline_s:g} s.")
            try:
                raw = self.ask(site, next_one, min(left, WAIT_S + silence_s / 3 + on_its_way_s))
                said, data = _opened(raw, most)
            except Unreachable as error:
                why = str(error)
                time.sleep(min(PAUSE_S, left))
                continue
            except BadMessage as error:
                return Failure(site, str(error))
            heard, on_its_way_s, next_one = time.monotonic(), 0.0, frame(poll)
            state = said.get("state")
            if state == "done":
                for note in said["notes"][:5] if isinstance(said.get("notes"), list) else ():
                    self.books.note(site, str(note))
                return Said(said, data)
            if state == "ready" and type(said.get("bytes")) is int and said["bytes"] > most:
                return Failure(site, TOO_LARGE.format(most))
            if state == "ready" and type(said.get("bytes")) is int and said["bytes"] > 0:
                on_its_way_s, next_one = transfer_s(said["bytes"]), frame({**poll, "takes_large": True})
            elif state == "working":
                self.books.tell(SiteSaid(site, "working", progress=said.get("progress", {})))
            elif state == "failed":
                return Failure(site, plain(said.get("reason", "no reason given")))
            else:
                self.away.add(site)
                return Failure(site, "it was restarted and has lost the call.")


def _opened(raw: object, most: int) -> tuple[dict[str, Any], bytes]:
    """A site's answer; raises BadMessage for one that is too large, before anything of it is read."""
    if isinstance(raw, bytes) and len(raw) > most:
        raise BadMessage(TOO_LARGE.format(most))
    return unframe(raw)


def plain(words: object) -> str:
    """A site's text made safe to show: shortened, and without control characters for the terminal."""
    return "".join(letter for letter in str(words)[:LONGEST] if letter.isprintable())


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
