"""What a corpus that fedstill knows by name says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fedstill.data.corpora.files import Row

if TYPE_CHECKING:
    from fedstill.data.corpora.spec import CorpusSpec


class Source(NamedTuple):
    """What was read, before it becomes arrays."""

    name: str
    rows: list[Row]
    test_rows: list[Row] | None = None
    counts: dict[str, int] | None = None
    labels: tuple[str, ...] | None = None
    metrics: tuple[str, ...] = ("f1",)
    order: str = ""
    """In which order its labels stand, where `labels:` cannot give them another."""


@dataclass(frozen=True)
class Embedded:
    """A corpus fedstill knows by name."""

    what: str
    licence: str
    labels: tuple[str, ...]
    settings: frozenset[str] = frozenset()
    """What may be set beside its name."""
    read: Callable[[CorpusSpec, bool], Source] | None = None
    """All rows, or the training rows alone for a public set, whose labels need not be there; None where it is not
    made of rows of text."""
