from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from fedstill import Experiment, FedstillError, run
from fedstill.common import plugins
from fedstill.common.events import Event
from fedstill.config.source import dump
from fedstill.data import corpora
from fedstill.data.corpora import CorpusSpec
from fedstill.data.corpus import Corpus
from fedstill.data.examples import Examples, Labelled
from fedstill.engines.books import Books
from fedstill.engines.conductor import Conductor
from fedstill.engines.engine import Engine
from fedstill.engines.host import Host
from fedstill.engines.journal import Journal
from fedstill.engines.seconds import Slip
from fedstill.federation.data import PublicSet, centre_plan, read_public, site_plan, site_public
from fedstill.federation.files import CentreFile, Limits, SiteFile, read_file
from fedstill.federation.job import Job
from fedstill.federation.simulated import Simulated, write_files
from fedstill.parties.party import TrainSettings
from fedstill.plan.plan import Plan
from fedstill.plan.prepare import prepare
from fedstill.results.record import Record
from fedstill.wire.encoding import decode, encode
from fedstill.wire.messages import Hello

MIXED = ["bert-tiny", "bow", "textcnn", "bow", "textcnn"]
LABELS = ["bad", "good"]
Shops = Callable[..., Experiment]


def hear(event: Event) -> None:
    """Nobody waits."""


def tweets(**changes: Any) -> Experiment:
    settings = {
        "partition": {"rows_per_domain": 60},
        "clients": MIXED,
        "train": {"epochs": 1, "max_length": 32},
        "client_tests": "own",
        "workers": 1,
        "device": "cpu",
    }
    return Experiment.model_validate(settings | changes)


@pytest.fixture
def shops(reviews: Path) -> Shops:
    """Pairs of texts in three shops, with small models."""

    def make(**changes: Any) -> Experiment:
        corpus = {"path": str(reviews), "text": ["title", "body"], "label": "stars", "domain": "shop"}
        models = {"clients": ["bow", "textcnn", "bow"], "server": {"name": "textcnn", "tokenizer": "bert-tiny"}}
        return tweets(**({"corpus": corpus, "partition": {}, "rounds": 2} | models | changes))

    return make


@dataclass(frozen=True)
class Federation:
    """What was written out of an experiment, read back as every machine reads it."""

    written: Simulated
    folder: Path

    @property
    def centre(self) -> CentreFile:
        return read_file(self.written.server, CentreFile)

    def site(self, name: str, **changes: Any) -> SiteFile:
        file = read_file(self.written.sites[name], SiteFile)
        return file.model_copy(update={**changes})

    @property
    def job(self) -> Job:
        public, experiment = read_public(self.centre), self.written.experiment
        known = public.fingerprint(experiment.labels or ())
        return Job.make(
            experiment, known, public.samples, len(public.texts) - public.samples, list(self.written.sites), "1"
        )

    def site_plan(self, name: str, **changes: Any) -> Plan:
        """With the public set as it comes over the wire."""
        public = PublicSet.unpack(read_public(self.centre).pack())
        return site_plan(self.job, name, self.site(name, **changes), public, self.folder)

    def centre_plan(self) -> Plan:
        return centre_plan(self.job, self.centre, self.folder)[0]


def federate(experiment: Experiment, folder: Path) -> Federation:
    (folder / "state").mkdir(parents=True)
    return Federation(write_files(experiment, folder), folder / "state")


def simulated(experiment: Experiment, folder: Path) -> tuple[Plan, Corpus]:
    folder.mkdir(parents=True, exist_ok=True)
    _, plan, corpus = prepare(experiment, folder)
    return plan, corpus


def say(plan: Plan, name: str, verb: str = "turn") -> bytes:
    """A site's reply to the first call, to the byte."""
    raw = Host(plan, hear).call(name, encode(None, {"verb": verb, "round": int(verb != "hello")}))
    return Slip.take_off(raw)[0]


