"""What the runs of a table noted: each thing once, with the number of runs that did."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fedstill.common.words import counted, listed
from fedstill.papers.grid import Grid
from fedstill.papers.side_by_side import Outcomes
from fedstill.parties.party import ONE_CLASS
from fedstill.results.notes import TIMES, fallen
from fedstill.results.runs import Run
from fedstill.wire.messages import SERVER

ONE = f"{ONE_CLASS} for nearly all test rows"
"""What is said of a model, whichever class it is."""
FEW = 5
"""So many parties are named."""


@dataclass
class _Remark:
    """What is said of parties of a row, and the runs that say it: of each round, if the note names one."""

    parties: set[str] = field(default_factory=set)
    runs: dict[int | None, set[Path]] = field(default_factory=dict)


def remarks(grid: Grid, outcomes: Outcomes) -> list[str]:
    """The runs' notes: what is said of several parties or rows is one sentence; the server has its own."""
    found: dict[tuple[str, str, bool], _Remark] = {}
    for run in grid.runs:
        if not isinstance(end := outcomes[run.folder], Run):
            continue
        for note in end.notes:
            who, what, round = _parts(note, {SERVER, *end.client_names})
            remark = found.setdefault((run.row, what, round is not None and who == SERVER), _Remark())
            remark.parties.update([who] if who else [])
            remark.runs.setdefault(round, set()).add(run.folder)
    rows: dict[str, list[str]] = {}
    for (row, what, _), remark in found.items():
        rows.setdefault(_sentence(what, remark), []).append(row)
    return [f"{'; '.join(names)}{' (each)' * (len(names) > 1)}: {sentence}" for sentence, names in rows.items()]


def _parts(note: str, parties: set[str]) -> tuple[str, str, int | None]:
    """Whom a note is about, if it is about one party; what it says, and after which round if that is told apart."""
    if (found := fallen(note)) is not None and found[0] in parties:
        return found[0], ONE, found[1]
    said = TIMES.sub("", note).removesuffix(".")
    who, _, what = said.partition(" ")
    return (who, what, None) if who in parties else ("", said, None)


def _sentence(what: str, remark: _Remark) -> str:
    names = f"{listed(sorted(remark.parties), FEW)}: " if remark.parties else ""
    rounds = sorted(remark.runs.items(), key=lambda each: each[0] or 0)
    counts = [f"{_when(round)}({counted(len(folders), 'run')})" for round, folders in rounds]
    return f"{names}{what} {', '.join(counts)}."


def _when(round: int | None) -> str:
    return "" if round is None else f"after round {round} " if round else "after some round "
