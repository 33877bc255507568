import csv

import numpy as np
import pytest

import fedstill
from fedstill.common.errors import FedstillError
from fedstill.data import corpora, partition
from fedstill.data.corpora import CorpusSpec
from fedstill.data.examples import Labelled
from fedstill.data.partition import PartitionSpec
from fedstill.data.public import PublicSpec, with_public
from fedstill.plan.prepare import prepare


def write(path, rows, columns=("title", "body", "stars", "shop")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


@pytest.fixture
def private(reviews):
    return {"path": str(reviews), "text": ["title", "body"], "label": "stars", "domain": "shop"}


@pytest.fixture
def elsewhere(tmp_path, reviews):
    """Fifty pairs of texts with labels that the federation does not know, two of which it has already."""
    with reviews.open(newline="") as file:
        known = [row[:2] for row in list(csv.reader(file))[1:3]]
    rows = [(f"the film {n}", f"was seen {n} times", "five stars", "cinema") for n in range(48)]
    rows += [(title.upper(), f" {body}", "one star", "cinema") for title, body in known]
    rows[40:48] = [(*row[:3], "theatre") for row in rows[40:48]]
    return {"path": str(write(tmp_path / "films.csv", rows)), "text": ["title", "body"], "label": "stars"}


def divided(private, elsewhere, **options):
    corpus = corpora.load(CorpusSpec(**private))
    spec = PartitionSpec(kind="domain", public=0.3, labelled_public=0.2)
    parts = partition.split(corpus, spec, 0)
    return corpus, parts, *with_public(corpus, parts, PublicSpec.model_validate(elsewhere | options), 0)


def test_public_rows_come_from_the_other_corpus_and_the_private_ones_stay(private, elsewhere):
    corpus, parts, joined, changed = divided(private, elsewhere)
    assert [joined.texts[row] for row in changed.public] == [f"the film {n}" for n in range(48)]
    assert joined.counts["texts of films that the corpus has too"] == 2
    np.testing.assert_array_equal(changed.labelled, parts.labelled)
    for name in parts.clients:
        np.testing.assert_array_equal(changed.train[name], parts.train[name])
    assert set(parts.public) <= set(changed.unused)
    changed.check(len(corpus) + 48)


def test_labels_of_public_rows_are_gone(private, elsewhere, tmp_path):
    chosen = fedstill.Experiment(corpus=private, public=elsewhere, clients="bow", server="bow")
    experiment, plan, _ = prepare(chosen, tmp_path)
    assert experiment.labels == ["bad", "good", "so-so"]  # not the stars of the films
    assert set(plan.row_labels[plan.partition.public]) == {-1}
    assert not isinstance(plan.make_server(lambda event: None).data.public, Labelled)
    without = fedstill.Experiment(corpus=private, clients="bow", server="bow")
    _, plan, corpus = prepare(without, tmp_path)
    assert set(plan.row_labels[plan.partition.public]) == {-1}  # nor can anybody see those of its own
    assert corpus.labels[plan.partition.public].min() >= 0


def test_a_file_without_labels_will_do(private, tmp_path):
    path = write(tmp_path / "plain.csv", [(f"a {n}", f"b {n}") for n in range(30)], columns=("title", "body"))
    *_, parts = divided(private, {"path": str(path), "text": ["title", "body"]})
    assert len(parts.public) == 30


def test_some_rows_and_some_domains(private, elsewhere):
    *_, joined, parts = divided(private, elsewhere, domain="shop", only=["theatre"])
    assert [joined.texts[row] for row in parts.public] == [f"the film {n}" for n in range(40, 48)]
    *_, joined, parts = divided(private, elsewhere, rows=10)
    assert len(set(parts.public)) == len(parts.public) == 10


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"domain": "shop", "only": ["cinemas"]}, "did you mean 'cinema'"),
        ({"text": "title"}, "pairs of texts and films single texts"),
    ],
)
def test_what_does_not_fit_is_said(private, elsewhere, options, sentence):
    with pytest.raises(FedstillError, match=sentence):
        divided(private, elsewhere, **options)


def test_a_corpus_that_holds_nothing_new_is_refused(private):
    same = {key: value for key, value in private.items() if key != "domain"}
    with pytest.raises(FedstillError, match="in reviews already"):
        divided(private, same)


def test_a_federation_learns_from_another_corpus_and_its_record_reads_back(private, elsewhere, tmp_path):
    chosen = fedstill.Experiment(
        corpus=private, public=elsewhere, clients="bow", server="bow", rounds=1, workers=1,
        partition={"kind": "domain", "public": 0.3, "labelled_public": 0.2}, algorithm="FedID",
    )  # fmt: skip
    record = fedstill.run(chosen, tmp_path / "run")
    again = fedstill.load_experiment(record.folder / "experiment.yaml")
    assert again.public is not None
    assert again.public.corpus.path == elsewhere["path"]
    assert sum(line["payload"] for line in record.ledger if line["message"] == "Scores") == 3 * 3 * 48 * 3 * 4
