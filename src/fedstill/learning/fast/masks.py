"""Dropout masks from a quick generator: on a CPU, torch's own cost as much as the layers that they thin out."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

STEPS = 1 << 16
"""A number is dropped where 16 random bits lie below a threshold, so a probability is exact to 1/65536."""


class Masks:
    """The masks of one pass. A pass has a seed of its own from torch's generator, which so governs all of them."""

    def __init__(self, is_quick: bool) -> None:
        self.generator = np.random.SFC64(int(torch.randint(2**63 - 1, ()))) if is_quick else None

    def draw(self, shape: tuple[int, ...], probability: float, like: Tensor) -> Tensor | None:
        """What to multiply by: 0, with that probability, or what keeps the expectation; None where nothing drops."""
        if probability <= 0:
            return None
        if self.generator is None:
            return F.dropout(like.new_ones(shape), probability)
        threshold = round(probability * STEPS)
        if threshold >= STEPS:
            return like.new_zeros(shape)
        count = math.prod(shape)
        kept = self.generator.random_raw((count + 3) // 4).view(np.uint16)[:count] >= threshold
        # numpy turns booleans into numbers six times as fast as torch does.
        mask = torch.from_numpy(kept.astype(np.float64 if like.dtype == torch.float64 else np.float32))
        return mask.mul_(STEPS / (STEPS - threshold)).view(shape).to(like.dtype)
