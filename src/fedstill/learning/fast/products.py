"""The matrix products of the packed encoder, by the library that takes the least time on this processor.

Torch multiplies fp32 by MKL, which uses AVX-512 on Intel's processors only; on others oneDNN takes half as long. In
bf16, which `narrowed` rounds both factors to, a product takes a quarter where the processor has instructions for it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

MULTIPLE = 32
"""Numbers of rows are multiples of this: oneDNN prepares a product of a new shape for about a millisecond."""

CPU = Path("/proc/cpuinfo")


def narrowed(values: Tensor, narrow: bool) -> Tensor:
    """A factor of products: the values, or those rounded to bf16."""
    return values.bfloat16() if narrow else values


def linear(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """states @ weight.t() + bias, in the bias's number format."""
    if states.dtype == torch.bfloat16:
        return F.linear(states, weight).to(bias.dtype).add_(bias)
    if states.dtype == torch.float32 and uses_onednn():
        return _onednn(states, weight, bias)
    return torch.addmm(bias, states, weight.t())


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, in fp32 where the factors are in bf16."""
    if left.dtype == torch.bfloat16:
        return (left @ right).float()
    if left.dtype == torch.float32 and uses_onednn():
        return _onednn(left, right.t(), None)
    return left @ right


def _onednn(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return found


@cache
def uses_onednn() -> bool:
    """Whether fp32 is multiplied by oneDNN: torch has it, and the processor has AVX-512 and is not Intel's."""
    is_there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    has_it = is_there and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has_it and torch.backends.cpu.get_cpu_capability() == "AVX512" and not is_intel()


def is_intel() -> bool:
    """Whether MKL knows this processor for one of its own; so where the system does not tell, too."""
    try:
        return "GenuineIntel" in CPU.read_text(encoding="utf-8")
    except OSError:
        return True
