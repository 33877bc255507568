from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import softmax

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.dsfl import DSFL
from fedstill.algorithms.fedkd import FedKD
from fedstill.algorithms.logit_avg import LogitAvg
from fedstill.algorithms.mhat import MHAT
from fedstill.plan.prepare import prepare

SIZES = np.array([10, 20, 70])
"""As the clients of the `opinions` fixture say."""


def logits_of(ups):
    return ups.column("logits").double().numpy()


def single(array):
    return torch.as_tensor(array, dtype=torch.float32)


def divergence(teacher):
    """KL(s(teacher)||s(logits)), the mean over samples."""
    wanted = single(teacher).softmax(-1)
    return lambda logits: (wanted * (wanted.log() - logits.log_softmax(-1))).sum(-1).mean()


def vote(teacher):
    return lambda logits: torch.nn.functional.cross_entropy(logits, single(teacher).argmax(-1))


def answer_of(seed):
    return fedstill.Answer(torch.randn(12, 3, generator=torch.Generator().manual_seed(seed)))


# LogitAvg


def test_logit_avg_distils_the_plain_mean_by_kl_and_answers_with_the_servers_prediction(bench, opinions, same):
    me, ups = bench.server(), opinions()
    answer = LogitAvg().server(me, ups)
    same(me, bench.after_one_step(divergence(logits_of(ups).mean(0))))
    torch.testing.assert_close(answer.logits, me.predict())


@pytest.mark.parametrize(("option", "loss"), [({}, divergence), ({"client_loss": "hard"}, vote)])
def test_logit_avg_clients_follow_the_answer_softly_or_by_its_argmax(bench, same, option, loss):
    me, answer = bench.client(), answer_of(5)
    LogitAvg(**option).digest(me, answer)
    same(me, bench.after_one_step(loss(answer.logits)))


# DS-FL


def test_dsfl_clients_send_probabilities(bench):
    me, twin = bench.client(), bench.client()
    opinion = DSFL().opine(me)
    twin.train()
    np.testing.assert_allclose(opinion.logits.numpy(), softmax(twin.predict().double().numpy(), -1), rtol=1e-5)


def test_dsfl_sharpens_the_mean_probability_not_the_mean_logit(bench, opinions):
    # Two clients on one sample: the mean of (0.5, 0.3, 0.2) and (0.2, 0.5, 0.3) is (0.35, 0.4, 0.25); over T = 0.1
    # the softmax of (3.5, 4, 2.5) is (0.33150, 0.54655, 0.12195).
    rows = [torch.tensor([p] * 12) for p in ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3])]
    answer = DSFL().server(bench.server(), opinions(clients=2, logits=rows))
    np.testing.assert_allclose(answer.logits[0].numpy(), [3.5, 4.0, 2.5], rtol=1e-6)
    np.testing.assert_allclose(answer.logits.softmax(-1)[7].numpy(), [0.33150, 0.54655, 0.12195], atol=1e-5)


def test_dsfl_by_size_weighs_by_rows(bench, opinions):
    rows = [torch.tensor([p] * 12) for p in ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3])]
    answer = DSFL(weights="size").server(bench.server(), opinions(clients=2, logits=rows))
    # 10 and 20 rows: a third and two thirds.
    np.testing.assert_allclose(answer.logits[0].numpy(), [3.0, 13 / 3, 8 / 3], rtol=1e-6)


def test_dsfl_server_and_clients_minimise_the_divergence_from_the_sharpened_labels(bench, opinions, same):
    server, client = bench.server(), bench.client()
    probabilities = [opinion.logits.softmax(-1) for opinion in opinions().values()]
    answer = DSFL().server(server, opinions(logits=probabilities))
    DSFL().digest(client, answer)
    sharpened = np.mean([p.double().numpy() for p in probabilities], axis=0) / 0.1
    expected = bench.after_one_step(divergence(sharpened))
    same(server, expected)
    same(client, expected)


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_dsfl_as_released_distils_the_argmax_of_the_sharpened_mean_logits(bench, opinions, same, weights):
    algorithm, ups = DSFL(reading="released", weights=weights), opinions()
    server, client = bench.server(), bench.client()
    answer = algorithm.server(server, ups)
    algorithm.digest(client, answer)
    shares = SIZES / SIZES.sum() if weights == "size" else np.full(3, 1 / 3)
    era = softmax(np.einsum("k,knc->nc", shares, logits_of(ups)) / 0.1, -1)
    np.testing.assert_allclose(answer.logits.softmax(-1).numpy(), era, rtol=1e-4, atol=1e-7)
    expected = bench.after_one_step(vote(era))
    same(server, expected)
    same(client, expected)


def test_dsfl_as_released_clients_send_logits(bench):
    me, twin = bench.client(), bench.client()
    opinion = DSFL(reading="released").opine(me)
    twin.train()
    torch.testing.assert_close(opinion.logits, twin.predict(), rtol=0, atol=0)


