"""Rows of labelled text from CSV, TSV, JSON lines, Parquet or a Hugging Face data set; errors name file and row."""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedstill.common.errors import FedstillError
from fedstill.data.artefacts import offline

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")


class Row(NamedTuple):
    """One labelled text and where it was read; the label is empty if it was missing."""

    file: str
    line: int
    text: str
    pair: str | None
    label: str
    domain: str | None = None
    group: str | None = None

    def fault(self, what: str) -> FedstillError:
        """An error about this row."""
        return fault(self.file, self.line, what)


@dataclass(frozen=True)
class Columns:
    """The names of the columns."""

    text: str = "text"
    pair: str | None = None
    label: str | None = "label"
    """None for texts without labels."""
    domain: str | None = None
    group: str | None = None


def fault(file: str | Path, line: int, what: str) -> FedstillError:
    """An error about a row of a file."""
    return FedstillError(f"{file}, row {line}: {what}")


def read(
    path: Path,
    columns: Columns,
    encoding: str = "utf-8",
    header: Sequence[str] | None = None,
    short: list[int] | None = None,
) -> Iterator[Row]:
    """The rows of a file, or of a folder where each file is a domain, named by the file's stem.

    If a list is given as `short`, the numbers of rows with too few fields are added to it; else they are an error.
    """
    if not path.is_dir():
        yield from _read_file(path, columns, encoding, header, short)
        return
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        raise FedstillError(f"{path} is a folder without data; put {_or(SUFFIXES)} files into it, one for each domain.")
    for file in files:
        for row in _read_file(file, columns, encoding, header, short):
            yield row if columns.domain else row._replace(domain=file.stem)


def read_records(
    name: str, records: Iterable[Mapping[str, object]], names: Iterable[str], columns: Columns
) -> Iterator[Row]:
    """The rows of a table with these column names; `name` stands for the file in errors."""
    _check_columns(name, 0, names, columns)
    line = 0
    for line, record in enumerate(records, start=1):
        yield _row(name, line, record, columns)
    if not line:
        raise FedstillError(f"{name} holds no rows.")


def hub_dataset(name: str, config: str | None, split: str) -> Any:
    """One split of a Hugging Face data set, as an object of the `datasets` package."""
    try:
        import datasets
    except ImportError as error:
        raise FedstillError(
            f"{name} is read as a Hugging Face data set, which needs the `datasets` package: "
            'run `pip install "fedstill[datasets]"`, or give a file or folder with `path:`.'
        ) from error
    switch = offline()
    if switch:
        # The library reads only its own variable, and only when it is imported.
        datasets.config.HF_HUB_OFFLINE = True
    try:
        return datasets.load_dataset(name, config, split=split)
    except Exception as error:  # which errors the library raises depends on its version
        reason = str(error).strip().partition("\n")[0].rstrip(".") + (f"; {switch} is set" if switch else "")
        which = f"{config}, split {split}" if config else f"split {split}"
        raise FedstillError(
            f"The data set {name} ({which}) could not be loaded: {reason}. Check its name, `config:`, `split:` "
            "and the connection, or give a file or folder with `path:`."
        ) from error


def read_dataset(name: str, config: str | None, split: str, columns: Columns) -> Iterator[Row]:
    """The rows of one split of a Hugging Face data set; class numbers become class names."""
    data = hub_dataset(name, config, split)
    source = f"{name}[{split}]"
    _check_columns(source, 0, data.column_names, columns)
    names = getattr(data.features[columns.label], "names", None) if columns.label else None
    for line, record in enumerate(data, start=1):
        number = record[columns.label] if columns.label else None
        if names and isinstance(number, int):
            # The Hub's convention for a hidden label is -1.
            record = {**record, columns.label: names[number] if number >= 0 else None}
        yield _row(source, line, record, columns)


def _read_file(
    path: Path, columns: Columns, encoding: str, header: Sequence[str] | None, short: list[int] | None
) -> Iterator[Row]:
    suffix = path.suffix.lower()
    if not path.exists():
        raise FedstillError(f"{path} does not exist; check `path:` (it is relative to {Path.cwd()}).")
    if suffix not in SUFFIXES:
        raise FedstillError(f"{path} is not in a format that fedstill reads; save it as {_or(SUFFIXES)}.")
    if header and suffix not in (".csv", ".tsv"):
        raise FedstillError(f"{path} names its own columns; leave `header:` out, it is for CSV and TSV.")
    if path.stat().st_size == 0:
        raise FedstillError(f"{path} is empty; check that it was written completely.")
    records: Iterable[tuple[int, Mapping[str, object]]]
    if suffix == ".parquet":
        records = _parquet(path, columns)
    elif suffix in (".csv", ".tsv"):
        records = _delimited(path, columns, encoding, header, short)
    else:
        records = _json_lines(path, columns, encoding)
    line = 0
    for line, record in records:
        yield _row(str(path), line, record, columns)
    if not line:
        raise FedstillError(f"{path} holds no rows; check that it was written completely, or remove it.")


def _decoded(path: Path, encoding: str) -> str:
    raw = path.read_bytes()
    try:
        # Excel writes a byte-order mark before UTF-8 text; it is not part of the first column's name.
        return raw.decode(encoding).removeprefix("\ufeff")
    except LookupError as error:
        raise FedstillError(f"There is no encoding called {encoding!r}; try `encoding: cp1252` or utf-16.") from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise fault(
            path, line, f"byte {error.start + 1} of the file is not {encoding}; set `encoding:`, for example cp1252."
        ) from error