def same(ours: Examples, theirs: Examples) -> bool:
    """Whether two parties read the same numbers in the same order."""
    assert len(ours) == len(theirs)
    if not len(ours):
        return True
    one, two = (part.batch(torch.arange(len(part)), torch.device("cpu")) for part in (ours, theirs))
    labels = [part.labels for part in (ours, theirs) if isinstance(part, Labelled)]
    assert len(labels) != 1
    return (
        (not labels or torch.equal(*labels))
        and one.keys() == two.keys()
        and all(torch.equal(one[key], two[key]) for key in one)
    )


# What a federation's parties hold is what a simulation's do


@pytest.mark.parametrize("with_pairs", [False, True])
def test_sites_hold_what_clients_hold_in_simulation(with_pairs: bool, shops: Shops, tmp_path: Path) -> None:
    partition = {"labelled_public": 0.25} | ({} if with_pairs else {"rows_per_domain": 60})
    experiment = (shops if with_pairs else tweets)(partition=partition)
    plan, corpus = simulated(experiment, tmp_path / "run")
    federation = federate(experiment, tmp_path / "files")
    assert sorted(federation.written.sites) == sorted(plan.clients)
    for name in plan.clients:
        here = federation.site_plan(name)
        client, site = plan.make_client(name, hear), here.make_client(name, hear)
        assert here.clients == {name: plan.clients[name]}
        assert (site.size, site.public_fingerprint) == (client.size, client.public_fingerprint)
        assert torch.equal(site.label_counts(), client.label_counts())
        for role in ("train", "validation", "public", "labelled"):
            assert same(getattr(client.data, role), getattr(site.data, role)), role
        assert same(client.data.evaluation.data, site.data.evaluation.data)
        assert client.data.evaluation.splits.keys() == site.data.evaluation.splits.keys() == {f"test/{name}"}
        assert not isinstance(site.data.labelled, Labelled)
        spec = federation.site(name).corpus
        rows = plan.partition.train[name]
        assert corpora.load(spec, corpus.label_names).texts == [corpus.texts[row] for row in rows]


@pytest.mark.parametrize("with_pairs", [False, True])
def test_the_centre_holds_what_the_server_holds_in_simulation(with_pairs: bool, shops: Shops, tmp_path: Path) -> None:
    partition = {"labelled_public": 0.25, "validation": 0} | ({} if with_pairs else {"rows_per_domain": 60})
    experiment = (shops if with_pairs else tweets)(partition=partition)
    plan, _ = simulated(experiment, tmp_path / "run")
    federation = federate(experiment, tmp_path / "files")
    here, public = centre_plan(federation.job, federation.centre, federation.folder)
    ours, theirs = here.make_server(hear), plan.make_server(hear)
    assert same(ours.data.evaluation.data, theirs.data.evaluation.data)
    assert ours.data.evaluation.splits.keys() == theirs.data.evaluation.splits.keys()
    for split, rows in theirs.data.evaluation.splits.items():
        np.testing.assert_array_equal(ours.data.evaluation.splits[split], rows)
    assert same(ours.data.public, theirs.data.public)
    assert same(ours.data.labelled, theirs.data.labelled)
    assert len(ours.pooled) == 0
    assert (here.public_fingerprint, here.test_fingerprint) == (plan.public_fingerprint, plan.test_fingerprint)
    assert here.public_fingerprint == public.fingerprint(plan.labels)
    assert here.agreement.dimensions == plan.agreement.dimensions
    assert here.clients == plan.clients
    assert (here.experiment.engine, here.experiment.client_tests, here.workers) == ("flare", "own", 1)
    assert here.experiment.labels == plan.experiment.labels


@pytest.mark.parametrize("name", ["companies", "hardware", "shooters"])
def test_a_sites_first_opinion_is_the_simulated_clients_to_the_byte(name: str, tmp_path: Path) -> None:
    plan, _ = simulated(tweets(), tmp_path / "run")
    federation = federate(tweets(), tmp_path / "files")
    said = say(federation.site_plan(name), name)
    assert said == say(plan, name)
    assert said != say(federation.site_plan(name, train=TrainSettings(epochs=2)), name)


