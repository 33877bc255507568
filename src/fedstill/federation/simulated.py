"""The files of a federation, made from a simulated experiment: every client becomes a site with the same rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedstill.common.errors import FedstillError
from fedstill.common.files import write_whole
from fedstill.common.plugins import absolute, is_own
from fedstill.config.experiment import Experiment
from fedstill.config.source import dump
from fedstill.data.corpus import Corpus, Ints
from fedstill.data.partition import Partition
from fedstill.federation.data import refuse_other_kinds, sends_parameters
from fedstill.federation.files import Limits, check_names
from fedstill.federation.job import anonymous
from fedstill.parties.party import PartySpec
from fedstill.plan.prepare import divide


@dataclass(frozen=True)
class Simulated:
    """The files that were written."""

    experiment: Experiment
    """Resolved, with its labels."""
    sites: dict[str, Path]
    """Every site's `site.yaml`."""
    server: Path
    """The centre's `server.yaml`."""


def write_files(experiment: Experiment, out: Path) -> Simulated:
    """Divide the experiment's corpus as a simulation would, and write the files of every site and of the centre."""
    refuse_other_kinds(experiment.corpus)
    if experiment.partition.global_test:
        raise FedstillError("partition.global_test: the centre of a federation has one test; leave it out.")
    experiment, corpus, parts = divide(experiment)
    try:
        check_names(list(parts.clients))
    except ValueError as error:
        raise FedstillError(f"clients of this experiment cannot be sites: {error}.") from error
    if not sum(map(len, parts.test.values())):
        raise FedstillError("the centre of a federation needs test rows: set partition.test above 0.")
    specs, own = experiment.client_specs(parts.clients), _own_classes(experiment)
    sites = {
        name: _write_site(out / "sites" / name, name, experiment, specs[name], corpus, parts, own)
        for name in parts.clients
    }
    return Simulated(experiment, sites, _write_centre(out / "centre", experiment, corpus, parts, own))


def _write_site(
    folder: Path,
    name: str,
    experiment: Experiment,
    spec: PartySpec,
    corpus: Corpus,
    parts: Partition,
    own: dict[str, str],
) -> Path:
    by_client = isinstance(experiment.clients, dict)
    learning = {"train": spec.train, "distill": spec.distill} if by_client else {}
    values = {
        "corpus": _write_rows(folder / "train.jsonl", corpus, parts.train[name]),
        "test": _write_rows(folder / "test.jsonl", corpus, parts.test[name]) or 0,
        "validation": _write_rows(folder / "validation.jsonl", corpus, parts.validation[name]) or 0,
        "model": anonymous(spec.model.model_dump(mode="json", exclude_unset=True)),
        **{key: part.model_dump(mode="json", exclude_unset=True) for key, part in learning.items()},
        "device": experiment.device,
        "own": own,
        "limits": _limits(experiment, spec, len(parts.train[name])),
    }
    return _write_yaml(folder / "site.yaml", {key: value for key, value in values.items() if value not in ({}, None)})


def _limits(experiment: Experiment, spec: PartySpec, rows: int) -> dict[str, Any]:
    """What the experiment needs beyond a site's default limits."""
    fewest, usual = max(1, min(rows, spec.train.rows or rows)), Limits()
    needs = {"parameters": True} if sends_parameters(experiment.method) else {}
    return needs | ({"min_rows": fewest} if fewest < usual.min_rows else {})


def _write_centre(folder: Path, experiment: Experiment, corpus: Corpus, parts: Partition, own: dict[str, str]) -> Path:
    pooled = np.concatenate(list(parts.test.values()))
    holders = [name for name, rows in parts.test.items() for _ in rows]
    values = {
        "test": _write_rows(folder / "test.jsonl", corpus, pooled, holders),
        "public": _write_rows(folder / "public.jsonl", corpus, parts.public, is_labelled=False),
        "labelled": _write_rows(folder / "labelled.jsonl", corpus, parts.labelled),
        "device": experiment.device,
        "own": own,
    }
    return _write_yaml(folder / "server.yaml", {key: value for key, value in values.items() if value})


def _write_yaml(path: Path, values: dict[str, Any]) -> Path:
    write_whole(path, dump(values).encode())
    return path


def _write_rows(
    path: Path, corpus: Corpus, rows: Ints, domains: list[str] | None = None, is_labelled: bool = True
) -> dict[str, Any]:
    """Write the rows as JSON lines, in order; returns the settings to read them, empty if there are no rows."""
    if not len(rows):
        path.unlink(missing_ok=True)
        return {}
    columns: dict[str, list[str]] = {"text": [corpus.texts[row] for row in rows]}
    if corpus.pairs is not None:
        columns["pair"] = [corpus.pairs[row] for row in rows]
    if is_labelled:
        columns["label"] = [corpus.label_names[corpus.labels[row]] for row in rows]
    if domains is not None:
        columns["domain"] = domains
    records = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    write_whole(path, "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records).encode())
    text = {} if corpus.pairs is None else {"text": ["text", "pair"]}
    return {"path": path.name, **text, **({} if domains is None else {"domain": "domain"})}


def _own_classes(experiment: Experiment) -> dict[str, str]:
    """The user-written classes that the experiment names, and their places: every machine must allow them all."""
    whole = experiment.model_dump(mode="json")
    found: dict[str, str] = {}
    for place in map(absolute, _own_names([whole["algorithm"], whole["clients"], whole["server"], whole["wire"]])):
        name = place.rpartition(":")[2]
        if found.setdefault(name, place) != place:
            raise FedstillError(f"{found[name]} and {place} have the same name: rename one of the classes.")
    return found


def _own_names(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _own_names(part)
    elif isinstance(value, str) and is_own(value) and re.fullmatch(r"[^:\n]+:[A-Za-z_]\w*", value):
        yield value
