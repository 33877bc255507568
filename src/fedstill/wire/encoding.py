"""The binary form of messages.

A message travels as one safetensors blob: arrays and floats as tensors, everything else and the envelope as JSON in the
header. Decoding never runs code from a message. All engines send the same bytes, even inside one process, so they
compute the same numbers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedstill.wire.messages import BadMessage, Message

Parts = Mapping[str, Tensor]
"""An encoded tensor: the tensors that a codec made of it, under the codec's own names."""
Code = Callable[[str, Tensor], Parts | None]
"""(`field` or `field/key`, its value) -> the parts to send instead, or None to send the value unchanged."""
Restore = Callable[[type[Message], str, Parts], Tensor]
"""(type of message, `field` or `field/key`, its parts) -> the value."""

MARK = "#"
"""Separates a tensor's name from the name of one of its parts."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of one message: floating-point numbers (also packed ones), integers such as row numbers, and the rest."""

    payload: int
    indices: int
    header: int

    @classmethod
    def of(cls, raw: bytes) -> Sizes:
        """Read from the header of an encoded message."""
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        payload = indices = 0
        for name, part in header.items():
            if name != "__metadata__":
                size = part["data_offsets"][1] - part["data_offsets"][0]
                counts = "F" in part["dtype"] or part["dtype"] == "U8"  # U8: numbers packed by a codec
                payload, indices = (payload + size, indices) if counts else (payload, indices + size)
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
        tensors |= {name: _own(value)} if parts is None else {f"{name}{MARK}{p}": _own(v) for p, v in parts.items()}
    plain = _plain(message)
    header = {"type": type(message).__name__ if message is not None else None, "plain": plain, **(envelope or {})}
    return bytes(save(tensors, metadata={"fedstill": json.dumps(header)}))


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


def _own(value: Tensor) -> Tensor:
    """A copy: safetensors refuses fields that share memory, such as an array and a part of it."""
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def decode(raw: bytes, types: Mapping[str, type[Message]], restore: Restore | None = None) -> Parcel:
    """The message in these bytes; raises BadMessage if it is damaged or of none of these types."""
    try:
        header_size = int.from_bytes(raw[:8], "little")
        header = json.loads(json.loads(raw[8 : 8 + header_size])["__metadata__"]["fedstill"])
        tensors = load(raw)
        name, plain = header.pop("type"), header.pop("plain")
        if not isinstance(name, str | None) or not isinstance(plain, dict):
            raise TypeError("its header is not that of a message")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise BadMessage(f"unreadable message of {len(raw)} bytes ({error}).") from error
    if name is None:
        return Parcel(None, header)
    if name not in types:
        raise BadMessage(f"a message of type {name!r} where {', '.join(types)} is expected.")
    try:
        whole = tensors if restore is None else _restored(types[name], tensors, restore)
        return Parcel(_assemble(types[name], plain, whole), header)
    except (KeyError, TypeError, RuntimeError) as error:
        raise BadMessage(f"{name} lacks a field, or has one of another kind ({error}).") from error


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
        raise BadMessage(f"{cls.__name__} has no field {', '.join([*plain, *tensors])}.")
    return cls(**values)


def kinds_of(cls: type[Message]) -> dict[str, tuple[type, ...]]:
    """The types that each field may have; dict stands for every kind of mapping."""
    hints = get_type_hints(cls)
    kinds = {name: get_args(hint) if isinstance(hint, UnionType) else (hint,) for name, hint in hints.items()}
    return {
        name: tuple(dict if get_origin(kind) in (dict, Mapping) else kind for kind in options)
        for name, options in kinds.items()
    }
