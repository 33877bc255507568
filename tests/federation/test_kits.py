from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from fedstill.common.errors import FedstillError
from fedstill.federation.files import FederationFile
from fedstill.federation.joining import refuses
from fedstill.federation.kits import Kind, Kits, check_kit, expiry, init, kits_in, organisation, settle

KINDS: tuple[Kind, ...] = ("site", "centre", "admin")


def a_file(**changes: Any) -> FederationFile:
    values = {"name": "hospitals", "host": "localhost", "sites": ["north", "south-1"], "days": 30}
    return FederationFile.model_validate(values | changes)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    """Kits that no test changes."""
    return init(a_file(), tmp_path_factory.mktemp("federation") / "kits")


@pytest.fixture
def kits(made: Kits, tmp_path: Path) -> Kits:
    """A copy that a test may change."""
    return kits_in(Path(shutil.copytree(made.centre.parent, tmp_path / "kits")))


def all_of(kits: Kits) -> list[Path]:
    return [kits.centre, kits.admin, *kits.sites.values()]


def local(kit: Path, name: str) -> Any:
    return json.loads((kit / "local" / name).read_text())


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def secrets_of(kit: Path) -> dict[Path, bytes]:
    return {path: text for path, text in files_of(kit).items() if path.suffix in {".crt", ".key", ".pem"}}


def certificate_of(kit: Path, name: str = "client.crt") -> x509.Certificate:
    return x509.load_pem_x509_certificate((kit / "startup" / name).read_bytes())