class Apart(Engine):
    """Every client on a host of its own, which knows its own plan only; nothing but bytes goes between."""

    def __init__(self, plan: Plan, books: Books, sites: Mapping[str, Plan]) -> None:
        super().__init__(plan, books)
        self.hosts = {name: Host(own, hear) for name, own in sites.items()}

    def deliver(self, calls: Mapping[str, bytes], round: int) -> Mapping[str, Any]:
        return {name: self.hosts[name].call(name, raw) for name, raw in calls.items()}

    def save(self, round: int) -> Mapping[str, Any]:
        return {}

    def restore(self, files: Mapping[str, Any], round: int) -> None:
        raise NotImplementedError

    def export(self) -> None:
        for name, host in self.hosts.items():
            host.export(name)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("method", ["AdaFD", "FedID", "FedDF"])
def test_a_whole_run_on_the_files_gives_the_numbers_of_the_simulation(
    method: str, shops: Shops, tmp_path: Path
) -> None:
    # A simulated server predicts validation rows in the same batches, which a real one has none of.
    experiment = shops(algorithm=method, partition={"labelled_public": 0.25, "validation": 0})
    there = run(experiment, tmp_path / "run")
    federation = federate(experiment, tmp_path / "files")
    sites = {name: federation.site_plan(name) for name in federation.written.sites}
    journal = Journal(federation.folder)
    journal.cut({})
    plan, books = federation.centre_plan(), Books(journal, hear)
    Conductor(plan, books, Apart(plan, books, sites)).conduct()
    journal.offsets()
    here = Record(federation.folder)
    assert here.metrics == there.metrics
    assert here.ledger == there.ledger
    for party in ("server", *sites):
        ours, theirs = (load_file(record.model_folder(party) / "model.safetensors") for record in (here, there))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    ours, theirs = (load_file(record.folder / "predictions" / "server.safetensors") for record in (here, there))
    assert torch.equal(ours["labels"], theirs["labels"])
    assert torch.equal(ours["logits"], theirs["logits"])


def test_settings_by_client_travel_in_the_sites_own_files(shops: Shops, tmp_path: Path) -> None:
    clients = {
        "books": {"model": "bow", "train": {"epochs": 4, "rate": 0.01}},
        "garden": {"model": {"name": "textcnn", "filters": 8}, "distill": {"epochs": 2}},
        "toys": "bow",
    }
    experiment = shops(clients=clients, distill={"batch": 8})
    plan, _ = simulated(experiment, tmp_path / "run")
    federation = federate(experiment, tmp_path / "files")
    nameless = {key: value for key, value in federation.job.experiment.items() if key != "clients"}
    job = replace(federation.job, experiment=nameless | {"clients": {"toys": {"model": {"name": "bow"}}}})
    for name in plan.clients:
        assert federation.site_plan(name).clients[name] == plan.clients[name]
    public = read_public(federation.centre)
    brought = site_plan(job, "garden", federation.site("garden"), public, federation.folder).clients["garden"]
    assert brought == plan.clients["garden"], "its file says everything, where the experiment says nothing of it"
    with pytest.raises(FedstillError, match=r"has no model for books: set `model:` in site.yaml"):
        site_plan(job, "books", federation.site("books", model=None), public, federation.folder)
    with pytest.raises(FedstillError, match="london is not one of the job's sites"):
        site_plan(job, "london", federation.site("books"), public, federation.folder)


def test_what_a_sites_file_sets_comes_before_the_experiment(shops: Shops, tmp_path: Path) -> None:
    federation = federate(shops(train={"epochs": 2, "batch": 8, "max_length": 16}), tmp_path)
    own = yaml_site(federation, "toys", model="textcnn", train={"epochs": 5}, distill={"batch": 4}, threads=2)
    plan = site_plan(federation.job, "toys", own, read_public(federation.centre), federation.folder)
    spec = plan.clients["toys"]
    assert spec.model.name == "textcnn"
    assert (spec.train.epochs, spec.train.batch, spec.train.max_length) == (5, 8, 16)
    assert (spec.distill.epochs, spec.distill.batch) == (2, 4), "what it does not set is the experiment's"
    assert (plan.experiment.threads, plan.workers, plan.experiment.device) == (2, 1, "cpu")
    assert federation.site_plan("books").experiment.threads == 1


