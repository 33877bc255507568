"""`import fedstill` is quick, and everything that it promises is there and typed."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedstill
from fedstill import algorithms

ROOT = Path(__file__).resolve().parents[1]


def test_importing_loads_neither_torch_nor_transformers() -> None:
    program = "import sys, fedstill; print([name for name in ('torch', 'numpy', 'pydantic') if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("name", fedstill.__all__)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(fedstill, name)) or name in ("Answers",)


def test_type_checkers_see_the_names_that_programs_see() -> None:
    tree = ast.parse(Path(fedstill.__file__).read_text(encoding="utf-8"))
    (typed,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {
        alias.asname or alias.name: str(node.module)
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {name: f"fedstill.{module}" for module, names in fedstill._HOMES.items() for name in names}
    assert seen == homes
    assert sorted(fedstill.__all__) == sorted(seen)


def test_every_method_is_exported() -> None:
    assert set(algorithms.known(fedstill.Algorithm)) <= set(fedstill.__all__)
    assert set(algorithms.known(fedstill.Weighting)) <= set(fedstill.__all__)


def test_a_wrong_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Rekord'"):
        _ = fedstill.Rekord  # type: ignore[attr-defined]


PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_names_everything() -> None:
    table = PAGE.partition("## All names")[2]
    assert set(re.findall(r"`(\w+)`", table)) == set(fedstill.__all__)


def test_the_blocks_of_the_page_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert len(BLOCKS) == len(re.findall(r"^```[a-z]", PAGE, re.MULTILINE)) == 7
    for block in BLOCKS:
        exec(compile(block, "docs/api.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "[1] [[" in printed  # a lovely kite is a good one
    assert "Local" in printed
    assert "'label':" in printed
