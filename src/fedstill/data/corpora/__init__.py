"""Reading a corpus: `load` reads any corpus that fedstill knows, a file, or a Hugging Face data set."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fedstill.common.errors import FedstillError
from fedstill.data.corpora import doctor, files, images, memory, tasks
from fedstill.data.corpora.embedded import Source
from fedstill.data.corpora.files import Columns, Row
from fedstill.data.corpora.memory import Held
from fedstill.data.corpora.spec import EMBEDDED, SEPARATE, CorpusSpec
from fedstill.data.corpus import Corpus, Ints

__all__ = ["EMBEDDED", "CorpusSpec", "load", "load_public", "normalised", "remembered"]

_REMEMBERED: dict[tuple[str, tuple[str, ...] | None], Corpus] | None = None


@contextmanager
def remembered() -> Iterator[None]:
    """In here a corpus is read once, for many runs on the same rows; the last one stays in memory."""
    global _REMEMBERED
    before, _REMEMBERED = _REMEMBERED, {}
    try:
        yield
    finally:
        _REMEMBERED = before


def load(spec: CorpusSpec, labels: Sequence[str] | None = None) -> Corpus:
    """The corpus of a specification; `labels`, if given, fixes their order, and any other label is an error."""
    if _REMEMBERED is None:
        return _load(spec, labels)
    key = spec.model_dump_json(), None if labels is None else tuple(labels)
    if key not in _REMEMBERED:
        _REMEMBERED.clear()
        _REMEMBERED[key] = _load(spec, labels)
    return replace(_REMEMBERED[key], counts=dict(_REMEMBERED[key].counts))


def _load(spec: CorpusSpec, labels: Sequence[str] | None) -> Corpus:
    if spec.is_of_tasks:
        joined = tasks.joined(str(spec.name), {task: _load(part, None) for task, part in spec.parts().items()})
        _refuse_other_labels(joined.name, joined.label_names, labels, "task by task")
        return joined
    if spec.name in images.IMAGES:
        pictures = images.load(spec.name, spec.folder, spec.size)
        _refuse_other_labels(pictures.name, pictures.label_names, labels, "in its publisher's order")
        return pictures
    source, notices = _read(spec), list[str]()
    if spec.name not in EMBEDDED:
        source, notices = doctor.examine(source, spec, labels)
    if source.order:
        _refuse_other_labels(source.name, source.labels or (), labels, source.order)
    corpus, rows = _assemble(source)
    label_names = _label_names(source.name, rows, source.labels if labels is None else labels)
    numbers = _numbered((row.label for row in rows), label_names)
    if spec.name not in EMBEDDED and len(rows) < corpus.counts["rows read"]:
        corpus.counts["rows kept"] = len(rows)
    return replace(corpus, labels=numbers, label_names=label_names, metrics=source.metrics, notices=tuple(notices))


def load_public(spec: CorpusSpec) -> Corpus:
    """The texts of a specification's training split, labelled or not; every label is -1, so that none is used."""
    if spec.is_of_tasks:
        return tasks.joined(str(spec.name), {task: load_public(part) for task, part in spec.parts().items()})
    if spec.name in images.IMAGES:
        raise FedstillError(f"public: {spec.name} holds images; public samples from another corpus are texts.")
    corpus, _ = _assemble(_read(spec, is_public=True))
    return corpus


def _refuse_other_labels(name: str, own: tuple[str, ...], labels: Sequence[str] | None, order: str) -> None:
    if labels is not None and own != tuple(labels):
        raise FedstillError(
            f"{name} has the labels {', '.join(own)}, {order}; leave `labels:` ({', '.join(labels)}) out."
        )


def _read(spec: CorpusSpec, is_public: bool = False) -> Source:
    """All rows of a specification; of a public one the training rows, whose labels need not be there."""
    if spec.name in EMBEDDED and (read := EMBEDDED[spec.name].read) is not None:
        return read(spec, is_public)
    columns = spec.columns()
    if is_public:
        spec, columns = spec.model_copy(update={"test": None, "validation": None}), replace(columns, label=None)
    if (folder := spec.folder) is not None:
        return Source(folder.stem, *_read_files(folder, spec, columns))
    return Source(str(spec.name), *_read_dataset(str(spec.name), spec, columns))


def _read_files(path: Path, spec: CorpusSpec, columns: Columns) -> tuple[list[Row], list[Row] | None]:
    rows = _rows(path, spec.held("path"), spec, columns)
    others: dict[Literal["test", "validation"], list[Row]] = {}
    for key in SEPARATE:
        if (given := getattr(spec, key)) is None:
            continue
        other = Path(given).expanduser()
        if spec.domain is None and other.is_dir() != path.is_dir():
            raise FedstillError(
                f"{path} and {other} are a file and a folder, so their domains do not match; "
                "give two files, two folders with the same file names, or a `domain:` column."
            )
        others[key] = _rows(other, spec.held(key), spec, columns)
    return rows + _validating(others.get("validation", [])), others.get("test")


def _validating(rows: Iterable[Row]) -> list[Row]:
    return [row._replace(validates=True) for row in rows]


