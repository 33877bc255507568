"""The number format that a step computes in: by default fp32 on a CPU and bf16 autocast on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from fedstill.common.errors import FedstillError

Precision = Literal["fp32", "bf16"]


def choose_device(name: str) -> torch.device:
    """The device of that name, ready for use; `auto` is the first GPU, or the CPU where there is none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise FedstillError(f"device: {name!r} is not a device; use auto, cpu, cuda or cuda:N.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise FedstillError("device: this machine has no usable CUDA GPU; use `device: cpu` or `device: auto`.")
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # it takes 16 ms to plan every shape that it has not seen yet
    return device


def choose_precision(name: Literal["auto", "fp32", "bf16"], device: torch.device) -> Precision:
    """`auto` is bf16 autocast on a GPU and fp32 elsewhere."""
    if name == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    return name


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """Autocast to bf16 with fp32 master weights; for fp32, no change."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def full(logits: Tensor) -> Tensor:
    """16-bit logits as float32, which a loss needs; others unchanged."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


def has_recurrence(module: nn.Module) -> bool:
    """Whether the module has recurrent layers."""
    return any(isinstance(layer, nn.RNNBase) for layer in module.modules())


@contextmanager
def input_gradients(*modules: nn.Module) -> Iterator[None]:
    """Inside, models in eval mode have gradients with respect to their inputs, and to nothing else.

    cuDNN's recurrent layers lack them.
    """
    learnt = [p for module in modules for p in module.parameters() if p.requires_grad]
    has_none = any(map(has_recurrence, modules)) and torch.cuda.is_available()
    for parameter in learnt:
        parameter.requires_grad_(False)
    try:
        with torch.backends.cudnn.flags(enabled=False) if has_none else nullcontext():
            yield
    finally:
        for parameter in learnt:
            parameter.requires_grad_()
