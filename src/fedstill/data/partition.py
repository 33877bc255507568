"""A partition: which client holds which rows, and for what purpose. Disjoint, complete and seeded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator
from safetensors.numpy import load_file

from fedstill.common.errors import FedstillError
from fedstill.common.files import undamaged
from fedstill.common.settings import Settings
from fedstill.data.corpus import Corpus, Ints
from fedstill.data.dealing import deal_by_class, deal_by_client, sizes_of, strata_of
from fedstill.data.roles import Role, Units, draw_roles, units_of

ATTEMPTS = 100
PARTITION = "partition.safetensors"
"""The file of a run that says who holds which rows."""

KINDS_WITH = {
    "clients": ("dirichlet", "iid", "task_dirichlet"),
    "alpha": ("dirichlet", "task_dirichlet"),
    "reading": ("dirichlet", "task_dirichlet"),
    "label_alpha": ("domain",),
    "global_test": ("domain",),
    "global_test_alpha": ("domain",),
}


class PartitionSpec(Settings):
    """How a corpus is divided among clients, the public set and the tests."""

    kind: Literal["domain", "dirichlet", "iid", "task_dirichlet"] = "domain"
    clients: int | None = Field(default=None, ge=1)
    alpha: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """With task_dirichlet, 0 means one client per task."""
    reading: Literal["class", "hsu"] = "class"
    public: float = Field(default=0.2, ge=0, lt=1)
    labelled_public: float = Field(default=0.0, ge=0, lt=1)
    public_share: float = Field(default=1.0, gt=0, le=1)
    """The share of the unlabelled public rows that is used; all other rows are the same for any share."""
    labelled_share: float = Field(default=1.0, gt=0, le=1)
    validation: float = Field(default=0.1, ge=0, lt=1)
    test: float = Field(default=0.1, ge=0, lt=1)
    global_test: bool = False
    global_test_alpha: float = Field(default=0.8, gt=0, allow_inf_nan=False)
    label_alpha: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    rows_per_domain: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _options_belong_to_the_kind(self) -> Self:
        for name, kinds in KINDS_WITH.items():
            # Defaults are allowed: a resolved experiment writes every option and must be readable again.
            if self.kind not in kinds and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} belongs to kind {' or '.join(kinds)}, not to {self.kind}: leave it out")
        if self.alpha == 0 and self.kind != "task_dirichlet":
            raise ValueError("alpha must be greater than 0; only with kind task_dirichlet, 0 means one client per task")
        if not self.is_by_domain and self.clients is None:
            raise ValueError(f"kind {self.kind} needs `clients:`, the number of clients that share the rows")
        return self

    @property
    def is_by_domain(self) -> bool:
        """Whether every client is a domain and has its name."""
        return self.kind == "domain" or (self.kind == "task_dirichlet" and self.alpha == 0)

    @model_validator(mode="after")
    def _fractions_leave_something(self) -> Self:
        if self.validation + self.test >= 1:
            raise ValueError("validation + test must stay below 1, or nothing is left to train on")
        if self.labelled_public and not self.public:
            raise ValueError("labelled_public is a fraction of the public rows: set public above 0")
        return self


@dataclass(frozen=True)
class Partition:
    """Row numbers, sorted, by client and purpose; every row of the corpus is in exactly one array."""

    train: dict[str, Ints]
    validation: dict[str, Ints]
    test: dict[str, Ints]
    public: Ints
    labelled: Ints
    global_test: dict[str, Ints]
    unused: Ints
    counts: dict[str, int] = field(default_factory=dict)
    """How many rows are unused, by reason."""

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients' names, sorted."""
        return tuple(sorted(self.train))

    def measured_on_validation(self) -> Self:
        """The same partition without its test rows: every other validation row of each client takes their place."""
        if bare := [name for name, rows in self.validation.items() if len(rows) < 2]:
            raise FedstillError(
                f"measure: validation needs two validation rows for each client, and {bare[0]} has fewer: raise "
                "partition.validation."
            )
        tests = (*self.test.values(), *self.global_test.values())
        return replace(
            self,
            validation={name: rows[::2] for name, rows in self.validation.items()},
            test={name: rows[1::2] for name, rows in self.validation.items()},
            global_test={},
            unused=np.sort(np.concatenate([self.unused, *tests])),
            counts=self.counts | {"test rows, set aside": sum(map(len, tests))},
        )

    def check(self, rows: int) -> None:
        """Raise an error unless every row from 0 to rows - 1 is assigned, or unused, exactly once."""
        assigned = np.concatenate([array for key, array in self.to_arrays().items() if not key.startswith("counts/")])
        strange = assigned[(assigned < 0) | (assigned >= rows)]
        if len(strange):
            raise FedstillError(
                f"The partition names row {strange[0]}, but the corpus has {rows} rows: it was made for another corpus."
            )
        times = np.bincount(assigned, minlength=rows)
        for wrong, what in ((times > 1, "more than once"), (times == 0, "nowhere")):
            if wrong.any():
                raise FedstillError(
                    f"The partition puts {wrong.sum()} of {rows} rows {what}, the first of them row {wrong.argmax()}: "
                    "make a new one."
                )

    def to_arrays(self) -> dict[str, Ints]:
        """The partition as one flat mapping, with keys such as "train/automotive"; `from_arrays` reads it."""
        arrays = {"public": self.public, "labelled": self.labelled, "unused": self.unused}
        for name in ("train", "validation", "test", "global_test"):
            arrays |= {f"{name}/{client}": rows for client, rows in getattr(self, name).items()}
        return arrays | {f"counts/{why}": np.array([count], np.int64) for why, count in self.counts.items()}

    @classmethod
    def read(cls, run: Path) -> Self:
        """The partition of a run's folder."""
        path = run / PARTITION
        with undamaged(path):
            return cls.from_arrays(load_file(path))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Ints]) -> Self:
        """The partition that `to_arrays` wrote."""
        named: dict[str, dict[str, Ints]] = {}
        for key in sorted(arrays):
            name, _, client = key.partition("/")
            named.setdefault(name, {})[client] = arrays[key]
        missing = sorted({"train", "validation", "test", "public", "labelled", "unused"} - set(named))
        if missing:
            raise FedstillError(f"The saved partition has no {', '.join(missing)}: make a new one.")
        return cls(
            train=named["train"],
            validation=named["validation"],
            test=named["test"],
            public=arrays["public"],
            labelled=arrays["labelled"],
            global_test=named.get("global_test", {}),
            unused=arrays["unused"],
            counts={why: int(count[0]) for why, count in named.get("counts", {}).items()},
        )


