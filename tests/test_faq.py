"""Every message that the page of error messages quotes can still come out of the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^```\nerror: (.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
LEAST = 12
"""Characters of the code's own that a message must have, so that no template of variables alone fits everything."""


@cache
def templates() -> list[tuple[int, re.Pattern[str]]]:
    """Every text in the code, with anything in place of its variables, and how many characters are its own."""
    found = set()
    for file in (ROOT / "src" / "fedstill").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr | ast.Constant):
                found.add(tuple(_pieces(node)))
    return [
        (sum(len(piece) for piece in pieces), re.compile(".*?".join(map(re.escape, pieces)), re.DOTALL))
        for pieces in found
        if sum(len(piece) for piece in pieces) >= LEAST
    ]


def _pieces(node: ast.JoinedStr | ast.Constant) -> list[str]:
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    pieces = [""]
    for part in node.values:
        if isinstance(part, ast.Constant):
            pieces[-1] += str(part.value)
        else:
            pieces.append("")
    return pieces


def fits(message: str) -> bool:
    """Whether some text of the code is in the message, and is a good part of it."""
    return any(own >= len(message) / 6 and pattern.search(message) for own, pattern in templates())


def test_there_are_many_messages() -> None:
    assert len(MESSAGES) == len(re.findall(r"^```$", PAGE, re.MULTILINE)) / 2 >= 20
    assert len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message[:40])
def test_a_message_is_in_the_code(message: str) -> None:
    assert fits(message)


def test_a_message_that_was_changed_is_found_out() -> None:
    assert fits("reviews.csv holds no rows; check that it was written completely, or remove it.")
    assert not fits("reviews.csv holds no lines; check that it was written completely, or remove it.")
