"""Plans for one machine of a federation, made from a site's file or the centre's file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedstill.algorithms.base import Algorithm
from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment
from fedstill.config.specs import ClientSpec
from fedstill.data import corpora, partition
from fedstill.data.corpora import CorpusSpec
from fedstill.data.corpora.images import IMAGES
from fedstill.data.corpus import Corpus, Ints
from fedstill.data.partition import Partition, PartitionSpec
from fedstill.data.public import PublicSpec
from fedstill.federation.files import CentreFile, SiteFile
from fedstill.federation.job import Job
from fedstill.federation.requests import Refusal
from fedstill.parties.party import PartySpec
from fedstill.plan.advice import tells
from fedstill.plan.needs import check_chat, check_needs
from fedstill.plan.plan import Plan
from fedstill.plan.prepare import fingerprint_of, make_plan

ADVICE = {"public": "name `public:` in server.yaml", "labelled": "name `labelled:` in server.yaml"}

CENTRE = "centre"
"""The name of the centre's test rows if they have no domains."""
DENSEST = 200
"""How many times larger than its compressed form a public set can be."""
TOKENS = "tokens"
"""The folder, in that of a job at a site, with the tokens of the site's rows."""


@dataclass(frozen=True)
class PublicSet:
    """Texts that all parties see: first the samples, then the texts for which the centre has labels."""

    texts: list[str]
    pairs: list[str] | None
    samples: int
    """How many of the texts are samples; nobody has labels for these."""

    def fingerprint(self, labels: Sequence[str]) -> str:
        """A hash of the texts in order and the labels; a simulation with the same ones has the same hash."""
        columns = [column for column in (self.texts, self.pairs) if column is not None]
        return fingerprint_of(([text.encode() for text in row] for row in zip(*columns, strict=True)), labels)

    def is_of(self, job: Job) -> bool:
        """Whether these are the job's samples in the same order; otherwise opinions on them could not be combined."""
        sizes = (self.samples, len(self.texts) - self.samples)
        return sizes == (job.samples, job.labelled) and self.fingerprint(job.experiment["labels"]) == job.public

    def pack(self) -> bytes:
        """The bytes to send: compressed JSON."""
        body = {"texts": self.texts, "pairs": self.pairs, "samples": self.samples}
        return zlib.compress(json.dumps(body, ensure_ascii=False).encode())

    @classmethod
    def unpack(cls, raw: bytes) -> PublicSet:
        """The set in received bytes; an error if they hold none."""
        try:
            public = cls(**json.loads(_inflated(raw)))
            public._check()
        except (zlib.error, ValueError, TypeError, RecursionError) as error:
            raise FedstillError(f"these are not public samples of fedstill ({error}).") from error
        return public

    def _check(self) -> None:
        columns = [self.texts] if self.pairs is None else [self.texts, self.pairs]
        if not all(isinstance(column, list) and len(column) == len(self.texts) for column in columns):
            raise TypeError("texts and pairs do not match")
        for column in columns:
            for text in column:
                str.encode(text)  # TypeError unless it is text, ValueError if it holds half a surrogate pair
        if type(self.samples) is not int or not 0 <= self.samples <= len(self.texts):
            raise TypeError(f"{self.samples!r} samples of {len(self.texts)} texts")

    def _as_corpus(self) -> Corpus:
        return Corpus("the public set", self.texts, np.full(len(self.texts), -1), (), self.pairs)


def _inflated(raw: bytes) -> bytes:
    """What was compressed; texts never shrink as far as zeros do, and a megabyte must not become a gigabyte."""
    reader = zlib.decompressobj()
    data = reader.decompress(raw, DENSEST * len(raw) + 1024)
    if not reader.eof or reader.unused_data:
        raise ValueError(f"{len(raw)} bytes that are not whole, or become too many")
    return data


def read_public(centre: CentreFile) -> PublicSet:
    """The public texts at the centre; an empty set if its file names none."""
    specs = [spec for spec in (centre.public, centre.labelled) if spec is not None]
    pieces = [_public_texts(spec) for spec in specs]
    if not pieces:
        return PublicSet([], None, 0)
    joined, _ = _joined((), {spec.path or str(spec.name): piece for spec, piece in zip(specs, pieces, strict=True)})
    return PublicSet(joined.texts, joined.pairs, len(pieces[0]))


def site_public(site: SiteFile, samples: int) -> PublicSet | None:
    """The site's own copy of the public set, whose first `samples` texts are samples; None if it has no copy."""
    if site.public is None:
        return None
    texts = _public_texts(site.public)
    if len(texts) < samples:
        raise FedstillError(f"public: {texts.name} has {len(texts)} texts, and the job has {samples} public samples.")
    return PublicSet(texts.texts, texts.pairs, samples)


