"""The binary form of messages.

A message travels as one safetensors blob: arrays and floats as tensors, everything else and the envelope as JSON in the
header. Before it stand a mark, whose last byte is the version of this form, and a checksum. Decoding never runs code
from a message. All engines send the same bytes, even inside one process, so they compute the same numbers.

The blob is written and read here, byte for byte as the safetensors library does, but with one copy of the numbers each
way where the library makes three: a message may be a whole model.
"""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.wire.messages import BadMessage, Message

Parts = Mapping[str, Tensor]
"""An encoded tensor: the tensors that a codec made of it, under the codec's own names."""
Code = Callable[[str, Tensor], Parts | None]
"""(`field` or `field/key`, its value) -> the parts to send instead, or None to send the value unchanged."""
Restore = Callable[[type[Message], str, Parts], Tensor]
"""(type of message, `field` or `field/key`, its parts) -> the value."""


@dataclass(frozen=True)
class Declared:
    """What the header says about one tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * WIDTHS[self.dtype]


Admit = Callable[[type[Message], Mapping[str, Declared]], None]
"""Raises BadMessage where a message of this type cannot have these tensors; called before they are made."""

MARK = "#"
"""Separates a tensor's name from the name of one of its parts."""
SEAL = b"FDS\x02"
"""The first bytes of a message; a CRC-32 of all that follows it comes next."""
SEALED = len(SEAL) + 4
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
WIDTHS = {name: dtype.itemsize for name, dtype in DTYPES.items()}
MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class Sizes:
    """Bytes of one message: floating-point numbers (also packed ones), integers such as row numbers, and the rest."""

    payload: int
    indices: int
    header: int

    @classmethod
    def of(cls, raw: bytes) -> Sizes:
        """Read from the header of an encoded message."""
        payload = indices = 0
        for part in _declared(_header(memoryview(raw)[SEALED:])).values():
            counts = "F" in part.dtype or part.dtype == "U8"  # U8: numbers packed by a codec
            payload, indices = (payload + part.bytes, indices) if counts else (payload, indices + part.bytes)
        return cls(payload, indices, len(raw) - payload - indices)

    def uncoded(self, message: Message | None) -> Sizes:
        """The sizes of the same message without a codec, with this header."""
        sizes = {True: 0, False: 0}
        for value in _tensors(message).values():
            sizes[value.is_floating_point() or value.dtype == torch.uint8] += value.nbytes
        return Sizes(sizes[True], sizes[False], self.header)

    @property
    def total(self) -> int:
        """All bytes."""
        return self.payload + self.indices + self.header


@dataclass(frozen=True)
class Parcel:
    """A message that arrived, and its envelope."""

    message: Message | None
    envelope: dict[str, Any]


def encode(
    message: Message | None, envelope: Mapping[str, Any] | None = None, code: Code = lambda name, value: None
) -> bytes:
    """The bytes of a message and its envelope; None is an empty message."""
    tensors: dict[str, Tensor] = {}
    for name, value in _tensors(message).items():
        parts = code(name, value)
        tensors |= {name: value} if parts is None else {f"{name}{MARK}{p}": v for p, v in parts.items()}
    plain = _plain(message)
    header = {"type": type(message).__name__ if message is not None else None, "plain": plain, **(envelope or {})}
    return _sealed(_blob(tensors, {"fedstill": json.dumps(header)}))


def seal(blob: bytes) -> bytes:
    """The blob of a message behind its mark and checksum; what has them already stays as it is."""
    return blob if blob[: len(SEAL)] == SEAL else _sealed([blob])


def _sealed(pieces: Sequence[bytes | memoryview]) -> bytes:
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return b"".join([SEAL, checksum.to_bytes(4, "little"), *pieces])