def signed_for(kits: Kits, kit: Path, start: datetime, end: datetime) -> None:
    """The kit's own certificate with other dates, signed by the federation's root."""
    key = serialization.load_pem_private_key(
        json.loads((kits.centre.parent / "state" / "cert.json").read_text())["root_pri_key"].encode(), None
    )
    old = certificate_of(kit)
    new = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), x509.random_serial_number(), start, end)
    signed = new.sign(key, hashes.SHA256())  # type: ignore[arg-type]
    (kit / "startup" / "client.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def test_every_party_gets_its_kit_and_every_kit_passes_its_check(made: Kits) -> None:
    folder = made.centre.parent
    assert made.centre == folder / "centre"
    assert made.admin == folder / "admin"
    assert made.sites == {"north": folder / "sites" / "north", "south-1": folder / "sites" / "south-1"}
    assert check_kit(made.centre, "centre") == "server"
    assert check_kit(made.admin, "admin") == "admin@centre.org"
    assert [check_kit(kit, "site") for kit in made.sites.values()] == ["north", "south-1"]
    assert kits_in(folder) == made
    assert sorted(path.name for path in folder.iterdir()) == ["admin", "centre", "federation.yaml", "sites", "state"]


def test_only_their_owner_can_read_what_is_made(made: Kits) -> None:
    paths = [made.centre.parent, *made.centre.parent.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o600}


def test_a_kit_holds_no_secret_but_its_own(made: Kits) -> None:
    state = json.loads((made.centre.parent / "state" / "cert.json").read_text())
    keys = {name: pair["pri_key"] for name, pair in state.items() if isinstance(pair, dict)}
    assert set(keys) == {"server", "admin@centre.org", "north", "south-1"}
    keys["root"] = state["root_pri_key"]
    owners = {"server": made.centre, "admin@centre.org": made.admin, **made.sites}
    for owner, kit in owners.items():
        text = b"".join(files_of(kit).values()).decode()
        assert [name for name, key in keys.items() if key.strip() in text] == [owner]


def test_kits_hold_nothing_to_run_and_only_what_is_needed(made: Kits) -> None:
    names = {str(path) for path in files_of(made.sites["north"])}
    startup = {f"startup/{name}" for name in ("fed_client.json", "client.crt", "client.key", "rootCA.pem")}
    assert names == startup | {f"local/{name}" for name in ("resources.json", "authorization.json", "log_config.json")}


@pytest.mark.parametrize("role", ["project_admin", "org_admin", "lead", "member"])
def test_nobody_may_ship_code_or_use_the_shell_of_any_site_or_the_centre(made: Kits, role: str) -> None:
    for kit in [made.centre, *made.sites.values()]:
        rights = local(kit, "authorization.json")["permissions"][role]
        assert {rights[key] for key in ("byoc", "shell_commands", "server-predeployed-flwr", "operate")} == {"none"}


def test_the_centre_may_only_submit_watch_and_end_jobs(made: Kits) -> None:
    def given(kit: Path) -> set[str]:
        permissions = local(kit, "authorization.json")["permissions"]
        others = [right for role in ("org_admin", "lead", "member") for right in permissions[role].values()]
        assert set(others) == {"none"}
        return {key for key, who in permissions["project_admin"].items() if who != "none"}

    assert given(made.sites["north"]) == {"submit_job", "check_status"}
    jobs = {"submit_job", "list_jobs", "get_job_meta", "abort_job", "delete_job"}
    assert given(made.centre) == jobs | {"check_status"}


def test_jobs_are_signed_and_made_of_our_own_classes_only(made: Kits) -> None:
    for kit in [made.centre, *made.sites.values()]:
        resources = local(kit, "resources.json")
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert resources["class_allow_list"] == [
            "fedstill.federation.flare.",
            "nvflare.collab.runtime.controller.CollabController",
            "nvflare.collab.runtime.executor.CollabExecutor",
        ]
    for path in (made.centre / "startup" / "fed_server.json", made.sites["north"] / "startup" / "fed_client.json"):
        assert json.loads(path.read_text())["require_signed_jobs"] is True


def test_no_log_leaves_a_site(made: Kits) -> None:
    resources = local(made.sites["north"], "resources.json")
    assert resources["allow_log_streaming"] is False
    assert [part["id"] for part in resources["components"]] == [
        "resource_manager",
        "resource_consumer",
        "process_launcher",
    ]
    assert "log_receiver" not in [part["id"] for part in local(made.centre, "resources.json")["components"]]


def test_the_centre_keeps_all_in_its_kit_also_when_the_folder_is_moved(kits: Kits, tmp_path: Path) -> None:
    def paths(centre: Path) -> list[str]:
        resources = local(centre, "resources.json")
        parts = {part["id"]: part.get("args", {}) for part in resources["components"]}
        snapshots = resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"]
        return [parts["job_manager"]["uri_root"], snapshots]

    moved = kits.centre.parent.rename(tmp_path / "moved") / "centre"
    settle(moved)
    assert paths(moved) == [str(moved / "jobs"), str(moved / "snapshots")]
    fresh = init(a_file(), tmp_path / "fresh").centre
    assert paths(fresh) == [str(fresh / "jobs"), str(fresh / "snapshots")]
    assert b"/tmp/nvflare" not in b"".join(files_of(fresh).values())


@pytest.mark.parametrize(
    ("host", "bind", "names", "addresses"),
    [
        ("localhost", "127.0.0.1", {"localhost"}, {"127.0.0.1"}),
        ("127.0.0.2", "127.0.0.2", {"localhost"}, {"127.0.0.1", "127.0.0.2"}),
        ("fed.example.org", "0.0.0.0", {"localhost", "fed.example.org"}, {"127.0.0.1"}),
    ],
)
def test_sites_reach_the_centre_by_its_host_and_commands_on_this_machine_only(
    tmp_path: Path, host: str, bind: str, names: set[str], addresses: set[str]
) -> None:
    asked = {"bind": bind} if bind == "0.0.0.0" else {}
    kits = init(a_file(host=host, port=9102, admin_port=9103, **asked), tmp_path / "kits")
    server = json.loads((kits.centre / "startup" / "fed_server.json").read_text())["servers"][0]
    admin = json.loads((kits.admin / "startup" / "fed_admin.json").read_text())["admin"]
    site = json.loads((kits.sites["north"] / "startup" / "fed_client.json").read_text())["servers"][0]
    assert (server["service"]["target"], server["connection_security"]) == (f"{bind}:9102", "mtls")
    assert local(kits.centre, "fedstill.json") == {"bind": bind}
    assert (server["admin_host"], server["admin_port"]) == (admin["host"], admin["port"]) == ("127.0.0.1", 9103)
    assert (site["service"], site["identity"]) == ({"target": f"{host}:9102", "scheme": "grpc"}, "server")
    certificate = certificate_of(kits.centre, "server.crt")
    known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(known.get_values_for_type(x509.DNSName)) == names
    assert {str(address) for address in known.get_values_for_type(x509.IPAddress)} == addresses


@pytest.mark.parametrize("days", [30, 500])
def test_certificates_are_good_for_as_many_days_as_asked(tmp_path: Path, days: int) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    kits = init(a_file(days=days), tmp_path / "kits")
    asked = timedelta(days=days)
    assert before + asked <= kits.good_until <= datetime.now(UTC) + asked
    assert {expiry(kit) for kit in all_of(kits)} == {kits.good_until}
    assert [check_kit(kit, "site") for kit in kits.sites.values()] == ["north", "south-1"]
    role = certificate_of(kits.admin).subject.get_attributes_for_oid(x509.NameOID.UNSTRUCTURED_NAME)
    assert [attribute.value for attribute in role] == ["project_admin"]


def test_a_new_site_gets_a_kit_and_the_others_keep_theirs(tmp_path: Path) -> None:
    folder, days = tmp_path / "kits", 500
    first = init(a_file(days=days), folder)
    before = [files_of(kit) for kit in all_of(first)]
    second = init(a_file(days=days, sites=["north", "south-1", "west"]), folder)
    assert [files_of(kit) for kit in all_of(first)] == before
    assert check_kit(second.sites["west"], "site") == "west"
    assert second.good_until == first.good_until
    root = certificate_of(first.centre, "rootCA.pem")
    certificate_of(second.sites["west"]).verify_directly_issued_by(root)


def test_a_removed_site_is_refused_by_the_centre_and_let_in_again_when_it_is_back(kits: Kits) -> None:
    folder, kit = kits.centre.parent, kits.sites["south-1"]
    before = files_of(kit)
    after = init(a_file(sites=["north"]), folder)
    assert (list(after.sites), after.removed) == (["north"], ("south-1",))
    assert json.loads((kits.centre / "disabled_clients.json").read_text()) == {"disabled_clients": ["south-1"]}
    assert files_of(kit) == before
    assert init(a_file(), folder).removed == ()
    assert json.loads((kits.centre / "disabled_clients.json").read_text()) == {"disabled_clients": []}
    assert files_of(kit) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "clinics"}, "name is hospitals in the kits .* and clinics in the file"),
        ({"host": "127.0.0.1"}, "host is localhost .* and 127.0.0.1 in the file"),
        ({"port": 9000}, "port is 8002 .* and 9000 in the file"),
        ({"admin_port": 9000}, "admin_port is 8003 .* and 9000 in the file"),
        ({"days": 31}, "days is 30 .* and 31 in the file"),
    ],
)
def test_a_changed_federation_is_refused_and_nothing_is_touched(kits: Kits, change: dict[str, Any], words: str) -> None:
    before = files_of(kits.centre.parent)
    with pytest.raises(FedstillError, match=words + ": `--renew` makes new kits for everybody"):
        init(a_file(**change), kits.centre.parent)
    assert files_of(kits.centre.parent) == before


