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
from fedstill.algorithms.competence import odds
from fedstill.algorithms.reading import sharpness
from fedstill.algorithms.weightings import ENWC, RNWC
from fedstill.common.errors import FedstillError
from fedstill.common.randomness import generator
from fedstill.results.record import read_lines

LOSSES = [0.2, 0.5, 1.1]


def paper(**options):
    """The paper's equations as printed."""
    return AdaFD(reading="paper", **options)


def logits_of(ups):
    return ups.column("logits").double().numpy()


def squared_error(target):
    """Eq. 10 by hand: the mean over samples of the mean over classes."""
    return lambda logits: ((logits - torch.as_tensor(target, dtype=torch.float32)) ** 2).mean()


# The server's step


def test_the_server_steps_towards_the_weighted_sum_of_the_logits(bench, opinions, same):
    me, ups = bench.server(), opinions(loss=LOSSES)
    paper(weighting=ENWC(5.0)).server(me, ups)
    target = np.einsum("k,knc->nc", softmax(-5 * np.array(LOSSES)), logits_of(ups))
    same(me, bench.after_one_step(squared_error(target)))


def test_a_server_loss_of_kl_steps_on_the_divergence_from_the_blend(bench, opinions, same):
    me, ups = bench.server(), opinions(loss=LOSSES)
    paper(weighting=RNWC(), server_loss="kl", temperature=2.0).server(me, ups)
    weights = 1 / np.array(LOSSES) / sum(1 / np.array(LOSSES))
    target = torch.tensor(np.einsum("k,knc->nc", weights, logits_of(ups)), dtype=torch.float32)

    def divergence(logits):
        wanted = torch.softmax(target / 2, -1)
        return 4 * (wanted * (wanted.log() - torch.log_softmax(logits / 2, -1))).sum(-1).mean()

    same(me, bench.after_one_step(divergence))


def test_centred_logits_take_the_mean_over_classes_out_of_both_sides(bench, opinions, same):
    me, ups = bench.server(), opinions(loss=LOSSES)
    paper(center_logits=True).server(me, ups)
    target = np.einsum("k,knc->nc", softmax(-5 * np.array(LOSSES)), logits_of(ups))
    centred = squared_error(target - target.mean(1, keepdims=True))
    same(me, bench.after_one_step(lambda logits: centred(logits - logits.mean(1, keepdim=True))))


def test_the_answer_is_the_servers_prediction_after_distilling_in_eval_mode(bench, opinions):
    me, ups = bench.server(), opinions(loss=LOSSES)
    # A dropout in front of the head: a model left in train mode would answer at random.
    me.model.module = Dropping(me.model.module)
    before = me.predict()
    answer = paper().server(me, ups)
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
    paper(weighting=ENWC(2.0)).server(me, ups)
    losses, line = me.metrics
    assert losses["values"] == pytest.approx(dict(zip(("books", "films", "shoes"), LOSSES, strict=True)))
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
    weights = paper(per_sample=True).weights(bench.server(), ups)
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
    algorithm = paper(weighting=ENWC(3.0), per_class=True)
    weights = algorithm.weights(bench.server(), ups)
    np.testing.assert_allclose(weights[:, 0, :].numpy(), per_class_by_hand(3.0), rtol=1e-6)
    algorithm.server(me, ups)
    centred = logits_of(ups) - logits_of(ups).mean(-1, keepdims=True)
    same(me, bench.after_one_step(squared_error(np.einsum("kc,knc->nc", per_class_by_hand(3.0), centred))))


def test_per_class_and_per_sample_multiply_and_sum_to_one(bench, opinions):
    ups = opinions(loss=LOSSES, class_losses=[torch.tensor(row, dtype=torch.float32) for row in CLASS_LOSSES])
    weights = paper(weighting=ENWC(3.0), per_class=True, per_sample=True).weights(bench.server(), ups)
    sure = np.exp(-entropy(softmax(logits_of(ups), axis=-1), axis=-1) / np.log(3))
    expected = per_class_by_hand(3.0)[:, None, :] * sure[:, :, None]
    np.testing.assert_allclose(weights.numpy(), expected / expected.sum(0), rtol=1e-6)


def test_per_class_with_another_weighting_than_enwc_is_refused():
    with pytest.raises(FedstillError, match=r"per_class .* `weighting: ENWC`"):
        make({"name": "AdaFD", "weighting": "RNWC", "per_class": True})


