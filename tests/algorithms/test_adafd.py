import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import softmax
from scipy.stats import entropy

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.adafd import AdaFD
from fedstill.algorithms.weightings import ENWC, RNWC
from fedstill.common.errors import FedstillError
from fedstill.common.randomness import generator
from fedstill.results.record import read_lines

LOSSES = [0.2, 0.5, 1.1]


def logits_of(ups):
    return ups.column("logits").double().numpy()


def squared_error(target):
    """Eq. 10 by hand: the mean over samples of the mean over classes."""
    return lambda logits: ((logits - torch.as_tensor(target, dtype=torch.float32)) ** 2).mean()


# The server's step


def test_the_server_steps_towards_the_weighted_sum_of_the_logits(bench, opinions, same):
    me, ups = bench.server(), opinions(loss=LOSSES)
    AdaFD(weighting=ENWC(5.0)).server(me, ups)
    target = np.einsum("k,knc->nc", softmax(-5 * np.array(LOSSES)), logits_of(ups))
    same(me, bench.after_one_step(squared_error(target)))


def test_a_server_loss_of_kl_steps_on_the_divergence_from_the_blend(bench, opinions, same):
    me, ups = bench.server(), opinions(loss=LOSSES)
    AdaFD(weighting=RNWC(), server_loss="kl", temperature=2.0).server(me, ups)
    weights = 1 / np.array(LOSSES) / sum(1 / np.array(LOSSES))
    target = torch.tensor(np.einsum("k,knc->nc", weights, logits_of(ups)), dtype=torch.float32)

    def divergence(logits):
        wanted = torch.softmax(target / 2, -1)
        return 4 * (wanted * (wanted.log() - torch.log_softmax(logits / 2, -1))).sum(-1).mean()

    same(me, bench.after_one_step(divergence))


def test_centred_logits_take_the_mean_over_classes_out_of_both_sides(bench, opinions, same):
    me, ups = bench.server(), opinions(loss=LOSSES)
    AdaFD(center_logits=True).server(me, ups)
    target = np.einsum("k,knc->nc", softmax(-5 * np.array(LOSSES)), logits_of(ups))
    centred = squared_error(target - target.mean(1, keepdims=True))
    same(me, bench.after_one_step(lambda logits: centred(logits - logits.mean(1, keepdim=True))))


def test_the_answer_is_the_servers_prediction_after_distilling_in_eval_mode(bench, opinions):
    me, ups = bench.server(), opinions(loss=LOSSES)
    # A dropout in front of the head: a model left in train mode would answer at random.
    me.model.module = Dropping(me.model.module)
    before = me.predict()
    answer = AdaFD().server(me, ups)
    module = me.model.module.eval()
    batch = bench.rows(bench.public).batch(torch.arange(12), torch.device("cpu"))
    torch.testing.assert_close(answer.logits, module(**batch).detach())
    assert not torch.allclose(answer.logits, before)


