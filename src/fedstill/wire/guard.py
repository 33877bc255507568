"""The guard: checks that a message is as agreed, and otherwise says in one sentence what is wrong.

It looks twice: at the shapes that the bytes declare, before anything is allocated, and at the numbers in the message.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.wire.blob import Declared
from fedstill.wire.encoding import MARK, kinds_of
from fedstill.wire.messages import STAGES, BadMessage, Hello, Message

Form = Mapping[str, tuple[tuple[int, ...], bool]]
"""The parameters of a model: the shape of each, and whether it holds floats."""

HEADER = 1 << 18
"""The most bytes of a message that are not arrays."""
PER_ARRAY = 1 << 10
"""What each array of a mapping may add to that."""
UNDECLARED = 1 << 28
"""The most bytes of an array whose size nobody knows in advance."""
PLAIN, CODED = 8, 12
"""The most bytes for a number: of the widest type; with a codec, which may also send where it is."""
LONGEST = 10_000
"""The most characters of a text."""
MOST_FLOAT, MOST_INTEGER = 1e30, 2**53
"""The largest numbers, of either sign, where a field declares no limits."""
METRICS, NOTES = 1000, 100
"""The most measurements and notes that accompany a message."""
LONGEST_NOTE = 1000


@dataclass(frozen=True)
class Expected:
    """What a message from one sender must be like."""

    dimensions: Mapping[str, int]
    """The sizes that names in declared shapes stand for; a name that is not here may have any size."""
    agreed: Mapping[str, Any] = field(default_factory=dict)
    """The values of fields that must be the same everywhere."""
    form: Form | None = None
    """Of the model whose parameters it may hold."""
    required: frozenset[str] = frozenset()
    """Optional fields, as `Type.field`, that must be there."""
    coded: frozenset[str] = frozenset()
    """The kinds of field that have a codec."""
    rows_are_drawn: bool = True
    """Whether clients may train on fewer rows than they have, so that their label counts add up to more than n_k."""

    def shape(self, item: dataclasses.Field[Any]) -> tuple[int, ...] | None:
        """The declared shape of an array, with -1 for unknown sizes; None if its field declares none."""
        if "shape" not in item.metadata:
            return None
        return tuple(self.dimensions.get(d, -1) if isinstance(d, str) else d for d in item.metadata["shape"])


def form_of(module: nn.Module) -> Form:
    """The form of a model's parameters and buffers."""
    return {name: (tuple(value.shape), value.is_floating_point()) for name, value in module.state_dict().items()}


# Before anything is allocated


def most_bytes(cls: type[Message], expected: Expected) -> int:
    """The most bytes that a message of this type can have."""
    total, kinds = HEADER, kinds_of(cls)
    for item in dataclasses.fields(cls):
        if Tensor in kinds[item.name]:
            total += PER_ARRAY + most_bytes_of(item, "", expected)
        elif dict in kinds[item.name] and (expected.form is None or not item.metadata.get("of_model")):
            total += UNDECLARED
        elif dict in kinds[item.name] and expected.form is not None:
            total += sum(PER_ARRAY + most_bytes_of(item, key, expected) for key in expected.form)
    return total


def most_bytes_of(item: dataclasses.Field[Any], key: str, expected: Expected) -> int:
    """The most bytes of one array: a field's, or the one under this key of a field's mapping."""
    many = most_numbers(item, key, expected)
    return UNDECLARED if many is None else many * (CODED if item.metadata.get("kind") in expected.coded else PLAIN)


def most_numbers(item: dataclasses.Field[Any], key: str, expected: Expected) -> int | None:
    """The most numbers of one array; None if nobody knows."""
    shape = expected.shape(item)
    if item.metadata.get("of_model") and expected.form is not None:
        shape = expected.form[key][0] if key in expected.form else (0,)
    return None if shape is None or -1 in shape else math.prod(shape)