def test_competence_weighs_by_size_and_by_the_odds_that_a_sample_is_like_a_clients_own(bench, opinions):
    told = torch.rand(3, 12, generator=torch.Generator().manual_seed(1)) + 0.1
    ups = opinions(loss=LOSSES, competence=list(told))
    weights = paper(competence=True, weighting=ENWC(1.0)).weights(bench.server(), ups)
    sizes = np.array([ups.clients[name].size for name in ups])
    expected = (softmax(-np.array(LOSSES)) * sizes)[:, None] * told.double().numpy()
    np.testing.assert_allclose(weights[:, :, 0].numpy(), expected / expected.sum(0), rtol=1e-6)


def test_a_client_finds_public_samples_with_its_own_words_more_likely(bench):
    me = bench.client()
    me.data = replace(me.data, train=bench.rows(np.arange(0, 6)))  # half of the public rows are its own
    told = odds(me)
    assert told.shape == (12,)
    assert told[:6].min() > told[6:].max()


# The client's side


def test_a_client_reports_the_smallest_epoch_mean_of_its_losses(bench):
    # Plain gradient descent on a batch of everything, at a rate that overshoots: the losses go up and down.
    opinion = paper().opine(bench.client(train={"epochs": 4, "rate": 40.0}))
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
    opinion = paper().opine(me)
    twin.train()
    torch.testing.assert_close(opinion.logits, twin.predict())
    assert (opinion.class_losses, opinion.f1, opinion.labelled_logits) == (None, None, None)


def test_per_class_losses_mark_a_class_that_the_client_has_not(bench):
    me = bench.client()
    two_classes = np.array([number for number in range(12, 24) if number % 3 != 1])
    me.data = replace(me.data, train=bench.rows(two_classes))
    opinion = paper(per_class=True).opine(me)
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
    paper(client_loss=how).digest(me, answer)

    def towards(logits):
        if how == "hard":
            return torch.nn.functional.cross_entropy(logits, answer.logits.argmax(-1))
        wanted = answer.logits.softmax(-1)
        return (wanted * (wanted.log() - logits.log_softmax(-1))).sum(-1).mean()

    same(me, bench.after_one_step(towards))


def test_the_title_names_the_variant():
    assert make("AdaFD").title == "AdaFD w/ ENWC"
    assert make({"name": "AdaFD", "reading": "paper"}).title == "AdaFD (paper) w/ ENWC"
    finer = make({"name": "AdaFD", "per_sample": True, "loss_scale": "none", "weighting": "RNWC"})
    assert finer.title == "AdaFD w/ RNWC per_sample loss_scale=none"


# The default: opinions and losses on one scale


def test_by_default_the_answer_is_the_sharpened_blend_of_probabilities_and_the_server_distils_it_by_kl(
    bench, opinions, same
):
    me, ups = bench.server(), opinions(loss=LOSSES)
    answer = AdaFD().server(me, ups)
    probabilities = np.einsum("k,knc->nc", softmax(-np.array(LOSSES)), softmax(logits_of(ups), axis=-1))
    np.testing.assert_allclose(answer.logits.numpy(), probabilities / 0.3, rtol=1e-5)
    wanted = torch.softmax(answer.logits, -1)
    same(me, bench.after_one_step(lambda z: (wanted * (wanted.log() - z.log_softmax(-1))).sum(-1).mean()))


def test_loud_logits_do_not_decide_by_default(bench, opinions):
    ups = opinions(loss=LOSSES)
    loud = ups.change("logits", lambda z: z)
    loud.messages["shoes"] = replace(loud["shoes"], logits=1000 * loud["shoes"].logits)
    blends = [AdaFD(weighting=ENWC(0.0)).teachers(each).mean("logits") for each in (ups, loud)]
    assert float((blends[1] - blends[0]).abs().max()) <= 1 / 3  # its weight
    raw = [paper(weighting=ENWC(0.0)).teachers(each).mean("logits") for each in (ups, loud)]
    assert float((raw[1] - raw[0]).abs().max()) > 100


def test_without_sharpening_the_answer_is_the_log_of_the_blend(bench, opinions):
    ups = opinions(loss=LOSSES)
    answer = AdaFD(sharpen=0.0, weighting=ENWC(0.0)).server(bench.server(), ups)
    np.testing.assert_allclose(answer.logits.numpy(), np.log(softmax(logits_of(ups), axis=-1).mean(0)), atol=1e-5)


