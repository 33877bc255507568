"""NVIDIA FLARE carries the bytes between the centre and the sites. The only file that imports it.

All checks and computations are in the other files of `fedstill.federation`. A job names `CentreHalf` and `SiteHalf`
below; FLARE makes one of them on each machine, and lets the centre call the sites over mutual TLS.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from nvflare.apis.app_validation import AppValidator
from nvflare.collab.api.exceptions import CollabCallError, RunAborted
from nvflare.collab.api.facade import Facade as collab
from nvflare.fuel.f3.cellnet.identity import get_cert_common_name
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.fuel.flare_api.flare_api import new_secure_session
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import load_crt_chain
from nvflare.private.fed.app.client import client_train
from nvflare.private.fed.app.server import server_train
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.server import fed_server

from fedstill.common.errors import FedstillError
from fedstill.federation import centre, site
from fedstill.federation.centre import Ended
from fedstill.federation.files import CentreFile, SiteFile
from fedstill.federation.job import Job
from fedstill.federation.kits import ADMIN
from fedstill.federation.line import Unreachable
from fedstill.federation.requests import frame
from fedstill.federation.status import Status

SERVER = "server"
"""FLARE's name for the centre."""
GOODBYE_S = 3.0
"""How long a site that leaves tries to say so."""


class CentreHalf:
    """A job at the centre."""

    def __init__(self, job: str) -> None:
        self.job = job

    @collab.main  # type: ignore[untyped-decorator]
    def conduct(self) -> None:
        """Run all rounds, or the remaining ones."""
        kit = Path(collab.workspace.get_root_dir())
        proxies = {proxy.name: proxy for proxy in collab.clients}

        def ask(name: str, request: bytes, timeout_s: float) -> bytes:
            if name not in proxies:
                raise Unreachable("it was not connected when the job began")
            try:
                return proxies[name](timeout=timeout_s).answer(request)  # type: ignore[no-any-return]
            except RunAborted:
                raise
            except CollabCallError as error:
                raise Unreachable(str(error.cause)) from error

        job = Job.from_json(self.job)
        file = CentreFile.model_validate_json((kit / "local" / "server.json").read_text())
        with contextlib.suppress(Ended), Status(kit / "runs" / job.id, job) as tell:
            centre.conduct(job, file, kit / "runs", ask, tell)


class SiteHalf:
    """A job at a site. An error here must not end the job for the others."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.site: site.Site | None = None
        self.reason = ""

    @collab.init  # type: ignore[untyped-decorator]
    def open(self) -> None:
        """Read the site's file."""
        try:
            kit = Path(collab.workspace.get_root_dir())
            file = SiteFile.model_validate_json((kit / "local" / "site.json").read_text())
            self.site = site.Site(collab.site_name, Job.from_json(self.job), file, kit / "runs")
        except Exception as error:  # its message may contain private data: it stays on this machine
            self.reason = f"it could not begin ({type(error).__name__})."
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)

    @collab.publish  # type: ignore[untyped-decorator]
    def answer(self, request: bytes) -> bytes:
        """Answer the centre, and nobody else."""
        if collab.caller != SERVER:
            return frame({"state": "failed", "reason": "only the centre is answered."})
        if self.site is None:
            return frame({"state": "failed", "reason": self.reason})
        return self.site.answer(request)

    @collab.final  # type: ignore[untyped-decorator]
    def close(self) -> None:
        """The job is over."""
        if self.site is not None:
            self.site.close()


class Admin:
    """The operator's connection to the centre's server."""

    def __init__(self, kit: Path, user: str, timeout_s: float = 60.0) -> None:
        logging.getLogger("nvflare").setLevel(logging.CRITICAL)  # our messages below are clearer
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self.session = new_secure_session(user, str(kit), timeout=timeout_s)
        except Exception as error:  # FLARE's errors have no common class
            raise FedstillError(f"the federation's server does not answer ({error}): is `serve` running?") from error

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(Exception):  # it may be gone already
            self.session.close()

    def connected(self) -> dict[str, float]:
        """The connected sites, and when each was last heard from."""
        with _in_words():
            return {info.name: float(info.last_connect_time) for info in self.session.get_system_info().client_info}

    def began(self) -> float:
        """When the server was started; earlier jobs are gone, even if it still lists them."""
        with _in_words():
            return float(self.session.get_system_info().server_info.start_time)

    def submit(self, folder: Path) -> str:
        """Submit a job; returns its number."""
        with _in_words():
            return str(self.session.submit_job(str(folder.resolve())))

    def job(self, number: str) -> dict[str, Any]:
        """FLARE's information about a job."""
        with _in_words():
            return dict(self.session.get_job_meta(number))

    def abort(self, number: str) -> None:
        """End a job immediately."""
        with _in_words():
            self.session.abort_job(number)


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    """Turn FLARE's errors into ours, and hide what it prints."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except Exception as error:
        raise FedstillError(f"the federation's server says: {error}") from error


def halves(job: str) -> dict[str, dict[str, Any]]:
    """A job in FLARE's format: one file for the server and one for the sites, each names one of our classes."""
    told = {"job": job}
    controller = {"path": "nvflare.collab.runtime.controller.CollabController", "args": {"server_obj_id": "centre"}}
    executor = {"path": "nvflare.collab.runtime.executor.CollabExecutor", "args": {"client_obj_id": "site"}}
    server = {
        "format_version": 2,
        "workflows": [{"id": "collab", **controller}],
        "components": [{"id": "centre", "path": "fedstill.federation.flare.CentreHalf", "args": told}],
    }
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": executor}],
        "components": [{"id": "site", "path": "fedstill.federation.flare.SiteHalf", "args": told}],
    }
    return {"config/config_fed_server.json": server, "config/config_fed_client.json": client}


