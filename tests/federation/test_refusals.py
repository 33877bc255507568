"""What a real federation refuses. Everything stays on the loopback interface."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import ssl
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from nvflare.lighter.utils import load_private_key_file, sign_folders

from fedstill.common.errors import FedstillError
from fedstill.federation import kits, submission
from fedstill.federation.daemon import Daemon
from fedstill.federation.files import FederationFile
from fedstill.federation.job import Job
from fedstill.federation.joining import prepare_site
from fedstill.federation.operate import Centre, prepare_centre
from fedstill.federation.rehearsal import Rehearsal, await_port, free_ports, rehearsing
from fedstill.federation.simulated import Simulated
from fedstill.federation.submission import write_job
from fedstill.results.record import Record
from tests.conftest import write_reviews
from tests.federation.stage import PREFACE, change_site, edit, point_at, quiet, three_shops, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("federation")]

HERE = ["books", "garden"]
"""The sites that run; `toys` has a kit and is not there."""
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client of gRPC says after its preface; the server's first words are its own settings."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """Books and garden are there, toys is expected and absent; small models, one round."""
    folder = tmp_path_factory.mktemp("refusals")
    experiment = three_shops(write_reviews(folder / "reviews.csv"), clients="bow", server="bow", rounds=1)

    def prepared(simulated: Simulated, made: kits.Kits) -> None:
        simulated.sites.pop("toys")

    with rehearsing(experiment, folder / "stage", quiet, prepared) as rehearsal:
        until(lambda: connected(rehearsal.centre) == set(HERE))
        yield rehearsal


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> kits.Kits:
    """The kits of another federation, in which there is a site called toys too."""
    port, admin_port = free_ports(2)
    file = FederationFile(name="strangers", host="localhost", port=port, admin_port=admin_port, sites=["toys"], days=9)
    return kits.init(file, tmp_path_factory.mktemp("strangers") / "federation")


def connected(centre: Centre) -> set[str]:
    """The sites that the centre's server knows of now."""
    try:
        with centre.admin() as admin:
            return set(admin.connected())
    except FedstillError:
        return set()


def job_of(centre: Centre, simulated: Simulated, sites: list[str], **changes: Any) -> Job:
    """The stage's experiment with those sites, or another one."""
    values = simulated.experiment.model_dump(mode="json", exclude_unset=True)
    clients = dict.fromkeys(sites, "bow")
    return submission.make_job(
        centre, type(simulated.experiment).model_validate(values | {"clients": clients} | changes)
    )


def hand_in(stage: Rehearsal, name: str, change: Callable[[Path], object], sites: list[str] = HERE) -> str:
    """Submit a job that something was done to; its number."""
    job = job_of(stage.centre, stage.simulated, HERE, name=name)
    folder = write_job(job, stage.centre.folder / "forged" / name, sites)
    change(folder)
    with stage.centre.admin() as admin:
        return str(admin.submit(folder))


def ended(centre: Centre, number: str) -> tuple[str, str]:
    """How a job ended, and what FLARE says of its deployment."""
    with centre.admin() as admin:
        until(lambda: str(admin.job(number)["status"]).startswith("FINISHED"))
        meta = admin.job(number)
    return str(meta["status"]), " | ".join(map(str, meta.get("job_deploy_detail") or []))


def traces(stage: Rehearsal, name: str) -> list[Path]:
    """What a job of that experiment has left in anybody's `runs`."""
    kit_folders = [stage.centre.folder / "centre", *stage.centre.kits.sites.values()]
    return [path for kit in kit_folders for path in kit.glob(f"runs/{name}-*")]


@contextlib.contextmanager
def running(daemon: Daemon) -> Iterator[Daemon]:
    """A daemon for a while."""
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()


# Who may connect


