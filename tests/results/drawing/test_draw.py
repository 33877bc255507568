"""Sheets of panels as files: what is drawn, what tells series apart without colour, and where panels stand."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedstill.common.errors import FedstillError
from fedstill.results.drawing.draw import WIDEST, _arranged, save
from fedstill.results.drawing.ink import COLOURS, bar_ink, line_ink
from fedstill.results.drawing.panels import Bar, Bars, Heat, Line, Lines, Sheet

pytest.importorskip("matplotlib")


def heat(name: str, top: float, columns: int = 3) -> Heat:
    return Heat(
        name, "round", "", ("a", "b"), tuple(map(str, range(columns))), [[0] * columns, [top] * columns], "rows"
    )


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("}text")]


def test_lines_and_bars_differ_without_their_colours() -> None:
    lines = [(str(ink["linestyle"]), ink["marker"]) for ink in map(line_ink, range(12))]
    assert len(set(lines)) == 12
    assert len({marker for _, marker in lines}) == 12
    assert len({bar_ink(number)["hatch"] for number in range(8)}) == 8
    assert len({line_ink(number)["color"] for number in range(6)}) == len(COLOURS)


def test_a_name_is_text_whatever_is_in_it(tmp_path: Path) -> None:
    panel = Lines("$alpha$ <b>", "round", "F1", (Line("$x_1$ & co", [1, 2], [0.5, 0.6]),))
    save(Sheet("a & b", (panel,), note="one run"), tmp_path / "names.svg")
    shown = texts((tmp_path / "names.svg").read_text())
    assert {"$alpha$ <b>", "$x_1$ & co", "a & b", "one run"} <= set(shown)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_names_that_the_font_cannot_show_are_drawn_without_a_warning(tmp_path: Path, kind: str) -> None:
    names = ("books 📚", "ein Garten 🌻", "書店")
    save(Sheet("", (Heat("rows", "client", "", ("a",), names, [[1, 2, 3]], "rows"),)), tmp_path / f"names.{kind}")
    assert kind != "svg" or set(names) <= set(texts((tmp_path / "names.svg").read_text()))


def test_a_series_looks_the_same_in_all_panels(tmp_path: Path) -> None:
    first = Lines("one", "round", "F1", (Line("A", [1, 2], [1, 2]), Line("B", [1, 2], [2, 3])))
    second = Lines("two", "round", "F1", (Line("B", [1, 2], [2, 3]),))
    save(Sheet("", (first, second)), tmp_path / "both.svg")
    svg = (tmp_path / "both.svg").read_text()
    strokes = {
        name: re.search(rf'<g id="{name}">\s*<path [^>]*stroke: (#\w+)', svg) for name in ("line-0-1", "line-1-1")
    }
    assert {found and found[1] for found in strokes.values()} == {COLOURS[1].lower()}
    assert texts(svg).count("B") == 1  # one legend for both


def test_shades_mean_the_same_in_all_heat_maps_and_numbers_can_be_read_on_them(tmp_path: Path) -> None:
    save(Sheet("", (heat("pale", 10), heat("dark", 100))), tmp_path / "heat.svg")
    root = ElementTree.fromstring((tmp_path / "heat.svg").read_text())
    nodes = [node for node in root.iter() if node.tag.endswith("}text")]
    white = ["".join(node.itertext()) for node in nodes if "#ffffff" in node.get("style", "")]
    assert white == ["100"] * 3  # a 10 is pale beside it


def test_an_unknown_cell_is_a_dash(tmp_path: Path) -> None:
    panel = Heat("", "attack", "", ("a",), ("x", "y"), [[None, 50.0]], "F1")
    save(Sheet("", (panel,)), tmp_path / "hole.svg")
    assert {"–", "50"} <= set(texts((tmp_path / "hole.svg").read_text()))


def test_bars_have_whiskers_only_where_seeds_differ(tmp_path: Path) -> None:
    bars = Bars("", "client", "loss", ("a", "b"), (Bar("one", [1, 2], [0, 0]), Bar("two", [2, 1], [0.1, 0.2])))
    save(Sheet("", (bars,)), tmp_path / "bars.svg")
    assert len(re.findall(r'id="bar-0-\d-\d"', (tmp_path / "bars.svg").read_text())) == 4
    assert (tmp_path / "bars.svg").read_text().count('<g id="LineCollection') == 1


@pytest.mark.parametrize(("columns", "abreast"), [(3, 5), (10, 3), (20, 1)])
def test_panels_that_are_too_wide_together_stand_below_each_other(columns: int, abreast: int) -> None:
    across, widths, heights = _arranged(Sheet("", tuple(heat(str(number), 1, columns) for number in range(5)), 5))
    assert across == abreast
    assert sum(widths) <= WIDEST
    assert across * len(heights) >= 5


def test_only_png_svg_and_pdf_are_written(tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match=r"figure.gif: pictures are PNG, SVG or PDF"):
        save(Sheet("", (heat("", 1),)), tmp_path / "figure.gif")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_the_same_sheet_makes_the_same_bytes_without_a_date(kind: str, tmp_path: Path) -> None:
    panels = (Bars("", "", "", ("a",), (Bar("one", [1]),)), Lines("", "", "", (Line("A", [1, 2], [1, 2], [1, 1]),)))
    for name in ("first", "second"):
        save(Sheet("two panels", panels), tmp_path / f"{name}.{kind}")
    first = (tmp_path / f"first.{kind}").read_bytes()
    assert first == (tmp_path / f"second.{kind}").read_bytes()
    assert not re.search(rb"20\d\d-\d\d-\d\dT|CreationDate", first)
