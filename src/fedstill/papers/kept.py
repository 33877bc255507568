"""A finished run as the evidence keeps it: all that a page needs, without the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedstill.results.runs import Run

Curves = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Split -> metric -> round -> score."""


@dataclass(frozen=True)
class KeptRun(Run):
    """A run without its folder: no predictions, no partition, no model."""

    setting: str = ""
    """Rows, clients, rounds and models, in one sentence."""
    by_round: Curves = field(default_factory=dict)
    origin: str = ""
    """How a method without a server model is scored by round."""
    weights: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Round -> client -> its weight, where the method observed it."""
    losses: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Round -> client -> the loss that it told, where the method observed it."""
    sampling: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Teacher and student -> step -> cross-entropy, where the method observed it."""
    sent: Mapping[str, int] = field(default_factory=dict)
    """The letters of the formulas of what is sent, and the numbers counted in the ledger."""
    commit: str = ""
    device: str = ""
    shared_with: str = ""
    """The recipe for which the run was done, if not for this one."""
