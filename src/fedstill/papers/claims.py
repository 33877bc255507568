"""What the papers claim, as data, and a verdict on each claim from the evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from fedstill.common.errors import FedstillError
from fedstill.common.settings import Settings
from fedstill.config.source import Source
from fedstill.papers.curves import by_step, curve, weights
from fedstill.papers.evidence import MAIN_SCALE, Evidence, recall
from fedstill.papers.grid import Grid
from fedstill.papers.recipe import Recipe, read_recipe, recipe_path
from fedstill.papers.side_by_side import MISSING, Outcomes, finished, score
from fedstill.results.runs import Run
from fedstill.results.significance import interval_over_seeds, paired_over_seeds

Verdict = Literal["reproduced", "not reproduced", "undecided", "not run yet", "not testable here"]
DIGITS = 7
"""Of a difference in points; the evidence keeps ten of a score, so that what comes after them is no difference."""


class Cell(Settings):
    """A cell of a recipe's table, and what of its runs counts."""

    recipe: str = ""
    scale: str = MAIN_SCALE
    group: str = ""
    row: str = ""
    column: str = ""
    round: int | Literal["last", "mean"] = "last"
    measure: Literal["score", "weight", "teacher"] = "score"
    """The column's score; the largest client's weight; the teacher's cross-entropy on samples after the last step."""

    def but(self, change: Cell) -> Cell:
        """This cell with what the other sets."""
        return self.model_copy(update=change.model_dump(exclude_unset=True, exclude={"rows"}))


class Rivals(Cell):
    """What a cell is compared with."""

    rows: list[str] = Field(default_factory=list)
    """Several rows: the best of them."""


class Claim(Settings):
    """A claim of a paper: `cell` is better than `against`. The file of the claims says what the keys mean."""

    id: str
    says: str
    place: str | None = None
    note: str | None = None
    cell: Cell | None = None
    against: Rivals = Rivals()
    beside: list[str] = Field(default_factory=list)
    more_than: Cell | None = None
    within: float | None = Field(None, gt=0)
    at_most: float | None = Field(None, gt=0)
    same_test: bool = True
    printed: Cell = Cell()
    printed_against: Cell = Cell()
    changes: bool = False
    untestable: str | None = None

    @property
    def where(self) -> str:
        """The paper, and its table or figure."""
        return self.place or (recipe_of(self.cell.recipe).paper if self.cell else "")

    @property
    def band(self) -> tuple[float, float] | None:
        """Between which points the difference must lie, where none is claimed."""
        if self.within is not None:
            return -self.within, self.within
        return None if self.at_most is None else (-math.inf, self.at_most)


class Claims(Settings):
    """The file of the claims."""

    claims: list[Claim]


class Term(NamedTuple):
    """A cell that is added to a difference or taken from it; `printed` has the paper's number for it."""

    sign: int
    cell: Cell
    printed: Cell


@dataclass(frozen=True)
class Finding:
    """A difference over paired seeds, in points unless the unit is another, and the paper's."""

    against: str
    paper: float | None
    unit: str = ""
    seeds: tuple[int, ...] = ()
    mean: float = 0.0
    interval: tuple[float, float] | None = None
    p: float | None = None
    missing: tuple[Cell, ...] = ()


@dataclass(frozen=True)
class Judged:
    """A claim, one finding for each that it is compared with, and the verdict."""

    claim: Claim
    verdict: Verdict
    why: str
    findings: tuple[Finding, ...] = ()
    beside: tuple[Finding, ...] = ()

    @property
    def paper(self) -> Finding | None:
        """Against the strongest in the paper; None if it does not print all numbers."""
        known = {finding.paper: finding for finding in reversed(self.findings) if finding.paper is not None}
        return known[min(known)] if known and all(each.paper is not None for each in self.findings) else None

    @property
    def here(self) -> Finding | None:
        """Against the strongest here; None if a run is missing."""
        whole = self.findings and all(finding.seeds for finding in self.findings)
        return min(self.findings, key=lambda finding: finding.mean) if whole else None

    @property
    def missing(self) -> list[Cell]:
        """Cells without runs."""
        return [cell for finding in self.findings for cell in finding.missing]


def read_claims() -> list[Claim]:
    """All claims, with ids that differ."""
    source = Source.read(Path(str(resources.files("fedstill.papers") / "claims.yaml")))
    try:
        claims = Claims.model_validate(source.values).claims
    except ValidationError as error:
        raise FedstillError(f"{source.name}: {error}") from error
    if len({claim.id for claim in claims}) < len(claims):
        raise FedstillError(f"{source.name}: two claims have the same id.")
    return claims


@cache
def recipe_of(name: str) -> Recipe:
    """A recipe that ships with fedstill."""
    return read_recipe(_source(name))


def _source(name: str) -> Source:
    if (path := recipe_path(name)) is None:
        raise FedstillError(f"a claim names the recipe {name!r}, which does not exist.")
    return Source.read(path)


def comparisons(claim: Claim, rows: Sequence[str] = ()) -> Iterator[tuple[str, list[Term]]]:
    """For each rival its name, and the cells whose sum is the claimed difference."""
    if claim.cell is None:
        return
    other = claim.cell.but(claim.against)
    for row in rows or claim.against.rows or [other.row]:
        rival = other.model_copy(update={"row": row})
        terms = [
            Term(1, claim.cell, claim.cell.but(claim.printed)),
            Term(-1, rival, rival.but(claim.printed).but(claim.printed_against)),
        ]
        if claim.more_than is not None:
            terms += [Term(-sign, *(each.but(claim.more_than) for each in cells)) for sign, *cells in terms]
        yield row, terms


