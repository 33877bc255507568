"""A partition: who holds which rows, and what for. Disjoint, complete and seeded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedstill.data.corpus import Corpus, Ints
from fedstill.data.dealing import Bools, allot, choose, deal_by_class, deal_by_client, draw_counts, sizes_of, strata_of
from fedstill.errors import FedstillError
from fedstill.settings import Settings

ATTEMPTS = 100

KINDS_WITH = {
    "clients": ("dirichlet", "iid"),
    "alpha": ("dirichlet",),
    "reading": ("dirichlet",),
    "label_alpha": ("domain",),
    "global_test": ("domain",),
    "global_test_alpha": ("domain",),
}


class PartitionSpec(Settings):
    """How a corpus is divided among clients, the public set and the tests."""

    kind: Literal["domain", "dirichlet", "iid"] = "domain"
    clients: int | None = Field(default=None, ge=1)
    alpha: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    reading: Literal["class", "hsu"] = "class"
    public: float = Field(default=0.2, ge=0, lt=1)
    labelled_public: float = Field(default=0.0, ge=0, lt=1)
    public_share: float = Field(default=1.0, gt=0, le=1)
    """Of the unlabelled public rows, how many are used; everything else stays as it is with all of them."""
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
            # A default passes: a resolved experiment writes out every option and must read back.
            if self.kind not in kinds and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} belongs to kind {' or '.join(kinds)}, not to {self.kind}: leave it out")
        if self.kind != "domain" and self.clients is None:
            raise ValueError(f"kind {self.kind} needs clients: how many shall share the rows?")
        return self

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

    def check(self, rows: int) -> None:
        """Raises unless rows 0 to rows - 1 are each assigned, or unused, exactly once."""
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
                    "make it anew."
                )

    def to_arrays(self) -> dict[str, Ints]:
        """Everything as one flat mapping, with keys such as "train/automotive"; `from_arrays` undoes it."""
        arrays = {"public": self.public, "labelled": self.labelled, "unused": self.unused}
        for name in ("train", "validation", "test", "global_test"):
            arrays |= {f"{name}/{client}": rows for client, rows in getattr(self, name).items()}
        return arrays | {f"counts/{why}": np.array([count], np.int64) for why, count in self.counts.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Ints]) -> Self:
        """The partition that `to_arrays` wrote."""
        named: dict[str, dict[str, Ints]] = {}
        for key in sorted(arrays):
            name, _, client = key.partition("/")
            named.setdefault(name, {})[client] = arrays[key]
        missing = sorted({"train", "validation", "test", "public", "labelled", "unused"} - set(named))
        if missing:
            raise FedstillError(f"The saved partition has no {', '.join(missing)}: make it anew.")
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
    """The partition that this seed draws; every client has rows to train on, and no group crosses a split."""
    units = _units(corpus)
    _refuse_the_impossible(corpus, spec, units)
    clients = _client_names(corpus, spec)
    random = _generator(seed)
    for _ in range(ATTEMPTS):
        roles, counts = _draw_roles(random, units, spec)
        if spec.kind == "domain":
            holders = units.row_domains
        else:
            holders = _draw_holders(random, units, roles, spec, len(clients))[units.of_row]
        partition = _gather(clients, roles[units.of_row], holders, counts, spec.global_test)
        empty = [client for client, rows in partition.train.items() if not len(rows)]
        if not empty:
            return partition
    raise FedstillError(_nothing_to_train_on(corpus, spec, clients, empty))


class _Role(IntEnum):
    TRAIN = 0
    VALIDATION = 1
    TEST = 2
    GLOBAL_TEST = 3
    PUBLIC = 4
    LABELLED = 5
    UNUSED = 6


@dataclass(frozen=True)
class _Units:
    """What is dealt: the rows of a group, its held-out rows apart. Label and domain are those of the first row."""

    of_row: Ints
    row_domains: Ints
    labels: Ints
    domains: Ints
    held_out: Bools
    leaking: Bools
    """Not held out, but of a group that has held-out rows."""

    def rows(self, chosen: Bools) -> int:
        """How many rows the chosen units have."""
        return int(np.count_nonzero(chosen[self.of_row]))


def _units(corpus: Corpus) -> _Units:
    rows = len(corpus)
    domains = np.zeros(rows, np.int64) if corpus.domains is None else corpus.domains
    held_out = np.zeros(rows, np.bool_) if corpus.held_out is None else corpus.held_out
    _, group = np.unique(np.arange(rows) if corpus.groups is None else corpus.groups, return_inverse=True)
    _, first, of_row = np.unique(2 * group + held_out, return_index=True, return_inverse=True)
    in_held_out_group = np.bincount(group, weights=held_out)[group] > 0
    return _Units(
        of_row=of_row.astype(np.int64),
        row_domains=domains,
        labels=corpus.labels[first],
        domains=domains[first],
        held_out=held_out[first],
        leaking=(in_held_out_group & ~held_out)[first],
    )


def _generator(seed: int) -> np.random.Generator:
    digest = hashlib.sha256(repr((seed, "partition")).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def _client_names(corpus: Corpus, spec: PartitionSpec) -> tuple[str, ...]:
    if spec.clients is None:
        return corpus.domain_names
    width = len(str(spec.clients))
    return tuple(f"client-{number:0{width}}" for number in range(1, spec.clients + 1))


def _refuse_the_impossible(corpus: Corpus, spec: PartitionSpec, units: _Units) -> None:
    if not len(corpus):
        raise FedstillError(f"Corpus {corpus.name} has no rows to divide.")
    usable = ~units.held_out & ~units.leaking
    if spec.clients is not None and spec.clients > np.count_nonzero(usable):
        raise FedstillError(
            f"{spec.clients} clients cannot share the {units.rows(usable)} rows of {corpus.name} that are free "
            f"to train on ({np.count_nonzero(usable)} groups that stay together): use fewer clients or more rows."
        )
    if spec.kind != "domain":
        return
    if corpus.domains is None:
        raise FedstillError(
            f"Corpus {corpus.name} has no domains, so there is no client a domain: name its `domain:` column, "
            "or use partition kind iid or dirichlet."
        )
    sizes = sizes_of(units.row_domains[usable[units.of_row]], len(corpus.domain_names))
    empty = [name for name, size in zip(corpus.domain_names, sizes, strict=True) if not size]
    if empty:
        raise FedstillError(
            f"Corpus {corpus.name} has no rows to train on for {', '.join(empty)}: leave these domains out, "
            "or give them rows."
        )


def _nothing_to_train_on(corpus: Corpus, spec: PartitionSpec, clients: tuple[str, ...], empty: list[str]) -> str:
    alphas = {"domain": ("label_alpha", spec.label_alpha), "dirichlet": ("alpha", spec.alpha), "iid": ("alpha", None)}
    name, alpha = alphas[spec.kind]
    drawn = "" if alpha is None else f", {name} {alpha:g}"
    advice = {
        "domain": "lower public, validation and test, raise label_alpha or rows_per_domain, or leave the domain out",
        "dirichlet": "use fewer clients, a larger alpha, more rows, or reading: hsu, which deals equal sizes",
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

    def rows(role: _Role) -> Ints:
        return np.flatnonzero(roles == role).astype(np.int64)

    def by_client(role: _Role) -> dict[str, Ints]:
        mine = rows(role)
        return {name: mine[holders[mine] == holder] for name, holder in sorted(numbers.items())}

    return Partition(
        train=by_client(_Role.TRAIN),
        validation=by_client(_Role.VALIDATION),
        test=by_client(_Role.TEST),
        public=rows(_Role.PUBLIC),
        labelled=rows(_Role.LABELLED),
        global_test=by_client(_Role.GLOBAL_TEST) if has_global else {},
        unused=rows(_Role.UNUSED),
        counts=counts,
    )


def _draw_roles(random: np.random.Generator, units: _Units, spec: PartitionSpec) -> tuple[Ints, dict[str, int]]:
    """A role for every unit, and how many rows are unused, by reason."""
    kept = ~units.held_out & ~units.leaking
    skewed = kept if spec.label_alpha is None else _keep_label_shares(random, units, kept, spec.label_alpha)
    # The cap comes second so that a skewed domain still fills it.
    capped = skewed if spec.rows_per_domain is None else _keep_rows(random, units, skewed, spec.rows_per_domain)
    roles = np.where(units.held_out, _Role.TEST, _Role.UNUSED).astype(np.int64)
    homes = units.domains if spec.kind == "domain" else np.zeros_like(units.domains)
    for home in np.unique(homes[capped]):
        members = np.flatnonzero(capped & (homes == home))
        held_out = int(np.count_nonzero(units.held_out & (homes == home))) if units.held_out.any() else None
        roles[members] = _roles_of_pool(random, units.labels[members], spec, held_out)
    dropped = {
        "shares a group with a held-out row": units.leaking,
        "left over by label_alpha": kept & ~skewed,
        "left over by rows_per_domain": skewed & ~capped,
        "left over by public_share or labelled_share": capped & (roles == _Role.UNUSED),
    }
    return roles, {why: units.rows(which) for why, which in dropped.items() if which.any()}


def _keep_label_shares(random: np.random.Generator, units: _Units, kept: Bools, alpha: float) -> Bools:
    """In each domain, the largest subset whose label shares are those of a Dirichlet draw."""
    matching = np.zeros_like(kept)
    for domain in np.unique(units.domains[kept]):
        members = np.flatnonzero(kept & (units.domains == domain))
        strata, sizes = strata_of(units.labels[members])
        shares = random.dirichlet(np.full(len(sizes), alpha))
        with np.errstate(divide="ignore"):
            largest = (sizes / shares).min()
        quotas = np.floor(largest * shares + 1e-9).astype(np.int64)
        matching[members[choose(random, strata, quotas)]] = True
    return matching


def _keep_rows(random: np.random.Generator, units: _Units, kept: Bools, limit: int) -> Bools:
    """At most `limit` rows in each domain, in the labels' proportions, whole units only."""
    kept = kept.copy()
    for domain in np.unique(units.row_domains):
        rows = np.flatnonzero(kept[units.of_row] & (units.row_domains == domain))
        if len(rows) <= limit:
            continue
        members, weights = np.unique(units.of_row[rows], return_counts=True)
        strata, _ = strata_of(units.labels[members])
        sizes = np.bincount(strata, weights=weights)
        quotas = allot(random, sizes * (limit / len(rows)), limit, sizes.astype(np.int64))
        kept[members[~choose(random, strata, quotas, weights.astype(np.int64))]] = False
    return kept


