"""A whole federation on one machine, with real processes, certificates and TLS; torn down afterwards."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment
from fedstill.federation import kits, operate, submission
from fedstill.federation.daemon import Daemon
from fedstill.federation.files import FederationFile
from fedstill.federation.job import Job
from fedstill.federation.joining import prepare_site
from fedstill.federation.operate import Centre, prepare_centre
from fedstill.federation.simulated import Simulated, write_files
from fedstill.results.record import Record

Say = Callable[[str], None]


@dataclass(frozen=True)
class Rehearsal:
    """A federation whose server and sites run on this machine."""

    simulated: Simulated
    centre: Centre
    server: Daemon
    sites: dict[str, Daemon]

    @property
    def job(self) -> Job:
        """The job of the rehearsed experiment."""
        return submission.make_job(self.centre, self.simulated.experiment)

    def submit(self, say: Say, show: Say = lambda line: None) -> Record:
        """Run the experiment to its end."""
        record = submission.submit(self.centre, self.job, say, self.simulated.experiment.quorum, show=show)
        if record is None:
            raise FedstillError("the rehearsal was stopped.")
        return record


def rehearse(experiment: Experiment, out: Path, say: Say, force: bool = False, show: Say = lambda line: None) -> Path:
    """Make a federation of the experiment's clients, run it, fetch the record, and tear it down."""
    if force:
        shutil.rmtree(out, ignore_errors=True)
    if out.exists() and any(out.iterdir()):
        raise FedstillError(f"{out} is not empty: choose another folder with --out, or delete it with --force.")
    with rehearsing(experiment, out, say) as rehearsal:
        rehearsal.submit(say, show)
        return operate.fetch(rehearsal.centre, rehearsal.job.id, out / "run")


@contextmanager
def rehearsing(
    experiment: Experiment,
    out: Path,
    say: Say,
    prepared: Callable[[Simulated, kits.Kits], None] = lambda simulated, made: None,
) -> Iterator[Rehearsal]:
    """A running federation of the experiment's clients, to which nothing has been submitted yet."""
    out.mkdir(parents=True, exist_ok=True)
    say("dividing the corpus")
    simulated = write_files(experiment, out / "data")
    names = list(simulated.sites)
    port, admin_port = free_ports(2)
    file = FederationFile(name="rehearsal", host="localhost", port=port, admin_port=admin_port, sites=names, days=30)
    made = kits.init(file, out / "federation")
    prepared(simulated, made)
    centre = Centre(out / "federation")
    prepare_centre(centre, simulated.server, lambda line: None)
    submission.make_job(centre, simulated.experiment)  # to report errors before anything is started
    with ExitStack() as stack:
        server = Daemon(made.centre, "centre", kits.SERVER)
        stack.callback(server.stop)
        server.start()
        say(f"the centre serves on localhost:{port}")
        await_port(port, server)
        sites = {}
        for name, path in simulated.sites.items():
            prepare_site(made.sites[name], path, lambda line: None)
            sites[name] = Daemon(made.sites[name], "site", name)
            stack.callback(sites[name].stop)
            sites[name].start()
        say(f"{', '.join(names)} join")
        yield Rehearsal(simulated, centre, server, sites)
        say("tearing down")


def await_port(port: int, daemon: Daemon, within_s: float = 60.0) -> None:
    """Wait until the server listens on the port."""
    until = time.monotonic() + within_s
    while time.monotonic() < until and daemon.is_alive:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise FedstillError(f"the federation's server did not start; {daemon.log} says why.")


def free_ports(many: int) -> list[int]:
    """Ports of the loopback interface that are not in use."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(many)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
