"""What the centre's operator does: serve, submit and follow, look, stop, fetch."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedstill import __version__
from fedstill.config import Experiment
from fedstill.data import corpora
from fedstill.errors import FedstillError
from fedstill.federation import kits
from fedstill.federation.centre import END
from fedstill.federation.daemon import Daemon, Presence, answers, is_free
from fedstill.federation.data import read_public, refuse_impossible
from fedstill.federation.files import CentreFile, FederationFile, read_file, to_values
from fedstill.federation.job import Job
from fedstill.federation.status import in_a_line
from fedstill.files import write_whole
from fedstill.results.record import Record

Say = Callable[[str], None]
T = TypeVar("T")

STOPPED = "stopped by the operator"
TRIES = 3
"""How often a job may end without having finished a round before nobody tries again."""
HEARD_S = 25.0
"""A site is heard of every ten seconds; FLARE holds one that is gone for connected for half a minute."""
PATIENCE_S = 15.0
"""How long a submission that can do without some sites waits for them all the same."""


@dataclass(frozen=True)
class Centre:
    """A federation seen from its centre."""

    folder: Path

    @property
    def file(self) -> FederationFile:
        """Who takes part."""
        return read_file(self.folder / "federation.yaml", FederationFile)

    @property
    def kits(self) -> kits.Kits:
        """Where their kits are."""
        return kits.kits_in(self.folder)

    @property
    def has(self) -> CentreFile:
        """What the centre has, as `serve` was told."""
        path = self.folder / "centre" / "local" / "server.json"
        if not path.exists():
            raise FedstillError("this federation has not been served yet: fedstill federation serve --server FILE")
        return CentreFile.model_validate_json(path.read_text())

    @property
    def runs(self) -> Path:
        """Where the records of jobs are."""
        return self.folder / "centre" / "runs"

    def admin(self) -> Any:
        """A connection to the server, for a `with`."""
        if why := answers("127.0.0.1", self.file.admin_port):  # asking FLARE would take longer
            raise FedstillError(f"the federation's server does not answer ({why}): is `serve` running?")
        return _flare().Admin(self.folder / "admin", kits.ADMIN)


class Line:
    """A connection to the server that is kept until it breaks: FLARE does not quite let go of those that are closed."""

    def __init__(self, centre: Centre) -> None:
        self.centre = centre
        self.admin: Any = None

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *exception: object) -> None:
        self._drop()

    def ask(self, question: Callable[[Any], T]) -> T:
        """The answer; a broken connection is made anew the next time."""
        try:
            self.admin = self.admin or self.centre.admin()
            return question(self.admin)
        except FedstillError:
            self._drop()
            raise

    def _drop(self) -> None:
        if self.admin is not None:
            self.admin.close()
            self.admin = None


def _flare() -> Any:
    try:
        from fedstill.engines import flare
    except ImportError as error:
        raise FedstillError(
            f'a federation needs FLARE: run `pip install "fedstill[federation]"` first ({error}).'
        ) from error
    return flare


def prepare_centre(centre: Centre, server: Path | None, say: Say) -> None:
    """Check kit, files and ports, and write down what the centre has."""
    _flare()
    known = centre.kits
    kits.check_kit(known.centre, "centre")
    if server is not None:
        file = read_file(server, CentreFile)
        _describe(file, say)
        write_whole(known.centre / "local" / "server.json", json.dumps(to_values(file), indent=1).encode())
    else:
        _describe(centre.has, say)
    kits.settle(known.centre)
    file_ = centre.file
    for host, port in ((file_.listens_on, file_.port), ("127.0.0.1", file_.admin_port)):
        if not is_free(host, port):
            raise FedstillError(f"{host}:{port} is in use: end what listens there, or choose another port.")
    say(f"certificates are good until {known.good_until:%Y-%m-%d}")


def _describe(file: CentreFile, say: Say) -> None:
    public, test = read_public(file), corpora.load(file.test)
    labelled = len(public.texts) - public.samples
    say(f"{len(test):,} test rows, {public.samples:,} public and {labelled:,} labelled ones")


def serve(centre: Centre, say: Say) -> None:
    """Run the server until it is interrupted."""
    daemon = Daemon(centre.folder / "centre", "centre", kits.SERVER)
    with Presence(centre.folder / "centre"):
        file = centre.file
        say(f"serving {file.name} on {file.listens_on}:{file.port} (sites) and 127.0.0.1:{file.admin_port} (commands)")
        say("next, in another terminal: fedstill federation submit EXPERIMENT")
        try:
            daemon.keep_alive(lambda: None)
        finally:
            daemon.stop()


# A job


def make_job(centre: Centre, experiment: Experiment) -> Job:
    """The job that runs an experiment in this federation."""
    everybody = centre.file.sites
    sites = [*experiment.clients] if isinstance(experiment.clients, dict) else everybody
    if unknown := [name for name in sites if name not in everybody]:
        raise FedstillError(f"clients: {', '.join(unknown)} is no site of this federation ({', '.join(everybody)}).")
    public = read_public(centre.has)
    labels = experiment.labels or []
    fingerprint = public.fingerprint(labels)
    job = Job.make(experiment, fingerprint, public.samples, len(public.texts) - public.samples, sites, __version__)
    if not isinstance(experiment.clients, dict):
        experiment.client_specs(job.sites)
    refuse_impossible(experiment.make_algorithm(), job)
    return job


def write_job(job: Job, folder: Path, sites: list[str]) -> Path:
    """The job as FLARE wants it: two classes of ours by name, and no code."""
    meta = {
        "name": job.id,
        "min_clients": len(sites),
        "mandatory_clients": sites,
        "deploy_map": {"app": ["server", *sites]},
        "resource_spec": {},
    }
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in _flare().halves(job.to_json()).items():
        write_whole(folder / "app" / name, json.dumps(content).encode())
    write_whole(folder / "meta.json", json.dumps(meta).encode())
    return folder


def submit(
    centre: Centre, job: Job, say: Say, quorum: float, follows: bool = True, show: Say = lambda line: None
) -> Record | None:
    """Hand a job in and follow it to its end; a job that ends before is handed in again, as long as rounds finish."""
    folder = centre.runs / job.id
    if Record(folder).is_finished:
        say(f"{job.id} is finished; next: fedstill federation fetch {job.id}")
        return Record(folder)
    tries, reached, reason = 0, 0, ""
    handed_in = _under_way(centre, folder)
    while tries < TRIES:
        handed_in = handed_in or _hand_in(centre, job, _wait_for_sites(centre, job, quorum, say))
        say(f"job {handed_in.number[:8]} with {', '.join(handed_in.sites)}")
        if not follows:
            say("next: fedstill federation status")
            return None
        reason, before = _follow(centre, folder, handed_in, _Teller(say, show)), handed_in.at
        handed_in = None
        if Record(folder).is_finished:
            return Record(folder)
        status = read_status(folder)
        now = status.get("round", 0)
        if status.get("state") == "failed" and status.get("updated", 0) > before:
            raise FedstillError(f"{job.id}: {reason}")
        if reason == STOPPED:
            say(f"{reason} after round {now}; the same command goes on with it.")
            return None
        tries, reached = (0 if now > reached else tries + 1), now
        say(f"the job ended after round {now} ({reason}); it is handed in again.")
    raise FedstillError(f"{job.id} ended {TRIES} times without finishing a round; the last time: {reason}")


@dataclass(frozen=True)
class HandedIn:
    """A job of FLARE's: its number there, the sites that it was given to, and when."""

    number: str
    sites: list[str]
    at: float