@dataclass
class Shelf:
    """An evidence folder; the lines of a recipe are read once."""

    folder: Path
    _read: dict[tuple[str, str], tuple[Grid, Outcomes] | None] = field(default_factory=dict)

    def values(self, cell: Cell) -> dict[tuple[int, str], float]:
        """(Seed, test rows) -> what the cell's run gave."""
        place = cell.recipe, cell.scale
        if place not in self._read:
            self._read[place] = self._recall(*place)
        if (kept := self._read[place]) is None:
            return {}
        grid, outcomes = kept
        runs = finished(grid.of(cell.group, cell.row, cell.column), outcomes)
        split, metric = grid.recipe.columns[cell.column].shows[0]
        found = {(run.seed, run.test_fingerprint): _value(run, cell, split, metric) for run in runs}
        return {key: value for key, value in found.items() if value is not None}

    def _recall(self, recipe: str, scale: str) -> tuple[Grid, Outcomes] | None:
        evidence = Evidence(self.folder, recipe, scale)
        lines = evidence.lines.read_text(encoding="utf-8").splitlines() if evidence.lines.exists() else []
        has_any = any(json.loads(line)["scale"] == scale for line in lines)
        return recall(_source(recipe), evidence) if has_any else None


def _value(run: Run, cell: Cell, split: str, metric: str) -> float | None:
    """What counts of a run, in points (or nats)."""
    if cell.measure == "teacher":
        steps = by_step(run, "teacher")
        return steps[max(steps)] if steps else None
    if cell.measure == "weight":
        by_round: Mapping[int, float] = {number: max(each.values()) for number, each in weights(run).items()}
    elif cell.round == "last":
        return None if (last := score(run, split, metric)) is None else 100 * last
    else:
        by_round = curve(run, split, metric)[0]
    if not by_round:
        return None
    if cell.round == "mean":
        return 100 * fmean(by_round.values())
    number = max(by_round) if cell.round == "last" else cell.round
    return 100 * by_round[number] if number in by_round else None


def find(claim: Claim, shelf: Shelf, name: str, terms: Sequence[Term]) -> Finding:
    """The difference over the seeds that all its cells have."""
    start = Finding(name, _printed(claim, terms), " nats" if terms[0].cell.measure == "teacher" else "")
    values = [shelf.values(term.cell) for term in terms]
    if not claim.same_test:
        values = [{(seed, ""): value for (seed, _), value in each.items()} for each in values]
    common = sorted(set.intersection(*(set(each) for each in values)))
    if not common:
        lacking = tuple(term.cell for term, each in zip(terms, values, strict=True) if not each)
        return replace(start, missing=lacking or tuple(term.cell for term in terms))
    apart = [
        round(sum(term.sign * each[key] for term, each in zip(terms, values, strict=True)), DIGITS) for key in common
    ]
    return replace(
        start,
        seeds=tuple(seed for seed, _ in common),
        mean=fmean(apart),
        interval=interval_over_seeds(apart),
        p=paired_over_seeds(apart, [0.0] * len(apart)),
    )


def _printed(claim: Claim, terms: Sequence[Term]) -> float | None:
    """The paper's difference; None if it does not print all numbers of it."""
    total = 0.0
    for sign, _, cell in terms:
        recipe = recipe_of(cell.recipe)
        if cell.round != "last" or cell.measure != "score":
            return None
        if claim.changes and cell.column == next(iter(recipe.columns)):
            continue
        value = recipe.printed(cell.group, cell.row, cell.column)
        if value is None or value == MISSING:
            return None
        total += sign * float(value.split("/")[0])
    return round(total, 6)


def verdict(
    interval: tuple[float, float] | None, paper: float | None, band: tuple[float, float] | None = None
) -> tuple[Verdict, str]:
    """The rule on the page of the claims, and why it says so."""
    if interval is None:
        return "undecided", "fewer than three seeds"
    low, high = interval
    if band is not None:
        if band[0] <= low and high <= band[1]:
            return "reproduced", ""
        outside = low > band[1] or high < band[0]
        return ("not reproduced", "further apart") if outside else ("undecided", "")
    if low > 0:
        return "reproduced", ""
    if high < 0:
        return "not reproduced", "the other way round"
    if paper is not None and paper > high:
        return "not reproduced", "smaller than the paper's"
    return "undecided", ""


def judge(claim: Claim, shelf: Shelf) -> Judged:
    """A claim's verdict; against several, that against the strongest here, with the paper's against its strongest."""
    findings = tuple(find(claim, shelf, name, terms) for name, terms in comparisons(claim))
    beside = [find(claim, shelf, name, terms) for name, terms in comparisons(claim, claim.beside) if claim.beside]
    state: Verdict = "not run yet" if claim.untestable is None else "not testable here"
    judged = Judged(claim, state, claim.untestable or "", findings, tuple(each for each in beside if each.seeds))
    if judged.here is None:
        return judged
    decided, why = verdict(judged.here.interval, judged.paper.paper if judged.paper else None, claim.band)
    return replace(judged, verdict=decided, why=why)
