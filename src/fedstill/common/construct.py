"""Objects out of settings: `{name: Class, option: value}` becomes a frozen dataclass; mistakes become sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import check_options, is_own, name_of, nearest, own_class

T = TypeVar("T")

Known = Callable[[], Mapping[str, type[Any]]]
"""Our classes of one kind, by the names that experiments use."""


def construct(
    base: type[T], spec: object, known: Known, inside: Mapping[type[Any], Known] | None = None, kind: str = ""
) -> T:
    """The object that a name, or {name: ..., option: value}, stands for.

    Options of the types in `inside` are made in the same way; where they give no name, the default's is kept.
    """
    kind = kind or base.__name__.lower()
    if isinstance(spec, base):
        return spec
    if not isinstance(spec, str | Mapping):
        raise FedstillError(f"the {kind} is a name or {{name: ..., option: value}}, not {spec!r}.")
    options = {"name": spec} if isinstance(spec, str) else dict(spec)
    cls = _find(base, options.pop("name", None), known(), kind)
    check_options(cls, options)
    hints = get_type_hints(cls)
    defaults = {item.name: item.default for item in fields(cls)}
    for option, value in options.items():
        if (own := (inside or {}).get(hints[option])) is not None:
            if isinstance(value, Mapping) and "name" not in value:
                default = type(defaults[option])
                value = {"name": next((n for n, c in own().items() if c is default), default.__name__), **value}
            options[option] = construct(hints[option], value, own, inside)
    try:
        made: T = _adapter(cls).validate_python(options)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FedstillError(f"{cls.__name__}: option {where!r}: {first['msg']} (given: {first['input']!r}).") from error
    return made


@lru_cache(maxsize=256)
def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """What checks the options of a class; to make it takes longer than to use it."""
    return TypeAdapter(cls)


def settings_of(made: Any) -> dict[str, Any]:
    """The settings that `construct` makes this object of: its class's name, and the options that are not defaults."""
    settings: dict[str, Any] = {"name": name_of(type(made))}
    for option in fields(made):
        value = getattr(made, option.name)
        default = option.default if option.default_factory is MISSING else option.default_factory()
        if option.init and (default is MISSING or value != default):
            settings[option.name] = settings_of(value) if is_dataclass(value) else value
    return settings


def _find(base: type[T], name: object, table: Mapping[str, type[T]], kind: str) -> type[T]:
    if not isinstance(name, str):
        raise FedstillError(f"the {kind} needs a name; known: {', '.join(table)}.")
    if is_own(name):
        found = own_class(name)
        if not issubclass(found, base):
            raise FedstillError(f"{name} is not a {base.__name__}: derive your class from fedstill.{base.__name__}.")
        return found
    if name not in table:
        raise FedstillError(f"there is no {kind} {name!r}; {nearest(name, table)}")
    return table[name]
