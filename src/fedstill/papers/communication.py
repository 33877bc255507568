"""Communication as formulas say it and as the ledger counted it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.numpy import load_file

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import nearest
from fedstill.data.partition import Partition
from fedstill.papers.grid import Grid, GridRun
from fedstill.papers.side_by_side import MISSING, Outcomes, SideBySide, finished, label
from fedstill.results.record import Record
from fedstill.wire.messages import SERVER


@dataclass(frozen=True)
class Sizes:
    """The letters of the formulas, read from a record."""

    N: int
    C: int
    K: int
    P: int
    T: int
    D: int
    """Distillation epochs: how often the public set is gone through in a round."""
    B: int
    """Public batches of one pass."""


@dataclass(frozen=True)
class Cost:
    """A method's formula (algorithms.md), what crosses besides it, and where the paper's differs."""

    formula: str
    numbers: Callable[[Sizes], int]
    besides: Mapping[str, Callable[[Sizes], int]]
    paper: str = ""


FLOAT = 4
"""Bytes of a number before a codec has shrunk it."""

LAST_MODEL: dict[str, Callable[[Sizes], int]] = {"the last model goes down after round T too (P)": lambda s: s.P}
LEFT_OUT = "the paper leaves out the factor C"

COSTS = {
    "FedAvg": Cost("P(K+1)T", lambda s: s.P * (s.K + 1) * s.T, LAST_MODEL),
    "FedDF": Cost(
        "P(K+1)T",
        lambda s: s.P * (s.K + 1) * s.T,
        LAST_MODEL,
        "the paper adds the clients' predictions, but the server has all models and predicts itself: the public set "
        "does not travel",
    ),
    "FedED": Cost("(P+NCK)T", lambda s: (s.P + s.N * s.C * s.K) * s.T, LAST_MODEL, LEFT_OUT),
    "FedKD": Cost("NCK", lambda s: s.N * s.C * s.K, {}, LEFT_OUT),
    "DSFL": Cost("NC(K+1)T", lambda s: s.N * s.C * (s.K + 1) * s.T, {}, LEFT_OUT),
    "MHAT": Cost("NC(K+1)T", lambda s: s.N * s.C * (s.K + 1) * s.T, {}, LEFT_OUT),
    "FedID": Cost(
        "NC(K+1)DT",
        lambda s: s.N * s.C * (s.K + 1) * s.D * s.T,
        {"the feedback, a number a public batch (BDT)": lambda s: s.B * s.D * s.T},
        f"{LEFT_OUT}, and writes one pass over the public set where a round makes D",
    ),
}


def communication(grid: Grid, outcomes: Outcomes) -> tuple[SideBySide, list[str], bool]:
    """Method, formulas, numbers predicted and counted; remarks; and whether every count is accounted for."""
    headings = ("method", "the paper's formula", "ours", "predicted", "in the ledger", "difference")
    ran: dict[str, Account] = {}
    for run in grid.runs:
        if run.row not in ran and finished([run], outcomes):  # one seed says it all
            ran[run.row] = Account.of(run)
    rows = []
    for row in grid.recipe.rows:
        group, column = next(iter(grid.recipe.groups)), next(iter(grid.recipe.columns))
        named = label(grid.recipe, row), grid.recipe.printed(group, row, column) or MISSING
        planned = any(run.row == row for run in grid.runs)
        nothing = (MISSING, MISSING, MISSING, "failed" if planned else MISSING)
        rows.append((*named, *(ran[row].cells() if row in ran else nothing)))
    differing: dict[str, list[str]] = {}
    for row, account in ran.items():
        differing.setdefault(account.cost.paper, []).append(row)
    remarks = [f"{', '.join(methods)}: {how}." for how, methods in differing.items() if how]
    sizes = [_letters(account.sizes) for account in ran.values()][:1]
    holds = all(account.unexplained == 0 for account in ran.values())
    return SideBySide(headings, (("", tuple(rows)),)), [*sizes, *remarks], holds


@dataclass(frozen=True)
class Account:
    """What a method's formula predicts and what its ledger holds, in numbers."""

    cost: Cost
    sizes: Sizes
    counted: int

    @classmethod
    def of(cls, run: GridRun) -> Account:
        """From the record alone."""
        name = run.experiment.algorithm["name"]
        if name not in COSTS:
            raise FedstillError(f"rows: no formula is known for {name}; {nearest(name, COSTS)}")
        # What several clients receive is one line with its bytes written once: a plain sum counts the downlink once.
        payload = sum(line["payload"] for line in Record(run.folder).ledger if line["verb"] != "hello")
        return cls(COSTS[name], sizes_of(run), payload // FLOAT)

    @property
    def predicted(self) -> int:
        """By the formula."""
        return self.cost.numbers(self.sizes)

    @property
    def unexplained(self) -> int:
        """What neither the formula nor the known rest accounts for."""
        return self.counted - self.predicted - sum(count(self.sizes) for count in self.cost.besides.values())

    def cells(self) -> tuple[str, ...]:
        """Formula, numbers predicted, numbers counted, and what lies between them."""
        return self.cost.formula, f"{self.predicted:,}", f"{self.counted:,}", self.verdict()

    def verdict(self) -> str:
        """Equal, or what the difference is."""
        if self.unexplained:
            return f"NOT EXPLAINED: {self.unexplained:+,}"
        known = [f"{count(self.sizes):+,}: {what}" for what, count in self.cost.besides.items()]
        return "; ".join(known) or "equal"


def sizes_of(run: GridRun) -> Sizes:
    """The formulas' letters as the run's record has them."""
    parts = Partition.from_arrays(load_file(run.folder / "partition.safetensors"))
    record = Record(run.folder)
    distill = run.experiment.resolved().distill
    return Sizes(
        N=len(parts.public),
        C=len(record.summary["labels"]),
        K=max(1, round(run.experiment.participation * len(parts.clients))),
        P=_floats(record.model_folder(SERVER) / "model.safetensors"),
        T=record.summary["rounds"],
        D=distill.epochs,
        B=math.ceil(len(parts.public) / distill.batch),
    )


def _floats(path: Path) -> int:
    """How many floating-point numbers a saved model holds."""
    with safe_open(path, framework="numpy") as file:
        names = file.keys()  # it is no mapping, and cannot be iterated itself
        slices = [file.get_slice(name) for name in names]
        return sum(math.prod(part.get_shape()) for part in slices if "F" in part.get_dtype())


def _letters(sizes: Sizes) -> str:
    return (
        f"N = {sizes.N:,} public rows, C = {sizes.C} classes, K = {sizes.K} clients, P = {sizes.P:,} parameters, "
        f"T = {sizes.T} rounds, D = {sizes.D} distillation epochs, B = {sizes.B} public batches a pass: read from the "
        "records. The ledger's payload in numbers, every message to several clients counted once; greetings, headers "
        "and the integers that name public rows are not in it."
    )
