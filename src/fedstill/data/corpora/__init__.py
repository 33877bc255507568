"""Every corpus fedstill can read, and the one way in."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import field_validator, model_validator
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fedstill.data.artefacts import WHEELS
from fedstill.data.corpora import amazon, files, glue, reviews, tweets
from fedstill.data.corpora.files import Columns, Row
from fedstill.data.corpus import Corpus, Ints
from fedstill.errors import FedstillError
from fedstill.settings import Settings


class Embedded(NamedTuple):
    """A corpus fedstill knows by name."""

    what: str
    licence: str
    labels: tuple[str, ...]


EMBEDDED = {
    "tweets": Embedded("tweets about 32 brands and games, in five domains", WHEELS["tweets"].licence, tweets.LABELS),
    "reviews": Embedded(
        "film reviews in two domains: IMDB and Rotten Tomatoes", WHEELS["reviews"].licence, reviews.LABELS
    ),
    "amazon": Embedded(
        "AdaFD's Amazon reviews, a domain a kind of product; needs `path:`", "your own copy is read", amazon.LABELS
    ),
    "glue": Embedded(
        f"GLUE; needs `task:` ({', '.join(glue.TASKS)}), and `path:` or the Hub",
        "each task's own",
        ("each task's own",),
    ),
}

WITH_A_FOLDER = ("amazon", "glue")
"""Known by name, and read from the user's own copy."""


class CorpusSpec(Settings):
    """Where labelled text comes from: a name fedstill knows, a file or folder, or a Hugging Face data set."""

    name: str | None = None
    task: str | None = None
    """Of glue."""
    path: str | None = None
    test: str | None = None
    """A test file (or folder, or split of a data set) of its own."""
    text: str | list[str] = "text"
    """One column, or two that make a pair."""
    label: str = "label"
    domain: str | None = None
    group: str | None = None
    encoding: str = "utf-8"
    header: list[str] | None = None
    """Column names for a file whose first row is data already."""
    split: str = "train"
    config: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("task")
    @classmethod
    def _spelled(cls, value: str | None) -> str | None:
        return None if value is None else glue.spelled(value)

    @model_validator(mode="after")
    def _one_source(self) -> CorpusSpec:
        if not isinstance(self.text, str) and len(self.text) not in (1, 2):
            raise ValueError("`text:` is one column, or a list of two that make a pair")
        if self.name is None and self.path is None:
            raise ValueError("a corpus needs a `name:` or a `path:`")
        if self.name not in (None, *WITH_A_FOLDER) and self.path is not None:
            raise ValueError(f"a corpus has a `name:` ({self.name}) or a `path:` ({self.path}), not both")
        if self.name == "glue" and self.task is None:
            raise ValueError(f"glue needs a `task:`, one of {', '.join(glue.TASKS)}")
        if idle := self._idle():
            raise ValueError(f"{self.name or self.path} takes no {', '.join(f'`{key}:`' for key in idle)}")
        return self

    def _idle(self) -> list[str]:
        """Settings that were changed and would be ignored."""
        columns = {"text", "label", "domain", "group"}
        if self.name == "glue":
            used = {"name", "task", "path"}
        elif self.name == "amazon":
            used = {"name", "path", "encoding"}
        elif self.name in EMBEDDED:
            used = {"name"}
        elif self.name:
            used = {"name", "test", "split", "config"} | columns
        else:
            used = {"path", "test", "encoding", "header"} | columns
        fields = type(self).model_fields
        return [key for key, field in fields.items() if key not in used and getattr(self, key) != field.default]

    def columns(self) -> Columns:
        """Which columns of the files hold what."""
        text, *pair = [self.text] if isinstance(self.text, str) else self.text
        return Columns(text, pair[0] if pair else None, self.label, self.domain, self.group)


class _Source(NamedTuple):
    """What was read, before it becomes arrays."""

    name: str
    rows: list[Row]
    test_rows: list[Row] | None = None
    counts: dict[str, int] | None = None
    labels: tuple[str, ...] | None = None
    metrics: tuple[str, ...] = ("f1",)


def load(spec: CorpusSpec, labels: Sequence[str] | None = None) -> Corpus:
    """The corpus of a specification; `labels` fixes their order, and any other label is then an error."""
    source = _read(spec)
    if spec.name == "glue" and labels is not None and source.labels != tuple(labels):
        raise FedstillError(
            f"{source.name} has the labels {', '.join(source.labels or ())}, in GLUE's order, which its metrics go by; "
            f"leave `labels:` ({', '.join(labels)}) out."
        )
    corpus, rows = _assemble(source)
    label_names = _label_names(source.name, rows, source.labels if labels is None else labels)
    numbers = _numbered((row.label for row in rows), label_names)
    return replace(corpus, labels=numbers, label_names=label_names, metrics=source.metrics)


