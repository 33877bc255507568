"""The role of each row, drawn at random: training, validation, the tests, the public set, or unused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from fedstill.data.corpus import Corpus, Ints
from fedstill.data.dealing import Bools, allot, choose, draw_counts, sizes_of, strata_of

if TYPE_CHECKING:
    from fedstill.data.partition import PartitionSpec


class Role(IntEnum):
    """What a row is used for."""

    TRAIN = 0
    VALIDATION = 1
    TEST = 2
    GLOBAL_TEST = 3
    PUBLIC = 4
    LABELLED = 5
    UNUSED = 6


@dataclass(frozen=True)
class Units:
    """Rows that stay together: those of one group, but held-out and validating rows are separate units.

    A unit has the label and the domain of its first row.
    """

    of_row: Ints
    row_domains: Ints
    labels: Ints
    domains: Ints
    held_out: Bools
    validating: Bools
    leaking: Bools
    """Free units whose group has held-out or validating rows, and validating ones whose group has held-out rows."""

    @property
    def free(self) -> Bools:
        """Those whose role is drawn."""
        return ~(self.held_out | self.validating | self.leaking)

    def rows(self, chosen: Bools) -> int:
        """How many rows the chosen units have."""
        return int(np.count_nonzero(chosen[self.of_row]))


def units_of(corpus: Corpus) -> Units:
    """The units of a corpus."""
    rows = len(corpus)
    domains = np.zeros(rows, np.int64) if corpus.domains is None else corpus.domains
    held_out = np.zeros(rows, np.bool_) if corpus.held_out is None else corpus.held_out
    _, group = np.unique(np.arange(rows) if corpus.groups is None else corpus.groups, return_inverse=True)
    validating = np.zeros(rows, np.bool_) if corpus.validating is None else corpus.validating
    kind = np.where(held_out, 2, validating)
    _, first, of_row = np.unique(3 * group + kind, return_index=True, return_inverse=True)
    highest = np.zeros(rows, np.int64)
    np.maximum.at(highest, group, kind)
    return Units(
        of_row=of_row.astype(np.int64),
        row_domains=domains,
        labels=corpus.labels[first],
        domains=domains[first],
        held_out=held_out[first],
        validating=validating[first],
        leaking=(kind < highest[group])[first],
    )


def draw_roles(random: np.random.Generator, units: Units, spec: PartitionSpec) -> tuple[Ints, dict[str, int]]:
    """A role for every unit, and how many rows are unused, by reason."""
    kept = units.free
    skewed = kept if spec.label_alpha is None else _keep_label_shares(random, units, kept, spec.label_alpha)
    # The limit on rows comes second, so that a skewed domain can still reach it.
    capped = skewed if spec.rows_per_domain is None else _keep_rows(random, units, skewed, spec.rows_per_domain)
    roles = np.where(units.held_out, Role.TEST, Role.UNUSED).astype(np.int64)
    roles[units.validating & ~units.leaking] = Role.VALIDATION
    # Where domains matter, the roles are drawn in each domain separately.
    homes = units.domains if spec.kind in ("domain", "task_dirichlet") else np.zeros_like(units.domains)
    for home in np.unique(homes[capped]):
        members = np.flatnonzero(capped & (homes == home))
        held_out = int(np.count_nonzero(units.held_out & (homes == home))) if units.held_out.any() else None
        validation = 0.0 if (units.validating & (homes == home)).any() else spec.validation
        roles[members] = _roles_of_pool(random, units.labels[members], spec, held_out, validation)
    dropped = {
        f"shares a group with a held-out{' or validation' if units.validating.any() else ''} row": units.leaking,
        "left over by label_alpha": kept & ~skewed,
        "left over by rows_per_domain": skewed & ~capped,
        "left over by public_share or labelled_share": capped & (roles == Role.UNUSED),
    }
    return roles, {why: units.rows(which) for why, which in dropped.items() if which.any()}


def _keep_label_shares(random: np.random.Generator, units: Units, kept: Bools, alpha: float) -> Bools:
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


def _keep_rows(random: np.random.Generator, units: Units, kept: Bools, limit: int) -> Bools:
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


def _roles_of_pool(
    random: np.random.Generator, labels: Ints, spec: PartitionSpec, held_out: int | None, validation: float
) -> Ints:
    """Roles for units that are divided together; if there are `held_out` units, no other test units are drawn."""
    strata, sizes = strata_of(labels)
    pool = _Pool(random, strata, np.full(len(labels), Role.TRAIN, np.int64))
    global_size = 0
    if spec.global_test:
        global_size = _global_test_size(len(labels), spec) if held_out is None else held_out
        shares = random.dirichlet(np.full(len(sizes), spec.global_test_alpha))
        pool.move(Role.TRAIN, Role.GLOBAL_TEST, draw_counts(random, global_size, shares, sizes))
    pool.move_fraction(Role.TRAIN, Role.PUBLIC, spec.public, pool.sizes(Role.TRAIN))
    pool.move_fraction(Role.PUBLIC, Role.LABELLED, spec.labelled_public, pool.sizes(Role.PUBLIC))
    rest = pool.sizes(Role.TRAIN)
    test = spec.test if held_out is None else 0.0
    if spec.global_test and held_out is None:
        test = global_size / max(1, rest.sum())
    pool.move_fraction(Role.TRAIN, Role.TEST, test, rest)
    pool.move_fraction(Role.TRAIN, Role.VALIDATION, validation, rest)
    # With its own generator, because the private rows must not depend on the number of public rows.
    spare = _Pool(random.spawn(1)[0], strata, pool.roles)
    for role, share in ((Role.PUBLIC, spec.public_share), (Role.LABELLED, spec.labelled_share)):
        if share < 1:
            spare.move_fraction(role, Role.UNUSED, 1 - share, pool.sizes(role))
    return pool.roles


def _global_test_size(units: int, spec: PartitionSpec) -> int:
    """The size at which the global test and the client's own test, drawn from the rest, are equal to within one."""

    def client_test(left: int) -> int:
        return round(spec.test * (left - round(spec.public * left)))

    share = spec.test * (1 - spec.public)
    highest = min(units, int(units * share / (1 + share)) + 2)
    return next(size for size in range(highest, -1, -1) if client_test(units - size) >= size)


@dataclass(frozen=True)
class _Pool:
    """Units with the stratum and the present role of each."""

    random: np.random.Generator
    strata: Ints
    roles: Ints

    def sizes(self, role: Role) -> Ints:
        """How many units of each stratum have this role."""
        return sizes_of(self.strata[self.roles == role], int(self.strata.max()) + 1)

    def move(self, source: Role, target: Role, quotas: Ints) -> None:
        """Change the role of random units, in each stratum as many as its quota."""
        members = np.flatnonzero(self.roles == source)
        self.roles[members[choose(self.random, self.strata[members], quotas)]] = target

    def move_fraction(self, source: Role, target: Role, fraction: float, sizes: Ints) -> None:
        """Change the role of this fraction of all units, rounded; in each stratum its share, to within one."""
        total = round(fraction * int(sizes.sum()))
        self.move(source, target, allot(self.random, fraction * sizes, total, self.sizes(source)))
