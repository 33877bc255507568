"""A plan: an experiment with its corpus divided and tokenised; all that an engine needs to make the parties."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedstill.common.errors import FedstillError
from fedstill.common.events import Tell
from fedstill.common.files import file_name
from fedstill.common.randomness import key
from fedstill.config.experiment import Experiment
from fedstill.data.corpus import Ints
from fedstill.data.examples import Examples, Labelled, Store
from fedstill.data.images import ImageStore
from fedstill.data.partition import Partition
from fedstill.data.tokens import TokenStore
from fedstill.learning.fast import accelerate
from fedstill.learning.precision import choose_device, choose_precision
from fedstill.models import Model, ModelSpec, build
from fedstill.models.spec import Shape
from fedstill.models.text_to_text import TextToText
from fedstill.parties.client import Client
from fedstill.parties.evaluation import NOT_MEASURED, Evaluation
from fedstill.parties.party import Party, PartyData, PartySpec, Surroundings
from fedstill.parties.private import Privacy, Sealed
from fedstill.parties.server import Server
from fedstill.plan.agreement import agree
from fedstill.wire.crossing import Agreement
from fedstill.wire.messages import SERVER

PRIVATE = "private"
"""The folder of a real site's job that keeps what has noise."""


@dataclass(frozen=True)
class Plan:
    """Everything about a run that does not change while it runs. Plain data: it is sent to worker processes."""

    folder: Path
    experiment: Experiment
    """Resolved, with its labels."""
    workers: int
    device_bytes: int | None
    """The limit for the clients' models on this process's GPU."""
    host_bytes: int | None
    metrics: tuple[str, ...]
    """The first is the headline metric."""
    clients: Mapping[str, PartySpec]
    default_tokenizer: str
    stores: Mapping[str, Path]
    """The token or image store of each party, made before anything runs."""
    shape: Shape | None
    """Of the images, if the corpus has images."""
    label_tasks: tuple[int, ...] | None
    """The task of each label, if there are several tasks."""
    tasks: tuple[str, ...]
    partition: Partition
    row_labels: Ints
    test_domains: Mapping[str, Ints]
    """Test rows by domain, where clients are not domains: the server is measured on each."""
    public_fingerprint: str
    test_fingerprint: str
    """Of the pooled test rows and their labels: scores of runs that share it can be compared."""
    corpus_fingerprint: str
    tells_label_counts: bool = True
    """Whether the clients here say how many rows of each label they have."""
    tells_scores: bool = True
    """Whether they say how well they do on their test rows."""

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to a worker process: the fields, and nothing that was computed from them."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in order."""
        return tuple(self.experiment.labels or ())

    @cached_property
    def server(self) -> PartySpec:
        """The server's model and settings."""
        return self.experiment.server_spec()

    @cached_property
    def agreement(self) -> Agreement:
        """What server and clients know about messages before any is sent."""
        sizes = {
            "public": len(self.partition.public),
            "labelled": len(self.partition.labelled),
            "labels": len(self.labels),
        }
        experiment = self.experiment
        are_drawn = any(spec.train.rows is not None for spec in (self.server, *self.clients.values()))
        return agree(
            experiment.method,
            sizes,
            self.public_fingerprint,
            experiment.rounds,
            experiment.codecs(),
            are_drawn,
            mask=experiment.wire.mask is not None,
        )

    def make_client(self, name: str, tell: Tell) -> Client:
        """A client in its initial state, with only the rows that it may see."""
        sample = self._sample(name)
        store = _pad(self._store(name), sample)
        pooled = self.partition.test if self.experiment.client_tests == "pooled" else {name: self.partition.test[name]}
        tests, splits = _join({f"test/{client}": rows for client, rows in pooled.items()})
        splits = {f"test/{name}": splits[f"test/{name}"]}
        if self.experiment.client_tests == "pooled":
            splits["test"] = np.arange(len(tests))
        privacy = self._privacy(name)
        train, validation = (
            Sealed(rows) if privacy is not None and privacy.settings.is_learning else rows
            for rows in (
                self._labelled(store, part[name]) for part in (self.partition.train, self.partition.validation)
            )
        )
        data = PartyData(
            public=Examples(store, self.partition.public),
            train=train,
            validation=validation,
            evaluation=Evaluation(self._labelled(store, tests), splits, label_tasks=sample.label_tasks)
            if self.tells_scores
            else NOT_MEASURED,
            labelled=Examples(store, self.partition.labelled),
        )
        return Client(
            name,
            self.clients[name],
            data,
            self._around(tell),
            partial(self._model, name, self.clients[name]),
            partial(self._second_model, name, sample),
            public_fingerprint=self.public_fingerprint,
            sample=sample,
            tells_label_counts=self.tells_label_counts and privacy is None,
            privacy=privacy,
        )

    def _privacy(self, client: str) -> Privacy | None:
        settings, rounds = self.experiment.privacy, self.experiment.rounds
        if settings is None:
            return None
        opinions = rounds * (len(self.partition.public) + len(self.partition.labelled))
        folder = self.folder / PRIVATE / file_name(client) if self.is_real else None
        return Privacy(settings, rounds, opinions, folder)

    @property
    def is_real(self) -> bool:
        """Whether this is a machine of a federation, and no simulation."""
        return self.experiment.engine == "flare"

    def make_server(self, tell: Tell) -> Server:
        """The server in its initial state; its model is built when a method first uses it."""
        spec = self.server
        store = self._store(SERVER)
        tests, splits = _join({f"test/{client}": rows for client, rows in self.partition.test.items()})
        splits |= {f"test/{name}": np.flatnonzero(np.isin(tests, own)) for name, own in self.test_domains.items()}
        splits["test"] = np.arange(len(tests))
        rows = [tests]
        for name, parts in (("validation", self.partition.validation), ("global_test", self.partition.global_test)):
            more, inside = _join({f"{name}/{client}": part for client, part in parts.items()})
            start = sum(len(part) for part in rows)
            splits[name] = np.arange(len(more)) + start
            if name == "global_test":
                splits |= {split: numbers + start for split, numbers in inside.items()}
            rows.append(more)
        private, _ = _join(self.partition.train)

        def make_model() -> Model:
            model = self._model(SERVER, spec)
            _pad(store, model)
            return model

        data = PartyData(
            public=Examples(store, self.partition.public),
            evaluation=Evaluation(
                self._labelled(store, np.concatenate(rows)),
                splits,
                {"tasks": tuple(f"test/{task}" for task in self.tasks)} if self.tasks else {},
                _tensor(self.label_tasks),
            ),
            labelled=self._labelled(store, self.partition.labelled),
        )
        around = self._around(tell)
        pooled = self._labelled(store, private)
        return Server(SERVER, spec, data, around, make_model, pooled=pooled, lend=partial(self._lend, around))

    def _lend(self, around: Surroundings, architecture: str) -> Party:
        """A party like the server, with a model of this architecture and that model's tokens instead of its own."""
        different = {(str(spec.model), self.stores[name]): name for name, spec in self.clients.items()}
        for name in (SERVER, *different.values()):
            spec = self.server if name == SERVER else self.clients[name]
            guest = f"{SERVER} as {spec.model}"
            model = self._model(guest, spec)
            if model.architecture == architecture:
                store = self._store(name)
                _pad(store, model)
                labelled = self._labelled(store, self.partition.labelled)
                data = PartyData(Examples(store, self.partition.public), labelled=labelled)
                own = PartySpec(spec.model, spec.train, self.server.distill)
                return Party(guest, own, data, around, partial(_same, model))
        raise FedstillError(f"no party of this experiment has a model of architecture {architecture}.")

    def _around(self, tell: Tell) -> Surroundings:
        device = choose_device(self.experiment.device)
        return Surroundings(
            self.experiment.seed, device, choose_precision(self.experiment.precision, device), tell, self.is_real
        )

    def _second_model(self, client: str, first: Model, spec: ModelSpec, name: str) -> Model:
        """A further model for a client, which must have the tokenizer of the client's own model."""
        model = self._model(name, replace(self.clients[client], model=spec))
        read = [own.tokenizer.fingerprint if own.tokenizer is not None else None for own in (first, model)]
        if read[0] != read[1]:
            raise FedstillError(
                f"{name} ({spec}) reads with another tokenizer than {client}'s own model ({first.spec}): choose a "
                "model with the same one."
            )
        return model

    @cached_property
    def _samples(self) -> dict[tuple[str, Path, int], Model]:
        return {}

    def _sample(self, client: str) -> Model:
        """A model like the client's without weights; clients with equal models share one."""
        spec = self.clients[client]
        like = (spec.model.model_dump_json(), self.stores[client], spec.train.max_length)
        if like not in self._samples:
            model = self._model(client, spec)
            # A text-to-text model recognises tied tensors by their addresses, which tensors on `meta` do not have.
            is_kept = isinstance(model.module, TextToText)
            self._samples[like] = model if is_kept else replace(model, module=model.module.to("meta"))
        return self._samples[like]

    def _model(self, name: str, spec: PartySpec) -> Model:
        seed = key(self.experiment.seed, 0, name, "model")
        model = build(spec.model, self.labels, self.default_tokenizer, seed, self.shape)
        accelerate(model.module, self.experiment.fast)
        model.label_tasks = _tensor(self.label_tasks)
        if model.longest is not None and spec.train.max_length > model.longest:
            raise FedstillError(
                f"train.max_length: {name}'s {spec.model} reads {model.longest} tokens at most, not "
                f"{spec.train.max_length}."
            )
        return model

    def _store(self, name: str) -> TokenStore | ImageStore:
        return _read_store(self.stores[name], self.shape is None)

    def _labelled(self, store: Store, rows: Ints) -> Labelled:
        return Labelled(store, rows, torch.from_numpy(self.row_labels[rows]))


