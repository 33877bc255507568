"""A federation in one process: the centre, real sites with real workers, and between them a transport that may lie."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fedstill
from fedstill.common.errors import FedstillError
from fedstill.common.events import Event, Noted, RoundDone, SiteSaid, Tell, tell_nobody
from fedstill.config.experiment import Experiment
from fedstill.engines import hosting
from fedstill.federation import centre
from fedstill.federation.data import read_public
from fedstill.federation.files import CentreFile, SiteFile, read_file, to_values
from fedstill.federation.host import SiteHost
from fedstill.federation.job import Job
from fedstill.federation.requests import frame, unframe
from fedstill.federation.simulated import Simulated, write_files
from fedstill.federation.site import Site
from fedstill.federation.worker import Died, Errand, Failed
from fedstill.results.record import Record
from tests.conftest import write_reviews
from tests.federation.stage import three_shops

Deliver = Callable[[], bytes]


def write_two_shops(path: Path) -> Path:
    """The reviews without the toys: two sites are enough for most of what can happen."""
    rows = write_reviews(path).read_text().splitlines()
    path.write_text("\n".join(row for row in rows if not row.endswith("toys")) + "\n")
    return path


def two_shops(reviews: Path, **changes: Any) -> Experiment:
    """Books and garden, with bags of words."""
    return three_shops(reviews, **({"clients": "bow", "server": "bow", "rounds": 3, "quorum": 0.5} | changes))


def changed(file: Any, **changes: Any) -> Any:
    """A site's or the centre's file with other values in it."""
    return type(file).model_validate(to_values(file) | changes)


@dataclass
class Request:
    """One on its way to a site, as the transport sees it."""

    site: str
    header: dict[str, Any]
    payload: bytes
    what: str
    """What its number stands for: a poll is about what was asked before."""
    round: int
    is_new: bool


class Together:
    """Files of an experiment, sites that come and go, and a transport."""

    def __init__(self, experiment: Experiment, folder: Path, **patience: Any) -> None:
        self.folder = folder
        self.written: Simulated = write_files(experiment, folder / "data")
        self.centre: CentreFile = changed(read_file(self.written.server, CentreFile), **patience)
        self.sites: dict[str, Site] = {}
        self.all: list[Site] = []
        self.transport: Callable[[Request, Deliver], bytes] = lambda request, deliver: deliver()
        self.events: list[Event] = []
        self.requests: list[Request] = []
        self.replies: list[tuple[Request, dict[str, Any], bytes]] = []
        """What sites really said, whatever the transport made of it."""
        self.said: dict[str, list[bytes]] = {name: [] for name in self.written.sites}
        """The same to the byte, by site."""

    @property
    def job(self) -> Job:
        public, experiment = read_public(self.centre), self.written.experiment
        labelled = len(public.texts) - public.samples
        known = public.fingerprint(experiment.labels or ())
        return Job.make(experiment, known, public.samples, labelled, list(self.written.sites), fedstill.__version__)

    @property
    def run(self) -> Path:
        return self.folder / "runs" / self.job.id

    @property
    def round(self) -> int:
        """The one that is going on."""
        return 1 + max((event.round for event in self.events if isinstance(event, RoundDone)), default=0)

    @property
    def notes(self) -> list[str]:
        return [event.note for event in self.events if isinstance(event, Noted)]

    @property
    def sites_said(self) -> list[SiteSaid]:
        return [event for event in self.events if isinstance(event, SiteSaid)]

    def file(self, name: str, **changes: Any) -> SiteFile:
        """A site's file with other values in it; what the experiment needs of its limits stays unless changed."""
        written = read_file(self.written.sites[name], SiteFile)
        if "limits" in changes:
            changes["limits"] = to_values(written).get("limits", {}) | changes["limits"]
        found: SiteFile = changed(written, **changes)
        return found

    def site(self, name: str, job: Job | None = None, **changes: Any) -> Site:
        """A site as it is after its machine was started."""
        as_whom = name if name in self.written.sites else next(iter(self.written.sites))
        made = Site(name, job or self.job, self.file(as_whom, **changes), self.folder / "state" / name)
        self.all.append(made)
        return made

    def start(self, **changes: dict[str, Any]) -> None:
        """All of them, each with what its file says and those changes."""
        self.close()
        self.sites = {name: self.site(name, **changes.get(name, {})) for name in self.written.sites}

    def conduct(self, tell: Tell = tell_nobody) -> Record:
        """The whole run over the transport."""
        if not self.sites:
            self.start()
        self.events.clear()
        self.requests.clear()
        self.replies.clear()
        asked: dict[tuple[str, int], tuple[str, int]] = {}
        lock = threading.Lock()

        def ask(name: str, raw: bytes, timeout_s: float) -> bytes:
            header, payload = unframe(raw)
            with lock:
                number, is_new = (name, int(header["number"])), (name, int(header["number"])) not in asked
                what, round = asked.setdefault(number, (header["what"], int(header.get("round", 0))))
                request = Request(name, header, payload, what, round, is_new)
                self.requests.append(request)

            def deliver() -> bytes:
                said = self.sites[name].answer(raw)
                with lock:
                    self.said[name].append(said)
                    self.replies.append((request, *unframe(said)))
                return said

            return self.transport(request, deliver)

        def hear(event: Event) -> None:
            self.events.append(event)
            tell(event)

        return centre.conduct(self.job, self.centre, self.folder / "runs", ask, hear)

    def wait_no_longer_than(self, deadline_s: float) -> None:
        """For what is asked from now on: a worker takes its time to start, and that is not what is tested."""
        self.centre.__dict__["deadline"] = deadline_s

    def close(self) -> None:
        for site in self.all:
            site.close()


class Inside:
    """A site's worker in the test's own process: where nothing dies, seconds are saved that a new process takes."""

    def __init__(self, errand: Errand, log: Path) -> None:
        self.errand, self.host, self.is_alive = errand, SiteHost(errand, tell_nobody), True
        self.process = self

    def ask(self, request: hosting.Request, tell: Tell) -> bytes:
        try:
            reply = self.host.answer(request)
        except FedstillError as error:
            raise Failed(str(error)) from error
        if not self.is_alive:
            raise Died("ended")
        return reply

    def kill(self) -> str:
        self.is_alive = False
        return "ended"


@dataclass
class Caller:
    """Asks one site directly, as the centre would."""

    site: Site
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __call__(self, what: str, payload: bytes = b"", **header: Any) -> tuple[dict[str, Any], bytes]:
        number, verb = next(self.numbers), {"what": what}
        while True:
            raw = self.site.answer(frame({"number": number, "takes_large": True, **verb, **header}, payload))
            said, data = unframe(raw)
            if said["state"] != "working":
                return said, data
            verb, payload = {"what": "poll"}, b""

    def refusal(self) -> str:
        """Why it does not open; empty where it does."""
        return str(self("open")[0].get("reason", ""))