class Dropping(torch.nn.Module):
    """A model whose logits are half dropped while it trains."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, **batch):
        return torch.nn.functional.dropout(self.inner(**batch), 0.5, self.training)


def test_the_record_gets_the_weights(bench, opinions):
    me, ups = bench.server(), opinions(loss=LOSSES)
    me.enter(4)
    AdaFD(weighting=ENWC(2.0)).server(me, ups)
    (line,) = me.metrics
    expected = softmax(-2 * np.array(LOSSES)).tolist()
    assert line["values"] == pytest.approx(dict(zip(("books", "films", "shoes"), expected, strict=True)))
    assert {key: line[key] for key in ("round", "party", "observation")} == {
        "round": 4,
        "party": "server",
        "observation": "weights",
    }


# Finer weights


def test_per_sample_weighs_a_client_less_where_it_is_unsure(bench, opinions):
    ups = opinions(loss=LOSSES)
    weights = AdaFD(per_sample=True).weights(bench.server(), ups)
    uncertainty = entropy(softmax(logits_of(ups), axis=-1), axis=-1) / np.log(3)
    expected = softmax(-5 * np.array(LOSSES))[:, None] * np.exp(-uncertainty)
    expected /= expected.sum(0)
    np.testing.assert_allclose(weights[:, :, 0].numpy(), expected, rtol=1e-9)
    blend = np.einsum("kn,knc->nc", expected, logits_of(ups))
    np.testing.assert_allclose(ups.blend("logits", weights).numpy(), blend, rtol=1e-5, atol=1e-6)


CLASS_LOSSES = np.array([[0.1, 0.9, -1.0], [0.4, -1.0, -1.0], [0.2, 0.3, -1.0]])
"""The second client has never seen the second class, and nobody the third; -1 stands for unseen."""


def per_class_by_hand(beta):
    weights = np.empty((3, 3))
    weights[:, 0] = softmax(-beta * CLASS_LOSSES[:, 0])
    weights[[0, 2], 1] = softmax(-beta * CLASS_LOSSES[[0, 2], 1])
    weights[1, 1] = 0
    weights[:, 2] = softmax(-beta * np.array(LOSSES))
    return weights


def test_per_class_weighs_those_who_have_the_class_and_everybody_where_nobody_has(bench, opinions, same):
    me = bench.server()
    ups = opinions(loss=LOSSES, class_losses=[torch.tensor(row, dtype=torch.float32) for row in CLASS_LOSSES])
    algorithm = AdaFD(weighting=ENWC(3.0), per_class=True)
    weights = algorithm.weights(bench.server(), ups)
    np.testing.assert_allclose(weights[:, 0, :].numpy(), per_class_by_hand(3.0), rtol=1e-6)
    algorithm.server(me, ups)
    centred = logits_of(ups) - logits_of(ups).mean(-1, keepdims=True)
    same(me, bench.after_one_step(squared_error(np.einsum("kc,knc->nc", per_class_by_hand(3.0), centred))))


def test_per_class_and_per_sample_multiply_and_sum_to_one(bench, opinions):
    ups = opinions(loss=LOSSES, class_losses=[torch.tensor(row, dtype=torch.float32) for row in CLASS_LOSSES])
    weights = AdaFD(weighting=ENWC(3.0), per_class=True, per_sample=True).weights(bench.server(), ups)
    sure = np.exp(-entropy(softmax(logits_of(ups), axis=-1), axis=-1) / np.log(3))
    expected = per_class_by_hand(3.0)[:, None, :] * sure[:, :, None]
    np.testing.assert_allclose(weights.numpy(), expected / expected.sum(0), rtol=1e-6)


def test_per_class_with_another_weighting_than_enwc_is_refused():
    with pytest.raises(FedstillError, match=r"per_class .* `weighting: ENWC`"):
        make({"name": "AdaFD", "weighting": "RNWC", "per_class": True})


def test_a_loss_scaled_by_label_entropy_no_longer_favours_a_client_with_one_class(bench, opinions):
    # 98 of 100 rows in one class have entropy 0.11, about 0.1 ln 3 = 0.10986; one class alone has 0 and is floored.
    counts = [[30, 30, 40], [98, 1, 1], [100, 0, 0]]
    ups = opinions(loss=LOSSES, counts=counts)
    weights = AdaFD(weighting=ENWC(0.5), loss_scale="label_entropy").weights(bench.server(), ups)
    entropies = [
        -(0.6 * math.log(0.3) + 0.4 * math.log(0.4)),
        -(0.98 * math.log(0.98) + 0.02 * math.log(0.01)),
        0.1 * math.log(3),
    ]
    assert entropies[1] > entropies[2]
    expected = softmax(-0.5 * np.array(LOSSES) / entropies)
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-9)


def test_label_entropy_names_the_client_that_withholds_its_counts(bench, opinions):
    ups = opinions(loss=LOSSES, counts=[[1, 2, 3]] * 3)
    clients = dict(ups.clients) | {"films": replace(ups.clients["films"], label_counts=None)}
    with pytest.raises(FedstillError, match="label counts, and films withholds them"):
        AdaFD(loss_scale="label_entropy").weights(bench.server(), replace(ups, clients=clients))


# The client's side


def test_a_client_reports_the_smallest_epoch_mean_of_its_losses(bench):
    # Plain gradient descent on a batch of everything, at a rate that overshoots: the losses go up and down.
    opinion = AdaFD().opine(bench.client(train={"epochs": 4, "rate": 40.0}))
    module = bench.model().module
    rows = bench.rows(bench.private)
    batch = rows.batch(torch.arange(12), torch.device("cpu"))
    descent = torch.optim.SGD(module.parameters(), lr=40.0)
    seen = []
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(module(**batch), rows.labels)
        seen.append(loss.item())
        descent.zero_grad()
        loss.backward()
        descent.step()
    assert opinion.loss == pytest.approx(min(seen), rel=1e-5)
    assert min(seen) < seen[-1], "the smallest must not be the last here"


def test_a_client_speaks_of_the_public_rows_after_training_and_of_its_loss_only(bench):
    me, twin = bench.client(), bench.client()
    opinion = AdaFD().opine(me)
    twin.train()
    torch.testing.assert_close(opinion.logits, twin.predict())
    assert (opinion.class_losses, opinion.f1, opinion.labelled_logits) == (None, None, None)


def test_per_class_losses_mark_a_class_that_the_client_has_not(bench):
    me = bench.client()
    two_classes = np.array([number for number in range(12, 24) if number % 3 != 1])
    me.data = replace(me.data, train=bench.rows(two_classes))
    opinion = AdaFD(per_class=True).opine(me)
    assert opinion.class_losses[1] == -1.0
    module = bench.model().module
    batch = bench.rows(two_classes).batch(torch.arange(8), torch.device("cpu"))
    each = torch.nn.functional.cross_entropy(module(**batch), bench.labels[two_classes], reduction="none")
    for label in (0, 2):
        mean = each[bench.labels[two_classes] == label].mean().item()
        assert opinion.class_losses[label].item() == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("how", ["kl", "hard"])
def test_a_client_steps_towards_the_answer(bench, same, how):
    me = bench.client()
    answer = fedstill.Answer(torch.randn(12, 3, generator=torch.Generator().manual_seed(5)))
    AdaFD(client_loss=how).digest(me, answer)

    def towards(logits):
        if how == "hard":
            return torch.nn.functional.cross_entropy(logits, answer.logits.argmax(-1))
        wanted = answer.logits.softmax(-1)
        return (wanted * (wanted.log() - logits.log_softmax(-1))).sum(-1).mean()

    same(me, bench.after_one_step(towards))


def test_the_title_names_the_variant():
    assert make("AdaFD").title == "AdaFD w/ ENWC"
    finer = make({"name": "AdaFD", "per_sample": True, "loss_scale": "label_entropy", "weighting": "RNWC"})
    assert finer.title == "AdaFD w/ RNWC per_sample label_entropy"


# A whole small federation


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