def first_words(port: int, context: ssl.SSLContext | None, host: str = "127.0.0.1") -> bytes:
    """What the server says to a client of gRPC; nothing where it ends the connection."""
    try:
        with socket.create_connection((host, port), 60) as plain:
            plain.settimeout(60)
            channel = context.wrap_socket(plain, server_hostname="localhost") if context else plain
            channel.sendall(PREFACE + SETTINGS)
            return channel.recv(100)
    except (ssl.SSLError, ConnectionError):
        return b""


def tls(root: Path | None, kit: Path | None = None) -> ssl.SSLContext:
    """A client's, with a kit's certificate where one is given; without a root it trusts any server."""
    context = ssl.create_default_context(cafile=root)
    context.set_alpn_protocols(["h2"])
    if root is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if kit is not None:
        context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    return context


@pytest.mark.parametrize("which", ["port", "admin_port"])
def test_nothing_is_said_to_whoever_has_no_certificate_of_this_federation(
    stage: Rehearsal, strangers: kits.Kits, which: str
) -> None:
    port = getattr(stage.centre.file, which)
    own = stage.centre.kits.sites["toys"]
    root = own / "startup" / "rootCA.pem"
    assert first_words(port, tls(root, own)), "a site of this federation is answered, or the rest says nothing"
    assert first_words(port, tls(root)) == b""
    assert first_words(port, tls(None)) == b""
    assert first_words(port, tls(root, strangers.sites["toys"])) == b""
    assert first_words(port, tls(None, strangers.admin)) == b""
    assert first_words(port, None)[:1] in (b"", b"\x15"), "to plain words an alert of TLS at most"


def copied(kit: Path, to: Path, stage: Rehearsal) -> Path:
    """A kit that is pointed at the stage's centre and trusts it too."""
    shutil.copytree(kit, to, ignore=shutil.ignore_patterns("log", "runs", "log.*", "*.txt"))
    point_at(to, stage.centre.file.port)
    edit(to / "startup" / "fed_client.json", lambda v: v["servers"][0].update(name=stage.centre.file.name))
    with (to / "startup" / "rootCA.pem").open("ab") as roots:
        roots.write((stage.centre.kits.centre / "startup" / "rootCA.pem").read_bytes())
    return to


def test_a_site_of_another_federation_never_shows_up(stage: Rehearsal, strangers: kits.Kits, tmp_path: Path) -> None:
    kit = copied(strangers.sites["toys"], tmp_path / "toys", stage)

    def refused() -> int:
        return stage.server.log.read_text().count("CERTIFICATE_VERIFY_FAILED")

    before = refused()
    with running(Daemon(kit, "site", "toys")):
        until(lambda: refused() >= before + 2)
        assert connected(stage.centre) == set(HERE)


def test_a_site_cannot_take_another_ones_name(stage: Rehearsal, tmp_path: Path) -> None:
    kit = copied(stage.centre.kits.sites["garden"], tmp_path / "toys", stage)
    edit(kit / "startup" / "fed_client.json", lambda v: v["client"].update(fqsn="toys"))

    def refused() -> int:
        return len(
            re.findall(
                r"SSL garden\] is created.*\n.*Error processing frame: .*CommError", stage.server.log.read_text()
            )
        )

    before = refused()
    with running(Daemon(kit, "site", "toys")):
        until(lambda: refused() >= before + 2)
        assert connected(stage.centre) == set(HERE)


# What a job may be


def with_code(folder: Path, mark: Path) -> None:
    """A module that is imported before the one that it is called after."""
    (folder / "app" / "custom").mkdir()
    (folder / "app" / "custom" / "torch.py").write_text(f"open({str(mark)!r}, 'w')\n")


def with_a_note(folder: Path, mark: Path) -> None:
    (folder / "app" / "config" / "notes.txt").write_text("read me\n")


def with_another_format(folder: Path, mark: Path) -> None:
    config = folder / "app" / "config"
    shutil.copy(config / "config_fed_client.json", config / "config_fed_client.yml")


