import csv

import numpy as np
import pytest

from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment, load_experiment
from fedstill.data import corpora, partition
from fedstill.data.examples import Labelled
from fedstill.plan.prepare import changed_keys, default_tokenizer, prepare, public_fingerprint

LABELS = ("bad", "good")


def write(path, change=None):
    """Ninety rows in three shops; `change` replaces the text of some rows."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "shop"])
        for number in range(90):
            text = (change or {}).get(number, f"review {number} of something {LABELS[number % 2]}")
            writer.writerow([text, LABELS[number % 2], ("books", "films", "shoes")[number // 2 % 3]])
    return str(path)


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))

    def make(change=None, **settings):
        corpus = {"path": write(tmp_path / "reviews.csv", change), "domain": "shop"}
        return Experiment(**({"corpus": corpus, "clients": "bow", "server": "bow", "device": "cpu"} | settings))

    return make


def test_labels_are_taken_from_the_corpus_and_written_into_the_experiment(experiment, tmp_path):
    resolved, plan, corpus = prepare(experiment(), tmp_path)
    assert resolved.labels == list(plan.labels) == list(corpus.label_names) == ["bad", "good"]
    assert plan.experiment.labels == ["bad", "good"]


def test_labels_given_fix_the_order_and_may_name_a_class_that_nobody_has(experiment, tmp_path):
    _, plan, corpus = prepare(experiment(labels=["good", "fine", "bad"]), tmp_path)
    assert plan.labels == ("good", "fine", "bad")
    assert set(corpus.labels.tolist()) == {0, 2}
    assert plan.make_client("books", lambda event: None).label_counts()[1] == 0


def test_a_label_that_is_not_listed_is_refused(experiment, tmp_path):
    with pytest.raises(FedstillError, match="the label 'bad' is none of good, fine"):
        prepare(experiment(labels=["good", "fine"]), tmp_path)


def test_parties_see_what_is_theirs_and_nothing_else(experiment, tmp_path):
    _, plan, _ = prepare(experiment(partition={"labelled_public": 0.25}), tmp_path)
    client, server = plan.make_client("films", lambda event: None), plan.make_server(lambda event: None)
    np.testing.assert_array_equal(client.data.train.rows, plan.partition.train["films"])
    for unlabelled in (client.data.public, client.data.labelled, server.data.public):
        assert not isinstance(unlabelled, Labelled)
    assert len(server.data.train) == 0
    np.testing.assert_array_equal(server.data.labelled.labels.numpy(), plan.row_labels[plan.partition.labelled])
    np.testing.assert_array_equal(client.data.public.rows, server.data.public.rows)
    assert len(plan.partition.labelled) > 0


@pytest.mark.parametrize("name", ["AdaFD", "LogitAvg", "DSFL", "MHAT", "FedKD"])
def test_a_method_that_needs_public_samples_is_refused_without_them_before_anything_runs(experiment, tmp_path, name):
    with pytest.raises(FedstillError, match=rf"{name} needs public samples: set partition.public above 0 \(now 0\)"):
        prepare(experiment(algorithm=name, partition={"public": 0}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "cache").exists(), "not even tokens were made"


@pytest.mark.parametrize("name", ["Local", "Centralized"])
def test_the_bounds_need_no_public_samples(experiment, tmp_path, name):
    _, plan, _ = prepare(experiment(algorithm=name, partition={"public": 0}), tmp_path)
    assert plan.agreement.dimensions["public"] == 0


def test_a_learnable_beta_needs_labelled_rows_and_is_content_with_them(experiment, tmp_path):
    learnable = {"name": "AdaFD", "weighting": {"name": "ENWC", "learnable": True}}
    with pytest.raises(FedstillError, match="ENWC learnable needs labelled rows at the server"):
        prepare(experiment(algorithm=learnable), tmp_path)
    _, plan, _ = prepare(experiment(algorithm=learnable, partition={"labelled_public": 0.25}), tmp_path)
    assert plan.agreement.dimensions["labelled"] > 0


def test_a_list_of_models_of_the_wrong_length_is_refused(experiment, tmp_path):
    with pytest.raises(FedstillError, match="4 models for 3 clients"):
        prepare(experiment(clients=["bow"] * 4), tmp_path)


def test_parties_with_the_same_tokenizer_share_a_store(experiment, tmp_path):
    _, plan, _ = prepare(experiment(), tmp_path)
    assert set(plan.stores) == {"server", "books", "films", "shoes"}
    assert len(set(plan.stores.values())) == 1
    longer = {"books": "bow", "films": "bow", "shoes": {"model": "bow", "train": {"max_length": 16}}}
    _, plan, _ = prepare(experiment(clients=longer), tmp_path)
    assert plan.stores["shoes"] != plan.stores["books"] == plan.stores["server"]


def test_small_models_read_with_the_servers_tokenizer(experiment):
    assert default_tokenizer(experiment(server="minilm[:3]")) == "minilm[:3]"
    assert default_tokenizer(experiment(server="bow")) == "bert-tiny"
    assert default_tokenizer(experiment(server={"name": "textcnn", "tokenizer": "minilm"})) == "minilm"


# Fingerprints


def fingerprint(experiment, labels=None):
    corpus = corpora.load(experiment.corpus, labels)
    parts = partition.split(corpus, experiment.partition, experiment.seed)
    return public_fingerprint(corpus, parts), parts


def test_the_public_fingerprint_changes_with_one_public_text_and_with_no_private_one(experiment):
    before, parts = fingerprint(experiment())
    public, private = int(parts.public[3]), int(parts.train["films"][0])
    assert fingerprint(experiment())[0] == before
    assert fingerprint(experiment(change={private: "quite another text"}))[0] == before
    assert fingerprint(experiment(change={public: f"Review {public} of something {LABELS[public % 2]}"}))[0] != before


def test_the_public_fingerprint_changes_with_the_labels_list(experiment):
    assert fingerprint(experiment())[0] != fingerprint(experiment(), labels=["good", "bad"])[0]


def test_the_public_fingerprint_changes_when_words_move_from_one_text_to_the_next(experiment):
    _, parts = fingerprint(experiment())
    first, second = (int(row) for row in parts.public[:2])
    one = fingerprint(experiment(change={first: "alpha beta", second: "gamma"}))[0]
    other = fingerprint(experiment(change={first: "alpha ", second: "betagamma"}))[0]
    moved = fingerprint(experiment(change={first: "alpha", second: " betagamma"}))[0]
    assert len({one, other, moved}) == 3


def test_every_client_says_the_fingerprint_that_the_plan_has(experiment, tmp_path):
    asked = experiment()
    _, plan, _ = prepare(asked, tmp_path)
    assert plan.public_fingerprint == fingerprint(asked)[0]
    assert plan.make_client("books", lambda event: None).public_fingerprint == plan.public_fingerprint


# What changed


def test_changed_keys_are_dotted_and_sorted(experiment):
    before = experiment().model_dump(mode="json")
    now = experiment(
        rounds=9, train={"epochs": 1}, algorithm={"name": "AdaFD", "weighting": {"name": "ENWC", "beta": 1}}
    ).model_dump(mode="json")
    assert changed_keys(before, before) == []
    assert changed_keys(before, now) == ["algorithm.weighting", "rounds", "train.epochs"]


def test_changed_keys_name_what_came_and_what_went():
    before = {"a": {"x": 1, "y": 2}, "b": [1, 2]}
    assert changed_keys(before, {"a": {"x": 1, "z": 3}, "b": [1, 3], "c": 0}) == ["a.y", "a.z", "b", "c"]


def test_a_plan_made_from_what_the_record_holds_is_the_same_experiment(experiment, tmp_path):
    asked = experiment(train={"epochs": 1, "batch": 4}, clients=dict.fromkeys(("books", "films", "shoes"), "bow"))
    resolved, plan, _ = prepare(asked, tmp_path)
    (tmp_path / "experiment.yaml").write_text(resolved.to_yaml())
    _, again, _ = prepare(load_experiment(tmp_path / "experiment.yaml"), tmp_path)
    assert changed_keys(dict(plan.experiment), dict(again.experiment)) == []
    assert (again.server, again.clients) == (plan.server, plan.clients)


def test_where_clients_are_not_domains_the_server_is_measured_on_each_domain_too(experiment, tmp_path):
    chosen = experiment(partition={"kind": "iid", "clients": 2, "public": 0.2, "test": 0.3})
    _, plan, corpus = prepare(chosen, tmp_path)
    evaluation = plan.make_server(lambda event: None).data.evaluation
    assert corpus.domains is not None
    found = {}
    for number, name in enumerate(corpus.domain_names):
        rows = evaluation.data.rows[evaluation.splits[f"test/{name}"]]
        assert set(corpus.domains[rows]) == {number}
        found[name] = len(rows)
    assert sum(found.values()) == len(evaluation.splits["test"])
    _, plan, _ = prepare(experiment(), tmp_path)
    assert plan.test_domains == {}
