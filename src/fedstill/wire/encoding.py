"""The binary form of messages.

A message travels as one safetensors blob: arrays and floats as tensors, everything else and the envelope as JSON in the
header. Before it stand a mark, whose last byte is the version of this form, and a checksum. Decoding never runs code
from a message. All engines send the same bytes, even inside one process, so they compute the same numbers.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from fedstill.wire.blob import Declared, declared_in, header_bytes, header_of, pieces, tensors_of
from fedstill.wire.messages import BadMessage, Message, fields_of

Parts = Mapping[str, Tensor]
"""An encoded tensor: the tensors that a codec made of it, under the codec's own names."""
Code = Callable[[str, Tensor], Parts | None]
"""(`field` or `field/key`, its value) -> the parts to send instead, or None to send the value unchanged."""
Restore = Callable[[type[Message], str, Parts], Tensor]
"""(type of message, `field` or `field/key`, its parts) -> the value."""


Admit = Callable[[type[Message], Mapping[str, Declared]], None]
"""Raises BadMessage where a message of this type cannot have these tensors; called before they are made."""

MARK = "#"
"""Separates a tensor's name from the name of one of its parts."""
SEAL = b"FDS\x02"
"""The first bytes of a message; a CRC-32 of all that follows it comes next."""
SEALED = len(SEAL) + 4
NUMBERS = (Tensor, float)
"""What is sent as an array."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of one message: floating-point numbers (also packed ones), integers such as row numbers, and the rest."""

    payload: int
    indices: int
    header: int

    @classmethod
    def of(cls, message: Message | None, raw: bytes) -> Sizes:
        """Without a codec, with the header of the bytes that the message was encoded as, or decoded from."""
        payload = indices = 0
        for value in _tensors(message).values():
            counts = value.is_floating_point() or value.dtype == torch.uint8  # packed by a codec
            payload, indices = (payload + value.nbytes, indices) if counts else (payload, indices + value.nbytes)
        return cls(payload, indices, SEALED + header_bytes(memoryview(raw)[SEALED:]))

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
        if parts is None:
            tensors[name] = value
        else:
            tensors |= {f"{name}{MARK}{part}": coded for part, coded in parts.items()}
    plain = _plain(message)
    header = {"type": type(message).__name__ if message is not None else None, "plain": plain, **(envelope or {})}
    return _sealed(pieces(tensors, {"fedstill": json.dumps(header)}))


def seal(blob: bytes) -> bytes:
    """The blob of a message behind its mark and checksum; what has them already stays as it is."""
    return blob if blob[: len(SEAL)] == SEAL else _sealed([blob])


def _sealed(blob: Sequence[bytes | memoryview]) -> bytes:
    checksum = 0
    for piece in blob:
        checksum = zlib.crc32(piece, checksum)
    return b"".join([SEAL, checksum.to_bytes(4, "little"), *blob])


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
    for item in fields_of(type(message)) if message is not None else ():
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
    values = {item.name: getattr(message, item.name) for item in fields_of(type(message))}
    return {
        name: sorted(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not None and not isinstance(value, NUMBERS)
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
        whole_header = header_of(_unseal(raw))
        header = json.loads(whole_header["__metadata__"]["fedstill"])
        return Outline(header.pop("type"), header, declared_in(whole_header), dict(header.pop("plain")))
    except Exception as error:
        raise BadMessage(f"unreadable message of {len(raw)} bytes ({_said(error)}).") from error


def decode(
    raw: bytes, types: Mapping[str, type[Message]], restore: Restore | None = None, admit: Admit | None = None
) -> Parcel:
    """The message in these bytes; raises BadMessage, and nothing else, if it is damaged or of none of these types."""
    try:
        blob = _unseal(raw)
        whole_header = header_of(blob)
        header, declared = json.loads(whole_header["__metadata__"]["fedstill"]), declared_in(whole_header)
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
        tensors = tensors_of(blob, whole_header, declared)
        whole = tensors if restore is None else _restored(types[name], tensors, restore)
        return Parcel(_assemble(types[name], plain, whole), header)
    except BadMessage:
        raise
    except Exception as error:  # a stranger's bytes may lead anywhere: whatever happens is about this message
        raise BadMessage(f"{name} lacks a field, or has one of another kind ({_said(error)}).") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


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
