"""What codecs share: bytes with a few whole numbers in front as one array, and what they can encode at all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.wire.encoding import Parts
from fedstill.wire.messages import BadMessage

SMALLEST = 1e-8
"""The probability that a zero becomes where logits were encoded: log 0 is not finite."""


def join(numbers: Sequence[int], body: bytes = b"") -> Tensor:
    """One array, uint8, of these numbers (a byte for seven bits) and these bytes: two arrays take two headers."""
    packed = bytearray()
    for number in numbers:
        while number >= 128:
            packed.append(number & 127 | 128)
            number >>= 7
        packed.append(number)
    return torch.from_numpy(np.frombuffer(bytes(packed) + body, np.uint8).copy())


def split(parts: Parts, name: str, many: int) -> tuple[list[int], bytes]:
    """The numbers, below 2^35, and the bytes again; raises BadMessage if there are none."""
    packed = parts.get(name)
    if packed is None or packed.dtype != torch.uint8 or packed.ndim != 1:
        raise BadMessage(f"an array without packed {name}, which were agreed on.")
    raw, numbers, at = packed.numpy().tobytes(), [], 0
    for _ in range(many):
        end = next((place for place in range(at, min(at + 5, len(raw))) if raw[place] < 128), None)
        if end is None:
            raise BadMessage(f"an array without packed {name}, which were agreed on.")
        numbers.append(sum((raw[place] & 127) << 7 * (place - at) for place in range(at, end + 1)))
        at = end + 1
    return numbers, raw[at:]


def refuse_unfinite(value: Tensor, codec: str) -> None:
    """Refuse to encode what no receiver would take."""
    if not bool(torch.isfinite(value).all()):
        raise FedstillError(f"a number is not finite: {codec} cannot encode it.")


def check_size(shape: Sequence[int], largest: int | None) -> None:
    """Refuse an array that no call asks for, before it is made."""
    if min(shape, default=1) < 1 or (largest is not None and math.prod(shape) > largest):
        raise BadMessage(f"codes of an array of shape {tuple(shape)}: no call asks for so many.")


def are_probabilities(value: Tensor) -> bool:
    """Whether rows are class probabilities, and not logits."""
    return bool((value >= 0).all()) and bool(((value.double().sum(-1) - 1).abs() < 1e-3).all())


def as_probabilities(value: Tensor) -> Tensor:
    """The class probabilities that rows of logits, or of probabilities, stand for."""
    return value if are_probabilities(value) else value.softmax(-1)
