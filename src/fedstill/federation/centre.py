"""The centre's engine: clients on other machines, asked in small steps, given up at a deadline, taken back when they
answer again."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedstill.algorithms.base import Answers
from fedstill.common import plugins
from fedstill.common.errors import FedstillError
from fedstill.common.events import Noted, SiteSaid, Tell
from fedstill.common.files import FileReference, write_whole
from fedstill.config.source import dump
from fedstill.engines import checkpoint, runner
from fedstill.engines.engine import Engine
from fedstill.engines.journal import Journal
from fedstill.engines.seconds import Slip
from fedstill.federation.data import PublicSet, centre_plan
from fedstill.federation.files import CentreFile
from fedstill.federation.job import Job
from fedstill.federation.requests import WAIT_S, frame, transfer_s, unframe
from fedstill.plan.plan import Plan
from fedstill.results.record import Record
from fedstill.wire.messages import BadMessage, Hello, Message, Sizes
from fedstill.wire.replies import Failure, Replies

STOPPED = "stopped by the operator"
END = "end-after-this-round"
"""A file with which the operator's commands ask a job to end at the next round boundary."""
LEFT_OUT = "left out"
LONGEST = 500
"""Characters of what a site says of itself that are written down."""
LARGEST = 1 << 40
"""Bytes of a reply that a site may announce."""
PING_S = 5.0
"""How long a site that was left out may take to show that it is back."""
PAUSE_S = 0.5
"""Between two tries to reach a site."""

Ask = Callable[[str, bytes, float], bytes]
"""Bring a request to a site and come back with what it says, within so many seconds; raises Unreachable."""


class Unreachable(Exception):
    """Nothing was heard from a site this time."""


class Lost(FedstillError):
    """Too few sites could be reached to go on; handed in again when they are back, the job goes on."""


class Ended(Exception):
    """The operator, or a site that is back, wants the job to end after this round; submitted again it goes on."""


@dataclass(frozen=True)
class Said:
    """What a site said to a request."""

    header: Mapping[str, Any]
    payload: bytes