def _roles_of_pool(random: np.random.Generator, labels: Ints, spec: PartitionSpec, held_out: int | None) -> Ints:
    """Roles for units that are divided together; `held_out` test units stand in for the test fraction."""
    strata, sizes = strata_of(labels)
    pool = _Pool(random, strata, np.full(len(labels), _Role.TRAIN, np.int64))
    global_size = 0
    if spec.global_test:
        global_size = _global_test_size(len(labels), spec) if held_out is None else held_out
        shares = random.dirichlet(np.full(len(sizes), spec.global_test_alpha))
        pool.move(_Role.TRAIN, _Role.GLOBAL_TEST, draw_counts(random, global_size, shares, sizes))
    pool.move_fraction(_Role.TRAIN, _Role.PUBLIC, spec.public, pool.sizes(_Role.TRAIN))
    pool.move_fraction(_Role.PUBLIC, _Role.LABELLED, spec.labelled_public, pool.sizes(_Role.PUBLIC))
    rest = pool.sizes(_Role.TRAIN)
    test = spec.test if held_out is None else 0.0
    if spec.global_test and held_out is None:
        test = global_size / max(1, rest.sum())
    pool.move_fraction(_Role.TRAIN, _Role.TEST, test, rest)
    pool.move_fraction(_Role.TRAIN, _Role.VALIDATION, spec.validation, rest)
    # A generator of its own: with fewer public rows the private ones must stay the same.
    spare = _Pool(random.spawn(1)[0], strata, pool.roles)
    for role, share in ((_Role.PUBLIC, spec.public_share), (_Role.LABELLED, spec.labelled_share)):
        if share < 1:
            spare.move_fraction(role, _Role.UNUSED, 1 - share, pool.sizes(role))
    return pool.roles


