"""The notebooks run from their first cell to their last, and are kept without what they printed."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
QUICK = "your_data"


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def run(path: Path) -> list[Any]:
    """Run every cell of code in one namespace, as a kernel does; the value of each cell's last line."""
    names: dict[str, Any] = {"__name__": "__main__"}
    values = []
    for number, cell in enumerate(cell for cell in cells(path) if cell["cell_type"] == "code"):
        tree = ast.parse("".join(cell["source"]))
        *_, end = tree.body
        last = end if isinstance(end, ast.Expr) else None
        tree.body = tree.body[: -1 if last else None]
        exec(compile(tree, f"{path.name}, cell {number}", "exec"), names)
        values.append(last and eval(compile(ast.Expression(last.value), f"{path.name}, cell {number}", "eval"), names))
    return values


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    assert book["cells"][0]["source"][0].startswith("# ")
    for cell in book["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"] == [] and cell["execution_count"] is None)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[] if path.stem == QUICK else pytest.mark.slow) for path in NOTEBOOKS],
)
def test_a_notebook_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        values = run(path)
    finally:
        sys.modules.pop("confident", None)
    printed = capsys.readouterr().out
    expected = {
        "first_federation": "'Opinion'",
        "your_data": "the label is missing",
        "your_method": "did you mean 'temperature'?",
        "reading_a_record": "Weighted F1",
    }
    assert expected[path.stem] in printed
    if path.stem == "your_data":
        assert printed.rstrip().endswith("True")
    if path.stem == "reading_a_record":
        assert values[-1] is True


def test_there_are_four() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_federation", "reading_a_record", "your_data", "your_method"]