def yaml_site(federation: Federation, name: str, **changes: Any) -> SiteFile:
    """The site's file with some keys written otherwise."""
    path = federation.written.sites[name]
    file = read_file(path, SiteFile).model_dump(mode="json", exclude_unset=True)
    path.write_text(dump(file | changes))
    return read_file(path, SiteFile)


# Texts


ODD = [
    "  spaces before and behind  ",
    "two\nlines\n",
    "a lone\rreturn, \r\nand one with a feed",
    "quotes \"double\", 'single' and a \\ backslash",
    "\ufeffa byte-order mark",
    "emoji 👩‍👩‍👧 and z̷a̷l̷g̷o̷",
    "separators \u2028 \u2029 \x85 \x0b \x0c \x1c",
    "nul \x00 and delete \x7f",
    '{"text": "JSON in a text"}',
    "- yaml: [1, 2]",
]


@pytest.fixture
def odd(tmp_path: Path) -> Experiment:
    """Odd texts in two shops."""
    rows = [
        {"text": f"{text}{number // 20 * ' again'}", "label": LABELS[number // 2 % 2], "shop": ("a", "b")[number % 2]}
        for number, text in enumerate(ODD * 4)
    ]
    path = tmp_path / "odd.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    partition = {"public": 0.3, "labelled_public": 0.4, "test": 0.3, "validation": 0.2}
    return tweets(corpus={"path": str(path), "domain": "shop"}, clients="bow", server="bow", partition=partition)


def test_odd_texts_come_back_to_the_byte_and_none_is_lost(odd: Experiment, tmp_path: Path) -> None:
    plan, corpus = simulated(odd, tmp_path / "run")
    federation = federate(odd, tmp_path / "files")
    public = read_public(federation.centre)
    rows = [*plan.partition.public, *plan.partition.labelled]
    assert public.texts == [corpus.texts[row] for row in rows]
    assert PublicSet.unpack(public.pack()) == public
    found = list(public.texts)
    for name in plan.clients:
        site = federation.site(name)
        for role, spec in (("train", site.corpus), ("validation", site.validation), ("test", site.test)):
            assert isinstance(spec, CorpusSpec)
            held = getattr(plan.partition, role)[name]
            read = corpora.load(spec, LABELS)
            assert read.texts == [corpus.texts[row] for row in held]
            np.testing.assert_array_equal(read.labels, corpus.labels[held])
            found += read.texts
    assert sorted(found) == sorted(corpus.texts)
    assert federation.centre_plan().test_fingerprint == plan.test_fingerprint


texts = st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=6)


@given(texts, st.booleans(), st.data())
def test_a_public_set_comes_out_of_its_bytes_as_it_went_in(
    given_texts: list[str], has_pairs: bool, data: st.DataObject
) -> None:
    samples = data.draw(st.integers(0, len(given_texts)))
    public = PublicSet(given_texts, given_texts[::-1] if has_pairs else None, samples)
    assert PublicSet.unpack(public.pack()) == public
    assert public.pack() == public.pack()


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"texts": ["a"]},
        {"texts": ["a"], "pairs": None, "samples": 2},
        {"texts": ["a"], "pairs": None, "samples": -1},
        {"texts": ["a"], "pairs": None, "samples": True},
        {"texts": ["a"], "pairs": None, "samples": 1, "more": 1},
        {"texts": ["a", 1], "pairs": None, "samples": 1},
        {"texts": "ab", "pairs": None, "samples": 1},
        {"texts": ["a"], "pairs": ["b", "c"], "samples": 1},
        {"texts": ["\ud800"], "pairs": None, "samples": 1},
    ],
)
def test_what_is_no_public_set_is_refused_in_a_sentence(body: object) -> None:
    with pytest.raises(FedstillError, match="these are not public samples of fedstill"):
        PublicSet.unpack(zlib.compress(json.dumps(body).encode()))


