"""Kits: the folders that the parties of a federation receive, with certificates, keys and strict policies."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from fedstill.common.errors import FedstillError
from fedstill.federation.files import FederationFile, read_file

Kind = Literal["site", "centre", "admin"]

SERVER = "server"
"""The centre's name in its certificate; sites reach it by the federation file's `host`."""
ADMIN = "admin@centre.org"
"""The name with which the centre's own commands log in."""

CLASSES = [
    "fedstill.federation.flare.",
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
]
"""The only classes that a job may name."""

VALIDATOR = {"path": "fedstill.federation.flare.NothingButNames"}
"""The class that checks a job before any part of it is used."""

DENIED = ("byoc", "shell_commands", "server-predeployed-flwr", "clone_job", "manage_job", "operate", "view")
"""FLARE's groups of rights, all denied; the single rights below are allowed."""
AT_CENTRE = ("submit_job", "list_jobs", "get_job_meta", "check_status", "abort_job", "delete_job")
AT_SITE = ("submit_job", "check_status")
"""A site needs `submit_job` too: FLARE checks it when a job arrives there."""

CONFIG = {"centre": "fed_server.json", "site": "fed_client.json", "admin": "fed_admin.json"}
PAIR = {"centre": "server", "site": "client", "admin": "client"}
WHOSE = {"centre": "the centre's", "site": "a site's", "admin": "the centre's admin's"}
POLICIES = ("resources.json", "authorization.json")
"""Without the second, FLARE allows everything."""

HAND_OUT = "ask the centre for the kit again"
RENEW = "`--renew` makes new kits for everybody, and all of them have to be handed out again"


@dataclass(frozen=True)
class Kits:
    """Where a federation's kits are."""

    centre: Path
    admin: Path
    sites: dict[str, Path]
    good_until: datetime
    """When the first certificate expires."""
    removed: tuple[str, ...] = ()
    """Sites that have a kit but are no longer in the file: the centre refuses them from its next start on."""


