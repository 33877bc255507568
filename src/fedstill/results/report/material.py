"""What a page may use of a run besides its record: experiment, partition and corpus, if the run was a simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedstill.common.errors import FedstillError
from fedstill.data.corpora import CorpusSpec, load
from fedstill.data.corpus import Corpus
from fedstill.data.partition import PARTITION, Partition
from fedstill.results.record import Record
from fedstill.results.report.answers import answers
from fedstill.wire.messages import SERVER

SIMULATIONS = ("local", "torchrun")
"""Engines whose rows are all on this machine; a page about any other run has nothing that comes from rows."""

ReadCorpus = Callable[[CorpusSpec, Sequence[str] | None], Corpus]


@dataclass(frozen=True)
class Material:
    """A run's experiment, partition and corpus; all empty unless its record says that it was a simulation."""

    engine: str
    experiment: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    parts: Partition | None = None
    corpus: Corpus | None = None
    problem: str = ""
    """Why there is no corpus."""

    @property
    def is_simulated(self) -> bool:
        """Whether the record says so."""
        return self.engine in SIMULATIONS

    @classmethod
    def of(cls, record: Record, read: ReadCorpus = load) -> Material:
        """What may be used of a run."""
        engine = str(record.so_far.get("engine") or "unknown")
        if engine not in SIMULATIONS:
            return cls(engine)
        path = record.folder / "experiment.yaml"
        experiment = path.read_text(encoding="utf-8") if path.is_file() else ""
        # The experiment was checked before the run; checking it again takes long.
        settings = record.settings
        return cls(engine, experiment, settings, partition_of(record.folder), *_corpus(record, settings, read))


def reading_once(read: ReadCorpus = load) -> ReadCorpus:
    """Reads every corpus once, for runs that share it; a corpus that cannot be read raises the same error again."""
    kept: dict[str, Corpus | FedstillError | OSError] = {}

    def kept_or_read(spec: CorpusSpec, labels: Sequence[str] | None) -> Corpus:
        key = f"{spec!r} {labels!r}"
        if key not in kept:
            try:
                kept[key] = read(spec, labels)
            except (FedstillError, OSError) as error:
                kept[key] = error
        found = kept[key]
        if isinstance(found, Exception):
            raise found
        return found

    return kept_or_read


def partition_of(folder: Path) -> Partition | None:
    """Which rows everybody had in a simulation; None if the run did not keep it."""
    return Partition.read(folder) if (folder / PARTITION).is_file() else None


def _corpus(record: Record, settings: Mapping[str, Any], read: ReadCorpus) -> tuple[Corpus | None, str]:
    """The run's corpus as it is now, if it still is what the run was tested on; otherwise why not."""
    if "corpus" not in settings:
        return None, "the run has no experiment.yaml."
    try:
        spec = CorpusSpec.model_validate(settings["corpus"]).kept_in(record.folder.resolve())
        corpus = read(spec, settings.get("labels"))
    except (FedstillError, OSError, ValueError, ImportError) as error:
        return None, str(error)
    tested = next((one for name in (SERVER, *record.so_far["clients"]) if (one := answers(record.folder, name))), None)
    is_same = tested is None or (
        tested.rows.max(initial=-1) < len(corpus) and np.array_equal(corpus.labels[tested.rows], tested.labels)
    )
    return (corpus, "") if is_same else (None, "it has changed since the run.")
