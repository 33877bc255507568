"""The commands of the centre's operator: serve a federation, reach its server, stop and fetch its jobs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole
from fedstill.data import corpora
from fedstill.federation import kits
from fedstill.federation.centre import END, STOPPED
from fedstill.federation.daemon import Daemon, Presence, answers, is_free
from fedstill.federation.data import read_public
from fedstill.federation.files import CentreFile, FederationFile, read_file, to_values
from fedstill.federation.status import read_status
from fedstill.results.record import Record

Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Centre:
    """A federation seen from its centre."""

    folder: Path

    @property
    def file(self) -> FederationFile:
        """The federation file."""
        return read_file(self.folder / "federation.yaml", FederationFile)

    @property
    def kits(self) -> kits.Kits:
        """The federation's kits."""
        return kits.kits_in(self.folder)

    @property
    def has(self) -> CentreFile:
        """The centre's file, as given to `serve`."""
        path = self.folder / "centre" / "local" / "server.json"
        if not path.exists():
            raise FedstillError("this federation has not been served yet: fedstill federation serve --server FILE")
        return CentreFile.model_validate_json(path.read_text())

    @property
    def runs(self) -> Path:
        """The folder with the records of jobs."""
        return self.folder / "centre" / "runs"

    def admin(self) -> Any:
        """A connection to the server, to be used in a `with`."""
        if why := answers("127.0.0.1", self.file.admin_port):  # asking FLARE would take longer
            raise FedstillError(f"the federation's server does not answer ({why}): is `serve` running?")
        return flare().Admin(self.folder / "admin", kits.ADMIN)


class AdminLine:
    """A connection to the server that is used until it breaks, because FLARE leaks closed connections."""

    def __init__(self, centre: Centre) -> None:
        self.centre = centre
        self.admin: Any = None

    def __enter__(self) -> AdminLine:
        return self

    def __exit__(self, *exception: object) -> None:
        self._drop()

    def ask(self, question: Callable[[Any], T]) -> T:
        """The answer to a question; if the connection is broken, the next question opens a new one."""
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


def flare() -> Any:
    """The module that uses FLARE; an error if FLARE is not installed."""
    try:
        from fedstill.federation import flare
    except ImportError as error:
        raise FedstillError(
            f'a federation needs FLARE: run `pip install "fedstill[federation]"` first ({error}).'
        ) from error
    return flare


def prepare_centre(centre: Centre, server: Path | None, say: Say) -> None:
    """Check kit, files and ports, and store the centre's file in its kit."""
    flare()
    known = centre.kits
    kits.check_kit(known.centre, "centre")
    if server is not None:
        file = read_file(server, CentreFile)
        _describe(file, say)
        write_whole(known.centre / "local" / "server.json", json.dumps(to_values(file), indent=1).encode())
    else:
        _describe(centre.has, say)
    kits.settle(known.centre)
    where = centre.file
    for host, port in ((where.listens_on, where.port), ("127.0.0.1", where.admin_port)):
        if not is_free(host, port):
            raise FedstillError(f"{host}:{port} is in use: end the process that listens there, or choose another port.")
    say(f"certificates are good until {known.good_until:%Y-%m-%d}")


def _describe(file: CentreFile, say: Say) -> None:
    public, test = read_public(file), corpora.load(file.test)
    labelled = len(public.texts) - public.samples
    say(f"{len(test):,} test rows, {public.samples:,} public and {labelled:,} labelled ones")


def serve(centre: Centre, say: Say) -> None:
    """Run the server until interrupted."""
    daemon = Daemon(centre.folder / "centre", "centre", kits.SERVER)
    with Presence(centre.folder / "centre"):
        file = centre.file
        say(f"serving {file.name} on {file.listens_on}:{file.port} (sites) and 127.0.0.1:{file.admin_port} (commands)")
        say("next, in another terminal: fedstill federation submit EXPERIMENT")
        try:
            daemon.keep_alive(lambda: None)
        finally:
            daemon.stop()


def newest(centre: Centre, name: str | None) -> Path:
    """The folder of the newest job, or of the newest whose id starts with `name`."""
    found = [path.parent for path in centre.runs.glob("*/job.json")]
    found = sorted((f for f in found if name is None or f.name.startswith(name)), key=lambda f: f.stat().st_mtime)
    if not found:
        what = f" called {name}" if name else ""
        raise FedstillError(f"there is no job{what} in {centre.folder}: fedstill federation submit EXPERIMENT")
    return found[-1]


def stop(centre: Centre, name: str | None, at_once: bool, say: Say) -> None:
    """End a job after its current round, or now; finished rounds are kept."""
    folder = newest(centre, name)
    if Record(folder).is_finished:
        say(f"{folder.name} is finished already; next: fedstill federation fetch {folder.name}")
        return
    if at_once:
        with centre.admin() as admin:
            admin.abort(json.loads((folder / "job.json").read_text())["number"])
    else:
        write_whole(folder / END, STOPPED.encode())
    say(f"{folder.name} ends {'now' if at_once else 'after this round'}; `submit` continues it later.")


def _same(folder: Path, target: Path) -> bool:
    ends = [place / "summary.json" for place in (folder, target)]
    return all(end.exists() for end in ends) and ends[0].read_bytes() == ends[1].read_bytes()


def fetch(centre: Centre, name: str | None, out: Path | None) -> Path:
    """Copy a finished job's record out of the federation."""
    folder = newest(centre, name)
    record = Record(folder)
    if not record.is_finished:
        status = read_status(folder)
        raise FedstillError(
            f"{folder.name} is not finished (round {status.get('round', 0)} of {status.get('rounds', '?')}): wait for "
            "it, or submit it again to continue it."
        )
    target = out or Path("runs") / record.summary["name"] / f"seed-{record.summary['seed']}"
    if target.exists() and any(target.iterdir()):
        known = "has been fetched already" if _same(folder, target) else "is not empty"
        raise FedstillError(f"{target} {known}; choose another folder with --out.")
    shutil.copytree(
        folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("status.json", "job.json", "checkpoint", END)
    )
    return target