def test_renewing_makes_all_certificates_anew_and_keeps_other_files(kits: Kits) -> None:
    folder = kits.centre.parent
    others = [kits.centre / "runs" / "one" / "metrics.jsonl", kits.sites["north"] / "site.yaml"]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    before = {kit: secrets_of(kit) for kit in all_of(kits)}
    renewed = init(a_file(host="127.0.0.1", days=40), folder, renew=True)
    for kit, secrets in before.items():
        assert secrets_of(kit).keys() == secrets.keys()
        assert not set(secrets_of(kit).values()) & set(secrets.values())
    assert [path.read_text() for path in others] == ["mine", "mine"]
    assert check_kit(renewed.sites["north"], "site") == "north"
    assert renewed.good_until > kits.good_until
    assert kits_in(folder) == renewed


@pytest.mark.parametrize("renew", [False, True])
def test_when_flare_fails_nothing_is_lost(kits: Kits, renew: bool) -> None:
    before = files_of(kits.centre.parent)
    sites = ["north", "root_cert"]  # the word under which FLARE keeps its own root
    with pytest.raises(FedstillError, match=r"FLARE could not make the kits, nothing was changed; it said: .*"):
        init(a_file().model_copy(update={"sites": sites}), kits.centre.parent, renew=renew)
    assert files_of(kits.centre.parent) == before
    assert not list(kits.centre.parent.glob(".making*"))


def test_an_expired_federation_can_only_be_renewed(kits: Kits) -> None:
    folder = kits.centre.parent
    now = datetime.now(UTC)
    shutil.copy(kits.centre / "startup" / "server.crt", kits.centre / "startup" / "client.crt")
    signed_for(kits, kits.centre, now - timedelta(days=9), now - timedelta(days=2))
    (kits.centre / "startup" / "client.crt").replace(kits.centre / "startup" / "server.crt")
    with pytest.raises(FedstillError, match=f"were good until {now - timedelta(days=2):%Y-%m-%d}.*--renew"):
        init(a_file(sites=["north", "south-1", "west"]), folder)
    assert check_kit(init(a_file(), folder, renew=True).centre, "centre") == "server"


def test_without_its_state_a_federation_can_only_be_renewed(kits: Kits) -> None:
    (kits.centre.parent / "state" / "cert.json").unlink()
    with pytest.raises(FedstillError, match=r"cert\.json is missing.*--renew"):
        init(a_file(), kits.centre.parent)


def test_ipv6_hosts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match="host: FLARE does not support addresses such as ::1"):
        init(a_file(host="::1"), tmp_path / "kits")


def test_where_there_is_no_federation_the_command_that_makes_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match=r"there is no federation in .*fedstill federation init"):
        kits_in(tmp_path)


def test_organisations_have_only_characters_that_flare_allows() -> None:
    assert organisation("St-Mary_2") == "St_Mary_2"


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_without_a_kit_is_said_to_be_none(tmp_path: Path, kind: Kind) -> None:
    with pytest.raises(FedstillError, match="there is no kit in"):
        check_kit(tmp_path / "nowhere", kind)


