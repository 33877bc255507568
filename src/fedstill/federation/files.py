"""The files that users write for a federation: its members, what a site has and allows, what the centre has."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from fedstill.common.errors import FedstillError
from fedstill.common.settings import Settings
from fedstill.common.units import bytes_of, seconds_of
from fedstill.config.mistakes import read_settings
from fedstill.config.source import Source
from fedstill.data.corpora import CorpusSpec
from fedstill.data.corpora.spec import FILES
from fedstill.learning.phases import PhaseSettings
from fedstill.models import ModelSpec
from fedstill.parties.party import TrainSettings

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
"""Allowed names of sites and federations: they are used in certificates, folders and message addresses."""

RESERVED = {"server", "admin", "all", "client", "centre", "root_cert", "root_pri_key"}


def _kind_of_part(value: Any) -> str:
    return "<share>" if isinstance(value, int | float) else "<corpus>"


Part = Annotated[
    Annotated[float, Field(ge=0, lt=1), Tag("<share>")] | Annotated[CorpusSpec, Tag("<corpus>")],
    Discriminator(_kind_of_part),
]
"""Rows from a separate file, or a share of the corpus."""

Duration = Annotated[float, BeforeValidator(seconds_of), Field(gt=0)]
"""Seconds, written `90s`, `30min` or `2h`."""

Size = Annotated[int, BeforeValidator(lambda size: bytes_of(size) if isinstance(size, str) else size), Field(ge=1)]
"""Bytes, written `50MB` or `2GiB`."""


def check_names(names: list[str]) -> list[str]:
    for name in names:
        if not re.match(NAME, name):
            raise ValueError(f"{name!r} cannot name a site: use letters, digits, - and _, at most 63")
        if name.lower() in RESERVED:
            raise ValueError(f"a site cannot be called {name!r}, which is a reserved name")
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("two sites have the same name")
    return names


class FederationFile(Settings):
    """The federation's sites and the centre's address, from which `fedstill federation init` makes kits."""

    name: str = Field(pattern=NAME)
    host: str
    """The name or address at which sites reach the centre; it is part of the centre's certificate."""
    port: int = Field(8002, ge=1, le=65535)
    """The only port that sites connect to, and the only one to open in a firewall."""
    admin_port: int = Field(8003, ge=1, le=65535)
    """For commands on this machine only: bound to the loopback interface."""
    bind: str | None = None
    """The address that the centre listens on; 0.0.0.0: all addresses. Not needed if `host` is a loopback address."""
    sites: Annotated[list[str], AfterValidator(check_names)] = Field(min_length=1)
    days: int = Field(365, ge=1, le=3650)
    """How many days certificates are valid."""

    @field_validator("bind")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None:
            ipaddress.IPv4Address(value)
        return value

    @model_validator(mode="after")
    def _asked(self) -> FederationFile:
        if self.port == self.admin_port:
            raise ValueError("port and admin_port must differ: one is for sites, the other for this machine only")
        if self.bind is None and not self.is_loopback:
            raise ValueError(
                f"bind: set the address that the centre listens on for {self.host}; 0.0.0.0: all addresses"
            )
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the host."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def listens_on(self) -> str:
        """The address that the centre's port is bound to."""
        if self.bind is not None:
            return self.bind
        return "127.0.0.1" if self.host == "localhost" else self.host


class Limits(Settings):
    """A site's limits: it refuses experiments that exceed them, and counts itself what left in each experiment."""

    parameters: bool = False
    """Whether the site may send parameters of its model; opinions are always allowed."""
    masks: bool = False
    """Whether the site takes part only where the centre learns sums and no single reply: `wire: {mask: true}`."""
    min_rows: int = Field(50, ge=1)
    """The fewest rows to train on; with fewer, what a model says is mostly about single rows."""
    rounds: int | None = Field(None, ge=1)
    """The most rounds of one experiment; one that is repeated with the same answers does not count again."""
    calls: int | None = Field(None, ge=1)
    """The most answers in one experiment; a round takes one or more."""
    bytes: Size | None = None
    """The most bytes that leave in one experiment."""
    epsilon: float | None = Field(None, gt=0)
    """The most that all experiments together may spend of epsilon; those without `privacy` are then refused."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """With `epsilon`: the largest delta of an experiment."""
    experiments: list[Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]] | None = None
    """Hashes of allowed experiments (8 digits or more); others are refused. `submit` prints an experiment's hash."""


class SiteFile(Settings):
    """What a site has and what it allows. The file, and every file that it names, stays at the site."""

    corpus: CorpusSpec
    """Its private rows."""
    test: Part = 0.1
    """The rows on which the site's model is measured: a separate file, or a share of the corpus."""
    validation: Part = 0.1
    public: CorpusSpec | None = None
    """Its own copy of the public samples; if there is none, the centre sends them."""
    model: ModelSpec | None = None
    """Replaces the model that the experiment gives this site."""
    train: TrainSettings = TrainSettings()
    distill: PhaseSettings = PhaseSettings()
    """Settings that `train` and `distill` do not set are the experiment's."""
    device: str = "auto"
    threads: int | None = Field(None, ge=1)
    label_counts: bool = True
    """Whether the centre is told how many rows of each label there are."""
    scores: bool = True
    """Whether the centre is told how well the site's model does on the site's test rows."""
    own: dict[str, str] = Field(default_factory=dict)
    """The user-written algorithms and models that are allowed: class name -> `file.py:Class` on this machine."""
    limits: Limits = Limits()


class CentreFile(Settings):
    """What the centre has: `server.yaml`."""

    test: CorpusSpec
    """Labelled rows on which the server's model is measured; with a `domain:` column, one score for each domain."""
    public: CorpusSpec | None = None
    """The public samples; their labels are never read."""
    labelled: CorpusSpec | None = None
    """Labelled rows that methods such as FedID learn from; their texts are public."""
    device: str = "auto"
    deadline: Duration = 3600.0
    """How long a site may work on one call."""
    silence: Duration = 60.0
    """How long a site may be silent before the call fails."""
    grace: Duration = 60.0
    """How long a call waits for the other sites when as many have answered as the quorum needs."""
    failures: int = Field(3, ge=1)
    """After this many failures in a row a site is left out until it answers again."""
    own: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_samples(self) -> CentreFile:
        if self.labelled is not None and self.public is None:
            raise ValueError("labelled rows need public ones: set `public:` too")
        return self


CORPORA = {"corpus", "test", "validation", "public", "labelled"}

F = TypeVar("F", FederationFile, SiteFile, CentreFile)


def read_file(path: Path, kind: type[F]) -> F:
    """Read one of these files; relative paths start from its folder, and errors name the line."""
    if not path.is_file():
        raise FedstillError(f"there is no file {path}.")
    file, folder = read_settings(Source.read(path), kind), path.resolve().parent
    whole = to_values(file)
    for key in CORPORA & set(whole):
        if isinstance(corpus := whole[key], dict) and corpus.get("path") is not None:
            places = {part: str(folder / Path(corpus[part]).expanduser()) for part in FILES if corpus.get(part)}
            whole[key] = corpus | places
    whole |= {"own": {name: _whole(place, folder) for name, place in whole["own"].items()}} if "own" in whole else {}
    return kind.model_validate(whole)


def to_values(file: Settings) -> dict[str, Any]:
    """The values that a file sets, without defaults: settings that it leaves out are still inherited."""
    return file.model_dump(mode="json", exclude_unset=True)


def _whole(place: str, folder: Path) -> str:
    return str(folder / place) if ".py:" in place else place