# MHAT


def test_mhat_server_minimises_the_weighted_cross_entropies_with_everybodys_votes(bench, opinions, same):
    me, ups = bench.server(), opinions()
    answer = MHAT().server(me, ups)

    def votes(logits):
        each = [torch.nn.functional.cross_entropy(logits, opinion.logits.argmax(-1)) for opinion in ups.values()]
        return sum(share * loss for share, loss in zip(SIZES / SIZES.sum(), each, strict=True))

    same(me, bench.after_one_step(votes))
    torch.testing.assert_close(answer.logits, me.predict())


def test_mhat_with_kl_distils_the_logits_weighted_by_size(bench, opinions, same):
    me, ups = bench.server(), opinions()
    MHAT(server_loss="kl").server(me, ups)
    blend = np.einsum("k,knc->nc", SIZES / SIZES.sum(), logits_of(ups))
    same(me, bench.after_one_step(divergence(blend)))


@pytest.mark.parametrize(("option", "loss"), [({}, vote), ({"client_loss": "kl"}, divergence)])
def test_mhat_clients_follow_the_argmax_or_softly(bench, same, option, loss):
    me, answer = bench.client(), answer_of(6)
    MHAT(**option).digest(me, answer)
    same(me, bench.after_one_step(loss(answer.logits)))


# FedKD


@pytest.mark.parametrize("reading", ["paper", "released", "text"])
def test_fedkd_distils_the_logits_weighted_by_size(bench, opinions, same, reading):
    me, ups = bench.server(), opinions()
    assert FedKD(reading=reading).server(me, ups) is None
    blend = single(np.einsum("k,knc->nc", SIZES / SIZES.sum(), logits_of(ups)))
    loss = divergence(blend) if reading == "text" else lambda logits: ((logits - blend) ** 2).mean()
    same(me, bench.after_one_step(loss))


def test_fedkd_original_weighs_each_class_by_who_has_it_and_takes_absolute_differences(bench, opinions, same):
    me, ups = bench.server(), opinions(counts=[[8, 2, 0], [0, 20, 0], [24, 28, 0]])
    FedKD(reading="original").server(me, ups)
    # Of the first class 8 + 0 + 24 rows, of the second 2 + 20 + 28; nobody has the third: there by size.
    weights = np.array([[8 / 32, 2 / 50, 0.1], [0, 20 / 50, 0.2], [24 / 32, 28 / 50, 0.7]])
    blend = single(np.einsum("kc,knc->nc", weights, logits_of(ups)))
    same(me, bench.after_one_step(lambda logits: (logits - blend).abs().mean()))


def test_fedkd_original_rounds_to_hundredths_of_the_largest_logit(bench):
    me, twin = bench.client(), bench.client()
    for party in (me, twin):
        party.model.module.bias.data -= 5  # so that the largest is below zero: its size counts, not its sign
    opinion = FedKD(reading="original", noise=0.0).opine(me)
    twin.train()
    exact = twin.predict().double().numpy()
    step = np.abs(exact).max() / 100
    steps = opinion.logits.double().numpy() / step
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)
    assert np.abs(steps - exact / step).max() < 0.501
    assert np.abs(steps).max() == pytest.approx(100, rel=1e-5)
    assert np.abs(opinion.logits.numpy() - exact).max() > step / 10


def test_fedkd_original_noise_is_laplace_of_so_many_steps_and_the_same_for_the_same_round(bench):
    me, twin, quiet = bench.client(), bench.client(), bench.client()
    noisy = FedKD(reading="original", noise=2.0).opine(me).logits
    again = FedKD(reading="original", noise=2.0).opine(twin).logits
    plain = FedKD(reading="original", noise=0.0).opine(quiet).logits
    torch.testing.assert_close(noisy, again, rtol=0, atol=0)
    step = quiet.predict().abs().max().item() / 100
    drawn = me.generator("laplace").laplace(scale=2.0 * step, size=(12, 3))
    np.testing.assert_allclose((noisy - plain).numpy(), drawn, rtol=1e-3, atol=1e-5)


def test_fedkd_speaks_once_in_the_last_round_and_hears_nothing(experiment, tmp_path):
    record = fedstill.run(experiment(algorithm="FedKD", rounds=3), tmp_path / "run")
    samples = len(load_file(tmp_path / "run" / "partition.safetensors")["public"])
    opinions = [line for line in record.ledger if line["message"] == "Opinion"]
    assert [(line["round"], line["messages"], line["payload"]) for line in opinions] == [(3, 3, 4 * samples * 3 * 3)]
    said = {"Opinion", "Hello"}
    assert sum(line["payload"] for line in record.ledger if line["message"] not in said) == 0
    assert not [line for line in record.ledger if line["message"] == "Answer"]
    trained = Counter(m["round"] for m in record.metrics if m.get("stage") == "trained" and m["split"] == "test")
    assert trained == {1: 3, 2: 3, 3: 3}


