"""Which number format a step computes in: fp32 on a CPU, bf16 autocast on a GPU, unless told otherwise."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from fedstill.common.errors import FedstillError

Precision = Literal["fp32", "bf16"]


def choose_device(name: str) -> torch.device:
    """`auto` is the first GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise FedstillError(f"device: {name!r} is not a device; use auto, cpu, cuda or cuda:N.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise FedstillError("device: this machine has no usable CUDA GPU; use `device: cpu` or `device: auto`.")
    return device


def choose_precision(name: Literal["auto", "fp32", "bf16"], device: torch.device) -> Precision:
    """`auto` is bf16 autocast on a GPU and fp32 elsewhere."""
    if name == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    return name


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """Autocast to bf16 with fp32 master weights, or nothing."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def full(logits: Tensor) -> Tensor:
    """Logits that autocast made narrow, wide enough for a loss."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


def has_recurrence(module: nn.Module) -> bool:
    """Whether it has recurrent layers."""
    return any(isinstance(layer, nn.RNNBase) for layer in module.modules())


def input_gradients(*modules: nn.Module) -> AbstractContextManager[object]:
    """Inside, gradients reach a model's inputs in eval mode: cuDNN's recurrent layers have none there."""
    if any(map(has_recurrence, modules)) and torch.cuda.is_available():
        return torch.backends.cudnn.flags(enabled=False)
    return nullcontext()
