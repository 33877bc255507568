"""Draws a sheet with matplotlib, as PNG, SVG or PDF. Nothing in a file tells when it was drawn."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole
from fedstill.results.drawing.ink import SHADES, bar_ink, line_ink, point_ink
from fedstill.results.drawing.panels import Bars, Clouds, Heat, Lines, Panel, Sheet

FORMATS = (".png", ".svg", ".pdf")
DPI = 150
LOOKS: Any = {
    "svg.hashsalt": "fedstill",
    "svg.fonttype": "none",  # text that can be searched, read aloud and edited
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a name may contain a dollar sign
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 1.2,
    "legend.frameon": False,
}
UNDATED: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
MOST_NUMBERS = 1000
"""Heat maps of at most so many cells have a number in each, if there is room for it."""
WIDEST = 16.0
"""Inches; panels that would need more stand below each other."""
MANY_POINTS = 20
"""Lines with more points have no markers, but a few."""


def check_format(path: Path) -> None:
    """Raise an error unless pictures can be written under this name."""
    if path.suffix.lower() not in FORMATS:
        raise FedstillError(f"{path}: pictures are PNG, SVG or PDF; give a name that ends in .png, .svg or .pdf.")


def save(sheet: Sheet, path: Path) -> None:
    """Draw a sheet into a file of the kind that its name says."""
    check_format(path)
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FedstillError(
            'Drawing a picture needs the `matplotlib` package: run `pip install "fedstill[figures]"`.'
        ) from error
    kind, drawing = path.suffix.lower()[1:], io.BytesIO()
    with matplotlib.rc_context(LOOKS), warnings.catch_warnings():
        # A sign that the font lacks, such as an emoji in a client's name, is a box; in SVG it is text all the same.
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        _draw(sheet, Figure(layout="constrained")).savefig(
            drawing, format=kind, dpi=DPI, metadata={"Title": sheet.title, **UNDATED[kind]}
        )
    write_whole(path, drawing.getvalue())


def _draw(sheet: Sheet, figure: Any) -> Any:
    across, widths, heights = _arranged(sheet)
    names = list(dict.fromkeys(name for panel in sheet.panels for name in _names(panel)))
    in_a_row = _in_a_row(names, sum(widths))
    below = 0.3 + 0.22 * math.ceil(len(names) / in_a_row) if names else 0.1
    figure.set_size_inches(sum(widths) + 0.2, sum(heights) + 0.5 + below + (0.2 if sheet.note else 0))
    inner = [widths[0] - _spared(sheet), *widths[1:]]
    ratios = {"width_ratios": inner, "height_ratios": heights}
    every = figure.subplots(len(heights), across, squeeze=False, gridspec_kw=ratios)
    handles: dict[str, Any] = {}
    for number, (axes, panel) in enumerate(zip(every.flat, sheet.panels, strict=False)):
        handles |= {name: handle for name, handle in _panel(axes, panel, number, names).items() if name not in handles}
        axes.set_title(_wrapped(panel.title, inner[number % across] - 0.4))
        axes.set_xlabel(panel.across)
        axes.set_ylabel(panel.up)
        if number % across and _spared(sheet):
            axes.tick_params(left=False, labelleft=False)
    for axes in every.flat[len(sheet.panels) :]:
        axes.set_visible(False)
    _share_shades(figure, sheet.panels)
    if handles:
        shown = {name: handles[name] for name in names if name in handles}
        legend = figure.legend(
            shown.values(), shown.keys(), loc="outside lower center", ncols=in_a_row, handlelength=3.5
        )
        legend.set_title(sheet.note or None, {"size": 7.5})
    elif sheet.note:
        figure.supxlabel(sheet.note, fontsize=7.5)
    figure.suptitle(_wrapped(sheet.title, sum(widths)), fontsize=11)
    return figure


def _arranged(sheet: Sheet) -> tuple[int, list[float], list[float]]:
    """How many panels stand side by side, how wide the columns are and how high the rows, in inches."""
    sizes = [_size(panel) for panel in sheet.panels]
    if len(sizes) == 1:  # alone it may be larger
        return 1, [max(6.0, sizes[0][0])], [max(2.8 if isinstance(sheet.panels[0], Heat) else 3.9, sizes[0][1])]
    spared = _spared(sheet)
    for abreast in range(min(len(sizes), sheet.abreast), 0, -1):
        across = math.ceil(len(sizes) / math.ceil(len(sizes) / abreast))  # no row is much shorter than the others
        rows = [sizes[start : start + across] for start in range(0, len(sizes), across)]
        widths = [
            max(row[place][0] for row in rows if place < len(row)) - (spared if place else 0) for place in range(across)
        ]
        if sum(widths) <= WIDEST:
            break
    return across, widths, [max(height for _, height in row) for row in rows]


def _share_shades(figure: Any, panels: Sequence[Panel]) -> None:
    """One scale of shades for all heat maps, so that a shade means the same in each."""
    from matplotlib.colors import PowerNorm

    drawn = [
        (axes, axes.images[0], panel)
        for axes, panel in zip(figure.axes, panels, strict=False)
        if isinstance(panel, Heat)
    ]
    if not drawn:
        return
    floor, top = min(image.norm.vmin for _, image, _ in drawn), max(image.norm.vmax for _, image, _ in drawn)
    for axes, image, panel in drawn:
        image.set_norm(PowerNorm(0.5 if panel.is_rooted else 1, floor, top))
        for text in axes.texts:
            row, column = round(text.get_position()[1]), round(text.get_position()[0])
            value = panel.values[row][column]
            text.set_color("white" if value is not None and image.norm(value) > 0.6 else "black")
    figure.colorbar(drawn[0][1], ax=[axes for axes, _, _ in drawn], label=drawn[0][2].unit, pad=0.02, aspect=30)


def _size(panel: Panel) -> tuple[float, float]:
    """Width and height in inches."""
    if isinstance(panel, Bars):
        return max(4.6, 1.2 + 0.3 * len(panel.places) * len(panel.bars)), 3.1
    if not isinstance(panel, Heat):
        return 4.6, 3.3
    cell = 0.42 if _has_numbers(panel) else 0.1
    wide = 0.9 + _labels(panel) + cell * len(panel.columns)
    high = 0.9 + (0.5 if _is_turned(panel) else 0) + 0.27 * len(panel.rows)
    return max(min(wide, WIDEST), 2.6), max(min(high, 24), 2.0)


def _labels(panel: Panel) -> float:
    """The width of the names of a heat map's rows."""
    return 0.07 * max(map(len, panel.rows), default=0) if isinstance(panel, Heat) else 0.0


