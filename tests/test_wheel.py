"""The wheel, installed away from the source tree, has everything that a run needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import write_reviews

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the source tree."""
    pytest.importorskip("setuptools", reason="what builds the wheel is absent, and may not be downloaded here")
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source" / name)
    shutil.copytree(ROOT / "src", folder / "source" / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    where = ["--wheel-dir", str(folder / "dist"), str(folder / "source")]
    _python("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet", *where)
    (made,) = (folder / "dist").glob("fedstill-*.whl")
    return made


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content and nothing else of fedstill."""
    target = tmp_path_factory.mktemp("environment")
    _python("-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(target), str(wheel))
    return target


def _python(*words: str, path: Path | None = None, cwd: Path | None = None) -> str:
    """Run this Python; `path` is where fedstill is imported from, in place of the source tree."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    known |= {} if path is None else {"PYTHONPATH": str(path)}
    done = subprocess.run([sys.executable, *words], cwd=cwd, env=known, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_file_of_the_package_is_inside(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("fedstill/")}
    source = (ROOT / "src" / "fedstill").rglob("*")
    files = {str(path.relative_to(ROOT / "src")) for path in source if path.is_file() and path.suffix != ".pyc"}
    assert inside == files
    assert {"fedstill/py.typed", "fedstill/papers/claims.yaml", "fedstill/results/report/page.html"} <= inside


def test_it_runs_away_from_the_source_tree(empty: Path, tmp_path: Path) -> None:
    def fedstill(*words: str) -> str:
        return _python("-m", "fedstill", *words, path=empty, cwd=tmp_path)

    where = _python("-c", "import fedstill; print(fedstill.__file__)", path=empty, cwd=tmp_path)
    assert where.startswith(str(empty))
    assert fedstill("--version").startswith("fedstill ")
    assert (empty / "bin" / "fedstill").exists()
    assert "adafd/table1" in fedstill("show", "recipes")
    (tmp_path / "evidence").mkdir()
    assert "AdaFD" in fedstill("show", "claims")
    write_reviews(tmp_path / "reviews.csv", rows=120)
    (tmp_path / "shops.yaml").write_text(
        "name: shops\ncorpus: {path: reviews.csv, text: body, label: stars, domain: shop}\n"
        "clients: bow\nserver: bow\ntrain: {epochs: 1}\nrounds: 1\nworkers: 1\n"
    )
    fedstill("run", "shops.yaml")
    assert json.loads((tmp_path / "runs" / "shops" / "seed-0" / "summary.json").read_text())["rounds"] == 1
    pytest.importorskip("plotly", reason="the packages of report pages are absent")
    fedstill("report", "runs/shops", "--out", "page.html")
    assert "Plotly" in (tmp_path / "page.html").read_text()


def test_the_demo_is_inside(empty: Path, tmp_path: Path) -> None:
    told = json.loads(_python("-m", "fedstill", "demo", "--json", path=empty, cwd=tmp_path))
    assert {row["algorithm"] for row in told["comparison"]["rows"]} == {"Local", "LogitAvg", "AdaFD", "Centralized"}
    assert told["gain"] > 0
    assert len(list((tmp_path / "runs" / "demo").glob("*/seed-0/summary.json"))) == 4