def test_a_kit_of_another_kind_is_named(made: Kits) -> None:
    with pytest.raises(FedstillError, match="is the centre's kit, not a site's"):
        check_kit(made.centre, "site")
    with pytest.raises(FedstillError, match="is a site's kit, not the centre's"):
        check_kit(made.sites["north"], "centre")
    with pytest.raises(FedstillError, match="is the centre's admin's kit, not a site's"):
        check_kit(made.admin, "site")


@pytest.mark.parametrize(
    "name",
    [
        "startup/client.crt",
        "startup/client.key",
        "startup/rootCA.pem",
        "local/authorization.json",
        "local/resources.json",
    ],
)
def test_a_missing_file_is_named(kits: Kits, name: str) -> None:
    (kits.sites["north"] / name).unlink()
    with pytest.raises(FedstillError, match=f"incomplete, {name} is missing"):
        check_kit(kits.sites["north"], "site")


def test_files_that_are_no_certificate_or_key_are_named(kits: Kits) -> None:
    startup = kits.sites["north"] / "startup"
    (startup / "client.key").write_text("nothing")
    with pytest.raises(FedstillError, match=r"client\.key is not a private key"):
        check_kit(kits.sites["north"], "site")
    (startup / "client.crt").write_text("nothing")
    with pytest.raises(FedstillError, match=r"client\.crt is not a certificate"):
        check_kit(kits.sites["north"], "site")


def test_an_expired_certificate_is_said_to_be_with_its_date(kits: Kits) -> None:
    kit, now = kits.sites["north"], datetime.now(UTC)
    signed_for(kits, kit, now - timedelta(days=9), now - timedelta(days=2))
    with pytest.raises(FedstillError, match=f"was good until {now - timedelta(days=2):%Y-%m-%d %H:%M} UTC.*--renew"):
        check_kit(kit, "site")


def test_a_certificate_of_the_future_points_to_the_clock(kits: Kits) -> None:
    kit, now = kits.sites["north"], datetime.now(UTC)
    signed_for(kits, kit, now + timedelta(days=2), now + timedelta(days=9))
    with pytest.raises(FedstillError, match="check this machine's clock"):
        check_kit(kit, "site")


def test_a_certificate_of_another_federation_is_refused(kits: Kits, tmp_path: Path) -> None:
    other = init(a_file(), tmp_path / "other")
    root = other.sites["north"] / "startup" / "rootCA.pem"
    shutil.copy(root, kits.sites["north"] / "startup" / "rootCA.pem")
    with pytest.raises(FedstillError, match="was not signed by the kit's own rootCA"):
        check_kit(kits.sites["north"], "site")


def test_before_a_site_joins_centre_and_kit_look_at_each_others_certificates(made: Kits, tmp_path: Path) -> None:
    other = init(a_file(), tmp_path / "other")
    startup = made.centre / "startup"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=startup / "rootCA.pem")
    context.load_cert_chain(startup / "server.crt", startup / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    kit_of_both = Path(shutil.copytree(other.sites["north"], tmp_path / "both"))
    shutil.copy(startup / "rootCA.pem", kit_of_both / "startup" / "rootCA.pem")  # it trusts the centre, not the reverse

    def answer(plain: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as secured:
            secured.sendall(b"settings")

    with socket.create_server(("127.0.0.1", 0)) as centre:

        def why(kit: Path) -> str:
            thread = threading.Thread(target=lambda: answer(centre.accept()[0]), daemon=True)
            thread.start()
            said = refuses(kit, *centre.getsockname())
            thread.join()
            return said

        assert why(made.sites["north"]) == ""
        assert "certificate" in why(other.sites["north"])
        assert why(kit_of_both) != ""


def test_a_kit_that_leaves_encryption_to_a_proxy_is_not_asked_for_a_certificate(kits: Kits) -> None:
    settings = kits.sites["north"] / "startup" / "fed_client.json"
    values = json.loads(settings.read_text())
    values["client"]["connection_security"] = "clear"
    settings.write_text(json.dumps(values))
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        assert refuses(kits.sites["north"], *proxy.getsockname()) == ""
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()  # nobody called


def test_another_sites_key_is_refused(kits: Kits) -> None:
    shutil.copy(kits.sites["south-1"] / "startup" / "client.key", kits.sites["north"] / "startup" / "client.key")
    with pytest.raises(FedstillError, match=r"client\.key does not belong to the certificate"):
        check_kit(kits.sites["north"], "site")


def test_a_key_that_others_can_read_is_refused_with_the_command_that_helps(kits: Kits) -> None:
    key = kits.sites["north"] / "startup" / "client.key"
    key.chmod(0o640)
    with pytest.raises(FedstillError, match=f"can be read by others.*chmod 600 {key}"):
        check_kit(kits.sites["north"], "site")
