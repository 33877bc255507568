"""The page on how the default was chosen is the one that its lines make, and names the default that is."""

import json
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from fedstill.algorithms import make
from fedstill.algorithms.reading import READINGS, Reading, sharpness

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "choose_default.py"))
LINES = [json.loads(line) for line in (ROOT / "evidence" / "default.jsonl").read_text().splitlines()]


def test_the_page_is_made_from_the_lines():
    assert (ROOT / "evidence" / "default.md").read_text() == SCRIPT["page"](LINES)


def test_what_was_chosen_in_stage_2_is_the_default():
    chosen = make(SCRIPT["CANDIDATES"][2]["training loss, beta 1, / 0.3"])
    default = make("AdaFD")
    assert chosen.weigher == default.weigher
    later = ("beta", "sharpen", "settling", "linear", "foreign", "wary", "veto")
    same = {item.name for item in fields(Reading) if item.name not in later}
    assert {name: getattr(chosen.how, name) for name in same} == {name: getattr(default.how, name) for name in same}
    assert default.how == READINGS["comparable"]
    assert [sharpness(labels) for labels in (2, 3, 4)] == [chosen.how.sharpen] * 3
    assert sharpness(14) == pytest.approx(SCRIPT["CANDIDATES"][8]["/ 0.208"]["sharpen"], abs=3e-3)


def test_every_line_is_of_a_candidate_and_a_federation_of_the_script(tmp_path):
    for line in LINES:
        assert line["candidate"] in SCRIPT["CANDIDATES"][line["stage"]]
        assert line["federation"] in SCRIPT["WHERE"][line["stage"]]
    for candidates in SCRIPT["CANDIDATES"].values():
        for options in candidates.values():
            make(options)
