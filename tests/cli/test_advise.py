"""`fedstill show algorithms --advise` as a user types it, and the page that shows what it prints."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedstill.plan.advice import CASES
from tests.cli.test_cli import fedstill

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(
    r"^    fedstill (show algorithms --advise [^\n]+)\n\n```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The examples' shops with their reviews."""
    for name in ("shops.yaml", "make_reviews.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "make_reviews.py"], check=True, timeout=600)
    return tmp_path


def test_the_page_has_two_examples() -> None:
    assert [re.findall(r"algorithm=(\w+)", printed) for _, printed in EXAMPLES] == [
        ["AdaFD", "DSFL", "FedDF"],
        ["FedAvg", "FedDRS", "FedSND"],
    ]


@pytest.mark.parametrize(("command", "printed"), EXAMPLES, ids=["with public rows", "without"])
def test_the_page_shows_what_is_printed(
    here: Path, capsys: pytest.CaptureFixture[str], command: str, printed: str
) -> None:
    assert fedstill(*shlex.split(command)) == 0
    assert capsys.readouterr().out == printed
    assert not (here / "runs").exists()


def test_the_page_names_every_method_of_the_rules_and_its_evidence() -> None:
    table = PAGE.partition("## Three shops")[0]
    for one in (one for case in CASES for one in case.tries):
        assert re.search(rf"\b{one.method}\b", table), one.method
        page = one.evidence
        assert f"`{page}`" in table or f"]({page.removeprefix('docs/')})" in table, page


def test_advice_is_json_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("show", "algorithms", "--advise", "shops.yaml", "clients=bow", "server=bow", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["algorithm"] for one in told["tries"]] == ["AdaFD", "DSFL", "FedDF"]
    assert told["tries"][0]["bytes"] == 4 * (72 * 3 * (3 + 1) + 3)  # NC(K+1)+K numbers of four bytes
    assert told["obstacles"]["FedID"].startswith("needs labelled")


def test_wishes_are_options(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = ("clients=bow", "server=bow")
    assert fedstill("show", "algorithms", "--advise", "shops.yaml", *models, "--untrusted") == 0
    printed = capsys.readouterr().out
    assert "1. algorithm=AdaFD: the default `blend` leaves out" in printed
    assert "3. algorithm=Cronus: " in printed
    assert "(set blend=median where parameters are averaged): CFD, " in printed
    assert (
        fedstill("show", "algorithms", "--advise", "shops.yaml", *models, "--bytes", "2KB", "--predictions-only") == 0
    )
    printed = capsys.readouterr().out
    assert "1. algorithm=CFD: " in printed
    assert "   AdaFD: sends 3.5 KB a round (NC(K+1)+K).\n" in printed  # (72 x 3 x (3 + 1) + 3) x 4 = 3,468 bytes
    assert "   FedAvg: sends the clients' parameters.\n" in printed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["algorithms", "--advise", "nowhere.yaml"], "there is no experiment file nowhere.yaml"),
        (["algorithms", "--advise", "tweet"], "did you mean 'tweets'?"),
        (["algorithms", "--advise", "shops.yaml", "round=2"], "unknown key 'round'; did you mean 'rounds'?"),
        (["algorithms", "--advise", "shops.yaml", "corpus.path=gone.csv"], "gone.csv does not exist"),
        (["algorithms", "--advise", "adafd/table1"], "is a table of many experiments"),
        (["algorithms", "--advise", "shops.yaml", "--bytes", "few"], "--bytes: 'few' is not a size"),
        (["models", "--advise", "shops.yaml"], "advice is about algorithms"),
        (["algorithms", "rounds=2"], "advice is about algorithms"),
        (["algorithms", "FedAvg"], "by its name alone: fedstill show FedAvg"),
        (["algorithms", "--advise", "shops.yaml", "--from", "runs"], "advice is about algorithms"),
    ],
)
def test_bad_input_is_one_message(here: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert fedstill("show", *words) == 1
    printed = " ".join(capsys.readouterr().err.split())
    assert says in printed
    assert "Traceback" not in printed
