"""What a picture shows, as data: a sheet of panels, each with lines, a heat map, bars or clouds of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A named line: its points, and how far they spread on either side."""

    name: str
    across: Sequence[float]
    up: Sequence[float]
    spread: Sequence[float] = ()


@dataclass(frozen=True)
class Lines:
    """Lines over an axis of numbers, and names of levels that are no line of their own."""

    title: str
    across: str
    up: str
    lines: tuple[Line, ...]
    ticks: Mapping[float, str] | None = None
    """Where the axis has its ticks, and what they say; else whole numbers."""
    is_log: bool = False
    levels: Mapping[str, float] | None = None
    """Name -> a height that holds for the whole width."""
    are_joined: bool = True
    """Else points with whiskers."""


@dataclass(frozen=True)
class Heat:
    """A table of numbers as shades: [rows, columns]; None where nothing is known."""

    title: str
    across: str
    up: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Sequence[Sequence[float | None]]
    unit: str
    digits: int = 0
    floor: float | None = None
    """What the lightest shade stands for; else the smallest number."""
    is_rooted: bool = False
    """Whether shades go by the square root, so that small counts beside large ones can be seen."""
    rules: tuple[int, ...] = ()
    """Rows above which a rule is drawn."""


@dataclass(frozen=True)
class Bar:
    """A named series of bars, one for each place on the axis, and how far they spread."""

    name: str
    heights: Sequence[float]
    spread: Sequence[float] = ()


@dataclass(frozen=True)
class Bars:
    """Series of bars side by side."""

    title: str
    across: str
    up: str
    places: tuple[str, ...]
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Clouds:
    """Named clouds of points in a plane."""

    title: str
    across: str
    up: str
    clouds: Mapping[str, Sequence[tuple[float, float]]]


Panel = Lines | Heat | Bars | Clouds


@dataclass(frozen=True)
class Sheet:
    """Panels side by side, at most `abreast` in a row, with one legend for all."""

    title: str
    panels: tuple[Panel, ...]
    abreast: int = 2
    note: str = ""
    """A line at the foot."""