def load_public(spec: CorpusSpec) -> Corpus:
    """The texts of a specification's training split, labelled or not; every label is -1, so that nobody sees one."""
    corpus, _ = _assemble(_read(spec, is_public=True))
    return corpus


def _read(spec: CorpusSpec, is_public: bool = False) -> _Source:
    """All rows of a specification; of a public one the training rows, whose labels need not be there."""
    folder = None if spec.path is None else Path(spec.path).expanduser()
    if spec.name == "tweets":
        rows, counts = tweets.rows()
        return _Source("tweets", rows, counts=counts, labels=tweets.LABELS)
    if spec.name == "reviews":
        return _Source("reviews", reviews.rows(), labels=reviews.LABELS)
    if spec.name == "amazon":
        if folder is None:
            raise FedstillError("The amazon corpus is not shipped; give its folder: `corpus.path=FOLDER`.")
        return _Source("amazon", amazon.rows(folder, spec.encoding), labels=amazon.LABELS)
    if spec.name == "glue":
        return _read_glue(str(spec.task), folder, is_public)
    columns = spec.columns()
    if is_public:
        spec, columns = spec.model_copy(update={"test": None}), replace(columns, label=None)
    if folder is not None:
        return _Source(folder.stem, *_read_files(folder, spec, columns))
    return _Source(str(spec.name), *_read_dataset(str(spec.name), spec, columns))


def _read_glue(name: str, folder: Path | None, is_public: bool) -> _Source:
    rows, development, counts = glue.rows(name, folder, is_public)
    task = glue.TASKS[name]
    return _Source(name, rows, None if is_public else development, counts, task.labels, task.metrics)


def _read_files(path: Path, spec: CorpusSpec, columns: Columns) -> tuple[list[Row], list[Row] | None]:
    rows = list(files.read(path, columns, spec.encoding, spec.header))
    if spec.test is None:
        return rows, None
    test = Path(spec.test).expanduser()
    if spec.domain is None and test.is_dir() != path.is_dir():
        raise FedstillError(
            f"{path} and {test} are a file and a folder, so their domains do not match; "
            "give two files, two folders with the same file names, or a `domain:` column."
        )
    return rows, list(files.read(test, columns, spec.encoding, spec.header))


def _read_dataset(name: str, spec: CorpusSpec, columns: Columns) -> tuple[list[Row], list[Row] | None]:
    if Path(name).expanduser().exists():
        raise FedstillError(f"{name} is a file or folder; write `corpus: {{path: {name}}}`.")
    # A slip of the pen should not wait for the Hub to say no.
    if near := difflib.get_close_matches(name, EMBEDDED, n=1, cutoff=0.75):
        raise FedstillError(
            f"There is no corpus called {name}. Did you mean {near[0]}? Fedstill's own are {', '.join(EMBEDDED)}; "
            "a Hugging Face data set is given as organisation/name, a file with `path:`."
        )
    rows = list(files.read_dataset(name, spec.config, spec.split, columns))
    return rows, list(files.read_dataset(name, spec.config, spec.test, columns)) if spec.test else None


def _assemble(source: _Source) -> tuple[Corpus, list[Row]]:
    """The corpus without its labels, and its rows: empty texts out, domains numbered, equal texts grouped."""
    everything = source.rows + (source.test_rows or [])
    counts = source.counts or {"rows read": len(everything)}
    held_out = np.arange(len(everything)) >= len(source.rows)
    full = np.array([bool(row.text.strip()) and (row.pair is None or bool(row.pair.strip())) for row in everything])
    kept = [row for row, is_full in zip(everything, full, strict=True) if is_full]
    if empty := len(everything) - len(kept):
        counts["empty text"] = empty
    if not kept:
        place = everything[0].file if everything else source.name
        raise FedstillError(f"{place}: every text is empty; check `text:`.")
    held_out = held_out[full]
    keys = [normalised(row.text, row.pair) for row in kept]
    _count_repeats(keys, held_out, counts)
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
        counts=counts,
    )
    return corpus, kept


def _label_names(name: str, rows: list[Row], labels: Sequence[str] | None) -> tuple[str, ...]:
    for row in rows:
        if not row.label:
            raise row.fault("the label is missing; fill it in, or remove the row.")
        if labels is not None and row.label not in labels:
            raise row.fault(
                f"the label {row.label!r} is none of {', '.join(labels)}; add it to `labels:` or remove it."
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
    """What two rows share when they say the same in other spacing or case."""
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
    # Texts and groups are the nodes of a graph, rows its edges; a row without a group is tied to nothing but its text.
    named = {group: len(names) + number for number, group in enumerate(dict.fromkeys(filter(None, own)))}
    ends = np.array([named[group] if group else text for group, text in zip(own, texts, strict=True)], dtype=np.int64)
    size = len(names) + len(named)
    graph = coo_array((np.ones(len(texts), dtype=np.int8), (texts, ends)), shape=(size, size))
    _, components = connected_components(graph.tocsr(), directed=False)
    return components[texts].astype(np.int64)
