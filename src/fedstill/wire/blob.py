"""The safetensors form of a message's arrays: a header in JSON, then the numbers.

It is written and read here, byte for byte as the safetensors library does, but with one copy of the numbers each way
where the library makes three: a message may be a whole model. What a header says is checked before anything is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedstill.common.errors import FedstillError

DTYPES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The types of numbers that can be sent, in the order in which a blob holds them, the widest first."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ORDER = {dtype: place for place, dtype in enumerate(NAMES)}
WIDTHS = {name: dtype.itemsize for name, dtype in DTYPES.items()}
MOST_DIMENSIONS, LARGEST = 8, 1 << 40
SIZE = 8
"""The first bytes of a blob, which say how long its header is."""
AS_TEXT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Declared(NamedTuple):
    """What the header says about one tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * WIDTHS[self.dtype]


def pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """A safetensors blob, in pieces: its header, then each tensor's own memory."""
    for name, value in tensors.items():
        if value.dtype not in NAMES:
            raise FedstillError(f"{name} holds {value.dtype}, which cannot be sent.")
    header: dict[str, Any] = {"__metadata__": metadata}
    numbers, end = list[memoryview](), 0
    for name, value in sorted(tensors.items(), key=lambda item: (ORDER[item[1].dtype], item[0])):
        start, end = end, end + value.nbytes
        header[name] = {"dtype": NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
        flat = value.detach().cpu().contiguous().view(-1)
        flat = flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat  # numpy has no bfloat16
        numbers.append(memoryview(flat.numpy()))  # type: ignore[arg-type]
    text = AS_TEXT(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(SIZE, "little") + text, *numbers]


def header_bytes(blob: memoryview) -> int:
    """How many of a blob's bytes come before its numbers."""
    return SIZE + int.from_bytes(blob[:SIZE], "little")


def header_of(blob: memoryview) -> dict[str, Any]:
    """The header of a safetensors blob."""
    end = header_bytes(blob)
    if end > len(blob):
        raise ValueError(f"its header has {end - SIZE} bytes")
    header = json.loads(bytes(blob[SIZE:end]))
    if not isinstance(header, dict):
        raise TypeError("its header is not that of a message")
    return header


def declared_in(header: Mapping[str, Any]) -> dict[str, Declared]:
    """The tensors in a header; raises ValueError for those that cannot be sent."""
    found = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        dtype, shape = about["dtype"], about["shape"]
        if dtype not in WIDTHS:
            raise ValueError(f"{name[:60]} holds {str(dtype)[:20]}, which cannot be sent")
        if len(shape) > MOST_DIMENSIONS or any(type(size) is not int or not 0 <= size < LARGEST for size in shape):
            raise ValueError(f"{name[:60]} has {len(shape)} dimensions, or one without a size")
        found[name] = Declared(dtype, tuple(shape))
    return found


def tensors_of(blob: memoryview, header: Mapping[str, Any], declared: Mapping[str, Declared]) -> dict[str, Tensor]:
    """The tensors of a blob, in one copy of its numbers; raises ValueError where they are not what the header says."""
    numbers = bytearray(blob[header_bytes(blob) :])
    places = sorted((header[name]["data_offsets"], name) for name in declared)
    end, found = 0, dict[str, Tensor]()
    for (start, stop), name in places:
        about, dtype = declared[name], DTYPES[declared[name].dtype]
        if start != end or stop - start != about.bytes or start % dtype.itemsize:
            raise ValueError(f"{name[:60]} is not where it should be")
        end, count = stop, math.prod(about.shape)
        if not count:
            found[name] = torch.empty(about.shape, dtype=dtype)
            continue
        flat = torch.frombuffer(numbers, dtype=dtype, count=count, offset=start)
        found[name] = flat if len(about.shape) == 1 else flat.view(about.shape)
    if end != len(numbers):
        raise ValueError(f"{len(numbers) - end} bytes belong to no tensor")
    return found
