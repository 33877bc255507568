"""Works that take turns: machines are noisy, so that only neighbours in time are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

TURNS = {"bert-tiny": 5, "minilm": 3}
"""A turn of minilm takes a minute."""

Work = Callable[[], object]
Values = dict[str, float]
Results = dict[str, Values]


class Seconds(NamedTuple):
    """What a work took: of this process's CPU time, to which other processes add little, and of the clock."""

    cpu: float
    wall: float


def seconds_of(work: Work) -> Seconds:
    """One time."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Seconds(time.process_time() - cpu, time.perf_counter() - wall)


def in_turns(works: Mapping[str, Callable[[], Work]], turns: int = 5) -> dict[str, list[Seconds]]:
    """The seconds of each work in every turn after a first one, which warms up; making a work ready is not counted."""
    seconds: dict[str, list[Seconds]] = {name: [] for name in works}
    for turn in range(turns + 1):
        for name, make_ready in works.items():
            taken = seconds_of(make_ready())
            if turn:
                seconds[name].append(taken)
    return seconds


def times(base: Sequence[Seconds], own: Sequence[Seconds]) -> Values:
    """How many times as fast as the base: the median of the ratios of neighbours in time, the lowest, the highest."""
    ratios = [other.cpu / mine.cpu for other, mine in zip(base, own, strict=True)]
    return {
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "wall_ratio": statistics.median(other.wall / mine.wall for other, mine in zip(base, own, strict=True)),
        "cpu_s": statistics.median(mine.cpu for mine in own),
        "wall_s": statistics.median(mine.wall for mine in own),
    }


def spread(values: Values | None, digits: int = 2) -> str:
    """A ratio with its lowest and highest, for a table."""
    if values is None:
        return ""
    return f"{values['ratio']:.{digits}f} ({values['low']:.{digits}f} - {values['high']:.{digits}f})"