def _delimited(
    path: Path, columns: Columns, encoding: str, header: Sequence[str] | None, short: list[int] | None
) -> Iterator[tuple[int, Mapping[str, object]]]:
    csv.field_size_limit(2**31 - 1)
    # strict, because otherwise an unclosed quote takes the rest of the file as one field, without an error.
    forms: dict[str, Any] = {
        ".csv": {"strict": True},
        ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
    }
    reader = csv.reader(io.StringIO(_decoded(path, encoding), newline=""), **forms[path.suffix.lower()])
    names = list(header) if header else None
    if names:
        _check_columns(path, 0, names, columns)
    line = 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise fault(
                path, line, f'this is not well-formed ({error}); a quote inside quotes is written twice: "".'
            ) from error
        if fields is None:
            break
        if names is None:
            names = fields
            _check_columns(path, line, names, columns)
        elif short is not None and 0 < len(fields) < len(names):
            short.append(line)
        elif fields:
            _check_fields(path, line, fields, names, header)
            yield line, dict(zip(names, fields, strict=True))
        # A quoted text can have several lines; errors give the line where the row begins.
        line = reader.line_num + 1


def _check_fields(path: Path, line: int, fields: list[str], names: list[str], header: Sequence[str] | None) -> None:
    if len(fields) != len(names):
        in_csv, in_tsv = "quote texts that hold commas or line breaks", "remove tabs and line breaks from the texts"
        remedy = "check `header:`" if header else in_tsv if path.suffix.lower() == ".tsv" else in_csv
        raise fault(path, line, f"expected {len(names)} fields and found {len(fields)}; {remedy}.")
    if header and line == 1 and fields == names:
        raise fault(path, line, "the file has a header row of its own; leave `header:` out.")


def _json_lines(path: Path, columns: Columns, encoding: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    # Not splitlines(): it splits at other characters too, which JSON texts may contain.
    for line, text in enumerate(_decoded(path, encoding).split("\n"), start=1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except ValueError as error:
            raise fault(path, line, f"this is not JSON ({error}); write one object per line.") from error
        if not isinstance(record, dict):
            raise fault(path, line, "this is not a JSON object; write one object per line, not a list of objects.")
        _check_columns(path, line, record, columns)
        yield line, record


def _parquet(path: Path, columns: Columns) -> Iterator[tuple[int, Mapping[str, object]]]:
    import pyarrow
    import pyarrow.parquet

    wanted = sorted({name for name in _wanted(columns).values() if name})
    try:
        with pyarrow.parquet.ParquetFile(path) as opened:
            _check_columns(path, 0, opened.schema_arrow.names, columns)
            line = 0
            for batch in opened.iter_batches(columns=wanted):
                for record in batch.to_pylist():
                    line += 1
                    yield line, record
    except pyarrow.ArrowException as error:
        raise FedstillError(f"{path} is not a readable Parquet file ({error}); write it again.") from error


def _wanted(columns: Columns) -> dict[str, str | None]:
    return {
        "text": columns.text,
        "text (second)": columns.pair,
        "label": columns.label,
        "domain": columns.domain,
        "group": columns.group,
    }


def _check_columns(file: str | Path, line: int, present: Iterable[str], columns: Columns) -> None:
    """Refuse a file in which a wanted column is missing or occurs twice."""
    names = list(present)
    for use, name in _wanted(columns).items():
        if name is None or names.count(name) == 1:
            continue
        place = f"{file}, row {line}" if line else str(file)
        if name in names:
            raise FedstillError(f"{place}: there are {names.count(name)} columns called {name!r}; rename all but one.")
        near = difflib.get_close_matches(name, names, n=1)
        hint = f", did you mean {near[0]!r}?" if near else "."
        key = use.partition(" ")[0]
        raise FedstillError(
            f"{place}: there is no column {name!r}{hint} The columns are {', '.join(map(repr, names))}; "
            f"set `{key}:` to one of them{_no_header_hint(file, line, names)}."
        )


def _no_header_hint(file: str | Path, line: int, names: list[str]) -> str:
    if not line or Path(file).suffix.lower() not in (".csv", ".tsv"):
        return ""
    if len(names) == 1 and (";" in names[0] or "\t" in names[0]):
        return ", or save the file with commas between the fields"
    return ", or give `header:` if the first row is data"


def _row(file: str, line: int, record: Mapping[str, object], columns: Columns) -> Row:
    def value(column: str | None) -> str | None:
        return None if column is None else _as_text(record[column], file, line, column)

    return Row(
        file=file,
        line=line,
        text=value(columns.text) or "",
        pair=value(columns.pair),
        label=(value(columns.label) or "").strip(),
        domain=value(columns.domain),
        group=value(columns.group),
    )


def _as_text(value: object, file: str, line: int, column: str) -> str:
    """A cell as text: `true` for True, `3` for 3.0, empty for a missing value."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise fault(
                file, line, f"column {column!r} holds half a character ({error.reason}); correct its escape sequence."
            ) from error
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (int, float)):
        return str(value)
    raise fault(file, line, f"column {column!r} holds a {type(value).__name__}; fedstill reads texts and numbers.")


def _or(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
