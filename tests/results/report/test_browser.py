"""The page in a real browser: charts are drawn, nothing complains, tables sort, dark and narrow windows work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedstill.results.report.page import write_page
from tests.results.report.browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install Debian's `chromium` to test the page")
pytest.importorskip("jinja2", reason="the packages of report pages are absent")
pytest.importorskip("plotly", reason="the packages of report pages are absent")

DRAWN = "[...document.querySelectorAll('.chart')].filter((chart) => chart.querySelector('svg.main-svg')).length"
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
NARROW = "[...document.querySelectorAll('.chart svg')].every((one) => one.getBoundingClientRect().right < 390)"
METHODS = "[...document.querySelectorAll('.sortable tbody th')].map((cell) => cell.textContent)"


@pytest.fixture(scope="module")
def pages(shops: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    write_page([shops / "AdaFD" / "seed-0"], folder / "one.html")
    write_page([shops], folder / "both.html")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_the_page_of_a_run_is_drawn_light_dark_narrow_and_on_paper(browser: Browser, pages: Path) -> None:
    browser.open(pages / "one.html")
    assert browser.run(DRAWN) == browser.run("document.querySelectorAll('.chart').length") == 10
    assert "<script>alert(1)</script>" in browser.run("document.querySelector('blockquote').textContent")
    light = browser.run("getComputedStyle(document.body).backgroundColor")
    browser.prefer("dark")
    dark = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 24, 29)")
    assert browser.run("document.querySelector('.xtick text').style.fill") == "rgb(230, 233, 236)"
    browser.run("document.getElementById('theme').click()")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == light
    assert browser.run("document.querySelector('.xtick text').style.fill") == "rgb(27, 31, 36)"
    browser.run("document.getElementById('theme').click()")
    browser.resize(390, 844, is_mobile=True)
    browser.wait(NARROW)
    assert browser.run(WIDE) == 0
    browser.paper(pages / "one.pdf")
    assert (pages / "one.pdf").read_bytes().startswith(b"%PDF")
    browser.resize(1200, 900)
    assert browser.problems == []


def test_several_runs_sort_and_open(browser: Browser, pages: Path) -> None:
    browser.open(pages / "both.html")
    first = browser.run(METHODS)
    assert len(first) == 2
    press = "[...document.querySelectorAll('.sortable th button')].find((each) => each.textContent === '{}').click()"
    browser.run(press.format("score"))  # it was sorted from the best on
    assert browser.run(METHODS) == first[::-1]
    browser.run(press.format("method"))
    assert browser.run(METHODS) == sorted(first)
    assert browser.run("document.querySelector('.sortable th[aria-sort]').textContent") == "method"
    before = browser.run(DRAWN)
    browser.run("document.querySelector('details.run').open = true")
    browser.wait(f"{DRAWN} > {before}")
    browser.resize(390, 844, is_mobile=True)
    browser.wait(NARROW)
    assert browser.run(WIDE) == 0
    browser.resize(1200, 900)
    assert browser.problems == []
