"""The guide as a site: it builds without a warning, fetches nothing, and has every page of docs/ in its navigation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedstill.algorithms import known
from fedstill.algorithms.base import Algorithm

ROOT = Path(__file__).resolve().parents[1]
NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]


def test_every_page_is_in_the_navigation_once() -> None:
    named = re.findall(r": ([\w/-]+\.md)$", NAVIGATION, re.MULTILINE)
    assert sorted(name for name in named if "/" not in name and name.islower()) == sorted(
        page.name for page in (ROOT / "docs").glob("*.md")
    )
    assert {name for name in named if name.startswith("notebooks/")} == {
        f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")
    }
    assert {name for name in named if name.startswith("evidence/")} == {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "evidence").rglob("*.md")
    }
    assert len(set(named)) == len(named)


def test_no_font_is_fetched() -> None:
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["theme"]["font"] is False


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=True,
        timeout=600,
    )
    for name in known(Algorithm):
        assert (tmp_path / "methods" / f"{name}.html").exists()
    pages = {page: page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")}
    fetched = r"""<(?:script|img|link|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//"""
    assert not [page for page, text in pages.items() if re.search(fetched, text)]
    dead = [
        (page.name, link)
        for page, text in pages.items()
        for link in re.findall(r'<a [^>]*href="([^"#:]+)["#]', text)
        if not (page.parent / link).exists()
    ]
    assert not [each for each in dead if each[0] != "404.html"]
    assert 'id="fedstill.FederatedClassifier"' in pages[tmp_path / "reference.html"]
    assert "<table>" in pages[tmp_path / "reproduce.html"]
    assert 'href="source/src/fedstill/algorithms/adafd.py.html"' in pages[tmp_path / "adafd.html"]