@given(st.binary(max_size=50))
def test_garbage_is_no_public_set(raw: bytes) -> None:
    with pytest.raises(FedstillError, match="these are not public samples of fedstill"):
        PublicSet.unpack(raw)
    with pytest.raises(FedstillError, match="these are not public samples of fedstill"):
        PublicSet.unpack(PublicSet(["some text"], None, 1).pack()[:-3])


# The public set


def test_a_site_may_have_its_own_copy_of_the_public_set_and_no_other(shops: Shops, tmp_path: Path) -> None:
    federation = federate(shops(partition={"labelled_public": 0.25}), tmp_path)
    public, job = read_public(federation.centre), federation.job
    copy = tmp_path / "copy.jsonl"
    lines = [
        json.dumps({"text": text, "pair": pair}) for text, pair in zip(public.texts, public.pairs or (), strict=True)
    ]
    copy.write_text("\n".join(lines))
    own = CorpusSpec(path=str(copy), text=["text", "pair"])
    site = federation.site("toys", public=own)
    assert site_public(site, job.samples) == public
    assert site_public(federation.site("toys"), job.samples) is None
    copy.write_text("\n".join([lines[1], lines[0], *lines[2:]]))
    other = site_public(site, job.samples)
    assert other is not None
    assert public.is_of(job)
    assert not other.is_of(job)
    copy.write_text(lines[0])
    with pytest.raises(FedstillError, match=f"has 1 texts, and the job has {job.samples} public samples"):
        site_public(site, job.samples)


def test_how_many_of_the_public_texts_are_samples_is_the_jobs_to_say(shops: Shops, tmp_path: Path) -> None:
    federation = federate(shops(partition={"labelled_public": 0.25}), tmp_path)
    public, job = read_public(federation.centre), federation.job
    assert 0 < job.labelled < job.samples
    moved = replace(public, samples=public.samples - 1)
    assert moved.fingerprint(LABELS) == public.fingerprint(LABELS), "the same texts"
    assert not moved.is_of(job)


def test_public_samples_of_another_corpus_are_the_federations_too(tmp_path: Path, shops: Shops) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n" + "".join(f"title {number},a text of number {number}\n" for number in range(20)))
    experiment = shops(public={"path": str(other), "text": ["a", "b"], "rows": 12})
    plan, _ = simulated(experiment, tmp_path / "run")
    federation = federate(experiment, tmp_path / "files")
    assert read_public(federation.centre).samples == 12
    assert federation.centre_plan().public_fingerprint == plan.public_fingerprint
    client, site = plan.make_client("toys", hear), federation.site_plan("toys").make_client("toys", hear)
    assert same(client.data.public, site.data.public)


# Shares, counts and refusals


