"""A submission: a job is made, submitted, followed, and submitted again if it ends early."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole
from fedstill.common.version import VERSION
from fedstill.config.experiment import Experiment
from fedstill.engines.conductor import needed
from fedstill.federation.centre import END, STOPPED
from fedstill.federation.data import read_public, refuse_impossible
from fedstill.federation.job import Job
from fedstill.federation.operate import AdminLine, Centre, Say, flare
from fedstill.federation.status import in_a_line, read_status, round_line
from fedstill.results.record import Record

TRIES = 3
"""How often in a row a job may end without a finished round before it is not submitted again."""
HEARD_S = 25.0
"""A site that was silent for longer is away. Sites report every 10 s; FLARE counts them as connected for 30 s."""
PATIENCE_S = 15.0
"""How long a submission waits for missing sites although there are enough."""


def make_job(centre: Centre, experiment: Experiment) -> Job:
    """The job that runs an experiment in this federation."""
    everybody = centre.file.sites
    sites = [*experiment.clients] if isinstance(experiment.clients, dict) else everybody
    if unknown := [name for name in sites if name not in everybody]:
        raise FedstillError(f"clients: {', '.join(unknown)} is not a site of this federation ({', '.join(everybody)}).")
    public = read_public(centre.has)
    labels = experiment.labels or []
    fingerprint = public.fingerprint(labels)
    job = Job.make(experiment, fingerprint, public.samples, len(public.texts) - public.samples, sites, VERSION)
    if not isinstance(experiment.clients, dict):
        experiment.client_specs(job.sites)
    refuse_impossible(experiment.method, job)
    return job


def write_job(job: Job, folder: Path, sites: list[str]) -> Path:
    """Write the job in FLARE's format: it names two of our classes and contains no code."""
    meta = {
        "name": job.id,
        "min_clients": len(sites),
        "mandatory_clients": sites,
        "deploy_map": {"app": ["server", *sites]},
        "resource_spec": {},
    }
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in flare().halves(job.to_json()).items():
        write_whole(folder / "app" / name, json.dumps(content).encode())
    write_whole(folder / "meta.json", json.dumps(meta).encode())
    return folder


def submit(
    centre: Centre, job: Job, say: Say, quorum: float, follows: bool = True, show: Say = lambda line: None
) -> Record | None:
    """Submit a job and follow it to its end; while it finishes rounds, it is submitted again if it ends early."""
    folder = centre.runs / job.id
    if Record(folder).is_finished:
        return Record(folder)
    tries, reached, reason = 0, 0, ""
    handed_in = under_way(centre, folder)
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
            say(f"{reason} after round {now}; the same command continues it.")
            return None
        tries, reached = (0 if now > reached else tries + 1), now
        say(f"the job ended after round {now} ({reason}); it is submitted again.")
    raise FedstillError(f"{job.id} ended {TRIES} times without finishing a round; the last time: {reason}")


@dataclass(frozen=True)
class HandedIn:
    """A submitted job: FLARE's number for it, its sites, and the time of submission."""

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


def under_way(centre: Centre, folder: Path) -> HandedIn | None:
    """The job if it has been submitted already and has not ended."""
    try:
        made = HandedIn(**json.loads((folder / "job.json").read_text()))
        with centre.admin() as admin:
            is_there = admin.began() < made.at and not str(admin.job(made.number)["status"]).startswith("FINISHED")
    except (OSError, ValueError, TypeError, KeyError, FedstillError):
        return None
    return made if is_there else None


def _wait_for_sites(centre: Centre, job: Job, quorum: float, say: Say) -> list[str]:
    """The job's sites that are connected; waits until there are enough for the quorum."""
    enough = needed(quorum, len(job.sites))
    begun, told = time.monotonic(), ""
    with AdminLine(centre) as line:
        while True:
            try:
                connected = line.ask(lambda admin: admin.connected())
                here = sorted(name for name, heard in connected.items() if name in job.sites and is_heard(heard))
                missing = sorted(set(job.sites) - set(here))
                if not missing or (len(here) >= enough and time.monotonic() - begun > PATIENCE_S):
                    return here
                waiting = f"waiting for {', '.join(missing)} ({len(here)} of {len(job.sites)} sites are connected)"
            except FedstillError as error:
                waiting = str(error)
            if waiting != told:
                say(waiting)
                told = waiting
            time.sleep(1.0)


def is_heard(heard: float) -> bool:
    """Whether a site last heard from at that time is still there; FLARE itself notices late."""
    return time.time() - heard < HEARD_S


def _follow(centre: Centre, folder: Path, job: HandedIn, teller: _Teller) -> str:
    """Report what happens until the job ends; returns the reason why it ended."""
    is_away = False
    with AdminLine(centre) as line:
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
    """Prints what is new in a status, and shows the current work."""

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
        say(f"{', '.join(back)} is back: the job ends after this round, and continues with all sites.")


def _why(state: str, meta: dict[str, Any], status: dict[str, Any]) -> str:
    if status.get("reason"):
        return str(status["reason"])
    if "ABORTED" in state or "CANCELLED" in state:
        return STOPPED
    details = [str(part) for part in meta.get("job_deploy_detail") or meta.get("schedule_history") or []]
    return f"{state.removeprefix('FINISHED:').lower()}{f': {details[-1]}' if details else ''}"


def _back(status: dict[str, Any], connected: dict[str, float], sites: list[str]) -> list[str]:
    """Connected sites that the running job cannot use, because they came, or came back, after it started."""
    places, found = status.get("sites", {}), []
    for name, heard in connected.items():
        place = places.get(name, {})
        is_lost = "lost" in place and "silent" in place.get("reason", "")
        is_new = name in places and name not in sites and is_heard(heard)
        if is_new or (is_lost and heard > place["lost"] + 1):
            found.append(name)
    return sorted(found)
