"""Messages and their binary form.

A message is a flat frozen dataclass of numbers, strings, arrays, or mappings from names to arrays. It travels as one
safetensors blob: arrays and floats as tensors, everything else and the envelope as JSON in the header. Nothing here can
run code on arrival. The same bytes cross a pipe, a network or nothing at all, so all engines compute the same numbers.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedstill.common.errors import FedstillError

STAGES = ("trained", "distilled", "processed")
"""What a party measures itself after, in the order in which a round comes to them."""


class BadMessage(FedstillError):
    """Something arrived that is not what was agreed."""


@dataclass(frozen=True)
class Message:
    """The base of everything that travels."""


M = TypeVar("M", bound=Message)


def array(*shape: str | int, optional: bool = False) -> Any:
    """A field for an array; the guard checks the shape, where "public" and "labels" stand for their numbers.

    "asked" stands for how many rows the call's own message named, in its field `rows`.
    """
    if optional:
        return field(default=None, metadata={"shape": shape})
    return field(metadata={"shape": shape})


@dataclass(frozen=True)
class Hello(Message):
    """What a client says of itself before the first round."""

    size: int = field(metadata={"least": 1})
    label_counts: Tensor | None = array("labels", optional=True)
    architecture: str = ""
    public_fingerprint: str = ""


@dataclass(frozen=True)
class Opinion(Message):
    """What a client says of the public samples, and how well it fits its own."""

    logits: Tensor = array("public", "labels")
    loss: float | None = None
    class_losses: Tensor | None = array("labels", optional=True)
    f1: float | None = None
    labelled_logits: Tensor | None = array("labelled", "labels", optional=True)


@dataclass(frozen=True)
class Answer(Message):
    """What the server says of the public samples."""

    logits: Tensor = array("public", "labels")


@dataclass(frozen=True)
class Scores(Message):
    """What a client says of the public samples that it was asked about."""

    logits: Tensor = array("asked", "labels")


Width = Literal["fp32", "bf16", "fp16"]
WIDTHS: dict[Width, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Parameters(Message):
    """A model's parameters and buffers."""

    parameters: Mapping[str, Tensor]

    @classmethod
    def of(cls, parameters: Mapping[str, Tensor], width: Width = "fp32") -> Parameters:
        """As they are in fp32; or rounded to half the bytes, integers excepted."""
        if width == "fp32":
            return cls(parameters)
        rounded = {name: v.to(WIDTHS[width]) if v.is_floating_point() else v for name, v in parameters.items()}
        for name, value in rounded.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise FedstillError(f"the parameter {name} does not fit into {width}: send bf16, or fp32.")
        return cls(rounded)


@dataclass(frozen=True)
class Done(Message):
    """A client has worked and has nothing to say."""

    loss: float | None = None


@dataclass(frozen=True)
class Sizes:
    """Bytes of one message: numbers that are the point, integers that point at samples, and the rest."""

    payload: int
    indices: int
    header: int

    @classmethod
    def of(cls, raw: bytes) -> Sizes:
        """Read off the header of an encoded message."""
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        payload = indices = 0
        for name, part in header.items():
            if name != "__metadata__":
                size = part["data_offsets"][1] - part["data_offsets"][0]
                counts = "F" in part["dtype"] or part["dtype"] == "U8"  # bytes are numbers that somebody has compressed
                payload, indices = (payload + size, indices) if counts else (payload, indices + size)
        return cls(payload, indices, len(raw) - payload - indices)

    @property
    def total(self) -> int:
        """All bytes."""
        return self.payload + self.indices + self.header


@dataclass(frozen=True)
class Parcel:
    """A message that arrived, with its envelope and its size."""

    message: Message | None
    envelope: dict[str, Any]
    sizes: Sizes