def _spared(sheet: Sheet) -> float:
    """The width of names that only the first panel of a row needs, because all heat maps have the same."""
    same = {panel.rows if isinstance(panel, Heat) else None for panel in sheet.panels}
    return _labels(sheet.panels[0]) if len(same) == 1 else 0.0


def _wrapped(title: str, width: float) -> str:
    lines = (textwrap.wrap(line, max(18, int(width * 12.5))) for line in title.splitlines())
    return "\n".join(part for each in lines for part in each)


def _names(panel: Panel) -> Iterable[str]:
    """The series of a panel, which share their looks with series of the same name in other panels."""
    if isinstance(panel, Lines):
        return [*(line.name for line in panel.lines), *(panel.levels or {})]
    if isinstance(panel, Bars):
        return [bar.name for bar in panel.bars]
    return panel.clouds if isinstance(panel, Clouds) else []


def _in_a_row(names: Sequence[str], width: float) -> int:
    """How many entries of the legend stand side by side."""
    longest = max(map(len, names), default=1)
    return max(1, min(len(names), int(width / (0.75 + 0.075 * longest))))


def _panel(axes: Any, panel: Panel, number: int, names: Sequence[str]) -> dict[str, Any]:
    """Draw a panel; what the legend shows of it, by name."""
    drawers: dict[type, Callable[..., dict[str, Any]]] = {Lines: _lines, Heat: _heat, Bars: _bars, Clouds: _clouds}
    return drawers[type(panel)](axes, panel, number, names)


def _lines(axes: Any, panel: Lines, number: int, names: Sequence[str]) -> dict[str, Any]:
    handles = {}
    for line in panel.lines:
        place = names.index(line.name)
        ink: dict[str, Any] = line_ink(place) if panel.are_joined else point_ink(place)
        across, up = np.asarray(line.across, float), np.asarray(line.up, float)
        spread = np.asarray(line.spread, float) if len(line.spread) else np.zeros_like(up)
        if panel.are_joined and len(up) > 1:
            axes.fill_between(across, up - spread, up + spread, color=ink["color"], alpha=0.13, linewidth=0)
        elif spread.any():
            axes.errorbar(across, up, spread, fmt="none", ecolor=ink["color"], capsize=3, linewidth=1)
        size = max(3.5, 7.5 - 0.7 * place) if panel.are_joined else 8  # equal lines show each other's markers
        every = math.ceil(len(up) / MANY_POINTS) if len(up) > MANY_POINTS else 1
        (handles[line.name],) = axes.plot(
            across,
            up,
            markersize=size,
            markevery=every,
            linewidth=1.4,
            gid=f"line-{number}-{place}",
            **ink,
        )
    for name, height in (panel.levels or {}).items():
        place = names.index(name)
        ink = line_ink(place) | {"marker": ""}
        handles[name] = axes.axhline(height, linewidth=1.2, gid=f"level-{number}-{place}", **ink)
    if panel.is_log:
        axes.set_xscale("log")
    if panel.ticks is None:
        axes.xaxis.get_major_locator().set_params(integer=True)
    else:
        axes.set_xticks(list(panel.ticks), list(panel.ticks.values()))
        axes.minorticks_off()
    axes.grid(alpha=0.3)
    return handles