def init(file: FederationFile, folder: Path, renew: bool = False) -> Kits:
    """Make the missing kits, or with `renew` new certificates for everybody; other files in the kits stay."""
    if ":" in file.host:
        raise FedstillError(
            f"host: FLARE does not support addresses such as {file.host}: give a name or an IPv4 address."
        )
    state = None
    if (folder / "federation.yaml").is_file() and not renew:
        state = _state_to_go_on_from(file, folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as scratch:
        made = _provision(file, Path(scratch), state)
        certificates = json.loads((made / "state" / "cert.json").read_text())
        _last_as_long_as_root(certificates)
        kits = Path(scratch) / "kits"
        _assemble(file, made / "prod_00", kits, certificates)
        _write_json(kits / "centre" / "disabled_clients.json", {"disabled_clients": _removed(file, certificates)})
        _write_json(kits / "state" / "cert.json", certificates)
        settle(kits / "centre", folder / "centre")
        _move_files(kits, folder)
        whole = Path(scratch) / "whole"
        whole.mkdir()
        (whole / "federation.yaml").write_text(yaml.safe_dump(file.model_dump(exclude_none=True), sort_keys=False))
        _move_files(whole, folder)
    return kits_in(folder)


def kits_in(folder: Path) -> Kits:
    """The kits of a federation that `init` has made."""
    if not (folder / "federation.yaml").is_file():
        raise FedstillError(f"there is no federation in {folder}: make one with `fedstill federation init FILE`.")
    file = read_file(folder / "federation.yaml", FederationFile)
    centre, admin = folder / "centre", folder / "admin"
    sites = {name: folder / "sites" / name for name in file.sites}
    removed = json.loads((centre / "disabled_clients.json").read_text())["disabled_clients"]
    good_until = min(expiry(kit) for kit in (centre, admin, *sites.values()))
    return Kits(centre, admin, sites, good_until, tuple(removed))


def settle(centre: Path, home: Path | None = None) -> None:
    """Write the absolute paths that FLARE needs into the centre's kit; on every start, as a kit may have moved."""
    path = centre / "local" / "resources.json"
    resources = json.loads(path.read_text())
    here = (home or centre).resolve()
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(here / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(here / "jobs")
    _write_json(path, resources)


def expiry(kit: Path) -> datetime:
    """When the kit's certificate, or the root that signed it, expires."""
    own = _certificate(_startup(kit, f"{PAIR[_kind(kit)]}.crt"))
    root = _certificate(_startup(kit, "rootCA.pem"))
    return min(own.not_valid_after_utc, root.not_valid_after_utc)


def check_kit(kit: Path, kind: Kind) -> str:
    """The name of the party that the kit is for; an error says what is wrong with the kit."""
    found = _kind(kit)
    if found != kind:
        raise FedstillError(f"{kit} is {WHOSE[found]} kit, not {WHOSE[kind]}.")
    for policy in POLICIES if kind != "admin" else ():
        _existing(kit / "local" / policy, kit)
    key_path = _startup(kit, f"{PAIR[kind]}.key")
    certificate = _certificate(_startup(kit, f"{PAIR[kind]}.crt"))
    root = _certificate(_startup(kit, "rootCA.pem"))
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        raise FedstillError(
            f"the certificate in {kit} was not signed by the kit's own rootCA.pem; {HAND_OUT}."
        ) from None
    _check_dates(kit, certificate, root)
    if _private_key(key_path).public_key() != certificate.public_key():
        raise FedstillError(f"{key_path} does not belong to the certificate beside it; {HAND_OUT}.")
    if os.name == "posix" and key_path.stat().st_mode & 0o077:
        raise FedstillError(f"{key_path} can be read by others on this machine: run `chmod 600 {key_path}`.")
    return _common_name(certificate)


def _check_dates(kit: Path, *certificates: x509.Certificate) -> None:
    now = datetime.now(UTC)
    since = max(certificate.not_valid_before_utc for certificate in certificates)
    until = min(certificate.not_valid_after_utc for certificate in certificates)
    if now > until:
        raise FedstillError(
            f"the certificate in {kit} was good until {until:%Y-%m-%d %H:%M} UTC; "
            "the centre makes new ones with `fedstill federation init FILE --renew`."
        )
    if now < since:
        raise FedstillError(
            f"the certificate in {kit} is good from {since:%Y-%m-%d %H:%M} UTC on: check this machine's clock."
        )


def _kind(kit: Path) -> Kind:
    for kind, name in CONFIG.items():
        if (kit / "startup" / name).is_file():
            return kind  # type: ignore[return-value]
    raise FedstillError(
        f"there is no kit in {kit}: the centre makes kits with `fedstill federation init FILE` and hands them out."
    )


def _startup(kit: Path, name: str) -> Path:
    return _existing(kit / "startup" / name, kit)


def _existing(path: Path, kit: Path) -> Path:
    if not path.is_file():
        raise FedstillError(f"the kit {kit} is incomplete, {path.relative_to(kit)} is missing; {HAND_OUT}.")
    return path


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise FedstillError(f"{path} is not a certificate; {HAND_OUT}.") from None


def _private_key(path: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError):
        raise FedstillError(f"{path} is not a private key; {HAND_OUT}.") from None


def _common_name(certificate: x509.Certificate) -> str:
    return str(certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def _state_to_go_on_from(file: FederationFile, folder: Path) -> Path:
    """The certificates of an earlier `init`; an error if the new file does not match them."""
    old = read_file(folder / "federation.yaml", FederationFile)
    for key in ("name", "host", "port", "admin_port", "bind", "days"):
        was, now = getattr(old, key), getattr(file, key)
        if was != now:
            raise FedstillError(f"{key} is {was} in the kits in {folder} and {now} in the file: {RENEW}.")
    until = expiry(folder / "centre")
    if until < datetime.now(UTC):
        raise FedstillError(f"the certificates in {folder} were good until {until:%Y-%m-%d %H:%M} UTC: {RENEW}.")
    state = folder / "state" / "cert.json"
    if not state.is_file():
        raise FedstillError(f"{state} is missing, and without it no kit can be added: {RENEW}.")
    return state


def _removed(file: FederationFile, certificates: dict[str, Any]) -> list[str]:
    known = {name for name, pair in certificates.items() if isinstance(pair, dict)}
    return sorted(known - {SERVER, ADMIN, *file.sites})


def _provision(file: FederationFile, scratch: Path, state: Path | None) -> Path:
    """The folder in which FLARE made everybody's files; `state` has the certificates of an earlier time to reuse."""
    made = scratch / file.name
    (made / "state").mkdir(mode=0o700, parents=True)
    if state is not None:
        shutil.copy(state, made / "state" / "cert.json")
    (scratch / "project.yml").write_text(yaml.safe_dump(_project(file)))
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", ".", "--force"]
    done = subprocess.run(command, cwd=scratch, stdin=subprocess.DEVNULL, capture_output=True, text=True, umask=0o077)
    if done.returncode or not (made / "prod_00").is_dir():
        if "No module named" in done.stderr:
            raise FedstillError("a federation needs NVIDIA FLARE: pip install 'fedstill[federation]'.")
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-5:]
        raise FedstillError("FLARE could not make the kits, nothing was changed; it said: " + " ".join(said))
    return made


def _project(file: FederationFile) -> dict[str, Any]:
    server = {
        "name": SERVER,
        "type": "server",
        "org": organisation(SERVER),
        "fed_learn_port": file.port,
        "admin_port": file.admin_port,
        "default_host": file.host,
        "host_names": ["localhost", "127.0.0.1"],
    }
    admin = {"name": ADMIN, "type": "admin", "org": organisation(SERVER), "role": "project_admin"}
    sites = [{"name": site, "type": "client", "org": organisation(site)} for site in file.sites]
    static = {"config_folder": "config", "scheme": "grpc", "require_signed_jobs": True}
    builders: list[tuple[str, dict[str, Any]]] = [
        ("workspace.WorkspaceBuilder", {}),
        ("static_file.StaticFileBuilder", static),
        ("cert.CertBuilder", {"root_valid_days": file.days}),
        ("signature.SignatureBuilder", {}),
    ]
    return {
        "api_version": 3,
        "name": file.name,
        "participants": [server, admin, *sites],
        "builders": [{"path": f"nvflare.lighter.impl.{path}", "args": args} for path, args in builders],
    }


def organisation(site: str) -> str:
    """The name of the site's organisation in FLARE, which allows fewer characters."""
    return re.sub(r"[^A-Za-z0-9_]", "_", site)


def _last_as_long_as_root(certificates: dict[str, Any]) -> None:
    """Sign certificates that expire before their root again, with the same key: FLARE's last 360 days at most."""
    root = x509.load_pem_x509_certificate(certificates["root_cert"].encode())
    key = serialization.load_pem_private_key(certificates["root_pri_key"].encode(), None)
    assert isinstance(key, RSAPrivateKey)
    for pair in certificates.values():
        if not isinstance(pair, dict):
            continue
        old = x509.load_pem_x509_certificate(pair["cert"].encode())
        if old.not_valid_after_utc < root.not_valid_after_utc:
            pair["cert"] = _signed_until(old, root.not_valid_after_utc, key).decode()


def _signed_until(old: x509.Certificate, until: datetime, root_key: RSAPrivateKey) -> bytes:
    new = (
        x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), x509.random_serial_number())
        .not_valid_before(old.not_valid_before_utc)
        .not_valid_after(until)
    )
    for extension in old.extensions:
        new = new.add_extension(extension.value, extension.critical)
    return new.sign(root_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _assemble(file: FederationFile, made: Path, kits: Path, certificates: dict[str, Any]) -> None:
    """Copy the files of FLARE's that are used, with our policies instead of FLARE's."""
    _copy_kit(made / SERVER, kits / "centre", "centre", certificates[SERVER])
    _copy_kit(made / ADMIN, kits / "admin", "admin", certificates[ADMIN])
    for site in file.sites:
        _copy_kit(made / site, kits / "sites" / site, "site", certificates[site])
        _lock_site(made / site, kits / "sites" / site)
    _lock_centre(file, made / SERVER, kits / "centre")
    _local_admin(file, kits / "admin")


def _copy_kit(source: Path, kit: Path, kind: Kind, pair: dict[str, str]) -> None:
    for name in ("startup", "local", "transfer"):
        (kit / name).mkdir(parents=True)
    for name in (CONFIG[kind], "rootCA.pem"):
        shutil.copy(source / "startup" / name, kit / "startup")
    (kit / "startup" / f"{PAIR[kind]}.crt").write_text(pair["cert"])
    (kit / "startup" / f"{PAIR[kind]}.key").write_text(pair["pri_key"])
    shutil.copy(source / "local" / "resources.json.default", kit / "local" / "resources.json")
    if kind != "admin":
        shutil.copy(source / "local" / "log_config.json.default", kit / "local" / "log_config.json")


def _lock_site(source: Path, kit: Path) -> None:
    resources = _locked(source)
    resources["allow_log_streaming"] = False
    resources["components"] = [part for part in resources["components"] if part["id"] != "site_log_streamer"]
    _write_json(kit / "local" / "resources.json", resources)
    _write_json(kit / "local" / "authorization.json", _authorization(AT_SITE))


def _lock_centre(file: FederationFile, source: Path, kit: Path) -> None:
    resources = _locked(source)
    resources["servers"][0] |= {
        "heart_beat_timeout": 30,
        "max_num_clients": max(100, len(file.sites)),
        "download_job_url": "http://127.0.0.1/",
    }
    schedule = {"max_jobs": 1, "min_schedule_interval": 1.0, "max_schedule_interval": 2.0, "max_schedule_count": 1800}
    for part in resources["components"]:
        if part["id"] == "job_scheduler":
            part["args"] = schedule
    resources["components"] = [part for part in resources["components"] if part["id"] != "log_receiver"]
    _write_json(kit / "local" / "resources.json", resources)
    _write_json(kit / "local" / "authorization.json", _authorization(AT_CENTRE))
    _write_json(kit / "local" / "fedstill.json", {"bind": file.listens_on})
    startup = json.loads((kit / "startup" / CONFIG["centre"]).read_text())
    startup["servers"][0]["service"]["target"] = f"{file.listens_on}:{file.port}"
    startup["servers"][0]["admin_host"] = "127.0.0.1"
    _write_json(kit / "startup" / CONFIG["centre"], startup)


def _local_admin(file: FederationFile, kit: Path) -> None:
    startup = json.loads((kit / "startup" / CONFIG["admin"]).read_text())
    startup["admin"] |= {"host": "127.0.0.1", "port": file.admin_port}
    _write_json(kit / "startup" / CONFIG["admin"], startup)


def _locked(source: Path) -> dict[str, Any]:
    resources: dict[str, Any] = json.loads((source / "local" / "resources.json.default").read_text())
    policy = {"class_allow_list": CLASSES, "class_list_enforcement_mode": "enforce", "app_validator": VALIDATOR}
    return resources | policy


def _authorization(given: tuple[str, ...]) -> dict[str, Any]:
    nothing = dict.fromkeys((*DENIED, "submit_job", "download_job"), "none")
    roles = {role: dict(nothing) for role in ("project_admin", "org_admin", "lead", "member")}
    roles["project_admin"] |= dict.fromkeys(given, "any")
    return {"format_version": "1.0", "permissions": roles}


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")
    path.chmod(0o600)


def _move_files(source: Path, folder: Path) -> None:
    """Move each file to its place, readable by its owner only; other files there stay."""
    for path in _walk(source):
        place = folder / path.relative_to(source)
        if path.is_dir():
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.chmod(0o700)
        else:
            path.chmod(0o600)
            os.replace(path, place)


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir():
            yield from _walk(path)