class NothingButNames(AppValidator):  # type: ignore[misc]
    """Refuses a job that holds more than the two files that name our classes, or that the centre has not signed."""

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """FLARE expects an error message, empty if there is none, and a dict of findings."""
        folder = Path(app_folder)
        files = [path for path in folder.rglob("*") if not path.is_dir() and path.name not in SIGNATURES]
        if unwanted := sorted({str(path.relative_to(folder)) for path in files} - set(halves(""))):
            return f"a job may not contain other files, and this one has {', '.join(unwanted[:3])}", {}
        try:
            found = {name: json.loads((folder / name).read_text()) for name in halves("")}
            job = found["config/config_fed_server.json"]["components"][0]["args"]["job"]
            Job.from_json(job)
            certificates = [load_crt_chain(path)[0] for path in folder.rglob(NVFLARE_SUBMITTER_CRT_FILE)]
        except (OSError, ValueError, LookupError, TypeError, RecursionError, FedstillError) as error:
            return f"this is not a job of fedstill ({type(error).__name__})", {}
        if other := [name for name, half in halves(job).items() if found[name] != half]:
            return f"a job may name only fedstill's own classes, and {other[0]} of this one has something else", {}
        # FLARE has verified the signatures already, but accepts those of every certificate of the federation.
        if others := {str(get_cert_common_name(certificate)) for certificate in certificates} - {ADMIN}:
            return f"jobs are signed by {ADMIN}, and this one by {', '.join(sorted(others))}", {}
        return "", {}


SIGNATURES = {NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE}
"""Files that FLARE adds to a job."""

NEEDED = {
    "ClientStatusProcessor",
    "AbortAppProcessor",
    "AbortTaskProcessor",
    "DeployProcessor",
    "DeleteRunNumberProcessor",
    "StartJobProcessor",
    "CheckResourceProcessor",
    "CancelResourceProcessor",
    "NotifyJobStatusProcessor",
}
"""The requests that a site accepts from the centre's server: to run jobs, but not to read the site's files."""


def _serve(kit: Path) -> Any:
    """FLARE's server, bound to the address of the federation file and no other.

    FLARE itself can bind only to loopback or to all addresses, so the address is replaced in its URLs.
    """
    bind = json.loads((kit / "local" / "fedstill.json").read_text())["bind"]
    plain = fed_server.Cell

    def bound(*args: Any, root_url: Any = None, **others: Any) -> Any:
        urls = [url.replace("://0:", f"://{bind}:") for url in root_url] if isinstance(root_url, list) else root_url
        return plain(*args, root_url=urls, **others)

    fed_server.Cell = bound
    return server_train


def _join(kit: Path) -> Any:
    """FLARE's client, without the request types that are not in NEEDED, which tells the centre when it leaves."""
    every = ClientRequestProcessors.request_processors
    every[:] = [processor for processor in every if type(processor).__name__ in NEEDED]
    plain = client_train.create_admin_agent

    def registered(processors: Any, client: Any, engine: Any) -> Any:
        goodbye = threading.Thread(target=_say_goodbye, args=(client,), daemon=True)
        signal.signal(signal.SIGTERM, lambda *_: None if goodbye.ident else goodbye.start())
        return plain(processors, client, engine)

    client_train.create_admin_agent = registered
    return client_train


def _say_goodbye(client: Any) -> None:
    """Sign off, so that the centre does not count on this site until it has been silent for long; then end.

    A site that leaves in the middle of a job ends without a word: the centre decides what becomes of the job.
    """
    threading.Timer(GOODBYE_S, os._exit, [0]).start()
    with contextlib.suppress(Exception):  # it leaves in any case
        if not psutil.Process().children():
            client.communicator.heartbeat_done = True  # another heartbeat would sign it on again
            client.logout_client(client.engine.new_context())
    os._exit(0)


def main() -> None:
    """`python -m fedstill.federation.flare centre|site` with FLARE's own arguments: run its server or client."""
    side = sys.argv.pop(1)
    kit = Path(sys.argv[sys.argv.index("-m") + 1])
    program = {"centre": _serve, "site": _join}[side](kit)
    arguments = program.parse_arguments()
    sys.exit(MainProcessMonitor.run(main_func=program.main, run_dir=arguments.workspace, args=arguments))


if __name__ == "__main__":
    main()
