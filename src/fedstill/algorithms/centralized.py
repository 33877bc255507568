"""Centralized: all private rows in one place, which a federation avoids; the upper bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedstill.algorithms.base import Algorithm, Answers, Federation, Role


@dataclass(frozen=True)
class Centralized(Algorithm):
    """The server's model trained on the pooled private rows: T phases of E epochs."""

    needs: ClassVar[frozenset[str]] = frozenset({"pooled"})
    role: ClassVar[Role] = "upper bound"
    cost: ClassVar[str] = "0 (the private rows themselves move)"

    def round(self, fed: Federation, answer: Answers) -> None:
        fed.server.train(fed.server.pooled)
