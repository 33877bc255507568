"""Communication costs: by formula, and as counted in the ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import nearest
from fedstill.data.partition import Partition
from fedstill.papers.grid import Grid, GridRun
from fedstill.papers.kept import KeptRun
from fedstill.papers.side_by_side import MISSING, Outcomes, SideBySide, finished, label
from fedstill.results.record import Record
from fedstill.wire.messages import SERVER


@dataclass(frozen=True)
class Sizes:
    """The values of the formulas' letters, read from a record."""

    N: int
    C: int
    K: int
    P: int
    T: int
    D: int
    """Distillation epochs: passes over the public set in a round."""
    B: int
    """Public batches in one pass."""


@dataclass(frozen=True)
class Cost:
    """A method's formula, what it sends in addition, and how the paper's formula differs."""

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
        {"the feedback, one number per public batch (BDT)": lambda s: s.B * s.D * s.T},
        f"{LEFT_OUT}, and counts one pass over the public set, while a round has D",
    ),
}


def communication(grid: Grid, outcomes: Outcomes) -> tuple[SideBySide, list[str], bool]:
    """A table of formulas, numbers predicted and numbers counted; remarks; whether all differences are explained."""
    headings = ("method", "the paper's formula", "ours", "predicted", "in the ledger", "difference")
    ran: dict[str, Account] = {}
    for run in grid.runs:
        if run.row not in ran and (ended := finished([run], outcomes)):  # one seed is enough: all send the same
            ran[run.row] = Account.kept(ended[0]) if isinstance(ended[0], KeptRun) else Account.of(run)
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
    """What a method's formula predicts and what its ledger counted, in numbers sent."""

    cost: Cost
    sizes: Sizes
    counted: int

    @classmethod
    def of(cls, run: GridRun) -> Account:
        """Read from the run's record."""
        name = run.experiment.algorithm["name"]
        if name not in COSTS:
            raise FedstillError(f"rows: no formula is known for {name}; {nearest(name, COSTS)}")
        # A message to several clients is one line, so a plain sum counts it once.
        payload = sum(line["payload"] for line in Record(run.folder).ledger if line["verb"] != "hello")
        return cls(COSTS[name], sizes_of(run), payload // FLOAT)

    @classmethod
    def kept(cls, run: KeptRun) -> Account:
        """As the evidence has it."""
        letters = {letter: number for letter, number in run.sent.items() if letter != "counted"}
        return cls(COSTS[run.algorithm], Sizes(**letters), run.sent["counted"])

    @property
    def predicted(self) -> int:
        """The numbers sent by the formula."""
        return self.cost.numbers(self.sizes)

    @property
    def unexplained(self) -> int:
        """The difference that neither the formula nor the known additions explain."""
        return self.counted - self.predicted - sum(count(self.sizes) for count in self.cost.besides.values())

    def cells(self) -> tuple[str, ...]:
        """The formula, numbers predicted, numbers counted, and the difference."""
        return self.cost.formula, f"{self.predicted:,}", f"{self.counted:,}", self.verdict()

    def verdict(self) -> str:
        """`equal`, or the difference and its reason."""
        if self.unexplained:
            return f"NOT EXPLAINED: {self.unexplained:+,}"
        known = [f"{count(self.sizes):+,}: {what}" for what, count in self.cost.besides.items()]
        return "; ".join(known) or "equal"


def sizes_of(run: GridRun) -> Sizes:
    """The values of the formulas' letters in the run's record."""
    parts = Partition.read(run.folder)
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
        names = file.keys()  # the file itself cannot be iterated
        slices = [file.get_slice(name) for name in names]
        return sum(math.prod(part.get_shape()) for part in slices if "F" in part.get_dtype())


def _letters(sizes: Sizes) -> str:
    return (
        f"N = {sizes.N:,} public rows, C = {sizes.C} classes, K = {sizes.K} clients, P = {sizes.P:,} parameters, "
        f"T = {sizes.T} rounds, D = {sizes.D} distillation epochs, B = {sizes.B} public batches per pass: read from "
        "the records. The ledger's column is its payload in numbers; a message to several clients is counted once; "
        "greetings, headers and the integers that name public rows are not counted."
    )
