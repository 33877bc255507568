"""From an experiment to a plan: read, divide and tokenise the corpus, and check that the method can run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedstill.common.errors import FedstillError
from fedstill.common.units import bytes_of
from fedstill.config.experiment import Experiment
from fedstill.data import corpora, partition
from fedstill.data.corpus import Corpus, Ints
from fedstill.data.images import store_images
from fedstill.data.partition import Partition
from fedstill.data.public import with_public
from fedstill.data.tokens import store_tokens
from fedstill.models.build import party_tokenizer
from fedstill.parties.party import PartySpec
from fedstill.plan.needs import check_chat, check_needs
from fedstill.plan.plan import Plan, default_workers
from fedstill.wire.masks import check_installed
from fedstill.wire.messages import SERVER


def prepare(experiment: Experiment, folder: Path) -> tuple[Experiment, Plan, Corpus]:
    """The experiment with its labels resolved, and everything that an engine needs to run it."""
    experiment, corpus, parts = divide(experiment)
    if SERVER in parts.clients:
        raise FedstillError(
            f"a domain cannot be called {SERVER!r}, which is the server's name: rename it in the corpus."
        )
    clients = experiment.client_specs(parts.clients)
    check_chat(experiment.method)
    return experiment, make_plan(experiment, corpus, parts, folder, clients), corpus


def divide(experiment: Experiment) -> tuple[Experiment, Corpus, Partition]:
    """The experiment with its labels resolved, all rows, and who holds which; raises if the method needs more rows."""
    corpus = corpora.load(experiment.corpus, experiment.labels)
    experiment = experiment.resolved().model_copy(update={"labels": list(corpus.label_names)})
    parts = partition.split(corpus, experiment.partition, experiment.seed)
    if experiment.measure == "validation":
        parts = parts.measured_on_validation()
    if experiment.public is not None:
        corpus, parts = with_public(corpus, parts, experiment.public, experiment.seed)
    parts.check(len(corpus))
    advice = {
        "public": f"set partition.public above 0 (now {experiment.partition.public:g})",
        "labelled": "set partition.labelled_public, for example 0.1",
    }
    check_needs(experiment.method, len(parts.public), len(parts.labelled), advice)
    return experiment, corpus, parts


def make_plan(
    experiment: Experiment,
    corpus: Corpus,
    parts: Partition,
    folder: Path,
    clients: Mapping[str, PartySpec],
    has_server: bool = True,
    tokens: Path | None = None,
) -> Plan:
    """The plan of a machine that has these rows and runs these clients, and the server if `has_server`.

    `tokens` is where the rows' tokens are stored instead of in the user's cache.
    """
    if experiment.wire.mask is not None:
        check_installed()
    server = experiment.server_spec()
    parties = {SERVER: server, **clients} if has_server else clients
    if corpus.label_tasks is None and any(spec.train.heads == "task" for spec in parties.values()):
        raise FedstillError(f"train.heads: {corpus.name} has one task only; leave out `heads: task`.")
    default = default_tokenizer(experiment)
    fingerprint = corpus.fingerprint()
    return Plan(
        folder=folder,
        experiment=experiment,
        workers=default_workers(experiment.device) if experiment.workers == "auto" else experiment.workers,
        device_bytes=bytes_of(experiment.memory.device),
        host_bytes=bytes_of(experiment.memory.host),
        metrics=corpus.metrics,
        clients=clients,
        default_tokenizer=default,
        stores=_stores(corpus, parties, default, fingerprint, tokens),
        shape=None if corpus.images is None else corpus.images.pixels.shape[1:],
        label_tasks=None if corpus.label_tasks is None else tuple(corpus.label_tasks.tolist()),
        tasks=() if corpus.label_tasks is None else corpus.domain_names,
        partition=parts,
        row_labels=_flipped(experiment, parts, _without(parts.public, corpus.labels), len(corpus.label_names)),
        test_domains=_test_domains(corpus, parts),
        public_fingerprint=public_fingerprint(corpus, parts),
        test_fingerprint=_test_fingerprint(corpus, parts),
        corpus_fingerprint=fingerprint,
    )


def default_tokenizer(experiment: Experiment) -> str:
    """The tokenizer of small models that name none: the server's."""
    if not experiment.server.is_small:
        return experiment.server.name
    return experiment.server.tokenizer or "bert-tiny"


