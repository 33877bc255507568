"""Arrows between rooms point one way: every import is counted, those inside functions and for type checkers too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fedstill

ROOT = Path(fedstill.__file__).parent
ROOMS = (
    "common",
    "data",
    "wire",
    "learning",
    "models",
    "parties",
    "algorithms",
    "config",
    "plan",
    "results",
    "engines",
    "federation",
    "papers",
    "api",
    "cli",
    "fedstill",
)
"""From the ground up: a room knows those before it. The last is the hall itself, `fedstill/__init__.py`."""
APART = {("data", "wire"), ("papers", "federation"), ("api", "cli")}
"""Rooms beside each other: neither knows the other."""


def modules(root: Path) -> dict[str, Path]:
    return {
        ".".join((root.name, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in sorted(root.rglob("*.py"))
    }


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else "fedstill"


def imported(path: Path, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Line and module of every import of ours in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in whole]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name in known)


def offences(root: Path) -> list[str]:
    known = modules(root)
    found = []
    for module, path in known.items():
        for line, other in imported(path, known):
            here, there = room(module), room(other)
            is_down = here == there or ROOMS.index(there) < ROOMS.index(here)
            if not is_down or (there, here) in APART or (here, there) in APART:
                found.append(f"{here} -> {there}: {path.relative_to(root)}:{line} imports {other}")
    return found


def test_every_room_is_known():
    assert {room(module) for module in modules(ROOT)} == set(ROOMS)


def test_arrows_point_one_way():
    assert not offences(ROOT), "\n".join(offences(ROOT))


def test_a_hidden_arrow_upwards_is_found(tmp_path):
    root = tmp_path / "fedstill"
    for folder in ("data", "cli"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").touch()
    (root / "cli" / "main.py").touch()
    (root / "data" / "bad.py").write_text("def later():\n    from fedstill.cli import main\n")
    assert offences(root) == ["data -> cli: data/bad.py:2 imports fedstill.cli.main"]


def test_the_hall_holds_the_door_and_little_else():
    assert sorted(path.name for path in ROOT.glob("*.py")) == ["__init__.py", "__main__.py"]
