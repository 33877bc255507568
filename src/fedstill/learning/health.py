"""Whether a conversation goes well: numbers stay finite, and both parts of a loss are large enough to matter."""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.learning.phases import Phase

MEASURE_EVERY = 50
"""Steps from one measurement of gradient norms to the next: each costs a backward pass for every part."""


def refuse_divergence(who: str, values: Tensor) -> None:
    """Stop where there are numbers that nobody can go on with."""
    if not bool(torch.isfinite(values).all()):
        raise FedstillError(f"{who} diverged while it conversed: lower distill.rate, or set distill.clip.")


def add_gradient_norms(sums: MutableMapping[str, float], phase: Phase, **parts: Tensor) -> None:
    """Now and then, add the norm of the gradient of each part of the next step's loss to its sum."""
    if phase.taken % MEASURE_EVERY:
        return
    for name, loss in parts.items():
        sums[f"{name} norm"] = sums.get(f"{name} norm", 0.0) + phase.gradient_norm(loss)


def norm_ratio(sums: MutableMapping[str, float], part: str, other: str) -> dict[str, float]:
    """How the two norms compare, by a name for the record; takes them out of the sums."""
    above, below = (sums.pop(f"{name} norm", 0.0) for name in (part, other))
    return {f"{part} / {other}": above / below} if below > 0 else {}