def public_fingerprint(corpus: Corpus, parts: Partition) -> str:
    """sha256 over the raw public texts in order and the labels list: equal if opinions are about the same things."""
    rows = np.concatenate([parts.public, parts.labelled])
    return fingerprint_of((corpus.content(int(row)) for row in rows), corpus.label_names)


def _test_fingerprint(corpus: Corpus, parts: Partition) -> str:
    """The same over the test rows and their labels, in the pooled test's order: equal if scores can be compared."""
    rows = np.concatenate([*parts.test.values(), np.empty(0, np.int64)])
    names = [name.encode() for name in corpus.label_names]
    return fingerprint_of(([*corpus.content(int(row)), names[corpus.labels[row]]] for row in rows), corpus.label_names)


def fingerprint_of(contents: Iterable[Sequence[bytes]], labels: Sequence[str]) -> str:
    """sha256 over the contents of rows, in order, and the labels list."""
    digest = hashlib.sha256()
    for content in contents:
        for raw in content:
            digest.update(len(raw).to_bytes(8, "little") + raw)
    digest.update(repr(tuple(labels)).encode())
    return digest.hexdigest()


def changed_keys(before: Any, now: Any, path: str = "") -> list[str]:
    """Dotted names of everything that differs between two experiments."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys: Sequence[str] = sorted({*before, *now})
        return [
            changed
            for key in keys
            for changed in changed_keys(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
        ]
    return [] if before == now else [path]


def _without(public: Ints, labels: Ints) -> Ints:
    """The labels without those of public rows (-1 instead), so that no method can use these."""
    labels = labels.copy()
    labels[public] = -1
    return labels


def _flipped(experiment: Experiment, parts: Partition, labels: Ints, classes: int) -> Ints:
    """The labels, with y + 1 mod C for the training rows of clients that `faults` have flip them."""
    for fault in experiment.faults:
        for client in fault.among(parts.clients, experiment.seed) if fault.kind == "flip" else ():
            rows = parts.train[client]
            labels[rows] = (labels[rows] + 1) % classes
    return labels


def _test_domains(corpus: Corpus, parts: Partition) -> dict[str, Ints]:
    """Test rows by domain, if clients are not domains; domains without test rows are left out."""
    if corpus.domains is None or parts.clients == tuple(sorted(corpus.domain_names)):
        return {}
    tests = np.concatenate(list(parts.test.values()))
    by_domain = {name: tests[corpus.domains[tests] == number] for number, name in enumerate(corpus.domain_names)}
    return {name: rows for name, rows in by_domain.items() if len(rows)}


def _stores(
    corpus: Corpus, parties: Mapping[str, PartySpec], default: str, fingerprint: str, tokens: Path | None
) -> dict[str, Path]:
    """Every party's token or image store; parties with equal tokenizers and lengths share one."""
    for name, spec in parties.items():
        holds = "text" if corpus.images is None else "images"
        if spec.model.reads != holds:
            fitting = "lenet or cnn" if holds == "images" else "bert-tiny or textcnn"
            raise FedstillError(
                f"{name}'s model {spec.model} reads {spec.model.reads}, and {corpus.name} holds {holds}: give it one "
                f"for {holds}, such as {fitting}."
            )
    if corpus.images is not None:
        return dict.fromkeys(parties, store_images(corpus.images, fingerprint))
    made: dict[tuple[str, int], Path] = {}
    stores: dict[str, Path] = {}
    for name, spec in parties.items():
        tokenizer, length = party_tokenizer(spec.model, default), spec.train.max_length
        key = (tokenizer.fingerprint, length)
        if key not in made:
            made[key] = store_tokens(tokenizer, corpus.texts, corpus.pairs, length, fingerprint, tokens)
        stores[name] = made[key]
    return stores