def _global_test_size(units: int, spec: PartitionSpec) -> int:
    """As many as the client's own test will have, to within one, of what the global test leaves."""

    def client_test(left: int) -> int:
        return round(spec.test * (left - round(spec.public * left)))

    share = spec.test * (1 - spec.public)
    highest = min(units, int(units * share / (1 + share)) + 2)
    return next(size for size in range(highest, -1, -1) if client_test(units - size) >= size)


@dataclass(frozen=True)
class _Pool:
    """Units on their way to their roles, with the stratum of each."""

    random: np.random.Generator
    strata: Ints
    roles: Ints

    def sizes(self, role: _Role) -> Ints:
        """How many units of each stratum have this role."""
        return sizes_of(self.strata[self.roles == role], int(self.strata.max()) + 1)

    def move(self, source: _Role, target: _Role, quotas: Ints) -> None:
        """From one role to another, as many of each stratum as its quota says."""
        members = np.flatnonzero(self.roles == source)
        self.roles[members[choose(self.random, self.strata[members], quotas)]] = target

    def move_fraction(self, source: _Role, target: _Role, fraction: float, sizes: Ints) -> None:
        """As many units as this fraction of all strata, rounded; of each stratum its share, within one."""
        total = round(fraction * int(sizes.sum()))
        self.move(source, target, allot(self.random, fraction * sizes, total, self.sizes(source)))


def _draw_holders(random: np.random.Generator, units: _Units, roles: Ints, spec: PartitionSpec, clients: int) -> Ints:
    """The client of every unit that a client holds; the others get -1."""
    holders = np.full(len(roles), -1, np.int64)
    parts = [np.flatnonzero(roles == role) for role in (_Role.TRAIN, _Role.VALIDATION, _Role.TEST)]
    held = np.concatenate(parts)
    strata = np.full(len(roles), -1, np.int64)
    strata[held], sizes = strata_of(units.labels[held])
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
