"""`fedstill show AdaFD`: one method with its options, what it sends, and its paper."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from fedstill import algorithms
from fedstill.algorithms.base import Algorithm
from fedstill.algorithms.weightings import Weighting
from fedstill.common.plugins import is_own
from fedstill.plan.advice import tells

NEEDS = {
    "public": "public rows",
    "labelled": "labelled rows at the server",
    "label_counts": "label counts",
    "parameters": "one architecture",
    "openai": "a language model",
    "pooled": "all private rows in one place",
}
SENDS = {"parameters": "parameters", "opinions": "predictions", "other": "a few numbers a label"}
NUMBERS = {float: "number", int: "whole number", bool: "true or false", str: "text", NoneType: "null"}


@dataclass(frozen=True)
class Option:
    """An option of a method, as an experiment writes it."""

    name: str
    type: str
    default: str


@dataclass(frozen=True)
class Method:
    """Everything about a method that a user chooses by."""

    name: str
    what: str
    paper: str
    needs: list[str]
    sends: list[str]
    cost: str
    about: str
    options: list[Option]


def is_method(name: str) -> bool:
    """Whether this names a method, ours or the user's own."""
    return is_own(name) or name in algorithms.known(Algorithm)


def method(name: str) -> Method:
    """A method as it is without any option set."""
    made = algorithms.make(name)
    cls = type(made)
    paragraphs = [] if _is_signature(cls) else cleandoc(cls.__doc__ or "").split("\n\n")
    return Method(
        name=name,
        what=purpose(cls),
        paper=cls.paper,
        needs=[text for need, text in NEEDS.items() if need in made.requires()],
        sends=[text for kind, text in SENDS.items() if kind in tells(made)],
        cost=cls.cost,
        about="\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs),
        options=list(_options(made, "")),
    )


def purpose(cls: type) -> str:
    """What a method is: the first line of its file, without the name."""
    return (sys.modules[cls.__module__].__doc__ or "\n").strip().splitlines()[0].partition(": ")[2]


def _is_signature(cls: type) -> bool:
    """A dataclass without a docstring has its signature instead."""
    return (cls.__doc__ or "").startswith(f"{cls.__name__}(")


def _options(owner: Any, prefix: str) -> Iterator[Option]:
    hints = get_type_hints(type(owner), include_extras=True)
    for item in fields(owner):
        value = getattr(owner, item.name)
        is_part = is_dataclass(value) and not isinstance(value, type)
        default = type(value).__name__ if is_part else _written(value if item.default is MISSING else item.default)
        yield Option(prefix + item.name, _type(hints[item.name]), default)
        if is_part:
            yield from _options(value, f"{prefix}{item.name}.")


def _written(value: object) -> str:
    """A value as YAML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _type(hint: Any) -> str:
    """A type in words."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = [words for mark in inside[1:] for words in _limits(mark)]
        return " ".join([_type(inside[0]), *limits])
    if origin is Literal:
        return " | ".join(map(str, inside))
    if origin in (Union, UnionType):
        return " or ".join(_type(part) for part in inside)
    if hint is Weighting:
        return " | ".join(sorted(algorithms.known(Weighting)))
    return NUMBERS.get(hint, getattr(hint, "__name__", str(hint)))


def _limits(mark: Any) -> Iterator[str]:
    for one in mark.metadata if isinstance(mark, FieldInfo) else [mark]:
        for kind, words, key in ((Gt, "above", "gt"), (Ge, "from", "ge"), (Lt, "below", "lt"), (Le, "up to", "le")):
            if isinstance(one, kind):
                yield f"{words} {getattr(one, key):g}"
