"""The Dockerfile, which no test can build: what it names exists, and nothing private can get into the image."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def steps() -> list[tuple[str, str]]:
    """The instructions and their arguments, continued lines joined, comments left out."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def project() -> dict[str, object]:
    values: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return values


def test_the_only_thing_copied_is_the_wheel_and_it_alone_is_let_in(steps: list[tuple[str, str]]) -> None:
    assert [rest for word, rest in steps if word in ("COPY", "ADD")] == ["dist/fedstill-*.whl /tmp/dist/"]
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert rules == ["*", "!dist", "dist/*", "!dist/fedstill-*.whl"]
    assert project()["name"] == "fedstill"


def test_extras_python_and_entry_point_are_the_projects_own(steps: list[tuple[str, str]]) -> None:
    run = " ".join(rest for word, rest in steps if word == "RUN")
    (extras,) = re.findall(r"\.whl\)\[([\w,]+)\]", run)
    assert set(extras.split(",")) <= set(project()["optional-dependencies"])  # type: ignore[call-overload]
    (image,) = [rest for word, rest in steps if word == "FROM"]
    assert f">={image.removeprefix('python:').removesuffix('-slim')}" == project()["requires-python"]
    (entry,) = [rest for word, rest in steps if word == "ENTRYPOINT"]
    assert entry.strip('[]"') in project()["scripts"]  # type: ignore[operator]
    (torch,) = re.findall(r'"(torch[^"]+)"', run)
    assert torch in project()["dependencies"]  # type: ignore[operator]


def test_it_does_not_run_as_root_and_holds_no_secret(steps: list[tuple[str, str]]) -> None:
    words = [word for word, _ in steps]
    assert dict(steps)["USER"] == "fedstill"
    assert "RUN" not in words[words.index("USER") :]  # nothing is done as another user after it
    told = " ".join(rest for word, rest in steps if word in ("ENV", "ARG", "RUN"))
    assert not re.search(r"token|secret|password|api_key", told, re.IGNORECASE)