def centre_plan(job: Job, centre: CentreFile, folder: Path) -> tuple[Plan, PublicSet]:
    """The centre's plan, with the server and the sites' names; and the public set, to send to sites without a copy."""
    experiment, algorithm = _federated(job, centre.device)
    assert experiment.labels is not None
    public = read_public(centre)
    if not public.is_of(job):
        raise FedstillError(
            "server.yaml: the public samples here are not those of the job, or are in another order: opinions could "
            "not be combined. Submit the experiment again."
        )
    test, labelled = _measured_on(centre.test, experiment.labels), _labelled(centre, public, experiment.labels)
    samples = _picked(public._as_corpus(), np.arange(public.samples))
    corpus, rows = _joined(experiment.labels, {"test": test, "public": samples, "labelled": labelled})
    nothing = {site: np.empty(0, np.int64) for site in job.sites}
    parts = Partition(
        train=nothing,
        validation=nothing,
        test=_by_domain(test, rows["test"]),
        public=rows["public"],
        labelled=rows["labelled"],
        global_test={},
        unused=np.empty(0, np.int64),
    )
    parts.check(len(corpus))
    check_chat(algorithm)
    # A site that the experiment does not name has its own model, which the centre does not know.
    clients = dict.fromkeys(job.sites, experiment.server_spec()) | _specs(experiment, job.sites)
    # The record describes only the data that the centre has.
    samples_of = None if centre.public is None else PublicSpec(corpus=centre.public)
    experiment = experiment.model_copy(update={"corpus": centre.test, "public": samples_of})
    return make_plan(experiment, corpus, parts, folder, clients), public


def site_plan(job: Job, name: str, site: SiteFile, public: PublicSet, folder: Path) -> Plan:
    """A site's plan, with that site as its only client; the tokens of its rows stay in the folder."""
    if name not in job.sites:
        raise FedstillError(f"{name} is not one of the job's sites ({', '.join(job.sites)}).")
    experiment, _ = _federated(job, site.device, site.threads)
    assert experiment.labels is not None
    spec = _site_spec(experiment, job.sites, name, site)
    own = _load(site.corpus, experiment.labels)
    apart = {
        role: _measured_on(part, experiment.labels)
        for role, part in (("test", site.test), ("validation", site.validation))
        if isinstance(part, CorpusSpec)
    }
    corpus, rows = _joined(experiment.labels, {"corpus": own, **apart, "public": public._as_corpus()})
    rows = _drawn(own, site, experiment.seed) | rows
    refuse_few(len(rows["train"]), site)
    parts = Partition(
        train={name: rows["train"]},
        validation={name: rows["validation"]},
        test={name: rows["test"]},
        public=rows["public"][: public.samples],
        labelled=rows["public"][public.samples :],
        global_test={},
        unused=rows["unused"],
    )
    parts.check(len(corpus))
    plan = make_plan(experiment, corpus, parts, folder, {name: spec}, has_server=False, tokens=folder / TOKENS)
    return replace(plan, tells_label_counts=site.label_counts, tells_scores=site.scores)


def sends_parameters(algorithm: Algorithm) -> bool:
    """Whether clients send parameters of their models in this method."""
    return "parameters" in tells(algorithm)


def training_rows(site: SiteFile, corpus: Corpus) -> int:
    """How many rows a site would train on; a seed may change it a little where rows of a group stay together."""
    return len(_drawn(corpus, site, 0)["train"])


def refuse_few(rows: int, site: SiteFile) -> None:
    """Refuse to train on fewer rows than the site's limits allow; the centre is not told how many there are."""
    if rows < site.limits.min_rows:
        raise Refusal(f"it has fewer rows to train on than the {site.limits.min_rows} of its limits (min_rows).")


def rows_at_once(job: Job, experiment: Experiment, name: str, site: SiteFile) -> int | None:
    """How many rows a site would draw in each round; None: all that it has."""
    return _site_spec(experiment, job.sites, name, site).train.rows


def refuse_other_kinds(spec: CorpusSpec) -> None:
    """Refuse images and corpora of several tasks, which only simulations can use."""
    if spec.is_of_tasks or spec.name in IMAGES:
        raise FedstillError(f"{spec.name}: a federation reads texts of one task.")


def _federated(job: Job, device: str, threads: int | None = None) -> tuple[Experiment, Algorithm]:
    """The job's experiment with one machine's settings, and its algorithm; an error if a federation cannot run it."""
    experiment = job.settled()
    algorithm = experiment.method
    refuse_impossible(algorithm, job)
    own = {"engine": "flare", "client_tests": "own", "workers": 1, "device": device}
    return experiment.model_copy(update={**own, "threads": threads or experiment.threads}), algorithm


def refuse_impossible(algorithm: Algorithm, job: Job) -> None:
    """Refuse a method that needs what this federation does not have."""
    if "pooled" in algorithm.requires():
        raise FedstillError(
            f"{type(algorithm).__name__} needs all rows in one place, which is what a federation avoids."
        )
    check_needs(algorithm, job.samples, job.labelled, ADVICE)


def _specs(experiment: Experiment, sites: Sequence[str]) -> dict[str, PartySpec]:
    """The models and settings of the sites for which the experiment gives them."""
    told = experiment.clients if isinstance(experiment.clients, dict) else sites
    return experiment.client_specs([site for site in sites if site in told])


