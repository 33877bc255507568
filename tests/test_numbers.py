"""No measured number in README.md or docs/ is typed by hand: a script fills blocks in, the rest has none."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "fill_numbers.py"))
PAGES = [str(page.relative_to(ROOT)) for page in SCRIPT["pages"]()]

MEASURED = re.compile(
    r"""
    (?<![\d.])\d+\.\d+\ ?(?:s|ms|[KMG]i?B|points|TFLOP/s|%)(?!\w)   # with a unit
    | (?<![\d.])\d+\ ?(?:ms|points|TFLOP/s|seconds|minutes|hours)\b
    | \b\d+(?:\.\d+)?x\b                                            # 8x
    | \b\d+(?:\.\d+)?\ times\ (?:as|the)\b
    | \bF1\ (?:of\ )?\d
    | \d\ ?±
    | \bp\ ?[<=]?\ ?0?\.\d
    | (?<![\d.])\d\d\.\d(?![\d.])                                   # a score in points
    | (?<![\w.])[+-]\d+\.\d\b                                       # a difference of scores
    """,
    re.VERBOSE,
)

ALLOWED = {
    ("docs/reproduce.md", "`85.2/80.5 | ...`"): "the paper's numbers",
    ("docs/reproduce.md", "`91.8 | –`"): "the paper's number",
    ("docs/audit.md", "0.1%"): "the rate of false positives at which attacks are measured",
}
"""(File, text in it) -> why it is no measurement of ours."""

ELSEWHERE = {
    "docs/claims.md": ("(?s).*", "the whole page is made by a command; tests/papers/test_claims.py"),
    "docs/choosing.md": ("(?s)```.*?```", "what a command prints; tests/cli/test_advise.py"),
}
"""File -> what of it another test compares, and which."""


def typed(page: str, text: str) -> list[str]:
    """The measurements in a page that nothing fills in."""
    text = SCRIPT["BLOCK"].sub("", text)
    text = re.sub(ELSEWHERE[page][0], "", text) if page in ELSEWHERE else text
    for file, allowed in ALLOWED:
        text = text.replace(allowed, "") if file == page else text
    return [found[0] for found in MEASURED.finditer(text)]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_what_the_script_makes(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == SCRIPT["filled"](text), f"a number in {page} is stale: run `python scripts/fill_numbers.py`"
    assert text.count("<!-- numbers:") == len(SCRIPT["BLOCK"].findall(text)), f"{page}: a block has no <!-- end -->"


def test_every_block_is_on_a_page() -> None:
    every = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert {name for _, name, _ in SCRIPT["BLOCK"].findall(every)} == SCRIPT["BLOCKS"].keys()


@pytest.mark.parametrize("page", PAGES)
def test_no_measurement_is_typed(page: str) -> None:
    found = typed(page, (ROOT / page).read_text(encoding="utf-8"))
    assert not found, (
        f"{page} has {found}: link to the page that holds it, or make it a block of scripts/fill_numbers.py; "
        "a setting goes into ALLOWED"
    )


def test_what_is_allowed_is_still_there() -> None:
    for page, text in ALLOWED:
        assert text in (ROOT / page).read_text(encoding="utf-8"), f"{page} no longer has {text}: take it off the list"


@pytest.mark.parametrize(
    "sentence",
    [
        "A round took 3.2 s.",
        "An exchange takes 21 ms",
        "under 2.8 GiB",
        "| training | 8.1x | 5x |",
        "14 times the loop",
        "an F1 of 64",
        "61.7 ± 4.7",
        "the difference is +0.5 (p 0.22)",
        "AdaFD 46.2, alone 64.1",
        "worse by 12 points",
    ],
)
def test_typical_measurements_are_found(sentence: str) -> None:
    assert typed("README.md", sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "`train: {rate: 5e-4}`, 0.5 n_k samples",
        "`memory: 8GiB`",
        "Python 3.11+, nvflare 2.9.0",
        "batch 32, T = 3, 192.0.2.10",
    ],
)
def test_settings_are_not(sentence: str) -> None:
    assert not typed("README.md", sentence)


def test_the_defaults_rows_are_those_of_its_page() -> None:
    now = runpy.run_path(str(ROOT / "scripts" / "choose_default.py"))["NOW"]
    page = (ROOT / "evidence" / "default.md").read_text(encoding="utf-8")
    stage = page.partition(f"## Stage {now}")[2].partition("By federation")[0]
    cells = (re.split(r" *\| *", line)[1:-1] for line in stage.splitlines())
    theirs = {row[0]: row[1:] for row in cells if len(row) == 7}
    ours = [re.split(r" *\| *", line)[1:-1] for line in SCRIPT["BLOCKS"]["default"]().splitlines()[2:]]
    assert len(ours) == len(theirs) - 3  # without the heading, the line below it, and everybody alone
    for row in ours:
        name = row[0].removesuffix(", the default")
        assert row[1:4] == theirs[name][:3]
        gain = float(theirs[name][3]) - float(theirs["alone for as long"][3])
        assert float(row[4]) == pytest.approx(gain, abs=0.11)  # of rounded numbers


def test_speeds_are_the_medians_of_the_benchmarks() -> None:
    block = SCRIPT["BLOCKS"]["speed"]()
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    cells = dict(re.findall(r"^\| ((?:train|predict) [\w-]+) \| (\S+) \(", page, re.MULTILINE))
    for row, work in (("training, one", "train"), ("prediction, one", "predict")):
        (shown,) = re.findall(rf"^\| {row} CPU thread \| (\S+)x \| (\S+)x \|$", block, re.MULTILINE)
        for value, model in zip(shown, ("bert-tiny", "minilm"), strict=True):
            assert float(value) == pytest.approx(float(cells[f"{work} {model}"]), abs=0.06)
    card = json.loads((ROOT / "benchmarks" / "results" / "gpu-h200.json").read_text())["values"]
    assert f"{card['minilm']['five, stacked']['ratio']:.1f}x" in block


def test_the_table_of_methods_and_the_last_part_of_the_demo_are_kept() -> None:
    methods, last = "        mean\nmethod  global\n──────\nLocal   49.9", "What each gained\n┏━━┓\n└──┘\nlast line"
    printed = f"AdaFD: done in 9 s\n\n{methods} \n   \nmethod  seconds\n\nWeighted F1\n   \n{last}\n"
    assert SCRIPT["tables"](printed) == f"{methods}\n\n{last}\n"