@pytest.mark.parametrize("classes", [5, 14, 100])
def test_with_many_classes_a_sure_blend_stays_nine_tenths_sure(classes):
    sure = np.eye(classes)[0] / sharpness(classes)
    assert softmax(sure)[0] == pytest.approx(0.9)
    assert sharpness(classes) < sharpness(4) == sharpness(2) == 0.3


def test_the_server_may_learn_from_softer_labels_than_it_answers_with(bench, opinions, same):
    me, ups = bench.server(), opinions(loss=LOSSES)
    answer = AdaFD(sharpen=0.1, server_sharpen=0.0).server(me, ups)
    probabilities = np.einsum("k,knc->nc", softmax(-np.array(LOSSES)), softmax(logits_of(ups), axis=-1))
    np.testing.assert_allclose(answer.logits.numpy(), probabilities / 0.1, rtol=1e-5)
    wanted = torch.from_numpy(probabilities).float()
    same(me, bench.after_one_step(lambda z: (wanted * (wanted.log() - z.log_softmax(-1))).sum(-1).mean()))


def test_a_client_divides_its_loss_by_the_entropy_of_its_labels_at_least_a_tenth_of_the_largest(bench):
    for rows, expected in (
        (np.arange(12, 24), math.log(3)),
        (np.array([number for number in range(12, 24) if number % 3 == 0]), 0.1 * math.log(3)),
    ):
        opinions = []
        for scale in ("none", "label_entropy"):
            me = bench.client()
            me.data = replace(me.data, train=bench.rows(rows))
            opinions.append(AdaFD(loss_scale=scale).opine(me).loss)
        assert opinions[0] / opinions[1] == pytest.approx(expected, rel=1e-5)


def test_a_client_rehearses_its_own_rows_while_it_distils(bench, same):
    me = bench.client(distill={"batch": 24})
    answer = fedstill.Answer(torch.randn(12, 3, generator=torch.Generator().manual_seed(5)))
    AdaFD(linear="alike").digest(me, answer)
    module, device = bench.model().module, torch.device("cpu")
    public, own = bench.rows(bench.public), bench.rows(bench.private)
    optimiser = torch.optim.SGD(module.parameters(), lr=me.spec.distill.rate)
    wanted, heard = answer.logits.softmax(-1), module(**public.batch(torch.arange(12), device))
    towards = (wanted * (wanted.log() - heard.log_softmax(-1))).sum()
    labels = torch.nn.functional.cross_entropy(
        module(**own.batch(torch.arange(12), device)), own.labels, reduction="sum"
    )
    ((towards + labels) / 24).backward()
    optimiser.step()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(me.parameters()[name], value, rtol=1e-4, atol=1e-6)


def answer_of(classes):
    """An answer that names these classes."""
    return fedstill.Answer(torch.eye(3)[torch.tensor(classes)])


@pytest.mark.parametrize("classes", [[2] * 12, [2] * 19 + [0]])
def test_a_wary_client_learns_its_own_rows_instead_of_an_answer_that_names_one_class(bench, same, classes):
    me, twin = bench.client(), bench.client()
    AdaFD().digest(me, answer_of(classes))
    twin.train()
    same(me, twin.parameters(), tolerance=0)


def test_an_answer_that_names_several_classes_is_learnt_from_and_one_class_too_where_nobody_is_wary(bench, same):
    me, wary, bold = bench.client(), bench.client(), bench.client()
    AdaFD(wary=False).digest(me, answer_of([2] * 11 + [0]))
    AdaFD().digest(wary, answer_of([2] * 11 + [0]))
    same(wary, me.parameters(), tolerance=0)
    AdaFD(wary=False).digest(bold, answer_of([2] * 12))
    wanted = (torch.eye(3)[[2] * 12] * 0.3 / 0.1).softmax(-1)
    same(bold, bench.after_one_step(lambda logits: (wanted * (wanted.log() - logits.log_softmax(-1))).sum(-1).mean()))


def test_the_server_says_that_its_blend_names_one_class(bench, opinions):
    me = bench.server()
    one = opinions(loss=[1.0, 1.0, 1.0]).change("logits", lambda logits: logits + 50 * torch.eye(3)[1])
    AdaFD().server(me, one)
    assert me.notes == [
        "the blend names one class (fine) for nearly all public rows: clients learn from their own rows instead."
    ]


