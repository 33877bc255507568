"""Experiment files: YAML with the scalar rules of YAML 1.2, dotted overrides, and errors that name a line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedstill.common.errors import FedstillError


class _Loader(yaml.SafeLoader):
    """The core scalars of YAML 1.2: `5e-4` is a number; only true and false are booleans; `yes` and `no` are text."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """The mapping; a key that appears twice is an error."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} appears twice", key.start_mark
                )
            seen.add(key.value)
        return dict(super().construct_mapping(node, deep))


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", list("-+.0123456789")),
):  # fmt: skip
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
# YAML 1.1 reads 010 as octal and 1:30 in base 60; with the patterns above only plain decimals arrive here.
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))
_Loader.add_constructor(
    "tag:yaml.org,2002:float", lambda loader, node: float(node.value.replace(".i", "i").replace(".n", "n"))
)


class Source:
    """The values of an experiment file, and the line of each value."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        try:
            loader = _Loader(text)
            self.node = loader.get_single_node()
            self.values: Any = {} if self.node is None else loader.construct_document(self.node)
        except yaml.YAMLError as error:
            raise FedstillError(_yaml_error(name, error)) from error
        if not isinstance(self.values, dict):
            found = "a list" if isinstance(self.values, list) else "a value without a key"
            raise FedstillError(f"{name}: an experiment is made of lines such as `rounds: 5`; this is {found}.")
        self.overridden: set[str] = set()

    @classmethod
    def read(cls, path: Path) -> Source:
        """The source in a file."""
        try:
            return cls(path.read_text(encoding="utf-8"), str(path))
        except FileNotFoundError as error:
            raise FedstillError(
                f"there is no experiment file {path}; `fedstill show recipes` lists fedstill's own."
            ) from error
        except (OSError, UnicodeDecodeError) as error:
            raise FedstillError(f"{path} cannot be read as UTF-8 text ({error}).") from error

    @classmethod
    def of(cls, values: dict[str, Any], name: str) -> Source:
        """A source of values that are not in a file; `name` stands for the file in errors."""
        source = cls("", name)
        source.values = values
        return source

    def override(self, assignments: Sequence[str]) -> None:
        """Apply `dotted.key=value` arguments; a plain name becomes {name: ...} if a key inside it is set."""
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals or not key:
                raise FedstillError(f"{assignment!r} is not an override: write key=value, for example rounds=5.")
            try:
                value = yaml.load(text, _Loader)
            except yaml.YAMLError as error:
                reason = getattr(error, "problem", None) or str(error).splitlines()[0]
                raise FedstillError(f"{assignment!r}: the value cannot be read ({reason}).") from error
            *path, last = key.split(".")
            place = self.values
            for part in path:
                inside = place.get(part)
                if isinstance(inside, str):
                    inside = {"name": inside}
                place[part] = inside = {} if inside is None else inside
                if not isinstance(inside, dict):
                    raise FedstillError(f"{assignment!r}: {part} holds a {type(inside).__name__}, which has no keys.")
                place = inside
            place[last] = value
            self.overridden.add(key)

    def place(self, path: Sequence[str | int]) -> str:
        """`file:line` of a value; if the file does not have it, of the part that would hold it."""
        dotted = ".".join(str(part) for part in path)
        if any(
            dotted == key or dotted.startswith(f"{key}.") or key.startswith(f"{dotted}.") for key in self.overridden
        ):
            return "on the command line"
        node = self.node
        line = node.start_mark.line if node is not None else 0
        for part in path:
            node, mark = _inside(node, part)
            if node is None:
                break
            line = mark.line
        return f"{self.name}:{line + 1}"


def _inside(node: Any, part: str | int) -> tuple[Any, Any]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return value, key.start_mark
    elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark
    return None, None


def _yaml_error(name: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"{name}:{mark.line + 1}: {problem}." if mark is not None else f"{name}: {problem}."


class _Dumper(yaml.SafeDumper):
    """Writes values so that `_Loader` reads back the same."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Quoted if YAML 1.1 or 1.2 might not read it as text.
    plain = re.fullmatch(r"[A-Za-z_/][\w ./()\[\]-]*", text) and text.lower() not in (
        "null",
        "true",
        "false",
        "yes",
        "no",
        "on",
        "off",
        "y",
        "n",
    )
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)


def dump(values: Mapping[str, Any]) -> str:
    """YAML that reads back to the same values."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
