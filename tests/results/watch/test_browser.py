"""The page in a real browser keeps up with a run, and keeps what the reader has opened, zoomed and scrolled to."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="the packages of report pages are absent")
pytest.importorskip("plotly", reason="the packages of report pages are absent")

import fedstill
from fedstill.results.watch import watch as watching
from fedstill.results.watch.server import serve
from fedstill.results.watch.watch import Watch
from tests.results.report.browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install Debian's `chromium` to test the page")

WORDS = "document.getElementById('live-words').textContent"
LOSSES = "[...document.querySelectorAll('figure')].find((one) => one.textContent.includes('Loss by round'))"


def drag(browser: Browser, place: str) -> None:
    """Draw a rectangle over the middle of a chart, which zooms into it."""
    box = browser.run(f"(({{x, y, width, height}}) => [x, y, width, height])({place}.getBoundingClientRect())")
    for kind, share in (("mousePressed", 0.3), ("mouseMoved", 0.5), ("mouseMoved", 0.7), ("mouseReleased", 0.7)):
        x, y = box[0] + share * box[2], box[1] + share * box[3]
        browser.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)


def test_the_page_follows_a_run_and_keeps_what_the_reader_did(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "SOON_S", 0.2)
    with serve(Watch(stopped), 0) as server, Browser(tmp_path / "profile") as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.ask("Page.navigate", url=server.address)
        browser.wait("document.documentElement?.dataset.ready === 'yes'")
        assert browser.run(WORDS).startswith("stopped after round 1 of 3; resume with: fedstill run --resume")
        charts = browser.run("document.querySelectorAll('.chart').length")
        browser.run(f"{LOSSES}.querySelector('details').open = true; window.kept = {LOSSES}.querySelector('.chart'); 0")
        browser.run(f"{LOSSES}.querySelector('summary').focus(); {LOSSES}.scrollIntoView({{behavior: 'instant'}}); 0")
        before = browser.run("window.kept.layout.yaxis.range")
        drag(browser, "window.kept.querySelector('.nsewdrag')")
        browser.wait(f"String(window.kept.layout.yaxis.range) !== '{','.join(map(str, before))}'")
        zoomed = browser.run("window.kept.layout.yaxis.range")
        top = browser.run(f"{LOSSES}.getBoundingClientRect().top")
        fedstill.resume(stopped)
        browser.wait(f"{WORDS} === 'finished'")
        browser.wait("document.querySelectorAll('.chart:not(:has(svg.main-svg))').length === 0")
        assert browser.run("document.querySelectorAll('.chart').length") > charts
        assert browser.run(f"{LOSSES}.querySelector('.chart') === window.kept")
        assert browser.run("window.kept.data[0].x.length") == 3
        assert browser.run("window.kept.layout.yaxis.range") == zoomed
        assert browser.run(f"{LOSSES}.querySelector('details').open")
        assert browser.run(f"document.activeElement === {LOSSES}.querySelector('summary')")
        assert browser.run(f"{LOSSES}.getBoundingClientRect().top") == pytest.approx(top, abs=2)
        assert browser.problems == []
        server.shutdown()
