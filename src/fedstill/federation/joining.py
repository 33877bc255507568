"""The commands of a site's operator: check everything and join; leave."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole
from fedstill.common.units import size_text
from fedstill.data import corpora
from fedstill.data.corpora import CorpusSpec
from fedstill.federation import kits, own_record
from fedstill.federation.budget import SENT
from fedstill.federation.daemon import Daemon, Presence, answers
from fedstill.federation.data import training_rows
from fedstill.federation.files import SiteFile, read_file, to_values
from fedstill.models.build import party_tokenizer

Say = Callable[[str], None]

LOGS = ("log", "log.txt", "log.json", "error_log.txt", "audit.log", "local/site.json")
"""What FLARE and `join` write into a kit beside the folders of jobs."""
ROOM = 2 << 30
"""The free disk space that a site needs, in bytes: for the states of two rounds, models and tokens."""


def prepare_site(kit: Path, site: Path, say: Say, is_kept: bool = True) -> str:
    """Check kit, data, disk, versions and the connection, and keep the file in the kit; returns the site's name."""
    name = kits.check_kit(kit, "site")
    say(f"kit: {name}, good until {kits.expiry(kit):%Y-%m-%d}")
    file = read_file(site, SiteFile)
    for part in ("corpus", "test", "validation"):
        if isinstance(spec := getattr(file, part), CorpusSpec):
            rows = corpora.load(spec)
            say(f"{part}: {len(rows):,} rows, labels {', '.join(rows.label_names)}")
            for notice in rows.notices:
                say(f"note: {notice}")
            if part == "corpus" and (few := training_rows(file, rows)) < file.limits.min_rows:
                raise FedstillError(
                    f"{site}: {few} rows are left to train on, and limits.min_rows is {file.limits.min_rows}: what a "
                    "model of so few rows says is mostly about single rows. Set a lower min_rows to take part."
                )
    if file.public is not None:
        say(f"public: {len(corpora.load_public(file.public)):,} texts")
    if file.model is not None:
        file.model.check()
        party_tokenizer(file.model, "bert-tiny")  # downloads the model if necessary
        say(f"model: {file.model}")
    free = shutil.disk_usage(kit).free
    if free < ROOM:
        raise FedstillError(f"{kit} is on a disk with {size_text(free)} free; at least {size_text(ROOM)} are needed.")
    say(f"disk: {size_text(free)} free")
    say(f"versions: {versions()}")
    host, port = centre_of(kit)
    if why := answers(host, port):
        raise FedstillError(
            f"the centre does not answer at {host}:{port} ({why}). Is it serving, and does the firewall let this "
            "machine reach that port?"
        )
    if why := refuses(kit, host, port):
        raise FedstillError(
            f"{host}:{port} and {kit} do not know each other ({why}): the kit is of another federation, or older than "
            "the centre's certificates. Ask the centre for the kit that it has made last."
        )
    say(f"connection: {host}:{port} answers")
    if is_kept:
        keep_file(kit, site)
    return name


def keep_file(kit: Path, site: Path) -> None:
    """Keep what the site's file says in the kit, where the jobs read it."""
    write_whole(kit / "local" / "site.json", _kept(read_file(site, SiteFile)))


def takes_part_already(kit: Path, site: Path) -> int | None:
    """The process that takes part with this kit and file; an error if it does with a file that says something else."""
    kits.check_kit(kit, "site")
    if (pid := Presence(kit).pid) is None:
        return None
    held = kit / "local" / "site.json"
    if not held.exists() or held.read_bytes() != _kept(read_file(site, SiteFile)):
        raise FedstillError(
            f"{kit} takes part already, in process {pid}, and {site} says something else than the file it joined with: "
            f"fedstill federation leave {kit}, then join again."
        )
    return pid


def _kept(file: SiteFile) -> bytes:
    return json.dumps(to_values(file), indent=1).encode()