def _hand_in(centre: Centre, job: Job, sites: list[str]) -> HandedIn:
    folder = centre.runs / job.id
    (folder / END).unlink(missing_ok=True)
    with centre.admin() as admin:
        at = time.time()
        number = admin.submit(write_job(job, centre.folder / "centre" / "outbox" / job.id, sites))
    made = HandedIn(number, sites, at)
    write_whole(folder / "job.json", json.dumps(asdict(made)).encode())
    return made


def _under_way(centre: Centre, folder: Path) -> HandedIn | None:
    """The job that somebody has handed in already and that has not ended."""
    try:
        made = HandedIn(**json.loads((folder / "job.json").read_text()))
        with centre.admin() as admin:
            is_there = admin.began() < made.at and not str(admin.job(made.number)["status"]).startswith("FINISHED")
    except (OSError, ValueError, TypeError, KeyError, FedstillError):
        return None
    return made if is_there else None


def _wait_for_sites(centre: Centre, job: Job, quorum: float, say: Say) -> list[str]:
    """The job's sites that are connected; waits for as many as the experiment cannot do without."""
    needed = max(1, math.ceil(quorum * len(job.sites) - 1e-9))
    begun, told = time.monotonic(), ""
    with Line(centre) as line:
        while True:
            try:
                connected = line.ask(lambda admin: admin.connected())
                here = sorted(name for name, heard in connected.items() if name in job.sites and is_heard(heard))
                missing = sorted(set(job.sites) - set(here))
                if not missing or (len(here) >= needed and time.monotonic() - begun > PATIENCE_S):
                    return here
                waiting = f"waiting for {', '.join(missing)} ({len(here)} of {len(job.sites)} sites are connected)"
            except FedstillError as error:
                waiting = str(error)
            if waiting != told:
                say(waiting)
                told = waiting
            time.sleep(1.0)


def is_heard(heard: float) -> bool:
    """Whether a site that FLARE holds for connected, and that was last heard of then, is there."""
    return time.time() - heard < HEARD_S