def check_declared(cls: type[Message], arrays: Mapping[str, Declared], expected: Expected) -> None:
    """Refuse arrays, declared as `field` or `field/key`, that the message cannot have or that are too large."""
    sizes: dict[str, int] = {}
    for name, declared in arrays.items():
        base, is_coded, _ = name.rpartition(MARK)
        base = base if is_coded else name
        field_name, _, key = base.partition("/")
        item = cls.__dataclass_fields__.get(field_name)
        if item is None:
            raise BadMessage(f"{cls.__name__} has no field {short(field_name)}.")
        if not is_coded:
            _check_shape(f"{cls.__name__}.{short(base)}", declared.shape, _shape(item, key, expected))
        sizes[base] = sizes.get(base, PER_ARRAY if not is_coded else 0) + declared.bytes
        if sizes[base] > PER_ARRAY + most_bytes_of(item, key, expected):
            raise BadMessage(f"{cls.__name__}.{short(base)} has {sizes[base]:,} bytes, which is too many.")


def _shape(item: dataclasses.Field[Any], key: str, expected: Expected) -> tuple[int, ...] | None:
    if item.metadata.get("of_model") and expected.form is not None and key in expected.form:
        return expected.form[key][0]
    return expected.shape(item)


def _check_shape(where: str, shape: tuple[int, ...], wanted: tuple[int, ...] | None) -> None:
    if wanted is None:
        return
    if len(wanted) != len(shape) or any(w not in (-1, s) for w, s in zip(wanted, shape, strict=True)):
        sizes = ", ".join("any" if size < 0 else str(size) for size in wanted)
        raise BadMessage(f"{where} has shape {shape}: ({sizes}) is expected.")


# The message


def check(message: Message, expected: Expected) -> None:
    """Refuse fields that are missing, or without the declared type, shape, numbers or names."""
    kinds = kinds_of(type(message))
    for item in dataclasses.fields(message):
        value = getattr(message, item.name)
        where = f"{type(message).__name__}.{item.name}"
        if value is None and where in expected.required:
            raise BadMessage(f"{where} is missing, and the method needs it.")
        if not isinstance(value, kinds[item.name]) or isinstance(value, bool) != (bool in kinds[item.name]):
            wanted_kinds = " or ".join(kind.__name__ for kind in kinds[item.name])
            raise BadMessage(f"{where} is a {type(value).__name__}: {wanted_kinds} is expected.")
        if "agreed" in item.metadata and item.name in expected.agreed and value != expected.agreed[item.name]:
            raise BadMessage(f"{where} differs from the server's: the public samples or the labels are not the same.")
        if isinstance(value, str) and len(value) > LONGEST:
            raise BadMessage(f"{where} has {len(value)} characters.")
        if isinstance(value, int | float) and not isinstance(value, bool):
            _check_range(where, value, value, *_limits(item, isinstance(value, float), expected))
        if isinstance(value, Tensor):
            _check_array(where, value, item, expected)
        if isinstance(value, Mapping):
            _check_mapping(where, value, item, expected)
    if isinstance(message, Hello):
        _check_counts(message, expected)


def _check_array(where: str, value: Tensor, item: dataclasses.Field[Any], expected: Expected) -> None:
    _check_shape(where, tuple(value.shape), expected.shape(item))
    if (holds := item.metadata.get("holds")) is not None and (holds == "floats") != value.is_floating_point():
        raise BadMessage(f"{where} holds {value.dtype}: {holds} are expected.")
    _check_numbers(where, value, item, expected)


def _check_mapping(where: str, parts: Mapping[str, Tensor], item: dataclasses.Field[Any], expected: Expected) -> None:
    if item.metadata.get("whole") and expected.form is not None:
        under_masks = item.metadata.get("holds") == "integers"
        sent = {key: (tuple(part.shape), part.is_floating_point()) for key, part in parts.items()}
        wanted = {key: (shape, is_float and not under_masks) for key, (shape, is_float) in expected.form.items()}
        if different := sorted({key for key, _ in sent.items() ^ wanted.items()}):
            raise BadMessage(f"{where} is not of the client's architecture (for example {short(different[0])}).")
    for part in parts.values():
        _check_numbers(where, part, item, expected)


