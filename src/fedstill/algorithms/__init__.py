"""One file an algorithm, named after it; found by class name, or `file.py:Class` for one of a user's own."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedstill.algorithms.base import Algorithm
from fedstill.algorithms.weightings import Weighting
from fedstill.common.chat import Chat
from fedstill.common.errors import FedstillError
from fedstill.common.plugins import check_options, is_own, nearest, own_class

T = TypeVar("T")


def known(base: type[T]) -> dict[str, type[T]]:
    """Our classes of that kind, by name."""
    found: dict[str, type[T]] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, base) and value is not base:
                found[value.__name__] = value
    return found


def make(spec: str | Mapping[str, Any]) -> Algorithm:
    """The algorithm of that name with those options; everything wrong with them is said here, in one sentence."""
    return _construct(Algorithm, spec)


def _construct(base: type[T], spec: str | Mapping[str, Any]) -> T:
    """{name: Class, option: value, ...} as an object; a plain string is short for {name: ...}."""
    if not isinstance(spec, str | Mapping):
        kind = base.__name__.lower()
        raise FedstillError(f"the {kind} is a name or {{name: ..., option: value}}, not {spec!r}.")
    options = {"name": spec} if isinstance(spec, str) else dict(spec)
    cls = _find(base, options.pop("name", None))
    check_options(cls, options)
    hints = get_type_hints(cls)
    defaults = {item.name: item.default for item in fields(cls)}  # type: ignore[arg-type]
    for option, value in options.items():
        kind = hints[option]
        if kind in (Weighting, Chat) and not isinstance(value, kind):
            if isinstance(value, Mapping) and "name" not in value:  # options of the default one
                value = {"name": type(defaults[option]).__name__, **value}
            options[option] = _construct(kind, value)
    try:
        made: T = TypeAdapter(cls).validate_python(options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FedstillError(f"{cls.__name__}: option {where!r}: {first['msg']} (given: {first['input']!r}).") from error
    return made


def _find(base: type[T], name: str | None) -> type[T]:
    kind = base.__name__.lower()
    if not isinstance(name, str):
        raise FedstillError(f"the {kind} needs a name; known: {', '.join(known(base))}.")
    if is_own(name):
        found = own_class(name)
        if not issubclass(found, base):
            raise FedstillError(f"{name} is not a {base.__name__}: derive your class from fedstill.{base.__name__}.")
        return found
    table = {base.__name__: base} if base is Chat else known(base)
    if name not in table:
        raise FedstillError(f"there is no {kind} {name!r}; {nearest(name, table)}")
    return table[name]