def _rows(path: Path, held: Held | None, spec: CorpusSpec, columns: Columns) -> list[Row]:
    if held is not None:
        return list(files.read_records(memory.TABLE, held.records, held.names, columns))
    memory.check_kept(path)
    return list(files.read(path, columns, spec.encoding, spec.header, delimiter=spec.delimiter))


def _read_dataset(name: str, spec: CorpusSpec, columns: Columns) -> tuple[list[Row], list[Row] | None]:
    if Path(name).expanduser().exists():
        raise FedstillError(f"{name} is a file or folder; write `corpus: {{path: {name}}}`.")
    # A mistyped name should be reported without waiting for the Hub.
    if near := difflib.get_close_matches(name, EMBEDDED, n=1, cutoff=0.75):
        raise FedstillError(
            f"There is no corpus called {name}. Did you mean {near[0]}? Fedstill's own are {', '.join(EMBEDDED)}; "
            "a Hugging Face data set is given as organisation/name, a file with `path:`."
        )
    rows = list(files.read_dataset(name, spec.config, spec.split, columns))
    if spec.validation:
        rows += _validating(files.read_dataset(name, spec.config, spec.validation, columns))
    return rows, list(files.read_dataset(name, spec.config, spec.test, columns)) if spec.test else None


def _assemble(source: Source) -> tuple[Corpus, list[Row]]:
    """The corpus without its labels, and its rows: empty texts out, domains numbered, equal texts grouped."""
    everything = source.rows + (source.test_rows or [])
    counts = source.counts or {"rows read": len(everything)}
    held_out = np.arange(len(everything)) >= len(source.rows)
    full = np.array([row.has_text for row in everything], bool)
    kept = [row for row, is_full in zip(everything, full, strict=True) if is_full]
    if empty := len(everything) - len(kept):
        counts["empty text"] = empty
    if not kept:
        place = everything[0].file if everything else source.name
        raise FedstillError(f"{place}: every text is empty; check `text:`.")
    held_out = held_out[full]
    keys = [normalised(row.text, row.pair) for row in kept]
    _count_repeats(keys, held_out, counts)
    validating = np.array([row.validates for row in kept], bool)
    domain_names = tuple(sorted({_domain(row) for row in kept})) if kept[0].domain is not None else ()
    corpus = Corpus(
        name=source.name,
        texts=[row.text for row in kept],
        labels=np.full(len(kept), -1),
        label_names=(),
        pairs=[str(row.pair) for row in kept] if kept[0].pair is not None else None,
        domains=_numbered(map(_domain, kept), domain_names) if domain_names else None,
        domain_names=domain_names,
        groups=_groups(keys, [row.group for row in kept]),
        held_out=held_out if source.test_rows is not None else None,
        validating=validating if validating.any() else None,
        counts=counts,
    )
    return corpus, kept


def _label_names(name: str, rows: list[Row], labels: Sequence[str] | None) -> tuple[str, ...]:
    for row in rows:
        if not row.label:
            raise row.fault("the label is missing; fill it in, or remove the row.")
        if labels is not None and row.label not in labels:
            raise row.fault(
                f"the label {row.label!r} is none of {', '.join(labels)}; add it to `labels:` or remove the row."
            )
    if labels is not None:
        return tuple(labels)
    found = {row.label for row in rows}
    if len(found) == 1:
        raise FedstillError(f"Every row of {name} has the label {found.pop()!r}; check `label:`, two are needed.")
    try:
        return tuple(sorted(found, key=lambda label: (float(label), label)))
    except ValueError:
        return tuple(sorted(found))


def _domain(row: Row) -> str:
    if not row.domain or not row.domain.strip():
        raise row.fault("the domain is missing; fill it in, or leave `domain:` out.")
    return row.domain.strip()


def _numbered(values: Iterable[str], names: tuple[str, ...]) -> Ints:
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[value] for value in values], dtype=np.int64)


def normalised(text: str, pair: str | None) -> str:
    """A key that is equal for rows that differ only in spacing or case."""
    return "\n".join(" ".join(part.casefold().split()) for part in (text, pair or ""))


def _count_repeats(keys: list[str], held_out: npt.NDArray[np.bool_], counts: dict[str, int]) -> None:
    if repeats := len(keys) - len(set(keys)):
        counts["duplicate texts"] = repeats
    test = {key for key, is_test in zip(keys, held_out, strict=True) if is_test}
    train = {key for key, is_test in zip(keys, held_out, strict=True) if not is_test}
    if shared := len(test & train):
        counts["texts in both train and test"] = shared


def _groups(keys: list[str], own: list[str | None]) -> Ints:
    """Rows that share a text or a group, directly or through others, get the same number."""
    names = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    texts = np.array([names[key] for key in keys], dtype=np.int64)
    if not any(own):
        return texts
    # Texts and groups are the nodes of a graph, rows its edges; a row without a group joins its text only to itself.
    named = {group: len(names) + number for number, group in enumerate(dict.fromkeys(filter(None, own)))}
    ends = np.array([named[group] if group else text for group, text in zip(own, texts, strict=True)], dtype=np.int64)
    size = len(names) + len(named)
    graph = coo_array((np.ones(len(texts), dtype=np.int8), (texts, ends)), shape=(size, size))
    _, components = connected_components(graph.tocsr(), directed=False)
    return components[texts].astype(np.int64)