def test_a_share_is_drawn_where_there_is_no_file_and_groups_stay_together(shops: Shops, tmp_path: Path) -> None:
    pairs = federate(shops(), tmp_path / "pairs")
    single = federate(tweets(clients="bow", server="bow"), tmp_path / "single")
    names = single.written.experiment.labels or ()
    path = tmp_path / "own.jsonl"
    rows = [{"text": f"text {n}", "label": names[n // 2 % 3], "order": n // 2} for n in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    corpus = CorpusSpec(path=str(path), group="order")
    few = Limits(min_rows=1)
    plan = single.site_plan("sports", corpus=corpus, test=0.2, validation=0.1, limits=few)
    parts = plan.partition
    held = {role: getattr(parts, role)["sports"] for role in ("train", "validation", "test")}
    assert {role: len(part) for role, part in held.items()} == {"train": 28, "validation": 4, "test": 8}
    assert sorted(np.concatenate(list(held.values()))) == list(range(40))
    for part in held.values():
        assert list(part) == sorted(part), "in the order of the file"
        assert set(part) == {row for row in range(40) if row // 2 in set(part // 2)}, "pairs of rows stay together"
    again = single.site_plan("sports", corpus=corpus, test=0.2, validation=0.1, limits=few).partition
    np.testing.assert_array_equal(again.test["sports"], held["test"])
    own_test = single.site_plan(
        "sports", corpus=corpus, test=CorpusSpec(path=str(path)), validation=0.1, limits=few
    ).partition
    assert list(own_test.test["sports"]) == list(range(40, 80))
    assert len(own_test.train["sports"]) == 36
    with pytest.raises(FedstillError, match=r"test \+ validation must stay below 1"):
        single.site_plan("sports", corpus=corpus, test=0.6, validation=0.5)
    with pytest.raises(FedstillError, match="single texts and pairs of texts cannot be mixed"):
        pairs.site_plan("toys", test=pairs.centre.test.model_copy(update={"text": "text"}))


def test_a_label_that_the_experiment_does_not_list_is_an_error_with_its_row(shops: Shops, tmp_path: Path) -> None:
    federation = federate(shops(), tmp_path)
    path = Path(str(federation.site("toys").corpus.path))
    lines = path.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | {"label": "splendid"})
    path.write_text("\n".join(lines))
    with pytest.raises(FedstillError, match=r"train.jsonl, row 3: the label 'splendid' is none of bad, good, so-so"):
        federation.site_plan("toys")


def test_clients_without_validation_or_test_rows_are_sites_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    shops = ["a"] * 40 + ["b"] * 3
    rows = [{"text": f"text {n}", "label": LABELS[n % 2], "shop": shop} for n, shop in enumerate(shops)]
    path.write_text("\n".join(map(json.dumps, rows)))
    corpus = {"path": str(path), "domain": "shop"}
    partition = {"public": 0.2, "validation": 0.1, "test": 0.1}
    experiment = tweets(corpus=corpus, clients="bow", server="bow", partition=partition)
    plan, _ = simulated(experiment, tmp_path / "run")
    assert len(plan.partition.test["b"]) == len(plan.partition.validation["b"]) == 0
    federation = federate(experiment, tmp_path / "files")
    assert (federation.site("b").test, federation.site("b").validation) == (0, 0)
    assert say(federation.site_plan("b"), "b") == say(plan, "b")
    assert list(federation.centre_plan().partition.test) == ["a"]
    assert federation.centre_plan().test_fingerprint == plan.test_fingerprint


def test_label_counts_stay_at_a_site_that_withholds_them(shops: Shops, tmp_path: Path) -> None:
    federation = federate(shops(), tmp_path)
    told = {}
    for tells in (True, False):
        plan = federation.site_plan("toys", label_counts=tells)
        message = decode(say(plan, "toys", "hello"), {"Hello": Hello}).message
        assert isinstance(message, Hello)
        assert message.size == len(plan.partition.train["toys"])
        told[tells] = message.label_counts
    assert told[True] is not None
    assert told[True].sum() == len(plan.partition.train["toys"])
    assert told[False] is None


def test_a_test_without_domains_is_one_split(tmp_path: Path, shops: Shops) -> None:
    federation = federate(shops(), tmp_path)
    plain = federation.centre.test.model_copy(update={"domain": None})
    centre = federation.centre.model_copy(update={"test": plain})
    plan, _ = centre_plan(federation.job, centre, federation.folder)
    assert list(plan.partition.test) == ["centre"]
    assert plan.test_fingerprint == federation.centre_plan().test_fingerprint


def test_the_test_fingerprint_changes_with_a_text_a_label_and_the_order(odd: Experiment, tmp_path: Path) -> None:
    federation = federate(odd, tmp_path)
    path = Path(str(federation.centre.test.path))
    lines = path.read_text().strip().split("\n")
    assert len(lines) > 3
    changed = {
        "same": lines,
        "text": [json.dumps(json.loads(lines[0]) | {"text": "other"}), *lines[1:]],
        "label": [json.dumps(json.loads(lines[0]) | {"label": _other(json.loads(lines[0])["label"])}), *lines[1:]],
        "order": [lines[1], lines[0], *lines[2:]],
        "fewer": lines[1:],
    }
    found = {}
    for what, content in changed.items():
        path.write_text("\n".join(content))
        found[what] = federation.centre_plan().test_fingerprint
    assert len(set(found.values())) == len(changed)


def _other(label: str) -> str:
    return LABELS[1 - LABELS.index(label)]


@pytest.mark.parametrize("corpus", [{"name": "digits"}, {"name": "superglue"}])
def test_images_and_several_tasks_are_refused(corpus: dict[str, Any], shops: Shops, tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match="a federation reads texts of one task"):
        write_files(tweets(corpus=corpus, clients="lenet", server="lenet"), tmp_path)
    federation = federate(shops(), tmp_path / "files")
    spec = CorpusSpec.model_validate(corpus)
    with pytest.raises(FedstillError, match="a federation reads texts of one task"):
        federation.site_plan("toys", corpus=spec)
    for role in ("test", "public"):
        centre = federation.centre.model_copy(update={role: spec})
        with pytest.raises(FedstillError, match="a federation reads texts of one task"):
            centre_plan(federation.job, centre, federation.folder)


def test_methods_that_lack_something_are_refused_at_the_centre_and_at_sites(shops: Shops, tmp_path: Path) -> None:
    cases = {
        "Centralized": ({}, "Centralized needs all rows in one place, which is what a federation avoids"),
        "AdaFD": ({"public": 0}, "AdaFD needs public samples: name `public:` in server.yaml"),
        "FedID": ({}, "FedID needs labelled rows at the server: name `labelled:` in server.yaml"),
    }
    for method, (partition, sentence) in cases.items():
        federation = federate(shops(algorithm="Local", partition=partition), tmp_path / method)
        asked = federation.written.experiment.model_copy(update={"algorithm": {"name": method}})
        federation = replace(federation, written=replace(federation.written, experiment=asked))
        with pytest.raises(FedstillError, match=sentence):
            federation.centre_plan()
        with pytest.raises(FedstillError, match=sentence):
            federation.site_plan("toys")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("new york", "'new york' cannot name a site"),
        ("admin", "a site cannot be called 'admin'"),
        ("../up", "cannot name a site"),
    ],
)
def test_clients_whose_names_cannot_be_sites_are_refused(name: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"text": f"text {n}", "label": LABELS[n // 2 % 2], "shop": ("a", name)[n % 2]} for n in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    experiment = tweets(corpus={"path": str(path), "domain": "shop"}, clients="bow", server="bow", partition={})
    with pytest.raises(FedstillError, match=sentence):
        write_files(experiment, tmp_path / "files")
    assert not (tmp_path / "files").exists()


def test_what_the_centre_cannot_have_is_refused(shops: Shops, tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match=r"needs test rows: set partition.test above 0"):
        write_files(shops(partition={"test": 0}), tmp_path / "none")
    with pytest.raises(FedstillError, match=r"partition.global_test: the centre of a federation has one test"):
        write_files(shops(partition={"global_test": True}), tmp_path / "global")


# Classes of one's own

OWN = """
from dataclasses import dataclass
from torch import nn
from fedstill.algorithms.adafd import AdaFD

@dataclass(frozen=True)
class Mine(AdaFD):
    pass

class Plain(nn.Module):
    def __init__(self, vocabulary, classes, pad_id):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocabulary, classes)
    def forward(self, input_ids, attention_mask, token_type_ids=None):
        return self.embedding(input_ids)
"""


def test_classes_of_ones_own_are_allowed_by_name_on_every_machine(shops: Shops, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    experiment = shops(algorithm=f"{file}:Mine", clients=["bow", f"{file}:Plain", "bow"])
    federation = federate(experiment, tmp_path / "files")
    allowed = {"Mine": f"{file}:Mine", "Plain": f"{file}:Plain"}
    assert federation.centre.own == federation.site("toys").own == allowed
    assert federation.site("garden").model is not None
    assert str(federation.site("garden").model) == "own:Plain"
    job = federation.job
    assert str(file) not in job.to_json()
    plan, _ = simulated(experiment, tmp_path / "run")
    public = read_public(federation.centre)
    plugins.allow_only(federation.site("garden").own)
    here = site_plan(job, "garden", federation.site("garden"), public, federation.folder)
    assert say(here, "garden") == say(plan, "garden")
