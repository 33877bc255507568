"""Public samples from another corpus: texts that all parties may see; their labels are not used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import nearest
from fedstill.common.randomness import generator
from fedstill.common.settings import Settings
from fedstill.data.corpora import CorpusSpec, load_public, normalised
from fedstill.data.corpora.memory import is_table
from fedstill.data.corpora.named import are_tables
from fedstill.data.corpus import Corpus, Ints
from fedstill.data.partition import Partition


class PublicSpec(Settings):
    """A corpus, named as in `corpus:`, and how much of it is public; its labels are never read."""

    corpus: CorpusSpec
    rows: int | None = Field(default=None, ge=1)
    """The most rows to use; they are drawn at random."""
    only: list[str] | None = None
    """The domains to use; None: all."""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        if isinstance(value, str) or is_table(value) or are_tables(value):
            return {"corpus": value}
        if not isinstance(value, dict) or "corpus" in value:
            return value
        own = {key: value[key] for key in ("rows", "only") if key in value}
        return {"corpus": {key: part for key, part in value.items() if key not in own}, **own}


def with_public(corpus: Corpus, parts: Partition, spec: PublicSpec, seed: int) -> tuple[Corpus, Partition]:
    """The corpus with the texts of another one appended, and the partition with these as its public rows.

    The public rows that the partition drew are left unused, so that the private rows are the same either way.
    """
    if corpus.images is not None:
        raise FedstillError(f"public: {corpus.name} holds images; use some of its own rows with `partition.public`.")
    other = load_public(spec.corpus)
    if (corpus.pairs is None) != (other.pairs is None):
        raise FedstillError(
            f"public: {corpus.name} holds {_kind(corpus)} and {other.name} {_kind(other)}; name as many columns in "
            "`public.text` as in `corpus.text`."
        )
    rows = _in_domains(other, spec.only)
    known = set(_keys(corpus, np.arange(len(corpus))))
    new = rows[[key not in known for key in _keys(other, rows)]]
    if not len(new):
        raise FedstillError(f"public: every text of {other.name} is in {corpus.name} already; name another corpus.")
    counts = {f"texts of {other.name} that the corpus has too": len(rows) - len(new)}
    if spec.rows is not None and spec.rows < len(new):
        new = np.sort(generator(seed, 0, "federation", "public corpus").choice(new, spec.rows, replace=False))
    counts[f"public rows from {other.name}"] = len(new)
    return _joined(corpus, other, new, counts), replace(
        parts,
        public=np.arange(len(corpus), len(corpus) + len(new)),
        unused=np.sort(np.concatenate([parts.unused, parts.public])),
        counts=parts.counts | {"public rows of the corpus itself": len(parts.public)},
    )


def _kind(corpus: Corpus) -> str:
    return "single texts" if corpus.pairs is None else "pairs of texts"


def _in_domains(other: Corpus, only: list[str] | None) -> Ints:
    if only is None:
        return np.arange(len(other))
    for name in only:
        if name not in other.domain_names:
            raise FedstillError(
                f"public.only: {other.name} has no domain {name!r}; {nearest(name, other.domain_names)}"
            )
    assert other.domains is not None
    return np.flatnonzero(np.isin(other.domains, [other.domain_names.index(name) for name in only]))


def _keys(corpus: Corpus, rows: Ints) -> list[str]:
    """The texts without differences of case and spacing, as a corpus groups them."""
    pairs = corpus.pairs or [""] * len(corpus)
    return [normalised(corpus.texts[row], pairs[row]) for row in rows]


def _joined(corpus: Corpus, other: Corpus, rows: Ints, counts: dict[str, int]) -> Corpus:
    nothing = np.full(len(rows), -1, np.int64)
    groups = np.arange(len(corpus)) if corpus.groups is None else corpus.groups
    own_groups = groups.max() + 1 + np.arange(len(rows))
    return replace(
        corpus,
        texts=[*corpus.texts, *(other.texts[row] for row in rows)],
        pairs=None if corpus.pairs is None else [*corpus.pairs, *((other.pairs or [])[row] for row in rows)],
        labels=np.concatenate([corpus.labels, nothing]),
        domains=None if corpus.domains is None else np.concatenate([corpus.domains, nothing]),
        groups=np.concatenate([groups, own_groups]),
        held_out=None if corpus.held_out is None else np.concatenate([corpus.held_out, nothing == 0]),
        validating=None if corpus.validating is None else np.concatenate([corpus.validating, nothing == 0]),
        counts=corpus.counts | counts,
    )