def _follow(centre: Centre, folder: Path, job: HandedIn, teller: _Teller) -> str:
    """Tell what happens until the job ends; why it did."""
    is_away = False
    with Line(centre) as line:
        while True:
            try:
                if line.ask(lambda admin: admin.began()) > job.at:
                    return "the server was restarted"
                meta, connected = line.ask(lambda admin: (admin.job(job.number), admin.connected()))
                is_away, status = False, read_status(folder)
                if status.get("updated", 0) > job.at:
                    teller.tell(status)
                    _regroup(folder, _back(status, connected, job.sites), teller.say)
                if Record(folder).is_finished:  # FLARE takes some seconds more to notice
                    return ""
                if (state := str(meta.get("status", ""))).startswith("FINISHED"):
                    return _why(state, meta, status if status.get("updated", 0) > job.at else {})
            except FedstillError as error:
                if not is_away:
                    teller.say(f"{error} Waiting for it.")
                is_away = True
            time.sleep(0.5)


class _Teller:
    """Says what is new in a status, and shows what is going on."""

    def __init__(self, say: Say, show: Say) -> None:
        self.say, self.show, self.round, self.notes = say, show, -1, 0

    def tell(self, status: dict[str, Any]) -> None:
        self.show(in_a_line(status))
        for note in status["notes"][self.notes - status["forgotten"] :]:
            self.say(f"note: {note}")
        self.notes = status["forgotten"] + len(status["notes"])
        if status["round"] > self.round >= 0:
            self.say(round_line(status))
        if status["state"] != "preparing":
            self.round = status["round"]


def _regroup(folder: Path, back: list[str], say: Say) -> None:
    if back and not (folder / END).exists():
        write_whole(folder / END, b"a site is back")
        say(f"{', '.join(back)} is back: the job ends after this round, and goes on with everybody.")


def _why(state: str, meta: dict[str, Any], status: dict[str, Any]) -> str:
    if status.get("reason"):
        return str(status["reason"])
    if "ABORTED" in state or "CANCELLED" in state:
        return STOPPED
    details = [str(part) for part in meta.get("job_deploy_detail") or meta.get("schedule_history") or []]
    return f"{state.removeprefix('FINISHED:').lower()}{f': {details[-1]}' if details else ''}"


def _back(status: dict[str, Any], connected: dict[str, float], sites: list[str]) -> list[str]:
    """Sites that are there and yet cannot be in the running job, because they came, or came back, after it began."""
    places, found = status.get("sites", {}), []
    for name, heard in connected.items():
        place = places.get(name, {})
        is_lost = "lost" in place and "silent" in place.get("reason", "")
        is_new = name in places and name not in sites and is_heard(heard)
        if is_new or (is_lost and heard > place["lost"] + 1):
            found.append(name)
    return sorted(found)


def round_line(status: dict[str, Any]) -> str:
    """A round in a line."""
    from fedstill.units import size_text

    score = status.get("server", {}).get("score")
    own = f"server F1 {100 * score['f1']:.1f}, " if score and "f1" in score else ""
    return f"round {status['round']}/{status['rounds']}: {own}{size_text(status['bytes'])}"


def read_status(folder: Path) -> dict[str, Any]:
    """What a job was doing when it last said so."""
    try:
        return dict(json.loads((folder / "status.json").read_text()))
    except (OSError, ValueError):
        return {}


def newest(centre: Centre, name: str | None) -> Path:
    """The folder of a job by its id or the beginning of it; of the newest where none is given."""
    found = [path.parent for path in centre.runs.glob("*/job.json")]
    found = sorted((f for f in found if name is None or f.name.startswith(name)), key=lambda f: f.stat().st_mtime)
    if not found:
        what = f" called {name}" if name else ""
        raise FedstillError(f"there is no job{what} in {centre.folder}: fedstill federation submit EXPERIMENT")
    return found[-1]


def stop(centre: Centre, name: str | None, at_once: bool, say: Say) -> None:
    """End a job after its round, or now; its last finished round stays."""
    folder = newest(centre, name)
    if Record(folder).is_finished:
        say(f"{folder.name} is finished already; next: fedstill federation fetch {folder.name}")
        return
    if at_once:
        with centre.admin() as admin:
            admin.abort(json.loads((folder / "job.json").read_text())["number"])
    else:
        write_whole(folder / END, STOPPED.encode())
    say(f"{folder.name} ends {'now' if at_once else 'after this round'}; submit goes on with it later.")


def fetch(centre: Centre, name: str | None, out: Path | None) -> Path:
    """Copy a finished job's record out of the federation."""
    folder = newest(centre, name)
    record = Record(folder)
    if not record.is_finished:
        status = read_status(folder)
        raise FedstillError(
            f"{folder.name} is not finished (round {status.get('round', 0)} of {status.get('rounds', '?')}): wait for "
            "it, or go on with it by submitting it again."
        )
    target = out or Path("runs") / record.summary["name"] / f"seed-{record.summary['seed']}"
    if target.exists() and any(target.iterdir()):
        raise FedstillError(f"{target} is there already; choose another folder with --out.")
    shutil.copytree(
        folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("status.json", "job.json", "checkpoint", END)
    )
    return target
