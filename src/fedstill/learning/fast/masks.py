"""Dropout masks from a fast generator: on a CPU, torch's masks take as much time as the layers they are for."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

STEPS = 1 << 16
"""A value is dropped where 16 random bits are below a threshold, so probabilities are exact to 1/65536."""


class Masks:
    """The masks of one pass. Every pass takes its seed from torch's generator, so torch's seed determines all masks."""

    def __init__(self, is_quick: bool) -> None:
        self.generator = np.random.SFC64(int(torch.randint(2**63 - 1, ()))) if is_quick else None

    def draw(self, shape: tuple[int, ...], probability: float, like: Tensor) -> Tensor | None:
        """Factors to multiply by: 0 with this probability, else 1 / (1 - probability); None for no dropout."""
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