def _blob(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """A safetensors blob, in pieces: its header, then each tensor's own memory."""
    order = list(DTYPES.values())
    for name, value in tensors.items():
        if value.dtype not in NAMES:
            raise FedstillError(f"{name} holds {value.dtype}, which cannot be sent.")
    header: dict[str, Any] = {"__metadata__": metadata}
    pieces, end = list[bytes | memoryview](), 0
    for name, value in sorted(tensors.items(), key=lambda item: (order.index(item[1].dtype), item[0])):
        start, end = end, end + value.nbytes
        header[name] = {"dtype": NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
        flat = value.detach().cpu().contiguous().reshape(-1)
        pieces.append(memoryview(flat.view(torch.uint8).numpy()))  # type: ignore[arg-type]
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *pieces]


def _unseal(raw: bytes) -> memoryview:
    """The blob, not copied: nothing is allocated for what is refused."""
    if raw[: len(SEAL)] != SEAL:
        raise ValueError("it is not of this version of fedstill")
    blob = memoryview(raw)[SEALED:]
    if zlib.crc32(blob) != int.from_bytes(raw[len(SEAL) : SEALED], "little"):
        raise ValueError("its checksum is wrong: it was damaged on its way")
    return blob


def _tensors(message: Message | None) -> dict[str, Tensor]:
    """Every tensor to send, by name: `field`, or `field/key` inside a mapping."""
    found: dict[str, Tensor] = {}
    for item in dataclasses.fields(message) if message is not None else ():
        value = getattr(message, item.name)
        if isinstance(value, Tensor):
            found[item.name] = value
        elif isinstance(value, float):
            found[item.name] = torch.tensor(value, dtype=torch.float32)
        elif isinstance(value, Mapping):
            found |= {f"{item.name}/{key}": part for key, part in value.items()}
    return found


def _plain(message: Message | None) -> dict[str, Any]:
    """What is sent in the header: integers, strings, and the keys of mappings."""
    if message is None:
        return {}
    values = {item.name: getattr(message, item.name) for item in dataclasses.fields(message)}
    return {
        name: sorted(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not None and not isinstance(value, Tensor | float)
    }


@dataclass(frozen=True)
class Outline:
    """What a message's header says, without its numbers."""

    type: str | None
    envelope: dict[str, Any]
    arrays: dict[str, Declared]
    plain: dict[str, Any]


def outline(raw: bytes) -> Outline:
    """What is in these bytes, whatever their type; raises BadMessage if they hold no message."""
    try:
        whole_header = _header(_unseal(raw))
        header = json.loads(whole_header["__metadata__"]["fedstill"])
        return Outline(header.pop("type"), header, _declared(whole_header), dict(header.pop("plain")))
    except Exception as error:
        raise BadMessage(f"unreadable message of {len(raw)} bytes ({_said(error)}).") from error


def decode(
    raw: bytes, types: Mapping[str, type[Message]], restore: Restore | None = None, admit: Admit | None = None
) -> Parcel:
    """The message in these bytes; raises BadMessage, and nothing else, if it is damaged or of none of these types."""
    try:
        blob = _unseal(raw)
        whole_header = _header(blob)
        header, declared = json.loads(whole_header["__metadata__"]["fedstill"]), _declared(whole_header)
        name, plain = header.pop("type"), header.pop("plain")
        if not isinstance(name, str | None) or not isinstance(plain, dict):
            raise TypeError("its header is not that of a message")
    except Exception as error:
        raise BadMessage(f"unreadable message of {len(raw)} bytes ({_said(error)}).") from error
    if name is None:
        return Parcel(None, header)
    if name not in types:
        raise BadMessage(f"a message of type {name[:60]!r} where {', '.join(types)} is expected.")
    try:
        if admit is not None:
            admit(types[name], declared)
        tensors = _loaded(blob, whole_header, declared)
        whole = tensors if restore is None else _restored(types[name], tensors, restore)
        return Parcel(_assemble(types[name], plain, whole), header)
    except BadMessage:
        raise
    except Exception as error:  # a stranger's bytes may lead anywhere: whatever happens is about this message
        raise BadMessage(f"{name} lacks a field, or has one of another kind ({_said(error)}).") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _header(blob: memoryview) -> dict[str, Any]:
    """The header of a safetensors blob."""
    size = int.from_bytes(blob[:8], "little")
    if size > len(blob) - 8:
        raise ValueError(f"its header has {size} bytes")
    header = json.loads(bytes(blob[8 : 8 + size]))
    if not isinstance(header, dict):
        raise TypeError("its header is not that of a message")
    return header


def _loaded(blob: memoryview, header: Mapping[str, Any], declared: Mapping[str, Declared]) -> dict[str, Tensor]:
    """The tensors of a blob, in one copy of its numbers; raises ValueError where they are not what the header says."""
    numbers = bytearray(blob[8 + int.from_bytes(blob[:8], "little") :])
    places = sorted((header[name]["data_offsets"], name) for name in declared)
    end, found = 0, dict[str, Tensor]()
    for (start, stop), name in places:
        about, dtype = declared[name], DTYPES[declared[name].dtype]
        if start != end or stop - start != about.bytes or start % dtype.itemsize:
            raise ValueError(f"{name[:60]} is not where it should be")
        end = stop
        count = math.prod(about.shape)
        flat = (
            torch.frombuffer(numbers, dtype=dtype, count=count, offset=start) if count else torch.empty(0, dtype=dtype)
        )
        found[name] = flat.reshape(about.shape)
    if end != len(numbers):
        raise ValueError(f"{len(numbers) - end} bytes belong to no tensor")
    return found


def _declared(header: Mapping[str, Any]) -> dict[str, Declared]:
    """The tensors in a header; raises ValueError for those that cannot be sent."""
    found = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        dtype, shape = about["dtype"], about["shape"]
        if dtype not in WIDTHS:
            raise ValueError(f"{name[:60]} holds {str(dtype)[:20]}, which cannot be sent")
        if len(shape) > MOST_DIMENSIONS or not all(type(size) is int and 0 <= size < 1 << 40 for size in shape):
            raise ValueError(f"{name[:60]} has {len(shape)} dimensions, or one without a size")
        found[name] = Declared(dtype, tuple(shape))
    return found


def _restored(cls: type[Message], tensors: Mapping[str, Tensor], restore: Restore) -> dict[str, Tensor]:
    """All tensors, with the encoded ones decoded."""
    whole: dict[str, Tensor] = {}
    coded: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        base, mark, part = name.rpartition(MARK)
        if mark:
            coded.setdefault(base, {})[part] = value
        else:
            whole[name] = value
    return whole | {name: restore(cls, name, parts) for name, parts in coded.items()}


def _assemble(cls: type[Message], plain: dict[str, Any], tensors: dict[str, Tensor]) -> Message:
    values: dict[str, Any] = {}
    for name, kinds in kinds_of(cls).items():
        if name in plain and dict in kinds:
            values[name] = {key: tensors.pop(f"{name}/{key}") for key in plain.pop(name)}
        elif name in plain:
            values[name] = plain.pop(name)
        elif name in tensors:
            value = tensors.pop(name)
            values[name] = value.item() if float in kinds else value
    if plain or tensors:
        raise BadMessage(f"{cls.__name__} has no field {', '.join([*plain, *tensors])[:60]}.")
    return cls(**values)


def kinds_of(cls: type[Message]) -> dict[str, tuple[type, ...]]:
    """The types that each field may have; dict stands for every kind of mapping."""
    if cls not in _kinds:
        _kinds[cls] = _kinds_of(cls)
    return _kinds[cls]


_kinds: dict[type[Message], dict[str, tuple[type, ...]]] = {}


def _kinds_of(cls: type[Message]) -> dict[str, tuple[type, ...]]:
    hints = get_type_hints(cls)
    kinds = {name: get_args(hint) if isinstance(hint, UnionType) else (hint,) for name, hint in hints.items()}
    return {
        name: tuple(dict if get_origin(kind) in (dict, Mapping) else kind for kind in options)
        for name, options in kinds.items()
    }
