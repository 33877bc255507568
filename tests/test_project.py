"""The files around the code say what is true: links lead somewhere, versions agree, `make` lists its targets."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fedstill import __version__
from tests.test_rooms import ROOMS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")])
PAPERS = ["AdaFD", "FedID", "FedSND", "FedDRS"]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    ours = [link for link in links if "://" not in link]
    assert not [link for link in ours if not (page.parent / link).exists()]


def test_the_readme_leads_to_examples_architecture_and_contributing() -> None:
    for page in ("examples/README.md", "docs/architecture.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        assert f"]({page})" in text("README.md")


def test_the_citation_is_complete() -> None:
    citation = yaml.safe_load(text("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what CFF 1.2.0 requires
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == __version__
    assert citation["authors"] == [{"name": "The fedstill developers"}]
    assert sorted(paper["notes"].partition(";")[0] for paper in citation["references"]) == sorted(PAPERS)
    for paper in citation["references"]:
        assert {"type", "title", "authors"} <= paper.keys()
        assert all("name" in author or {"family-names", "given-names"} <= author.keys() for author in paper["authors"])


def test_the_changelog_has_this_version_and_what_comes_next() -> None:
    versions = re.findall(r"^## \[([^]]+)\]", text("CHANGELOG.md"), re.MULTILINE)
    assert versions[:2] == ["Unreleased", __version__]


def test_commits_are_checked_as_make_lint_does_and_nothing_is_downloaded() -> None:
    (repository,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    lint = re.findall(
        r"^\t\$\(BIN\)/(.+)$", text("Makefile").partition("\nlint:")[2].partition("\n\n")[0], re.MULTILINE
    )
    checked = [hook["entry"].removeprefix(".venv/bin/").removesuffix(" --fix") for hook in repository["hooks"]]
    assert checked == [command.removesuffix(" .").replace(" --check", "") for command in lint]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is absent")
def test_make_alone_lists_every_target() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=600).stdout
    (phony,) = re.findall(r"^\.PHONY: (.+)$", text("Makefile"), re.MULTILINE)
    assert re.findall(r"^make (\S+) +\S", listed, re.MULTILINE) == phony.split()


def test_the_architecture_names_every_room_once_from_the_ground_up() -> None:
    page = text("docs/architecture.md")
    assert re.findall(r"^\*\*`(\w+)`\*\*", page, re.MULTILINE) == list(ROOMS[:-1])
    picture = re.findall(r"^```\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    drawn = [word for line in picture.splitlines() for word in re.findall(r"\w+", line[:34]) if word in ROOMS]
    assert sorted(drawn) == sorted(ROOMS[:-1])
    heights = [next(n for n, line in enumerate(picture.splitlines()) if room in line[:34]) for room in ROOMS[:-1]]
    assert heights == sorted(heights, reverse=True)