def test_fedkd_may_train_in_the_last_round_only(experiment, tmp_path):
    record = fedstill.run(experiment(algorithm={"name": "FedKD", "local": "last_round"}, rounds=3), tmp_path / "run")
    assert {m["round"] for m in record.metrics if m.get("stage") == "trained"} == {3}
    assert {line["round"] for line in record.ledger if line["message"] == "Opinion"} == {3}


def test_fedkd_as_released_is_e_epochs_of_training_once_and_one_distillation(experiment, tmp_path):
    asked = experiment(algorithm={"name": "FedKD", "reading": "released"}, rounds=3)
    record = fedstill.run(asked, tmp_path / "run")
    assert {m["round"] for m in record.metrics if m.get("stage") == "trained"} == {3}
    _, plan, _ = prepare(asked, tmp_path / "other")
    alone = plan.make_client("films", lambda event: None)
    alone.enter(3)
    alone.train()
    written = load_file(record.model_folder("films") / "model.safetensors")
    for name, value in alone.parameters().items():
        torch.testing.assert_close(written[name], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "title"),
    [
        ({"name": "DSFL"}, "DSFL"),
        ({"name": "DSFL", "reading": "released"}, "DS-FL as released"),
        ({"name": "DSFL", "reading": "released", "labelled": True}, "DS-FL (released) w/ labelled rows"),
        ({"name": "FedKD"}, "FedKD"),
        ({"name": "FedKD", "reading": "released"}, "FedKD as released"),
        ({"name": "FedKD", "reading": "released", "labelled": True}, "FedKD (released)"),
        ({"name": "FedKD", "reading": "text"}, "FedKD (text)"),
        ({"name": "FedDF"}, "FedDF"),
        ({"name": "FedDF", "reading": "released"}, "FedDF as released"),
    ],
)
def test_titles_say_as_released_only_where_it_is_so(options, title):
    assert make(options).title == title


# The bounds


def test_local_trains_every_round_measures_no_server_and_sends_no_logits(experiment, tmp_path):
    record = fedstill.run(experiment(algorithm="Local"), tmp_path / "run")
    assert {m["party"] for m in record.metrics if "split" in m} == {"books", "films", "shoes"}
    told = [m["values"] for m in record.metrics if m.get("observation") == "losses"]
    assert [set(values) for values in told] == [{"books", "films", "shoes"}] * record.summary["rounds"]
    assert told[-1]["books"] < told[0]["books"]
    assert "server" not in record.summary["scores"]
    assert not (tmp_path / "run" / "models" / "server").exists()
    assert {line["message"] for line in record.ledger if line["direction"] == "up"} == {"Hello", "Done"}


def test_local_is_the_clients_training_phase_t_times(experiment, tmp_path):
    asked = experiment(algorithm="Local", rounds=3)
    record = fedstill.run(asked, tmp_path / "run")
    _, plan, _ = prepare(asked, tmp_path / "other")
    alone = plan.make_client("films", lambda event: None)
    for number in (1, 2, 3):
        alone.enter(number)
        alone.train()
    written = load_file(record.model_folder("films") / "model.safetensors")
    for name, value in alone.parameters().items():
        torch.testing.assert_close(written[name], value, rtol=0, atol=0)


def test_centralized_is_the_servers_model_trained_on_all_private_rows_t_times(experiment, tmp_path):
    asked = experiment(algorithm="Centralized", rounds=2)
    record = fedstill.run(asked, tmp_path / "run")
    _, plan, _ = prepare(asked, tmp_path / "other")
    private = np.concatenate([plan.partition.train[name] for name in ("books", "films", "shoes")])
    alone = plan.make_server(lambda event: None)
    np.testing.assert_array_equal(alone.pooled.rows, private)
    np.testing.assert_array_equal(alone.pooled.labels.numpy(), plan.row_labels[private])
    for number in (1, 2):
        alone.enter(number)
        alone.train(alone.pooled)
    written = load_file(record.model_folder() / "model.safetensors")
    for name, value in alone.parameters().items():
        torch.testing.assert_close(written[name], value, rtol=0, atol=0)
    assert {m["party"] for m in record.metrics} == {"server"}
    assert [line["payload"] for line in record.ledger if line["round"] > 0] == []


@pytest.mark.parametrize("name", ["LogitAvg", "DSFL", "MHAT"])
def test_logit_methods_cost_nc_times_k_plus_1_numbers_a_round(experiment, tmp_path, name):
    record = fedstill.run(experiment(algorithm=name), tmp_path / "run")
    samples = len(load_file(tmp_path / "run" / "partition.safetensors")["public"])
    crossed = sum(line["payload"] for line in record.ledger if line["message"] in ("Opinion", "Answer"))
    assert crossed == 2 * 4 * samples * 3 * (3 + 1)
    assert make(name).cost == "NC(K+1)"