def test_a_linear_client_learns_from_sharper_labels_and_does_not_rehearse(bench, same):
    me = bench.client()
    answer = fedstill.Answer(torch.randn(12, 3, generator=torch.Generator().manual_seed(5)))
    AdaFD().digest(me, answer)
    wanted = (answer.logits * 0.3 / 0.1).softmax(-1)
    same(me, bench.after_one_step(lambda logits: (wanted * (wanted.log() - logits.log_softmax(-1))).sum(-1).mean()))


@pytest.mark.parametrize("how", [{"sharpen": 0}, {"sharpen": 0.05}, {"answer": "server"}])
def test_what_is_sharp_already_or_was_never_divided_stays_as_it_is_for_a_linear_client(bench, same, how):
    me = bench.client()
    answer = fedstill.Answer(torch.randn(12, 3, generator=torch.Generator().manual_seed(5)))
    AdaFD(**how).digest(me, answer)
    wanted = answer.logits.softmax(-1)
    same(me, bench.after_one_step(lambda logits: (wanted * (wanted.log() - logits.log_softmax(-1))).sum(-1).mean()))


@pytest.mark.parametrize(
    ("method", "rate"),
    [
        (AdaFD(linear="alike"), 0.25),
        (AdaFD(linear="alike", settling=0.2), 0.1),
        (AdaFD(), 0.5),
        (AdaFD(settling=0, linear="alike"), 0.0),
        (paper(), 0.0),
    ],
)
def test_after_the_last_answer_a_client_learns_its_own_rows_for_one_epoch(bench, same, method, rate):
    me = bench.client(train={"epochs": 3})
    method.settle(me)
    labels = bench.labels[bench.private]
    same(me, bench.after_one_step(lambda z: torch.nn.functional.cross_entropy(z, labels), bench.private, rate))


def test_a_client_is_measured_once_after_its_last_answer_when_it_has_settled(bench):
    me, twin = bench.client(), bench.client()
    answer = fedstill.Answer(torch.randn(12, 3, generator=torch.Generator().manual_seed(5)))
    for party in (me, twin):
        party.enter(2)
    AdaFD().close(me, answer)
    AdaFD().digest(twin, answer)
    AdaFD().settle(twin)
    twin.evaluate("distilled", round=1)
    assert me.metrics == twin.metrics
    assert len({line["stage"] for line in me.metrics}) == 1


def test_opinions_on_a_fitted_temperature_and_the_loss_of_the_rows_held_out(bench):
    me, twin = bench.client(), bench.client()
    held_out = bench.rows(bench.private[:6])
    for party in (me, twin):
        party.data = replace(party.data, validation=held_out)
    opinion = AdaFD(calibrate=True, loss="validation", loss_scale="none").opine(me)
    twin.train()
    logits = twin.predict(held_out).double()
    losses = {
        t: torch.nn.functional.cross_entropy(logits / t, held_out.labels).item() for t in np.geomspace(0.1, 20, 70)
    }
    best = min(losses, key=losses.get)
    assert opinion.loss == pytest.approx(losses[best], rel=1e-6)
    torch.testing.assert_close(opinion.logits, (twin.predict() / best).float(), rtol=1e-4, atol=1e-6)


def test_a_label_prior_is_taken_off_and_unit_spread_has_a_deviation_of_one(bench, opinions):
    me, twin = bench.client(), bench.client()
    said = paper(prior=True).opine(me).logits
    twin.train()
    shares = (twin.label_counts() + 1) / (twin.label_counts() + 1).sum()
    torch.testing.assert_close(said, twin.predict() - shares.log())
    spread = paper(opinions="unit_spread").teachers(opinions(loss=LOSSES)).column("logits")
    np.testing.assert_allclose(spread.std(dim=(1, 2)).numpy(), 1, rtol=1e-5)
    np.testing.assert_allclose(spread.mean(-1).numpy(), 0, atol=1e-6)


def test_as_released_the_optimiser_starts_again_with_every_epoch(bench, same):
    adam = {"epochs": 2, "optimiser": "adamw", "rate": 0.01}
    me, twin = bench.client(train=adam), bench.client(train={**adam, "restart": "epoch"})
    AdaFD(reading="released").opine(me)
    twin.train()
    same(me, twin.parameters())
    once = bench.client(train=adam)
    once.train()
    assert any(not torch.equal(value, me.parameters()[name]) for name, value in once.parameters().items())


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
