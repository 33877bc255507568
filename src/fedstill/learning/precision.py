"""The number format that a step computes in: by default fp32 on a CPU and bf16 autocast on a GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
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


def input_gradients(*modules: nn.Module) -> AbstractContextManager[object]:
    """Inside, a model in eval mode has gradients with respect to its inputs, which cuDNN's recurrent layers lack."""
    if any(map(has_recurrence, modules)) and torch.cuda.is_available():
        return torch.backends.cudnn.flags(enabled=False)
    return nullcontext()