def _check_numbers(where: str, value: Tensor, item: dataclasses.Field[Any], expected: Expected) -> None:
    if value.numel() and value.dtype != torch.bool:
        least, most = (end.item() for end in value.aminmax())
        _check_range(where, least, most, *_limits(item, value.is_floating_point(), expected))


def _limits(item: dataclasses.Field[Any], is_float: bool, expected: Expected) -> tuple[float, float]:
    """The smallest and the largest number that a field may hold."""
    widest = MOST_FLOAT if is_float else MOST_INTEGER
    below = expected.dimensions.get(item.metadata.get("below", ""))
    most = item.metadata.get("most", widest) if below is None else below - 1
    return item.metadata.get("least", -widest), most


def _check_range(where: str, least: float, most: float, smallest: float, largest: float) -> None:
    if any(isinstance(end, float) and not math.isfinite(end) for end in (least, most)):
        raise BadMessage(f"{where} holds values that are not finite.")
    if least < smallest:
        raise BadMessage(f"{where} is {_number(least)}: at least {smallest:g} is expected.")
    if most > largest:
        raise BadMessage(f"{where} is {_number(most)}: at most {largest:g} is expected.")


def _check_counts(hello: Hello, expected: Expected) -> None:
    if hello.label_counts is None:
        return
    total = int(hello.label_counts.sum())
    if total < hello.size or (total > hello.size and not expected.rows_are_drawn):
        raise BadMessage(f"Hello.label_counts add up to {total}, and Hello.size is {hello.size}.")


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else short(value)


def short(value: object) -> str:
    """A stranger's value as it may stand in a sentence."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def check_measured(metrics: object, notes: object, rounds: int = MOST_INTEGER) -> None:
    """The same for what accompanies a message: metrics (scores by stage and split, or observations) and notes.

    Of notes that are too many or too long the rest is cut off.
    """
    if not isinstance(metrics, list) or not isinstance(notes, list) or not all(isinstance(n, str) for n in notes):
        raise BadMessage("its measurements are not a list, or its notes are not a list of sentences.")
    if len(metrics) > METRICS:
        raise BadMessage(f"{len(metrics)} measurements: {METRICS} at most are expected.")
    notes[:] = [note[:LONGEST_NOTE] for note in notes[:NOTES]]
    for metric in metrics:
        if not isinstance(metric, dict) or type(metric.get("round")) is not int or not 0 <= metric["round"] <= rounds:
            raise BadMessage("a measurement without a round of this run.")
        named = {"party", "observation", "values"} if "observation" in metric else {"party", "stage", "split"}
        numbers = {key: value for key, value in metric.items() if key not in named}
        if "observation" in metric:
            values = metric.get("values")
            numbers |= values if isinstance(values, dict) else {"values": values}
            _check_texts([metric["observation"]])
        elif metric.get("stage") not in STAGES or not isinstance(metric.get("split"), str):
            raise BadMessage(
                f"a measurement of stage {short(repr(metric.get('stage')))}, split {short(repr(metric.get('split')))}."
            )
        _check_texts([*numbers, metric.get("split", "")])
        if not all(isinstance(value, int | float) for value in numbers.values()):
            raise BadMessage("a measurement that is no number.")
        if any(isinstance(value, int) and abs(value) > MOST_INTEGER for value in numbers.values()):
            raise BadMessage("a measurement that is too large.")


def _check_texts(names: Iterable[object]) -> None:
    if not all(isinstance(name, str) and len(name) <= LONGEST_NOTE for name in names):
        raise BadMessage("a measurement whose name is no short text.")
