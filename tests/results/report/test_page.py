"""The page as a file: whole, escaped, small, and silent about what is private."""

from __future__ import annotations

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedstill.common.errors import FedstillError
from fedstill.results.record import Record
from fedstill.results.report.page import is_available, page, plain, write_page
from fedstill.results.runs import load_runs
from tests.results.conftest import write_run
from tests.results.report.conftest import ATTACK, SHOP

pytest.importorskip("jinja2", reason="the packages of report pages are absent")
pytest.importorskip("plotly", reason="the packages of report pages are absent")


class Page(HTMLParser):
    """The page's elements, headings and text, as a browser would find them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag

    def handle_data(self, data: str) -> None:
        self.text += "" if self.inside in ("script", "style") else data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def one(record: Record) -> str:
    return page(load_runs([record.folder]))


@pytest.fixture(scope="module")
def both(shops: Path) -> str:
    return page(load_runs([shops]))


def test_the_page_of_a_run_answers_the_five_questions(one: str) -> None:
    found = Page(one)
    for words in ("What was trained", "How it went", "What came out", "What went wrong", "How to repeat it"):
        assert words in found.text
    for chart in ("Who holds what", "Score by round", "Teachers' weights", "Confusion matrix", "Reliability"):
        assert chart in found.text
    assert "--out again" in found.text
    assert "torch " in found.text  # the versions


def test_several_runs_have_a_leaderboard_before_each_run(both: str) -> None:
    found = Page(both)
    assert "Leaderboard" in found.text
    assert len([attributes for attributes in found.all("details") if attributes.get("class") == "run"]) == 2
    assert "Score against bytes" in found.text
    assert "Methods that share a letter" in found.text


def test_text_of_data_stays_text(one: str, both: str) -> None:
    for html in (one, both):
        found = Page(html)
        assert ATTACK in found.text
        assert SHOP in found.text
        assert len(found.all("script")) == 3
        figures = re.search(r'id="figures">(.*?)</script>', html, re.DOTALL)
        assert figures is not None
        assert "<" not in figures[1]
        assert "to&lt;b>ys" in json.dumps(json.loads(figures[1]))  # Plotly has markup of its own


def test_nothing_is_fetched_and_only_our_script_runs(one: str) -> None:
    found = Page(one)
    for tag, attributes in found.elements:
        assert tag not in ("img", "link", "iframe", "object")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    (policy,) = [str(each["content"]) for each in found.all("meta") if each.get("http-equiv")]
    nonce = found.all("script")[-1]["nonce"]
    assert policy.startswith(f"default-src 'none'; script-src 'nonce-{nonce}'")


def test_every_chart_has_words_and_a_table(both: str) -> None:
    found = Page(both)
    charts = [each for each in found.all("div") if each.get("class") == "chart"]
    assert len(charts) > 15
    assert all(each["role"] == "img" and each["aria-label"] for each in charts)
    assert both.count("Numbers of “") == len(charts)
    assert found.all("a")[0] == {"class": "skip", "href": "#main"}
    names = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(names) == len(set(names))


def test_the_same_records_make_the_same_page(record: Record, one: str) -> None:
    assert page(load_runs([record.folder])) == one


def test_a_page_of_a_federation_s_centre_has_no_text_and_texts_can_be_left_out(record: Record, tmp_path: Path) -> None:
    assert "order" not in Page(page(load_runs([record.folder]), has_texts=False)).text
    folder = shutil.copytree(record.folder, tmp_path / "centre")
    (folder / "summary.json").write_text(json.dumps(record.summary | {"engine": "flare"}))
    html = page(load_runs([folder]))
    assert ATTACK not in Page(html).text
    assert "reviews.csv" not in html
    assert "Who holds what" not in html
    assert "Confusion matrix" in html


def test_twenty_runs_of_twenty_rounds_are_below_five_megabytes(record: Record, tmp_path: Path) -> None:
    lines = [line for line in record.metrics if line["round"] == 1]
    rounds = [line | {"round": number} for number in range(1, 21) for line in lines]
    for number in range(20):
        folder = shutil.copytree(record.folder, tmp_path / f"m{number}", ignore=shutil.ignore_patterns("models"))
        changed = {"method": f"method {number}", "name": f"run {number}", "rounds": 20}
        (folder / "summary.json").write_text(json.dumps(record.summary | changed))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))
    target = write_page([tmp_path])
    assert target == tmp_path / "report.html"
    assert target.stat().st_size < 5_000_000


def test_runs_on_other_corpora_are_compared_apart(tmp_path: Path) -> None:
    for method in ("AdaFD", "DSFL"):
        write_run(tmp_path / "same", method)
        write_run(tmp_path / "other", method, labels=["no", "perhaps", "yes"])
    write_run(tmp_path / "alone", "FedID", labels=["a", "b", "c"])
    html = page(load_runs([tmp_path]))
    assert Page(html).text.count("Leaderboard: ") == 2
    assert "5 runs" in html


def test_privacy_spent_is_drawn_where_there_is_some(tmp_path: Path) -> None:
    for method, most in (("AdaFD", 2.0), ("DSFL", 4.0)):
        told = {"kind": "head", "budget": 8.0, "delta": 1e-5, "noise": "seeded", "spent": {"companies": most}}
        write_run(tmp_path, method, epsilon=told)
    write_run(tmp_path, "FedID")
    found = Page(page(load_runs([tmp_path]))).text
    assert "Score against epsilon" in found
    assert "No critical-difference diagram" in found  # one seed and two domains


def test_five_blocks_are_enough_for_a_critical_difference(tmp_path: Path) -> None:
    for method, accuracy in (("AdaFD", 0.9), ("DSFL", 0.7), ("FedMD", 0.5)):
        for seed in range(3):
            write_run(tmp_path, method, seed, accuracy)
    assert "Mean ranks over 6 blocks" in Page(page(load_runs([tmp_path]))).text


def test_seeds_of_one_method_have_a_board_without_letters(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, "AdaFD", seed)
    found = Page(page(load_runs([tmp_path]))).text
    assert "Leaderboard: " in found
    assert "letter" not in found


def test_figures_hold_only_what_json_can() -> None:
    given = {"y": [1.23456789, float("nan"), float("inf")], "name": "a<b&c", "hovertemplate": "%{y}<extra></extra>"}
    assert plain(given) == {"y": [1.23457, None, None], "name": "a&lt;b&amp;c", "hovertemplate": "%{y}<extra></extra>"}


def test_without_its_packages_the_page_is_one_clear_sentence(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delitem(sys.modules, "plotly.offline", raising=False)
    assert not is_available()
    with pytest.raises(FedstillError, match=r'pip install "fedstill\[report\]"'):
        page(load_runs([record.folder]))