def _site_spec(experiment: Experiment, sites: Sequence[str], name: str, site: SiteFile) -> PartySpec:
    """The site's model and settings: the experiment's, replaced where the site's own file sets others."""
    spec = _specs(experiment, sites).get(name)
    if spec is None and site.model is None:
        raise FedstillError(f"the experiment has no model for {name}: set `model:` in site.yaml.")
    if site.model is not None:
        site.model.check()
    general = spec or experiment.server_spec()
    own = ClientSpec(model=site.model or general.model, train=site.train, distill=site.distill)
    changes = {"clients": {name: own}, "train": general.train, "distill": general.distill}
    return experiment.model_copy(update=changes).client_specs([name])[name]


def _load(spec: CorpusSpec, labels: Sequence[str]) -> Corpus:
    refuse_other_kinds(spec)
    return corpora.load(spec, labels)


def _public_texts(spec: CorpusSpec) -> Corpus:
    refuse_other_kinds(spec)
    return corpora.load_public(spec)


def _measured_on(spec: CorpusSpec, labels: Sequence[str]) -> Corpus:
    """Rows for measuring: the test rows of a corpus, or all its rows if it has no test rows."""
    corpus = _load(spec, labels)
    return corpus if corpus.held_out is None else _picked(corpus, np.flatnonzero(corpus.held_out))


def _labelled(centre: CentreFile, public: PublicSet, labels: Sequence[str]) -> Corpus:
    """The labelled public rows, with their labels."""
    if centre.labelled is None:
        return PublicSet([], None, 0)._as_corpus()
    corpus = _load(centre.labelled, labels)
    if corpus.held_out is not None:
        corpus = _picked(corpus, np.flatnonzero(~corpus.held_out))
    if corpus.texts != public.texts[public.samples :]:
        raise FedstillError(f"labelled: {corpus.name} changed while it was read, or some of its rows have no label.")
    return corpus


def _picked(corpus: Corpus, rows: Ints) -> Corpus:
    """Some rows of a corpus: texts, labels and domains."""
    return replace(
        corpus,
        texts=[corpus.texts[row] for row in rows],
        pairs=None if corpus.pairs is None else [corpus.pairs[row] for row in rows],
        labels=corpus.labels[rows],
        domains=None if corpus.domains is None else corpus.domains[rows],
        groups=None,
        held_out=None,
        validating=None,
    )


def _joined(labels: Sequence[str], pieces: Mapping[str, Corpus]) -> tuple[Corpus, dict[str, Ints]]:
    """One corpus of all rows in order, and each piece's row numbers in it."""
    filled = {name: piece for name, piece in pieces.items() if len(piece)}
    if len({piece.pairs is None for piece in filled.values()}) > 1:
        kinds = ", ".join(f"{name}: {'single texts' if p.pairs is None else 'pairs'}" for name, p in filled.items())
        raise FedstillError(f"single texts and pairs of texts cannot be mixed ({kinds}): correct `text:` in one.")
    first = next(iter(pieces.values()))
    ends = np.cumsum([len(piece) for piece in pieces.values()])
    corpus = Corpus(
        name=first.name,
        texts=[text for piece in pieces.values() for text in piece.texts],
        labels=np.concatenate([piece.labels for piece in pieces.values()]),
        label_names=tuple(labels),
        pairs=[pair for piece in filled.values() for pair in piece.pairs or ()] if first.pairs is not None else None,
        metrics=first.metrics,
    )
    return corpus, {
        name: np.arange(end - len(piece), end) for (name, piece), end in zip(pieces.items(), ends, strict=True)
    }


def _drawn(corpus: Corpus, site: SiteFile, seed: int) -> dict[str, Ints]:
    """A site's rows divided into train, validation, test and unused; rows of a group stay together."""
    shares = {
        role: 0.0 if isinstance(part, CorpusSpec) else part
        for role, part in (("test", site.test), ("validation", site.validation))
    }
    if sum(shares.values()) >= 1:
        raise FedstillError("test + validation must stay below 1, or nothing is left to train on.")
    if corpus.held_out is not None and isinstance(site.test, CorpusSpec):
        raise FedstillError("corpus.test and test both name test rows: leave one of them out.")
    spec = PartitionSpec(kind="iid", clients=1, public=0, test=shares["test"], validation=shares["validation"])
    parts = partition.split(corpus, spec, seed)
    (only,) = parts.clients
    by_role = {"train": parts.train, "validation": parts.validation, "test": parts.test}
    return {role: rows[only] for role, rows in by_role.items()} | {"unused": parts.unused}


def _by_domain(test: Corpus, rows: Ints) -> dict[str, Ints]:
    if test.domains is None:
        return {CENTRE: rows}
    split = {name: rows[test.domains == number] for number, name in enumerate(test.domain_names)}
    return {name: own for name, own in split.items() if len(own)}
