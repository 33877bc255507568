"""Messages of senders that keep to none of our rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import save

from fedstill.wire.encoding import _plain, _tensors, seal
from fedstill.wire.messages import Message


def foreign(message: Message | None, envelope: Mapping[str, Any] | None = None) -> bytes:
    """The bytes of a message with any type of numbers, written by the safetensors library."""
    header = {"type": type(message).__name__, "plain": _plain(message), **(envelope or {})}
    numbers = {name: value.clone(memory_format=torch.contiguous_format) for name, value in _tensors(message).items()}
    return seal(save(numbers, metadata={"fedstill": json.dumps(header)}))