class RemoteEngine(Engine):
    """Every client is a site of its own, which keeps its own state."""

    def __init__(self, plan: Plan, public: PublicSet, file: CentreFile, ask: Ask, journal: Journal, tell: Tell) -> None:
        torch.set_num_threads(plan.threads)
        super().__init__(plan, journal, tell)
        self.public, self.file, self.ask = public, file, ask
        self.numbers = itertools.count(1)
        self.failed: Counter[str] = Counter()
        """Failures in a row."""
        self.left_out: set[str] = set()
        self.away: set[str] = set()
        """Who could not be reached in this call."""
        self.behind: dict[str, int] = {}
        """Sites that have yet to go back to the state after that round."""
        self.noting, self.is_over = threading.Lock(), threading.Event()
        self.threads = ThreadPoolExecutor(len(plan.clients), thread_name_prefix="site")

    def deliver(self, parcels: Mapping[str, bytes]) -> Mapping[str, bytes | Failure]:
        said = self._ask_all({name: ({"what": "call", "round": self.round}, raw) for name, raw in parcels.items()})
        return {name: reply if isinstance(reply, Failure) else reply.payload for name, reply in said.items()}

    def save_clients(self) -> Mapping[str, FileReference]:
        """Sites keep their state to themselves; one that cannot goes on, and would have to go back further."""
        self._order({"what": "save", "round": self.round}, "its state was not saved")
        return {}

    def restore_clients(self, files: Mapping[str, FileReference], round: int) -> None:
        self.behind = dict.fromkeys(self.plan.clients, round)  # those too who are not there yet
        self._order({"what": "ping"}, "it is not back where the run goes on")

    def export_clients(self) -> None:
        self._order({"what": "export"}, "its model was not written")

    def close(self) -> None:
        self.is_over.set()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def call(self, verb: str, message: Answers = None, clients: Sequence[str] | None = None) -> Replies[Any]:
        """As on every engine; too few replies because sites are away is another thing than because they will not."""
        self.away.clear()
        try:
            return super().call(verb, message, clients)
        except FedstillError as error:
            if self.away:
                raise Lost(str(error)) from error
            raise

    def judge(self, answered: Collection[str], failures: Sequence[Failure]) -> None:
        super().judge(answered, [failure for failure in failures if not failure.reason.startswith(LEFT_OUT)])
        for name in answered:
            self.failed[name] = 0
        for name in (failure.client for failure in failures):
            self.failed[name] += 1
            if self.failed[name] >= self.file.failures and name not in self.left_out:
                self.left_out.add(name)
                self._note(name, f"left out after {self.failed[name]} failures, until it answers again.")

    def _greet(self) -> None:
        """Open the sites before everybody says hello."""
        said = self._ask_all({name: ({"what": "open"}, b"") for name in self.plan.clients})
        failures = [reply for reply in said.values() if isinstance(reply, Failure)]
        self.judge((), failures)
        self.left_out |= {failure.client for failure in failures}
        super()._greet()

    def _draw(self) -> None:
        """Whoever was not there in the beginning may be there now, and the operator may want to end here."""
        done = self.round - 1
        if (wish := self.plan.folder / END).exists() and done and done % self.plan.save_every == 0:
            why = wish.read_text()
            wish.unlink()
            raise Ended(why)
        absent = [name for name in self.plan.clients if name not in self.clients]
        for name, reply in self.deliver(self._pack("hello", None, absent)).items() if absent else ():
            if not isinstance(reply, Failure):
                try:
                    hello = self._open("hello", name, Slip.take_off(reply)[0], -1)
                    assert isinstance(hello, Hello)
                    self.meet({**self.clients, name: hello})
                except FedstillError as error:
                    self._note(name, str(error))
        super()._draw()

    def _open(self, verb: str, name: str, raw: bytes, asked: int) -> Message:
        message = super()._open(verb, name, raw, asked)
        if isinstance(message, Hello) and message.public_fingerprint != self.plan.public_fingerprint:
            raise BadMessage("it holds other public samples: opinions would not fit together.")
        return message

    def _note(self, party: str, note: str) -> None:
        with self.noting:
            super()._note(party, plain(note))

    def _order(self, header: Mapping[str, Any], otherwise: str) -> None:
        """Something that every site does for itself; who cannot is only noted."""
        there = [name for name in self.clients if name not in self.left_out]
        said = self._ask_all(dict.fromkeys(there, (header, b"")))
        for name, reply in said.items():
            if isinstance(reply, Failure):
                self._note(name, f"{otherwise}: {reply.reason}")

    # One site

    def _ask_all(self, requests: Mapping[str, tuple[Mapping[str, Any], bytes]]) -> dict[str, Said | Failure]:
        """All at once, each in its own time; whatever happens to one does not touch the others."""
        begun = {
            name: self.threads.submit(self._converse, name, header, payload)
            for name, (header, payload) in requests.items()
        }
        for future in as_completed(begun.values()):
            future.result()  # what is more than one site's failure ends the run at once
        return {name: future.result() for name, future in begun.items()}

    def _converse(self, site: str, header: Mapping[str, Any], payload: bytes) -> Said | Failure:
        reply = self._bring(site, header, payload)
        has_failed = isinstance(reply, Failure)
        self.tell(SiteSaid(site, "failed" if has_failed else "answered", reason=getattr(reply, "reason", "")))
        return reply

    def _bring(self, site: str, header: Mapping[str, Any], payload: bytes) -> Said | Failure:
        """A request to a site that is open, not left out, and in the state that the run is in."""
        if header["what"] == "open":
            return self._open_site(site, None)
        if site in self.left_out:
            back = self._open_site(site, PING_S)
            if isinstance(back, Failure):
                return Failure(site, f"{LEFT_OUT}; {back.reason}")
            self.left_out.discard(site)
            self.failed[site] = 0
            self._note(site, "answers again and is taken back.")
        if site in self.behind:
            restored = self._request(site, {"what": "restore", "round": self.behind[site]}, b"")
            if isinstance(restored, Failure):
                return restored
            self._went_back(site, restored.header.get("round"))
        if header["what"] == "ping":
            return Said({}, b"")
        return self._request(site, header, payload)

    def _open_site(self, site: str, within_s: float | None) -> Said | Failure:
        """Let the site look at the experiment, and send it the public samples if it lacks them."""
        said = self._request(site, {"what": "open"}, b"", within_s, within_s)
        if isinstance(said, Failure) or not said.header.get("wants_public"):
            return said
        packed = self.public.pack()
        with self.noting:
            self.ledger.count("down", "public", "PublicSet", Sizes(0, 0, len(packed)))
        return self._request(site, {"what": "public"}, packed)

    def _went_back(self, site: str, round: object) -> None:
        wanted = self.behind.pop(site)
        if round != wanted:
            self._note(site, f"goes on from its state after round {round}, the run from that after round {wanted}.")

    def _request(
        self,
        site: str,
        header: Mapping[str, Any],
        payload: bytes,
        deadline: float | None = None,
        silence: float | None = None,
    ) -> Said | Failure:
        """Begin it at the site and ask how it stands until it is done, or until the deadline or the silence is over."""
        deadline_s, silence_s = deadline or self.file.deadline, silence or self.file.silence
        number = next(self.numbers)
        first = frame({**header, "number": number}, payload)
        poll = {"what": "poll", "number": number}
        begun = heard = time.monotonic()
        on_its_way_s, next_one, why = transfer_s(len(payload)), first, "no answer"
        self.tell(SiteSaid(site, "asked", header["what"]))
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
                said, data = unframe(self.ask(site, next_one, min(left, WAIT_S + silence_s / 3 + on_its_way_s)))
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
                    self._note(site, str(note))
                return Said(said, data)
            if state == "ready" and type(said.get("bytes")) is int and 0 < said["bytes"] < LARGEST:
                on_its_way_s, next_one = transfer_s(said["bytes"]), frame({**poll, "takes_large": True})
            elif state == "working":
                self.tell(SiteSaid(site, "working", progress=said.get("progress")))
            elif state == "failed":
                return Failure(site, plain(said.get("reason", "no reason given")))
            else:
                self.away.add(site)
                return Failure(site, "it was restarted, and knows nothing of the call.")


def plain(words: object) -> str:
    """What a site says, as it can be shown: not endless, and nothing that a terminal would obey."""
    return "".join(letter for letter in str(words)[:LONGEST] if letter.isprintable())


def conduct(job: Job, file: CentreFile, runs: Path, ask: Ask, tell: Tell) -> Record:
    """Run a job into its folder, or go on with it from the last finished round."""
    folder = (runs / job.id).resolve()
    if Record(folder).is_finished:
        return Record(folder)
    plugins.allow_only(file.own)
    plan, public = centre_plan(job, file, folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "experiment.yaml", dump(dict(plan.experiment)).encode())
    manifest, passed = checkpoint.latest(folder)
    for sentence in passed:
        tell(Noted(sentence))
    if manifest is not None:
        runner.refuse_changes(folder, manifest, plan)
    tell(runner.begun(plan, manifest, {}))

    def engine(plan: Plan, journal: Journal, tell: Tell) -> Engine:
        return RemoteEngine(plan, public, file, ask, journal, tell)

    return runner.conduct(plan, folder, tell, manifest, engine)