def _bars(axes: Any, panel: Bars, number: int, names: Sequence[str]) -> dict[str, Any]:
    handles, wide = {}, 0.8 / len(panel.bars)
    for place, bar in enumerate(panel.bars):
        ink = bar_ink(names.index(bar.name))
        at = np.arange(len(panel.places)) + (place - (len(panel.bars) - 1) / 2) * wide
        whiskers: dict[str, Any] = {"yerr": bar.spread, "capsize": 2} if any(bar.spread) else {}
        drawn = axes.bar(at, bar.heights, wide, **whiskers, **ink)
        for patch in drawn:
            patch.set_gid(f"bar-{number}-{names.index(bar.name)}-{list(drawn).index(patch)}")
        handles[bar.name] = drawn
    is_long = sum(map(len, panel.places)) > 45
    axes.set_xticks(range(len(panel.places)), panel.places, rotation=90 if is_long else 0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return handles


def _clouds(axes: Any, panel: Clouds, number: int, names: Sequence[str]) -> dict[str, Any]:
    """Points, and around each cloud an ellipse of two standard deviations with its middle marked."""
    from matplotlib.patches import Ellipse

    handles = {}
    for name, points in panel.clouds.items():
        place, cloud = names.index(name), np.asarray(points, float)
        ink: dict[str, Any] = line_ink(place)
        axes.plot(
            *cloud.T, alpha=0.35, markersize=2.5, markeredgewidth=0, gid=f"cloud-{number}-{place}", **point_ink(place)
        )
        sizes, ways = np.linalg.eigh(np.cov(cloud.T)) if len(cloud) > 2 else (np.zeros(2), np.eye(2))
        turn = math.degrees(math.atan2(ways[1, 1], ways[0, 1]))
        wide, high = 4 * np.sqrt(np.maximum(sizes[::-1], 0))
        round_it = {"edgecolor": ink["color"], "linestyle": ink["linestyle"], "facecolor": "none", "linewidth": 1.6}
        axes.add_patch(Ellipse(tuple(cloud.mean(0)), wide, high, angle=turn, zorder=3, **round_it))
        axes.plot(*cloud.mean(0), markersize=9, markeredgecolor="black", zorder=4, **point_ink(place))
        (handles[name],) = axes.plot([], [], markersize=7, **ink)
    axes.grid(alpha=0.3)
    return handles


def _heat(axes: Any, panel: Heat, number: int, names: Sequence[str]) -> dict[str, Any]:
    values = np.array([[np.nan if cell is None else cell for cell in row] for row in panel.values], float)
    values = np.ma.masked_invalid(values.reshape(len(panel.rows), len(panel.columns)))
    floor = panel.floor if panel.floor is not None else float(values.min() if values.count() else 0)
    top = max(float(values.max() if values.count() else 0), floor + 10**-panel.digits)
    axes.imshow(values, cmap=SHADES, aspect="auto", vmin=floor, vmax=top, gid=f"heat-{number}")
    step = 1 if len(panel.columns) <= 25 else 5 * math.ceil(len(panel.columns) / 125)
    shown = [short(name, 24) for name in panel.columns[::step]]
    axes.set_xticks(range(0, len(panel.columns), step), shown, rotation=90 if _is_turned(panel) else 0)
    axes.set_yticks(range(len(panel.rows)), [short(name, 24) for name in panel.rows])
    axes.spines[:].set_visible(False)
    for row in panel.rules:
        axes.axhline(row - 0.5, color="#444444", linewidth=0.8)
    if _has_numbers(panel):
        for row, cells in enumerate(panel.values):
            for column, value in enumerate(cells):
                text = "–" if value is None else f"{value:.{panel.digits}f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=7.5)
    return {}


def _has_numbers(panel: Heat) -> bool:
    return len(panel.rows) * len(panel.columns) <= MOST_NUMBERS and len(panel.columns) <= 20


def _is_turned(panel: Heat) -> bool:
    """Whether the names of columns must stand upright."""
    longest = max(map(len, panel.columns), default=0)
    return longest > (5 if _has_numbers(panel) else 3)


def short(text: str, longest: int) -> str:
    """A text that is cut where it is too long."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