def naming_a_command(side: str) -> Callable[[Path, Path], None]:
    def change(folder: Path, mark: Path) -> None:
        command = {"id": "more", "path": "subprocess.Popen", "args": {"args": ["touch", str(mark)]}}
        edit(folder / "app" / "config" / f"config_fed_{side}.json", lambda v: v["components"].append(command))

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_code, "a job may not contain other files, and this one has custom/torch.py"),
        (with_a_note, "a job may not contain other files, and this one has config/notes.txt"),
        (with_another_format, "a job may not contain other files, and this one has config/config_fed_client.yml"),
        (naming_a_command("server"), "config/config_fed_server.json of this one has something else"),
        (naming_a_command("client"), "config/config_fed_client.json of this one has something else"),
    ],
    ids=["code", "note", "format", "class-at-the-centre", "class-at-a-site"],
)
def test_a_job_that_is_more_than_names_does_not_run(
    stage: Rehearsal, tmp_path: Path, change: Callable[[Path, Path], None], reason: str
) -> None:
    mark = tmp_path / "ran"
    number = hand_in(stage, "forged", lambda folder: change(folder, mark))
    status, detail = ended(stage.centre, number)
    assert status == "FINISHED:FAILED_TO_RUN"
    assert detail.startswith("server: ")
    assert detail.endswith(reason)
    assert not mark.exists()
    assert traces(stage, "forged") == []


# A job that was changed on its way


def rewrite(stage: Rehearsal, number: str, change: Callable[[Path], object], scratch: Path) -> None:
    """Change a job in the centre's store, where it waits."""
    stored = stage.centre.folder / "centre" / "jobs" / number / "data"
    with zipfile.ZipFile(stored) as packed:
        packed.extractall(scratch)
    (folder,) = scratch.iterdir()
    change(folder)
    with zipfile.ZipFile(stored, "w") as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, path.relative_to(scratch))


def more_rounds(folder: Path) -> None:
    """The same job with nine rounds, in both of its files."""
    for side in ("server", "client"):

        def change(values: dict[str, Any]) -> None:
            args = values["components"][0]["args"]
            job = json.loads(args["job"])
            job["experiment"]["rounds"] = 9
            args["job"] = json.dumps(job)

        edit(folder / "app" / "config" / f"config_fed_{side}.json", change)


def unsigned(folder: Path) -> None:
    for path in [*folder.rglob(".__nvfl_*")]:
        path.unlink()


def signed_with(kit: Path) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        more_rounds(folder)
        sign_folders(str(folder), load_private_key_file(kit / "startup/client.key"), str(kit / "startup/client.crt"))

    return change


def test_a_job_that_was_changed_after_it_was_signed_does_not_run_and_the_one_beside_it_does(
    stage: Rehearsal, strangers: kits.Kits, tmp_path: Path
) -> None:
    everybody, toys = [*HERE, "toys"], stage.centre.kits.sites["toys"]
    changes: dict[str, Callable[[Path], object]] = {
        "changed": more_rounds,
        "unsigned": unsigned,
        "signed-by-a-site": signed_with(stage.centre.kits.sites["garden"]),
        "signed-by-a-stranger": signed_with(strangers.admin),
        "untouched": lambda folder: None,
    }
    numbers = {name: hand_in(stage, name, quiet_change, everybody) for name in changes}
    for name, change in changes.items():
        rewrite(stage, numbers[name], change, tmp_path / name)
    with running(Daemon(toys, "site", "toys")):
        said = {name: ended(stage.centre, number) for name, number in numbers.items()}
    refused = ("FINISHED:FAILED_TO_RUN", "server: app app does not pass signature verification")
    assert said["changed"] == said["signed-by-a-stranger"] == refused
    assert said["signed-by-a-site"] == (
        refused[0],
        "server: jobs are signed by admin@centre.org, and this one by garden",
    )
    assert said["unsigned"] == (refused[0], "server: unsigned job rejected — require_signed_jobs is enabled")
    assert said["untouched"] == ("FINISHED:COMPLETED", "server: OK | books: OK | garden: OK | toys: OK")
    for name in numbers:
        assert bool(traces(stage, name)) is (name == "untouched")
    until(lambda: connected(stage.centre) == set(HERE))