def versions() -> str:
    """The versions of the packages that must be compatible with the centre's."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        packages = {name: version(name) for name in ("fedstill", "nvflare", "torch", "transformers")}
    except PackageNotFoundError as error:
        raise FedstillError(f'{error.name} is not installed: run `pip install "fedstill[federation]"`.') from error
    return ", ".join(f"{name} {number}" for name, number in packages.items()) + f", Python {sys.version.split()[0]}"


def centre_of(kit: Path) -> tuple[str, int]:
    """The centre's address in a site's kit."""
    config = json.loads((kit / "startup" / "fed_client.json").read_text())
    host, _, port = config["servers"][0]["service"]["target"].rpartition(":")
    return host, int(port)


def refuses(kit: Path, host: str, port: int, within_s: float = 5.0) -> str:
    """Empty if centre and kit accept each other's certificates, else the reason why not."""
    startup = kit / "startup"
    settings = json.loads((startup / "fed_client.json").read_text())
    if settings["client"].get("connection_security", "mtls") != "mtls":
        return ""  # the kit's owner has changed it: whatever stands before the centre checks certificates
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    context.check_hostname = False  # FLARE's own connection checks it
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), within_s) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            secured.recv(1)  # the centre looks at the kit's certificate after its own was accepted
    except ssl.SSLError as error:
        return getattr(error, "verify_message", "") or error.reason or str(error)
    except OSError as error:
        return "" if isinstance(error, TimeoutError) else str(error)
    return ""


def join(kit: Path, name: str, say: Say) -> None:
    """Take part in jobs until interrupted."""
    daemon, tail = Daemon(kit, "site", name), _Tail(kit, say)
    with Presence(kit):
        say(f"{name} takes part; leave with Ctrl-C, or: fedstill federation leave {kit}")
        try:
            daemon.keep_alive(tail.look)
        finally:
            daemon.stop()


class _Tail:
    """Prints new lines of the site's logs."""

    def __init__(self, kit: Path, say: Say) -> None:
        self.folder, self.say = kit / "runs", say
        self.read = {path: path.stat().st_size for path in self.folder.glob("*/site.log")}

    def look(self) -> None:
        for path in sorted(self.folder.glob("*/site.log")):
            with path.open(encoding="utf-8") as log:
                log.seek(self.read.get(path, 0))
                for line in log:
                    self.say(f"{path.parent.name}: {line.rstrip()}")
                self.read[path] = log.tell()


def leave(kit: Path) -> bool:
    """End the process that takes part with this kit; False if there is none."""
    kits.check_kit(kit, "site")
    return Presence(kit).end()


def gained(kit: Path, is_forgotten: bool = False) -> list[str]:
    """What the site had alone and has now, a line an experiment, and how to use its model."""
    lines = []
    for folder in sorted(path for path in (kit / "runs").glob("*") if path.is_dir()):
        if (said := own_record.gain(folder)) is None:
            continue
        lines.append(f"{folder.name}: {said}")
        if own_record.has_model(folder) and not is_forgotten:
            lines.append(f"your model of it: fedstill predict {folder} TEXTS.csv")
    return lines


def remains(kit: Path) -> dict[str, int]:
    """What a site's jobs left in its kit, with sizes: states, models, tokens of its rows, public samples, logs.

    The kit itself is not among it, and neither is the list of what left, which holds nothing private.
    """
    runs = [path for path in (kit / "runs").glob("*") if path.name != SENT]
    flares = [path for path in kit.glob("*-*-*-*-*") if re.fullmatch(r"[0-9a-f-]{36}", path.name)]
    named = [path for name in LOGS if (path := kit / name).exists()]
    return {str(path.relative_to(kit)): _size(path) for path in sorted([*runs, *flares, *named])}


def forget(kit: Path) -> None:
    """Remove all that `remains` names."""
    for name in remains(kit):
        path = kit / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _size(path: Path) -> int:
    return sum(one.lstat().st_size for one in (path, *path.rglob("*")) if not one.is_dir())
