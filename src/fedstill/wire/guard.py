"""The guard: checks that a message is as agreed, and otherwise says in one sentence what is wrong.

It looks twice: at the shapes that the bytes declare, before anything is allocated, and at the numbers in the message.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.wire.blob import Declared
from fedstill.wire.encoding import MARK, kinds_of
from fedstill.wire.messages import STAGES, BadMessage, Hello, Message, fields_of

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
class Rule:
    """What one field of a message must be like: all that does not depend on the message."""

    item: dataclasses.Field[Any]
    name: str
    where: str
    kinds: tuple[type, ...]
    is_bool: bool
    is_required: bool
    is_agreed: bool
    shape: tuple[int, ...] | None
    holds: str | None
    floats: tuple[float, float]
    """The smallest and the largest number that it may hold, if it holds floats."""
    integers: tuple[float, float]


@dataclass(frozen=True)
class Expected:
    """What a message from one sender must be like. Made once for many messages, it knows its rules from the first."""

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
        if item not in self._shapes:
            named = item.metadata.get("shape")
            sizes = None if named is None else [self.dimensions.get(d, -1) if isinstance(d, str) else d for d in named]
            self._shapes[item] = None if sizes is None else tuple(sizes)
        return self._shapes[item]

    @cached_property
    def _shapes(self) -> dict[dataclasses.Field[Any], tuple[int, ...] | None]:
        return {}

    def rules(self, cls: type[Message]) -> tuple[Rule, ...]:
        """What each field of a message of this type must be like."""
        if cls not in self._rules:
            self._rules[cls] = tuple(self._rule(cls, item) for item in fields_of(cls))
        return self._rules[cls]

    def _rule(self, cls: type[Message], item: dataclasses.Field[Any]) -> Rule:
        where, kinds = f"{cls.__name__}.{item.name}", kinds_of(cls)[item.name]
        return Rule(
            item=item,
            name=item.name,
            where=where,
            kinds=kinds,
            is_bool=bool in kinds,
            is_required=where in self.required,
            is_agreed="agreed" in item.metadata and item.name in self.agreed,
            shape=self.shape(item),
            holds=item.metadata.get("holds"),
            floats=_limits(item, MOST_FLOAT, self),
            integers=_limits(item, MOST_INTEGER, self),
        )

    @cached_property
    def _rules(self) -> dict[type[Message], tuple[Rule, ...]]:
        return {}

    @cached_property
    def largest(self) -> dict[type[Message], int]:
        """What `most_bytes` has found."""
        return {}


def form_of(module: nn.Module) -> Form:
    """The form of a model's parameters and buffers."""
    return {name: (tuple(value.shape), value.is_floating_point()) for name, value in module.state_dict().items()}


# Before anything is allocated


def most_bytes(cls: type[Message], expected: Expected) -> int:
    """The most bytes that a message of this type can have."""
    if cls not in expected.largest:
        expected.largest[cls] = _most_bytes(cls, expected)
    return expected.largest[cls]


def _most_bytes(cls: type[Message], expected: Expected) -> int:
    total, kinds = HEADER, kinds_of(cls)
    for item in fields_of(cls):
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
        if not is_coded and not _fits(declared.shape, wanted := _shape(item, key, expected)):
            raise _misfit(f"{cls.__name__}.{short(base)}", declared.shape, wanted)
        sizes[base] = sizes.get(base, PER_ARRAY if not is_coded else 0) + declared.bytes
        if sizes[base] > PER_ARRAY + most_bytes_of(item, key, expected):
            raise BadMessage(f"{cls.__name__}.{short(base)} has {sizes[base]:,} bytes, which is too many.")


def _shape(item: dataclasses.Field[Any], key: str, expected: Expected) -> tuple[int, ...] | None:
    if item.metadata.get("of_model") and expected.form is not None and key in expected.form:
        return expected.form[key][0]
    return expected.shape(item)


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...] | None) -> bool:
    if wanted is None or shape == wanted:
        return True
    return len(shape) == len(wanted) and all(w in (-1, s) for w, s in zip(wanted, shape, strict=True))