def label_counts(corpus: Corpus, rows: Ints) -> Ints:
    """How often each label of the corpus occurs in these rows."""
    return sizes_of(corpus.labels[rows], len(corpus.label_names))


def split(corpus: Corpus, spec: PartitionSpec, seed: int) -> Partition:
    """The partition that this seed draws; every client has rows to train on, and groups stay together."""
    units = units_of(corpus)
    _refuse_the_impossible(corpus, spec, units)
    clients = _client_names(corpus, spec)
    random = _generator(seed)
    for _ in range(ATTEMPTS):
        roles, counts = draw_roles(random, units, spec)
        if spec.is_by_domain:
            holders = units.row_domains
        else:
            holders = _draw_holders(random, units, roles, spec, len(clients))[units.of_row]
        partition = _gather(clients, roles[units.of_row], holders, counts, spec.global_test)
        empty = [client for client, rows in partition.train.items() if not len(rows)]
        if not empty:
            return partition
    raise FedstillError(_nothing_to_train_on(corpus, spec, clients, empty))


def _generator(seed: int) -> np.random.Generator:
    digest = hashlib.sha256(repr((seed, "partition")).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def _client_names(corpus: Corpus, spec: PartitionSpec) -> tuple[str, ...]:
    if spec.is_by_domain:
        return corpus.domain_names
    assert spec.clients is not None
    width = len(str(spec.clients))
    return tuple(f"client-{number:0{width}}" for number in range(1, spec.clients + 1))


def _refuse_the_impossible(corpus: Corpus, spec: PartitionSpec, units: Units) -> None:
    if not len(corpus):
        raise FedstillError(f"Corpus {corpus.name} has no rows to divide.")
    usable = units.free
    if spec.clients is not None and spec.clients > np.count_nonzero(usable):
        raise FedstillError(
            f"{spec.clients} clients cannot share the {units.rows(usable)} rows of {corpus.name} that are free "
            f"to train on ({np.count_nonzero(usable)} groups that stay together): use fewer clients or more rows."
        )
    if spec.kind not in ("domain", "task_dirichlet"):
        return
    if corpus.domains is None:
        lack = "no domain for a client" if spec.kind == "domain" else "no task to divide"
        raise FedstillError(
            f"Corpus {corpus.name} has no domains, so there is {lack}: name its `domain:` column, "
            "or use partition kind iid or dirichlet."
        )
    if not spec.is_by_domain:
        return
    if spec.clients not in (None, len(corpus.domain_names)):
        raise FedstillError(
            f"task_dirichlet with alpha 0 is one client per task; {corpus.name} has {len(corpus.domain_names)} tasks, "
            f"not {spec.clients}: leave `clients:` out, or set alpha above 0."
        )
    sizes = sizes_of(units.row_domains[usable[units.of_row]], len(corpus.domain_names))
    empty = [name for name, size in zip(corpus.domain_names, sizes, strict=True) if not size]
    if empty:
        raise FedstillError(
            f"Corpus {corpus.name} has no rows to train on for {', '.join(empty)}: leave these domains out, "
            "or give them rows."
        )


def _nothing_to_train_on(corpus: Corpus, spec: PartitionSpec, clients: tuple[str, ...], empty: list[str]) -> str:
    name, alpha = ("label_alpha", spec.label_alpha) if spec.kind == "domain" else ("alpha", spec.alpha)
    drawn = "" if alpha is None or spec.kind == "iid" else f", {name} {alpha:g}"
    skewed = "use fewer clients, a larger alpha, more rows, or reading: hsu, where all clients get equally many rows"
    advice = {
        "domain": "lower public, validation and test, raise label_alpha or rows_per_domain, or leave the domain out",
        "dirichlet": skewed,
        "task_dirichlet": skewed if alpha else "lower public, validation and test, or leave the task out",
        "iid": "use fewer clients or more rows, or lower public, validation and test",
    }
    return (
        f"{ATTEMPTS} {spec.kind} partitions of {corpus.name} ({len(corpus)} rows, {len(clients)} clients"
        f"{drawn}) each left a client without rows to train on (the last: {', '.join(empty[:5])}): {advice[spec.kind]}."
    )


def _gather(
    clients: tuple[str, ...], roles: Ints, holders: Ints, counts: dict[str, int], has_global: bool
) -> Partition:
    numbers = {name: holder for holder, name in enumerate(clients)}

    def rows(role: Role) -> Ints:
        return np.flatnonzero(roles == role).astype(np.int64)

    def by_client(role: Role) -> dict[str, Ints]:
        mine = rows(role)
        return {name: mine[holders[mine] == holder] for name, holder in sorted(numbers.items())}

    return Partition(
        train=by_client(Role.TRAIN),
        validation=by_client(Role.VALIDATION),
        test=by_client(Role.TEST),
        public=rows(Role.PUBLIC),
        labelled=rows(Role.LABELLED),
        global_test=by_client(Role.GLOBAL_TEST) if has_global else {},
        unused=rows(Role.UNUSED),
        counts=counts,
    )


def _draw_holders(random: np.random.Generator, units: Units, roles: Ints, spec: PartitionSpec, clients: int) -> Ints:
    """The client of every unit; -1 for units that no client holds."""
    holders = np.full(len(roles), -1, np.int64)
    parts = [np.flatnonzero(roles == role) for role in (Role.TRAIN, Role.VALIDATION, Role.TEST)]
    held = np.concatenate(parts)
    strata = np.full(len(roles), -1, np.int64)
    strata[held], sizes = strata_of((units.domains if spec.kind == "task_dirichlet" else units.labels)[held])
    if spec.kind == "iid":
        for part in parts:
            holders[part] = random.permutation(len(part)) % clients
    elif spec.reading == "class":
        shares = random.dirichlet(np.full(clients, spec.alpha), size=len(sizes))
        for part in parts:
            holders[part] = deal_by_class(random, strata[part], shares)
    else:
        shares = random.dirichlet(spec.alpha * sizes / sizes.sum(), size=clients)
        for part in parts:
            holders[part] = deal_by_client(random, strata[part], shares)
    return holders