def quiet_change(folder: Path) -> None:
    """None yet."""


def test_sites_look_at_the_signature_themselves(stage: Rehearsal, strangers: kits.Kits, tmp_path: Path) -> None:
    """A centre that was broken into: it takes unsigned jobs, or those that another federation's admin has signed."""
    startup = stage.centre.kits.centre / "startup"
    kept = {name: (startup / name).read_bytes() for name in ("fed_server.json", "rootCA.pem")}
    everybody, toys = [*HERE, "toys"], stage.centre.kits.sites["toys"]
    numbers = {name: hand_in(stage, name, quiet_change, everybody) for name in ("bare", "alien")}
    rewrite(stage, numbers["bare"], unsigned, tmp_path / "bare")
    rewrite(stage, numbers["alien"], signed_with(strangers.admin), tmp_path / "alien")
    try:
        edit(startup / "fed_server.json", lambda v: v.update(require_signed_jobs=False))
        shutil.copy(strangers.centre / "startup" / "rootCA.pem", startup)
        with running(Daemon(toys, "site", "toys")):
            said = {name: ended(stage.centre, number) for name, number in numbers.items()}
    finally:
        for name, content in kept.items():
            (startup / name).write_bytes(content)
    for name, reason in {"bare": "unsigned job rejected", "alien": "app app does not pass signature"}.items():
        assert said[name][0] == "FINISHED:FAILED_TO_RUN"
        assert "server: OK" in said[name][1]
        assert all(f"{site}: {reason}" in said[name][1] for site in everybody)
        assert traces(stage, name) == []
    until(lambda: connected(stage.centre) == set(HERE))


# What a site agrees to


@contextlib.contextmanager
def saying(stage: Rehearsal, site: str, **changes: object) -> Iterator[None]:
    """A site whose file says something else for a while."""
    path, kit = stage.simulated.sites[site], stage.centre.kits.sites[site]
    kept = path.read_bytes()
    change_site(path, **changes)
    try:
        prepare_site(kit, path, quiet)
        yield
    finally:
        path.write_bytes(kept)
        prepare_site(kit, path, quiet)


@dataclass(frozen=True)
class Ran:
    """A run to its end, and what listened meanwhile."""

    record: Record
    listening: set[tuple[str, int]]


