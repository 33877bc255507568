"""Settings read from a file or a program, and what is wrong with them in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import nearest
from fedstill.common.settings import Settings
from fedstill.config.source import Source
from fedstill.config.specs import ClientSpec

S = TypeVar("S", bound=Settings)

Place = Callable[[Sequence[str | int]], str]
"""Says where the value at a path of keys stands."""


class Misplaced(FedstillError):
    """An error in a value, with the value's place in the experiment."""

    def __init__(self, path: Sequence[str | int], error: FedstillError) -> None:
        super().__init__(str(error))
        self.path = path


def read_settings(source: Source, kind: type[S]) -> S:
    """The settings of a file, typed; pydantic's errors become sentences that name the file and the line."""
    try:
        return kind.model_validate(source.values)
    except Misplaced as error:
        raise FedstillError(f"{source.place(error.path)}: {error}") from error
    except ValidationError as error:
        raise FedstillError(sentences(error, kind, source.place, source.values)) from error


def sentences(error: ValidationError, kind: type[Settings], place: Place, given: Any) -> str:
    """What is wrong with the settings of this kind that were given, a line each."""
    return "\n".join(dict.fromkeys(_sentence(place, item, kind, given) for item in error.errors()))


def _sentence(place: Place, item: Any, kind: type[Settings], given: Any) -> str:
    path = [part for part in item["loc"] if not str(part).startswith("<")]  # tags of our unions, not keys
    if path[:1] == ["workers"]:
        del path[1:]
    written = _as_written(path, given)
    dotted = ".".join(str(part) for part in written)
    where = place(written)
    if item["type"] == "extra_forbidden":
        known = {*_keys_at(kind, path[:-1]), *_keys_at(kind, written[:-1])}
        return f"{where}: unknown key {dotted!r}; {nearest(str(path[-1]), known)}"
    message = item["msg"].removeprefix("Value error, ")
    value = f" (given: {item['input']!r})" if isinstance(item["input"], str | int | float | bool) else ""
    return f"{where}: {dotted}: {message[:1].lower() + message[1:]}{value}." if dotted else f"{where}: {message}."


def _as_written(path: list[str | int], given: Any) -> list[str | int]:
    """The path in what was given: below `public` stand the keys of its corpus, with or without `corpus:`."""
    public = given.get("public") if isinstance(given, dict) else None
    if path[:2] != ["public", "corpus"] or (isinstance(public, dict) and "corpus" in public):
        return path
    return [path[0], *path[2:]]


def _keys_at(kind: type[Settings], path: Sequence[str | int]) -> list[str]:
    """The known keys of the mapping at that path."""
    model: Any = kind
    for part in path:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        nested = [] if field is None else _models_in(field.annotation)
        model = nested[0] if nested else ClientSpec
    return list(model.model_fields)


def _models_in(kind: Any) -> list[Any]:
    """The settings classes among the alternatives of a type."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for part in get_args(kind) for model in _models_in(part)]