@lru_cache(maxsize=8)
def _read_store(path: Path, holds_text: bool) -> TokenStore | ImageStore:
    """The store, shared by all parties that read it: they pad alike, because a store belongs to one tokenizer."""
    return (TokenStore if holds_text else ImageStore).read(path)


def _same(model: Model) -> Model:
    return model


def _pad(store: TokenStore | ImageStore, model: Model) -> TokenStore | ImageStore:
    """Make the store pad as the model needs it."""
    if isinstance(store, TokenStore) and model.tokenizer is not None:
        store.pad_as(model.tokenizer.pad_id, model.pads_left)
    return store


def _tensor(numbers: tuple[int, ...] | None) -> torch.Tensor | None:
    return None if numbers is None else torch.tensor(numbers)


def _join(parts: Mapping[str, Ints]) -> tuple[Ints, dict[str, Ints]]:
    """The arrays concatenated, and the positions of each of them in the result."""
    joined = np.concatenate([*parts.values(), np.empty(0, np.int64)])
    ends = np.cumsum([len(part) for part in parts.values()])
    return joined, {
        name: np.arange(end - len(part), end) for (name, part), end in zip(parts.items(), ends, strict=True)
    }


def default_workers(device: str = "cpu") -> int:
    """One per core that this process may use; one for a GPU, where one process trains several clients at once."""
    if choose_device(device).type == "cuda":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
