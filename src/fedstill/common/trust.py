"""Whose code runs: classes that a file names run only where the user trusts them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole

_trusts_all = True
"""A program that builds an experiment itself trusts what it names; the commands, which read files, do not."""


def trust_all(whether: bool) -> None:
    """From now on this process runs any class that is named, or only those of files that were trusted."""
    global _trusts_all
    _trusts_all = whether


def trusts_all() -> bool:
    """Whether this process runs any class that is named."""
    return _trusts_all


@contextmanager
def trusting(whether: bool) -> Iterator[None]:
    """The same for a while."""
    before = _trusts_all
    trust_all(whether)
    try:
        yield
    finally:
        trust_all(before)


def check_trust(path: str) -> None:
    """Refuse code that nobody trusts: `file.py:Class`, or `package.module:Class`."""
    if _trusts_all:
        return
    file = Path(path.rpartition(":")[0])
    if file.suffix == ".py" and file.is_file() and _digest(file) in _known():
        return
    once = f", or trust this file as it is with `fedstill trust {file}`" if file.suffix == ".py" else ""
    raise FedstillError(f"{path} is code that a file names: look at it, then give --trust-code{once}.")


def remember(file: Path) -> str:
    """Trust this file from now on, as long as it does not change; returns its hash."""
    if not file.is_file():
        raise FedstillError(f"{file} does not exist.")
    known = _known() | {_digest(file)}
    _list().parent.mkdir(parents=True, exist_ok=True)
    write_whole(_list(), "".join(f"{each}\n" for each in sorted(known)).encode())
    return _digest(file)


def _known() -> set[str]:
    return set(_list().read_text().split()) if _list().is_file() else set()


def _list() -> Path:
    """The file of hashes; in the user's configuration, where no experiment can write."""
    folder = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(folder) / "fedstill" / "trusted-code"


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
