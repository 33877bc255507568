"""Records of a CSV, TSV, JSON lines or Parquet file, one at a time; errors name file and row."""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstill.common.errors import FedstillError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
DELIMITERS = ",;\t|"
"""What may stand between the fields of a CSV file, the likeliest first."""

Record = Mapping[str, object]


@dataclass(frozen=True)
class Columns:
    """The names of the columns."""

    text: str = "text"
    pair: str | None = None
    label: str | None = "label"
    """None for texts without labels."""
    domain: str | None = None
    group: str | None = None

    def wanted(self) -> dict[str, str]:
        """The columns that must be there, by their use."""
        uses = {"text": self.text, "text (second)": self.pair, "label": self.label}
        uses |= {"domain": self.domain, "group": self.group}
        return {use: name for use, name in uses.items() if name is not None}


@dataclass(frozen=True)
class Form:
    """How a file is written."""

    encoding: str = "utf-8"
    header: Sequence[str] | None = None
    """The columns of a CSV or TSV file without a header row."""
    delimiter: str | None = None
    """Between the fields, which may be quoted as in CSV; None: found in the file."""


def fault(file: str | Path, line: int, what: str) -> FedstillError:
    """An error about a row of a file."""
    return FedstillError(f"{file}, row {line}: {what}")


def files_of(path: Path) -> list[Path]:
    """The file itself, or the files of a folder that hold data."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        raise FedstillError(f"{path} is a folder without data; put {_or(SUFFIXES)} files into it, one for each domain.")
    return files


def records(
    path: Path, columns: Columns, form: Form, short: list[int] | None = None, whole: bool = False
) -> Iterator[tuple[int, Record]]:
    """The rows of a file with their numbers; at least the columns that are wanted, and with `whole` all of them.

    If a list is given as `short`, the numbers of rows with too few fields are added to it; else they are an error.
    """
    suffix = path.suffix.lower()
    if not path.exists():
        raise FedstillError(f"{path} does not exist; check `path:` (it is relative to {Path.cwd()}).")
    if suffix not in SUFFIXES:
        raise FedstillError(f"{path} is not in a format that fedstill reads; save it as {_or(SUFFIXES)}.")
    for key in ("header", "delimiter"):
        if getattr(form, key) and suffix not in (".csv", ".tsv"):
            raise FedstillError(f"{path} names its own columns; leave `{key}:` out, it is for CSV and TSV.")
    if path.stat().st_size == 0:
        raise FedstillError(f"{path} is empty; check that it was written completely.")
    if suffix == ".parquet":
        found = _parquet(path, columns, whole)
    elif suffix in (".csv", ".tsv"):
        found = _delimited(path, columns, form, short, whole)
    else:
        found = _json_lines(path, columns, form.encoding, whole)
    line = 0
    for line, record in found:
        yield line, record
    if not line:
        raise FedstillError(f"{path} holds no rows; check that it was written completely, or remove it.")


def _lines(path: Path, encoding: str, newline: str) -> Iterator[str]:
    """The lines of a file, with their ends."""
    try:
        opened = path.open(encoding=encoding, newline=newline)
    except LookupError as error:
        raise FedstillError(f"There is no encoding called {encoding!r}; try `encoding: cp1252` or utf-16.") from error
    with opened:
        try:
            # Excel writes a byte-order mark before UTF-8 text; it is not part of the first column's name.
            yield next(opened, "").removeprefix("\ufeff")
            yield from opened
        except UnicodeDecodeError as error:
            raise _undecoded(path, encoding) from error


def _undecoded(path: Path, encoding: str) -> FedstillError:
    """Where a file is not in its encoding, which a decoder that reads piece by piece does not know."""
    raw = path.read_bytes()
    try:
        raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        likely = "utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "cp1252"
        how = f"set `encoding:` (with `predict`, --encoding), for example {likely}"
        what = f"byte {error.start + 1} of the file is not {encoding}; {how}."
        return fault(path, line, what)
    return FedstillError(f"{path} changed while it was read; try again.")


def _delimited(
    path: Path, columns: Columns, form: Form, short: list[int] | None, whole: bool
) -> Iterator[tuple[int, Record]]:
    header = form.header
    dialect = _dialect(path, columns, form, may_be_quoted=short is None)
    names = list(header) if header else None
    if names:
        check_columns(path, 0, names, columns, whole)
    for line, fields in _fields(path, form.encoding, dialect):
        if names is None:
            names = fields
            check_columns(path, line, names, columns, whole)
        elif short is not None and 0 < len(fields) < len(names):
            short.append(line)
        elif fields:
            _check_fields(path, line, fields, names, header)
            yield line, dict(zip(names, fields, strict=True))


def _fields(path: Path, encoding: str, dialect: Mapping[str, Any]) -> Iterator[tuple[int, list[str]]]:
    """The fields of every row, with the line where it begins: a quoted text can have several."""
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(_lines(path, encoding, newline=""), **dialect)
    line = 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise fault(
                path, line, f'this is not well-formed ({error}); a quote inside quotes is written twice: "".'
            ) from error
        if fields is None:
            return
        yield line, fields
        line = reader.line_num + 1


def _dialect(path: Path, columns: Columns, form: Form, may_be_quoted: bool) -> dict[str, Any]:
    """What stands between the fields of a file and whether quotes hold them together.

    strict, because otherwise an unclosed quote takes the rest of the file as one field, without an error.
    """
    if form.delimiter is not None:
        return {"delimiter": form.delimiter, "strict": True}
    if path.suffix.lower() == ".csv":
        return {"delimiter": _delimiter(path, columns, form), "strict": True}
    plain, quoted = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}, {"delimiter": "\t", "strict": True}
    return quoted if may_be_quoted and not _fits(path, form, plain) and _fits(path, form, quoted) else plain


def _delimiter(path: Path, columns: Columns, form: Form) -> str:
    """What makes the wanted columns of the first row, or as many fields as there are names; else a comma."""
    widths = {}
    for delimiter in DELIMITERS:
        _, names = next(_fields(path, form.encoding, {"delimiter": delimiter}), (1, list[str]()))
        widths[delimiter] = len(names)
        if len(names) == len(form.header) if form.header else set(columns.wanted().values()) <= set(names):
            return delimiter
    # The complaint about missing columns should be about columns.
    return "," if widths[","] > 1 else max(DELIMITERS, key=widths.__getitem__)


def _fits(path: Path, form: Form, dialect: Mapping[str, Any]) -> bool:
    """Whether every row of a file has as many fields as there are names."""
    width = len(form.header) if form.header else None
    try:
        for _, fields in _fields(path, form.encoding, dialect):
            width = width or len(fields)
            if fields and len(fields) != width:
                return False
    except FedstillError:
        return False
    return True


def _check_fields(path: Path, line: int, fields: list[str], names: list[str], header: Sequence[str] | None) -> None:
    if len(fields) != len(names):
        in_csv, in_tsv = "quote texts that hold delimiters or line breaks", "remove tabs and line breaks from the texts"
        remedy = "check `header:`" if header else in_tsv if path.suffix.lower() == ".tsv" else in_csv
        raise fault(path, line, f"expected {len(names)} fields and found {len(fields)}; {remedy}.")
    if header and line == 1 and fields == names:
        raise fault(path, line, "the file has a header row of its own; leave `header:` out.")


def json_object(path: Path, line: int, text: str) -> dict[str, Any]:
    """The object that a line of a JSONL file holds."""
    try:
        record = json.loads(text)
    except ValueError as error:
        raise fault(path, line, f"this is not JSON ({error}); write one object per line.") from error
    if not isinstance(record, dict):
        raise fault(path, line, "this is not a JSON object; write one object per line, not a list of objects.")
    return record


def _json_lines(path: Path, columns: Columns, encoding: str, whole: bool) -> Iterator[tuple[int, Record]]:
    # Lines end with a line feed and nothing else: JSON texts may contain other characters that end lines.
    for line, text in enumerate(_lines(path, encoding, newline="\n"), start=1):
        if not text.strip():
            continue
        record = json_object(path, line, text)
        check_columns(path, line, record, columns, whole)
        yield line, record


def _parquet(path: Path, columns: Columns, whole: bool) -> Iterator[tuple[int, Record]]:
    import pyarrow
    import pyarrow.parquet

    wanted = None if whole else sorted(set(columns.wanted().values()))
    try:
        with pyarrow.parquet.ParquetFile(path) as opened:
            check_columns(path, 0, opened.schema_arrow.names, columns, whole)
            line = 0
            for batch in opened.iter_batches(columns=wanted):
                for record in batch.to_pylist():
                    line += 1
                    yield line, record
    except pyarrow.ArrowException as error:
        raise FedstillError(f"{path} is not a readable Parquet file ({error}); write it again.") from error


def check_columns(file: str | Path, line: int, present: Iterable[str], columns: Columns, whole: bool = False) -> None:
    """Refuse a file in which a wanted column is missing or occurs twice; with `whole` (`predict`) none may."""
    names = list(present)
    place = f"{file}, row {line}" if line else str(file)
    wanted = columns.wanted()
    for name in names if whole else wanted.values():
        if names.count(name) > 1:
            raise FedstillError(f"{place}: there are {names.count(name)} columns called {name!r}; rename all but one.")
    for use, name in wanted.items():
        if name in names:
            continue
        near = difflib.get_close_matches(name, names, n=1)
        hint = f", did you mean {near[0]!r}?" if near else "."
        key = "--text" if whole else f"{use.partition(' ')[0]}:"
        raise FedstillError(
            f"{place}: there is no column {name!r}{hint} The columns are {', '.join(map(repr, names))}; "
            f"set `{key}` to one of them{_no_header_hint(file, line, names, whole)}."
        )


def _no_header_hint(file: str | Path, line: int, names: list[str], whole: bool) -> str:
    if not line or Path(file).suffix.lower() not in (".csv", ".tsv"):
        return ""
    if len(names) == 1:
        return f", or say with `{'--delimiter' if whole else 'delimiter:'}` what stands between the fields"
    return "" if whole else ", or give `header:` if the first row is data"


def _or(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