def encode(message: Message | None, envelope: Mapping[str, Any] | None = None) -> bytes:
    """The bytes of a message (None says nothing) in its envelope."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for item in dataclasses.fields(message) if message is not None else ():
        value = getattr(message, item.name)
        if isinstance(value, Tensor):
            tensors[item.name] = _own(value)
        elif isinstance(value, float):
            tensors[item.name] = torch.tensor(value, dtype=torch.float32)
        elif isinstance(value, Mapping):
            plain[item.name] = sorted(value)
            tensors |= {f"{item.name}/{key}": _own(part) for key, part in value.items()}
        elif value is not None:
            plain[item.name] = value
    header = {"type": type(message).__name__ if message is not None else None, "plain": plain, **(envelope or {})}
    return bytes(save(tensors, metadata={"fedstill": json.dumps(header)}))


def _own(value: Tensor) -> Tensor:
    """A copy: safetensors refuses fields that share memory, such as an array and a part of it."""
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def decode(raw: bytes, types: Mapping[str, type[Message]]) -> Parcel:
    """The message in those bytes, if it is whole and of one of those types."""
    try:
        header_size = int.from_bytes(raw[:8], "little")
        header = json.loads(json.loads(raw[8 : 8 + header_size])["__metadata__"]["fedstill"])
        tensors = load(raw)
        name, plain = header.pop("type"), header.pop("plain")
        if not isinstance(name, str | None) or not isinstance(plain, dict):
            raise TypeError("its header is no message's")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise BadMessage(f"unreadable message of {len(raw)} bytes ({error}).") from error
    sizes = Sizes.of(raw)
    if name is None:
        return Parcel(None, header, sizes)
    if name not in types:
        raise BadMessage(f"a message of type {name!r} where {', '.join(types)} is expected.")
    try:
        return Parcel(_assemble(types[name], plain, tensors), header, sizes)
    except (KeyError, TypeError, RuntimeError) as error:
        raise BadMessage(f"{name} lacks a field, or has one of another kind ({error}).") from error


def _assemble(cls: type[Message], plain: dict[str, Any], tensors: dict[str, Tensor]) -> Message:
    values: dict[str, Any] = {}
    for name, kinds in _kinds(cls).items():
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


def _kinds(cls: type[Message]) -> dict[str, tuple[type, ...]]:
    """What each field may hold; any kind of mapping is a dict here."""
    hints = get_type_hints(cls)
    kinds = {name: get_args(hint) if isinstance(hint, UnionType) else (hint,) for name, hint in hints.items()}
    return {
        name: tuple(dict if get_origin(kind) in (dict, Mapping) else kind for kind in options)
        for name, options in kinds.items()
    }


def check(message: Message, dimensions: Mapping[str, int]) -> None:
    """The guard: every field of its declared type and shape, every number finite, every size a size."""
    kinds = _kinds(type(message))
    for item in dataclasses.fields(message):
        value = getattr(message, item.name)
        where = f"{type(message).__name__}.{item.name}"
        if not isinstance(value, kinds[item.name]) or isinstance(value, bool) != (bool in kinds[item.name]):
            wanted_kinds = " or ".join(kind.__name__ for kind in kinds[item.name])
            raise BadMessage(f"{where} is a {type(value).__name__}: {wanted_kinds} is expected.")
        if "least" in item.metadata and value < item.metadata["least"]:
            raise BadMessage(f"{where} is {value}: at least {item.metadata['least']} is expected.")
        if isinstance(value, float) and not math.isfinite(value):
            raise BadMessage(f"{where} is {value}: a number is expected.")
        if isinstance(value, Tensor) and "shape" in item.metadata:
            wanted = tuple(dimensions.get(d, -1) if isinstance(d, str) else d for d in item.metadata["shape"])
            if len(wanted) != value.ndim or any(w not in (-1, s) for w, s in zip(wanted, value.shape, strict=True)):
                raise BadMessage(f"{where} has shape {tuple(value.shape)}: {wanted} is expected.")
        for part in value.values() if isinstance(value, Mapping) else [value]:
            if isinstance(part, Tensor) and part.is_floating_point() and not bool(torch.isfinite(part).all()):
                raise BadMessage(f"{where} holds values that are not finite.")


def check_measured(metrics: object, notes: object) -> None:
    """The guard for what comes along with a message: numbers by stage and split, observations, and sentences."""
    if not isinstance(metrics, list) or not isinstance(notes, list) or not all(isinstance(n, str) for n in notes):
        raise BadMessage("its measurements or notes are no list of them.")
    for metric in metrics:
        if not isinstance(metric, dict) or not isinstance(metric.get("round"), int):
            raise BadMessage("a measurement without a round.")
        named = {"party", "observation", "values"} if "observation" in metric else {"party", "stage", "split"}
        numbers = {key: value for key, value in metric.items() if key not in named}
        if "observation" in metric:
            values = metric.get("values")
            numbers |= values if isinstance(values, dict) else {"values": values}
        elif metric.get("stage") not in STAGES or not isinstance(metric.get("split"), str):
            raise BadMessage(f"a measurement of stage {metric.get('stage')!r}, split {metric.get('split')!r}.")
        if not all(isinstance(value, int | float) for value in numbers.values()):
            raise BadMessage("a measurement that is no number.")