def listeners(daemons: list[Daemon]) -> set[tuple[str, int]]:
    """Where those daemons and everything below them listen."""
    found = set()
    for daemon in daemons:
        assert daemon.process is not None
        top = psutil.Process(daemon.process.pid)
        for process in (top, *top.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                connections = process.net_connections("inet")
                heard = [connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN]
                found |= {(place.ip.removeprefix("::ffff:"), place.port) for place in heard}
    return found


@pytest.fixture(scope="module")
def ran(stage: Rehearsal) -> Ran:
    """A job that garden has accepted by its hash."""
    job = job_of(stage.centre, stage.simulated, HERE, name="accepted")
    seen: set[tuple[str, int]] = set()
    records: list[Record | None] = []
    with saying(stage, "garden", limits={"experiments": [job.hash[:16]]}):
        thread = threading.Thread(target=lambda: records.append(submission.submit(stage.centre, job, quiet, 1.0)))
        thread.start()
        while thread.is_alive():
            seen |= listeners([stage.server, *stage.sites.values()])
            time.sleep(0.2)
    assert records, "the job did not end well"
    assert records[0] is not None
    return Ran(records[0], seen)


def test_a_site_takes_no_part_in_an_experiment_whose_hash_it_has_not_accepted(stage: Rehearsal, ran: Ran) -> None:
    assert ran.record.is_finished
    job = job_of(stage.centre, stage.simulated, HERE, name="accepted", seed=7)
    accepted = json.loads((stage.centre.kits.sites["garden"] / "local" / "site.json").read_text())
    assert "experiments" not in accepted.get("limits", {}), "the site says what it said before"
    refusal = f"(garden: left out; it has not accepted this experiment, whose hash is {job.hash[:16]}.)"
    with (
        saying(stage, "garden", limits={"experiments": ["0123456789abcdef"]}),
        pytest.raises(FedstillError, match=re.escape(refusal)) as error,
    ):
        submission.submit(stage.centre, job, quiet, 1.0)
    assert "\n" not in str(error.value)
    assert not Record(stage.centre.runs / job.id).is_finished


def test_a_copy_of_the_public_set_that_differs_in_a_row_is_refused_and_an_equal_one_is_not_sent_again(
    stage: Rehearsal, ran: Ran, tmp_path: Path
) -> None:
    lines = (stage.simulated.server.parent / "public.jsonl").read_text().splitlines()
    copy = tmp_path / "public.jsonl"
    copy.write_text("\n".join(lines) + "\n")
    first = json.loads(lines[0])
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join([json.dumps(first | {"text": first["text"] + "."}), *lines[1:]]) + "\n")
    job = job_of(stage.centre, stage.simulated, HERE, name="public")
    refusal = "(garden: left out; its public samples are not the experiment's: opinions on them could not be combined."
    with saying(stage, "books", public={"path": str(copy)}):
        with (
            saying(stage, "garden", public={"path": str(other)}),
            pytest.raises(FedstillError, match=re.escape(refusal)),
        ):
            submission.submit(stage.centre, job, quiet, 1.0)
        with saying(stage, "garden", public={"path": str(copy)}):
            record = submission.submit(stage.centre, job, quiet, 1.0)
    assert record is not None
    assert [line["messages"] for line in ran.record.ledger if line["message"] == "PublicSet"] == [2]
    assert [line for line in record.ledger if line["message"] == "PublicSet"] == []


# What nobody may do


def test_the_admin_neither_reads_sites_nor_shuts_them_down(stage: Rehearsal) -> None:
    refused: dict[str, Callable[[Any], object]] = {
        "ls": lambda session: session.ls_target("garden"),
        "cat": lambda session: session.cat_target("garden", file="local/site.json"),
        "tail": lambda session: session.tail_target("garden", file="log.txt"),
        "grep": lambda session: session.grep_target("garden", pattern="path", file="local/site.json"),
        "pwd": lambda session: session.get_working_directory("garden"),
        "report_resources": lambda session: session.report_resources("client", ["garden"]),
        "restart": lambda session: session.restart("client", ["garden"]),
        "shutdown": lambda session: session.shutdown("client", ["garden"]),
        "report_env": lambda session: session.get_client_env(["garden"]),
        "remove_client": lambda session: session.remove_client("garden"),
        "shutdown all": lambda session: session.shutdown_system(),
    }
    process = stage.sites["garden"].process
    for name, ask in refused.items():
        with stage.centre.admin() as admin:
            try:
                said = str(ask(admin.session))
            except Exception as error:
                said = str(error)
        assert re.search("invalid_request|not authorized|failed to shut down", said), f"{name}: {said}"
    assert stage.sites["garden"].process is process
    assert stage.sites["garden"].is_alive
    assert stage.server.is_alive
    assert connected(stage.centre) >= set(HERE)


CURIOUS = """
import sys

if any("worker_process" in word for word in sys.orig_argv):
    from fedstill.federation import site
    from fedstill.federation.requests import frame

    plain, asked = site.Site.answer, []

    def curious(self, request):
        if not asked:
            asked.append(True)
            from fedstill.federation.flare import collab
            try:
                other = next(proxy for proxy in collab.clients if proxy.name == "books")
                said = other(timeout=60.0).answer(frame({"what": "open", "number": 1000000}))
            except Exception as error:
                said = repr(error).encode()
            open(%r, "wb").write(said)
        return plain(self, request)

    site.Site.answer = curious
"""
"""A garden that asks books, in FLARE's process for a job."""