def _misfit(where: str, shape: tuple[int, ...], wanted: tuple[int, ...] | None) -> BadMessage:
    sizes = ", ".join("any" if size < 0 else str(size) for size in wanted or ())
    return BadMessage(f"{where} has shape {shape}: ({sizes}) is expected.")


# The message


def check(message: Message, expected: Expected) -> None:
    """Refuse fields that are missing, or without the declared type, shape, numbers or names."""
    for rule in expected.rules(type(message)):
        value = getattr(message, rule.name)
        if value is None and rule.is_required:
            raise BadMessage(f"{rule.where} is missing, and the method needs it.")
        if not isinstance(value, rule.kinds) or isinstance(value, bool) != rule.is_bool:
            wanted_kinds = " or ".join(kind.__name__ for kind in rule.kinds)
            raise BadMessage(f"{rule.where} is a {type(value).__name__}: {wanted_kinds} is expected.")
        if rule.is_agreed and value != expected.agreed[rule.name]:
            raise BadMessage(
                f"{rule.where} differs from the server's: the public samples or the labels are not the same."
            )
        if isinstance(value, Tensor):
            _check_array(value, rule)
        elif isinstance(value, str) and len(value) > LONGEST:
            raise BadMessage(f"{rule.where} has {len(value)} characters.")
        elif isinstance(value, float):
            _check_range(rule.where, value, value, rule.floats)
        elif isinstance(value, int) and not isinstance(value, bool):
            _check_range(rule.where, value, value, rule.integers)
        elif isinstance(value, Mapping):
            _check_mapping(value, rule, expected)
    if isinstance(message, Hello):
        _check_counts(message, expected)


def _check_array(value: Tensor, rule: Rule) -> None:
    if not _fits(value.shape, rule.shape):
        raise _misfit(rule.where, tuple(value.shape), rule.shape)
    if rule.holds is not None and (rule.holds == "floats") != value.is_floating_point():
        raise BadMessage(f"{rule.where} holds {value.dtype}: {rule.holds} are expected.")
    _check_numbers(value, rule)


def _check_mapping(parts: Mapping[str, Tensor], rule: Rule, expected: Expected) -> None:
    if rule.item.metadata.get("whole") and expected.form is not None:
        under_masks = rule.holds == "integers"
        sent = {key: (tuple(part.shape), part.is_floating_point()) for key, part in parts.items()}
        wanted = {key: (shape, is_float and not under_masks) for key, (shape, is_float) in expected.form.items()}
        if different := sorted({key for key, _ in sent.items() ^ wanted.items()}):
            raise BadMessage(f"{rule.where} is not of the client's architecture (for example {short(different[0])}).")
    for part in parts.values():
        _check_numbers(part, rule)


def _check_numbers(value: Tensor, rule: Rule) -> None:
    if value.numel() and value.dtype != torch.bool:
        least, most = value.aminmax()
        _check_range(rule.where, least.item(), most.item(), rule.floats if value.is_floating_point() else rule.integers)


def _limits(item: dataclasses.Field[Any], widest: float, expected: Expected) -> tuple[float, float]:
    """The smallest and the largest number that a field may hold."""
    below = expected.dimensions.get(item.metadata.get("below", ""))
    most = item.metadata.get("most", widest) if below is None else below - 1
    return item.metadata.get("least", -widest), most


def _check_range(where: str, least: float, most: float, limits: tuple[float, float]) -> None:
    smallest, largest = limits
    if not (_is_finite(least) and _is_finite(most)):
        raise BadMessage(f"{where} holds values that are not finite.")
    if least < smallest:
        raise BadMessage(f"{where} is {_number(least)}: at least {smallest:g} is expected.")
    if most > largest:
        raise BadMessage(f"{where} is {_number(most)}: at most {largest:g} is expected.")


def _is_finite(value: float) -> bool:
    return not isinstance(value, float) or math.isfinite(value)  # math.isfinite refuses huge integers


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
