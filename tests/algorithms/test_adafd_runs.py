"""Whole small federations of AdaFD, and of a method of a user's own."""

import json
from collections import Counter

import pytest
from safetensors.torch import load_file

import fedstill
from fedstill.common.errors import FedstillError
from fedstill.common.randomness import generator
from fedstill.results.record import read_lines


@pytest.fixture
def tokenizer_folder(folder_of_reviews):
    """A tokenizer of whole words: textcnn reads with it, and nothing is downloaded."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = folder_of_reviews / "words"
    if not folder.exists():
        words = sorted({word for line in (folder_of_reviews / "reviews.csv").open() for word in line.split()})
        numbers = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
        inner = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
        inner.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    return str(folder)


def test_a_federation_of_different_models_leaves_a_complete_record(experiment, tokenizer_folder, tmp_path):
    small = {"name": "textcnn", "tokenizer": tokenizer_folder, "embedding": 8, "filters": 4}
    clients = {"books": {"model": "bow"}, "films": {"model": small}, "shoes": {"model": "bow", "train": {"epochs": 2}}}
    asked = experiment(clients=clients, train={"epochs": 1, "batch": 16, "rate": 0.05})
    record = fedstill.run(asked, tmp_path / "run")
    assert record.is_finished
    names = {file.name for file in (tmp_path / "run").iterdir()}
    assert {"experiment.yaml", "metrics.jsonl", "ledger.jsonl", "summary.json", "models", "predictions"} <= names
    read = fedstill.load_experiment(tmp_path / "run" / "experiment.yaml")
    assert read.labels == ["bad", "fine", "good"]
    parties = ("server", "books", "films", "shoes")
    for party in parties:
        model = fedstill.load_model(record.model_folder(party))
        assert model.labels == ("bad", "fine", "good")
        predictions = load_file(tmp_path / "run" / "predictions" / f"{party}.safetensors")
        hits = (predictions["predicted"] == predictions["labels"]).double().mean().item()
        scores = record.summary["scores"]
        told = (scores["server"] if party == "server" else scores["clients"][party])["test"]
        assert told["accuracy"] == pytest.approx(hits)
    measured = Counter((line["party"], line["round"], line["stage"]) for line in record.metrics if "stage" in line)
    assert {key[:2] for key in measured if key[0] == "server"} == {("server", 1), ("server", 2)}
    for client in parties[1:]:
        stages = {key[1:] for key in measured if key[0] == client}
        assert stages == {(1, "trained"), (1, "distilled"), (2, "trained"), (2, "distilled")}
    weights = [line["values"] for line in record.metrics if line.get("observation") == "weights"]
    assert [sum(values.values()) for values in weights] == pytest.approx([1.0, 1.0])


def test_the_summary_holds_the_last_rounds_distilled_scores(experiment, tmp_path):
    record = fedstill.run(experiment(), tmp_path / "run")
    last = [
        line["f1"]
        for line in record.metrics
        if (line.get("party"), line.get("round"), line.get("stage"), line.get("split"))
        == ("books", 2, "distilled", "test")
    ]
    assert [record.f1("books")] == last


def test_the_ledger_counts_nc_times_k_plus_1_and_k_numbers_a_round_with_one_multicast_down(experiment, tmp_path):
    record = fedstill.run(experiment(rounds=3), tmp_path / "run")
    partition = load_file(tmp_path / "run" / "partition.safetensors")
    samples, classes, clients = len(partition["public"]), 3, 3
    up, down = Counter(), Counter()
    for line in record.ledger:
        (up if line["direction"] == "up" else down)[line["round"]] += line["payload"]
    # A round's answer travels with the next call: that of the last round when everybody closes.
    opinions, answer = 4 * (samples * classes * clients + clients), 4 * samples * classes
    assert {number: up[number] for number in (1, 2, 3)} == dict.fromkeys((1, 2, 3), opinions)
    assert {number: down[number + 1] for number in (1, 2, 3)} == dict.fromkeys((1, 2, 3), answer)
    assert opinions + answer == 4 * (samples * classes * (clients + 1) + clients)
    assert down[1] == 0
    sent = [line for line in record.ledger if line["direction"] == "down" and line["message"] == "Answer"]
    assert [line["recipients"] for line in sent] == [3, 3, 3]


def speakers(record, rounds):
    """Who trained in each round."""
    return [
        sorted({m["party"] for m in record.metrics if m.get("stage") == "trained" and m["round"] == number})
        for number in range(1, rounds + 1)
    ]


def test_participation_draws_anew_every_round_from_seed_and_round_only(experiment, tmp_path):
    half = {"participation": 0.5, "rounds": 6, "train": {"epochs": 1}, "algorithm": "LogitAvg"}
    domains = {"corpus": experiment().corpus, "partition": {"kind": "iid", "clients": 4, "public": 0.1}}
    first = speakers(fedstill.run(experiment(**half, **domains), tmp_path / "a"), 6)
    again = speakers(fedstill.run(experiment(**(half | {"algorithm": "MHAT"}), **domains), tmp_path / "b"), 6)
    other = speakers(fedstill.run(experiment(**half, **domains, seed=1), tmp_path / "c"), 6)
    names = sorted({name for round in first for name in round})
    assert len(names) == 4
    assert all(len(round) == 2 for round in first)
    assert len({tuple(round) for round in first}) > 1
    assert again == first != other
    assert first[3] == sorted(generator(0, 4, "federation", "participants").choice(names, 2, replace=False).tolist())


def test_everybody_digests_the_last_answer_active_or_not(experiment, tmp_path):
    asked = experiment(participation=0.34, rounds=1)
    record = fedstill.run(asked, tmp_path / "run")
    closed = {m["party"] for m in record.metrics if m.get("stage") == "distilled" and m["round"] == 1}
    assert closed == {"server", "books", "films", "shoes"}
    assert len(speakers(record, 1)[0]) == 1


def test_one_worker_and_two_write_the_same_metrics(experiment, tmp_path):
    for workers in (1, 2):
        fedstill.run(experiment(workers=workers), tmp_path / str(workers))
    one, two = (tmp_path / name for name in "12")
    assert (one / "metrics.jsonl").read_bytes() == (two / "metrics.jsonl").read_bytes()
    assert (one / "ledger.jsonl").read_bytes() == (two / "ledger.jsonl").read_bytes()
    assert (one / "metrics.jsonl").stat().st_size > 1000


def test_another_seed_writes_other_metrics(experiment, tmp_path):
    for seed in (0, 1):
        fedstill.run(experiment(seed=seed), tmp_path / str(seed))
    assert (tmp_path / "0" / "metrics.jsonl").read_bytes() != (tmp_path / "1" / "metrics.jsonl").read_bytes()


def test_settings_that_distilling_inherits_survive_the_record(experiment, tmp_path):
    # experiment.yaml sets everything; what it sets must be what the run used, or a resumed run would differ.
    asked = experiment(train={"epochs": 1, "batch": 16, "rate": 0.02}, rounds=1)
    fedstill.run(asked, tmp_path / "run")
    read = fedstill.load_experiment(tmp_path / "run" / "experiment.yaml")
    assert read.server_spec() == asked.server_spec()
    assert (read.distill.epochs, read.distill.batch, read.distill.rate) == (1, 16, 0.02)


OWN = '''
from dataclasses import dataclass

from fedstill import Algorithm, Answer, Opinion


@dataclass(frozen=True)
class Loudest(Algorithm):
    """The client with the largest logit is the teacher of all."""

    needs = frozenset({"public"})
    steps: int = 1

    def digest(self, me, answer):
        me.distill(answer.logits, lambda logits, teacher: (logits - teacher).abs().sum(-1))

    def opine(self, me):
        if me.name == "films" and self.steps == 13:
            raise ValueError("thirteen")
        me.train()
        return Opinion(me.predict())

    def server(self, me, ups):
        loudest = max(ups, key=lambda client: ups[client].logits.max())
        me.observe("loudest", {loudest: 1.0})
        return Answer(ups[loudest].logits)
'''


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path / 'own.py'}:Loudest"


def test_an_algorithm_of_a_users_own_runs(experiment, own, tmp_path):
    record = fedstill.run(experiment(algorithm={"name": own}), tmp_path / "run")
    assert record.summary["method"] == "Loudest"
    loudest = [line["values"] for line in record.metrics if line.get("observation") == "loudest"]
    assert len(loudest) == 2
    assert set(loudest[0]) <= {"books", "films", "shoes"}
    assert {m["stage"] for m in record.metrics if m.get("party") == "books"} == {"trained", "distilled"}


def test_an_option_that_a_users_own_algorithm_has_not_is_refused(experiment, own):
    with pytest.raises(FedstillError, match="Loudest has no option 'step'; did you mean 'steps'"):
        experiment(algorithm={"name": own, "step": 3})


def test_a_failing_client_ends_a_run_whose_quorum_is_everybody(experiment, own, tmp_path):
    with pytest.raises(FedstillError, match=r"round 1: 2 of 3 clients answered, 3 are needed \(films: .*thirteen"):
        fedstill.run(experiment(algorithm={"name": own, "steps": 13}), tmp_path / "run")


def test_a_run_goes_on_without_a_failing_client_when_the_quorum_allows_and_notes_it(experiment, own, tmp_path):
    record = fedstill.run(experiment(algorithm={"name": own, "steps": 13}, quorum=0.5), tmp_path / "run")
    assert speakers(record, 2) == [["books", "shoes"]] * 2
    notes = [line for line in read_lines(tmp_path / "run" / "log.jsonl") if "note" in line]
    assert [(line["round"], line["party"]) for line in notes] == [(1, "films"), (2, "films")]
    assert all("thirteen" in line["note"] for line in notes)


def test_a_learnable_beta_is_recorded_every_round(experiment, tmp_path):
    asked = experiment(
        algorithm={"name": "AdaFD", "weighting": {"name": "ENWC", "learnable": True}},
        partition={"labelled_public": 0.3},
    )
    record = fedstill.run(asked, tmp_path / "run")
    betas = [line["values"]["beta"] for line in record.metrics if line.get("observation") == "beta"]
    assert len(betas) == 2
    assert all(0.01 <= beta <= 100 * (1 + 1e-12) and beta != 5.0 for beta in betas)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["method"] == "AdaFD w/ ENWC learnable"