def test_a_site_answers_the_centre_and_no_other_site(
    stage: Rehearsal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    (tmp_path / "sitecustomize.py").write_text(CURIOUS % str(said))
    garden = stage.sites["garden"]
    garden.stop()
    try:
        with monkeypatch.context() as patched:
            patched.setenv("PYTHONPATH", str(tmp_path))
            garden.start()
        job = job_of(stage.centre, stage.simulated, HERE, name="curious")
        record = submission.submit(stage.centre, job, quiet, 1.0)
    finally:
        garden.stop()
        garden.start()
    assert record is not None
    assert b"only the centre is answered." in said.read_bytes()


# Where a federation listens, and what lies on its disks


def test_nothing_listens_beyond_the_loopback_interface_while_a_job_runs(stage: Rehearsal, ran: Ran) -> None:
    file = stage.centre.file
    assert {("127.0.0.1", file.port), ("127.0.0.1", file.admin_port)} <= ran.listening
    assert {host for host, _ in ran.listening} == {"127.0.0.1"}


def test_private_keys_are_their_owners_only(stage: Rehearsal) -> None:
    keys = [*stage.centre.folder.rglob("*.key"), stage.centre.folder / "state" / "cert.json"]
    assert len(keys) == 6
    for key in keys:
        assert key.stat().st_mode & 0o777 == 0o600
        assert key.parent.stat().st_mode & 0o777 == 0o700


@pytest.fixture(scope="module")
def elsewhere(stage: Rehearsal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Centre, list[Daemon]]]:
    """A federation of books alone, on another address, in which nobody looks at a job's files."""
    folder = tmp_path_factory.mktemp("elsewhere") / "federation"
    port, admin_port = free_ports(2)
    address = "127.0.0.2"
    file = FederationFile(
        name="elsewhere", host=address, bind=address, port=port, admin_port=admin_port, sites=["books"], days=9
    )
    made, centre = kits.init(file, folder), Centre(folder)
    for kit in (made.centre, made.sites["books"]):
        edit(kit / "local" / "resources.json", lambda v: v.pop("app_validator"))
    prepare_centre(centre, stage.simulated.server, quiet)
    with running(Daemon(made.centre, "centre", kits.SERVER)) as server:
        await_port(admin_port, server)
        until(lambda: first_words(port, tls(None, made.admin), address))
        prepare_site(made.sites["books"], stage.simulated.sites["books"], quiet)
        with running(Daemon(made.sites["books"], "site", "books")) as site:
            until(lambda: connected(centre) == {"books"})
            yield centre, [server, site]


def test_a_centre_listens_on_the_address_that_it_was_told_and_on_no_other(
    elsewhere: tuple[Centre, list[Daemon]],
) -> None:
    centre, (server, _) = elsewhere
    file = centre.file
    found = listeners([server])
    assert {host for host, port in found if port == file.port} == {"127.0.0.2"}
    assert {host for host, port in found if port == file.admin_port} == {"127.0.0.1"}
    assert all(host.startswith("127.") for host, _ in found)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", file.port), 60)


@pytest.mark.parametrize("side", ["server", "client"])
def test_a_foreign_class_is_not_made_even_where_nobody_looks_at_a_jobs_files(
    stage: Rehearsal, elsewhere: tuple[Centre, list[Daemon]], tmp_path: Path, side: str
) -> None:
    centre, _ = elsewhere
    mark = tmp_path / "ran"
    job = job_of(centre, stage.simulated, ["books"], name=f"foreign-{side}")
    folder = write_job(job, centre.folder / "forged" / side, ["books"])
    naming_a_command(side)(folder, mark)
    with centre.admin() as admin:
        number = admin.submit(folder)
    status, detail = ended(centre, number)
    assert "server: OK" in detail, "nobody has looked"
    assert status in ("FINISHED:EXECUTION_EXCEPTION", "FINISHED:ABNORMAL")
    assert not mark.exists()
    assert not Record(centre.runs / job.id).is_finished
