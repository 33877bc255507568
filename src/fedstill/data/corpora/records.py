"""Records with many fields, for corpora that make rows out of them; errors name file and row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.data.corpora.files import fault, hub_dataset
from fedstill.data.corpora.tables import json_object


@dataclass(frozen=True)
class RawRecord:
    """Fields, and the file and line (or data set and row) that they stand in."""

    file: str
    line: int
    values: Mapping[str, Any]

    def fault(self, what: str) -> FedstillError:
        """An error about this record."""
        return fault(self.file, self.line, what)

    def text(self, name: str) -> str:
        """A field that must be text."""
        return str(self._field(name, str, "text"))

    def number(self, name: str) -> int:
        """A field that must be a whole number."""
        return int(self._field(name, int, "a whole number"))

    def texts(self, name: str) -> list[str]:
        """A field that must be a list of texts."""
        values = list(self._field(name, list, "a list"))
        if not all(isinstance(value, str) for value in values):
            raise self.fault(f"the field {name!r} must be a list of texts.")
        return values

    def part(self, name: str) -> RawRecord:
        """A field that must hold fields of its own."""
        return RawRecord(self.file, self.line, self._field(name, dict, "an object"))

    def parts(self, name: str) -> list[RawRecord]:
        """A field that must be a list of such."""
        values = list(self._field(name, list, "a list"))
        if not all(isinstance(value, dict) for value in values):
            raise self.fault(f"the field {name!r} must be a list of objects.")
        return [RawRecord(self.file, self.line, value) for value in values]

    def _field(self, name: str, kind: type, wanted: str) -> Any:
        if name not in self.values:
            raise self.fault(f"there is no field {name!r}; the fields are {', '.join(self.values) or 'none'}.")
        value = self.values[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.fault(f"the field {name!r} must be {wanted}, and is {json.dumps(value, default=str)[:40]}.")
        return value


def lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file that are not blank, with their numbers."""
    raw = file.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise fault(file, line, f"byte {error.start + 1} of the file is not UTF-8; save it as UTF-8.") from error
    # Not splitlines(): it splits at other characters too, which texts may contain.
    for number, line_text in enumerate(text.split("\n"), start=1):
        if line_text.strip():
            yield number, line_text.rstrip("\r")


def json_lines(file: Path) -> Iterator[RawRecord]:
    """An object a line."""
    for line, text in lines(file):
        yield RawRecord(str(file), line, json_object(file, line, text))


def dataset(name: str, config: str, split: str) -> Iterator[RawRecord]:
    """The records of one split of a Hugging Face data set; class numbers stay numbers."""
    data = hub_dataset(name, config, split)
    for line, values in enumerate(data, start=1):
        yield RawRecord(f"{name}/{config}[{split}]", line, values)
