"""FedSND: self-distillation at the clients, noise distillation at the server."""

import csv
from itertools import product

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import log_softmax, rel_entr, softmax

import fedstill
from fedstill.algorithms.fedsnd import FedSND
from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment
from fedstill.learning.losses import task_ce
from fedstill.plan.prepare import prepare
from fedstill.wire.messages import Hello, Parameters
from fedstill.wire.replies import Replies
from tests.engines.conftest import content
from tests.engines.test_resume import stop_after, stop_in

QUICK = {"name": "FedSND", "steps": 8}
TEXTCNN = {"name": "textcnn", "embedding": 8, "filters": 6}


@pytest.fixture
def digits(folder_of_reviews, monkeypatch):
    """Three small networks and 90 digits: a run takes a second."""
    monkeypatch.setenv("FEDSTILL_CACHE", str(folder_of_reviews / "cache"))

    def make(**changes):
        settings = {
            "name": "digits",
            "corpus": {"name": "digits", "size": 8},
            "partition": {"kind": "iid", "clients": 3, "public": 0.0, "validation": 0.0, "rows_per_domain": 90},
            "clients": {"name": "cnn", "filters": 4, "hidden": 8},
            "server": {"name": "cnn", "filters": 4, "hidden": 8},
            "algorithm": QUICK,
            "train": {"epochs": 2, "batch": 8, "rate": 0.01},
            "rounds": 1,
            "workers": 1,
            "device": "cpu",
        }
        return Experiment.model_validate(settings | changes)

    return make


def silent(event):
    pass


def model_of(record, party="server"):
    return load_file(record.model_folder(party) / "model.safetensors")


def observations(record):
    return [line for line in record.metrics if str(line.get("observation", "")).startswith("noise of")]


def active(record, round):
    return {line["party"] for line in record.metrics if line["round"] == round and line.get("stage") == "trained"}


# The clients


def test_the_loss_has_the_student_first_in_every_divergence():
    f = np.random.default_rng(0).normal(size=(3, 5, 4))
    labels = np.array([0, 3, 1, 2, 2])
    p1, p2, p3 = softmax(f, -1)
    truth = -(log_softmax(f[0], -1) + log_softmax(f[1], -1))[np.arange(5), labels]
    between = (p1 * np.log(p1 / p2)).sum(-1)
    behind = rel_entr(p1, p3).sum(-1) + rel_entr(p2, p3).sum(-1)
    method = FedSND(alpha=0.7, beta=1.3, gamma=0.4)
    found = method.self_loss(torch.from_numpy(f), torch.from_numpy(labels))
    np.testing.assert_allclose(found.numpy(), 0.7 * truth + 1.3 * between + 0.4 * behind, rtol=1e-12)


def test_with_a_head_a_task_the_truth_is_told_within_the_task():
    f = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 2, 4)))
    labels, tasks = torch.tensor([0, 3]), torch.tensor([0, 0, 1, 1])
    method = FedSND(alpha=1.0, beta=0.0, gamma=0.0)
    found = method.self_loss(f, labels, own=lambda z, y: task_ce(z, y, tasks))
    one = [-log_softmax(f[n, 0, :2].numpy())[0] for n in (0, 1)]
    other = [-log_softmax(f[n, 1, 2:].numpy())[1] for n in (0, 1)]
    np.testing.assert_allclose(found.numpy(), [sum(one), sum(other)], rtol=1e-12)


@pytest.mark.parametrize("teacher", ["epoch", "round"])
def test_the_teacher_is_the_model_before_this_epoch_or_before_this_round(bench, same, teacher):
    client = bench.client(train={"epochs": 3})
    FedSND(gamma=2.0, teacher=teacher, noise_distillation=False).opine(client)
    # Without dropout both passes are one: 2 CE + 2 gamma KL(p || p3), three plain steps on all rows.
    module, before = bench.model().module, bench.model().module
    batch = bench.rows(bench.private).batch(torch.arange(12), torch.device("cpu"))
    labels = bench.labels[bench.private]
    for _ in range(3):
        if teacher == "epoch":
            before.load_state_dict(module.state_dict())
        p, fixed = module(**batch).softmax(-1), before(**batch).detach().softmax(-1)
        truth = -p[torch.arange(12), labels].log()
        loss = (2 * truth + 2 * 2.0 * (p * (p / fixed).log()).sum(-1)).mean()
        slopes = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(module.parameters(), slopes, strict=True):
                parameter -= 0.5 * slope
    same(client, module.state_dict(), tolerance=1e-5)


def test_both_teachers_differ(bench):
    found = []
    for teacher in ("epoch", "round"):
        client = bench.client(train={"epochs": 3})
        found.append(FedSND(gamma=2.0, teacher=teacher).opine(client).parameters["weight.weight"])
    assert (found[0] - found[1]).abs().max() > 1e-3


# The server


@pytest.fixture
def server(digits, tmp_path):
    """A server of two clients of 10 and 14 rows, and their made-up models."""
    sure = {"name": "cnn", "filters": 4, "hidden": 8, "dropout": 0.0}
    _, plan, _ = prepare(digits(clients=sure, server=sure), tmp_path)
    server = plan.make_server(silent)
    server.enter(1)
    random = torch.Generator().manual_seed(0)
    models = {
        name: {k: v + 0.3 * torch.randn(v.shape, generator=random) for k, v in server.parameters().items()}
        for name in ("a", "b")
    }
    ups = Replies({name: Parameters(own) for name, own in models.items()}, {"a": Hello(10), "b": Hello(14)})
    return server, ups


def test_each_model_takes_one_step_towards_the_soft_labels_of_the_others_noise_before_the_average(server):
    me, ups = server
    method = FedSND(steps=5, rate=0.05)
    noise = method._noise(me, ups)
    assert {name: len(own.inputs) for name, own in noise.items()} == {"a": 5, "b": 7}
    module = me.model.module
    moved = {}
    for name, other in (("a", "b"), ("b", "a")):
        x = noise[other].inputs.store.values
        module.load_state_dict(ups[other].parameters)
        module.eval()
        y = softmax(module(pixels=x).detach().double().numpy(), -1)
        np.testing.assert_allclose(softmax(noise[other].logits.double().numpy(), -1), y, atol=1e-6)
        module.load_state_dict(ups[name].parameters)
        target = torch.from_numpy(y).float()
        loss = (target * (target.log() - module(pixels=x).log_softmax(-1))).sum(-1).mean()  # KL(y_c || p_t)
        slopes = torch.autograd.grad(loss, list(module.parameters()))
        own = ups[name].parameters  # which has no buffers, and so the order of the parameters
        moved[name] = {key: own[key] - 0.05 * slope for key, slope in zip(own, slopes, strict=True)}
    answer = method.server(me, ups)
    for key, value in answer.parameters.items():
        mean = (moved["a"][key] + moved["b"][key]) / 2
        torch.testing.assert_close(value, mean, rtol=1e-4, atol=1e-5)
    plain = (ups["a"].parameters["head.5.weight"] + ups["b"].parameters["head.5.weight"]) / 2
    assert (answer.parameters["head.5.weight"] - plain).abs().max() > 1e-3


def test_half_of_the_others_teach_each_model_and_never_itself(server):
    me, ups = server
    names = tuple("abcdefg")
    many = Replies(dict.fromkeys(names, ups["a"]), {name: Hello(4) for name in names})
    method = FedSND(steps=1)
    noise = method._noise(me, many)
    taught = []
    guest = me.model_from(None)
    guest.around.__dict__["tell"] = taught.append
    method._exchange(me, dict.fromkeys(names, ups["a"].parameters), noise)
    assert len([event for event in taught if event.phase == "distill"]) == 7 * 3


def test_one_active_client_has_nobody_to_learn_from(server):
    me, ups = server
    answer = FedSND().server(me, ups.only(["a"]))
    assert all(torch.equal(value, ups["a"].parameters[key]) for key, value in answer.parameters.items())
    assert "noise" not in me.seconds


def test_noise_for_all_classes_does_not_collapse_onto_a_few(server):
    me, ups = server
    spread = {}
    for balanced in (False, True):
        noise = FedSND(steps=100, balanced=balanced, noise_share=4.0)._noise(me, ups)
        spread[balanced] = torch.bincount(noise["a"].logits.argmax(-1), minlength=10)
    assert spread[True].sum() == spread[False].sum() == 40
    assert spread[True].max() < spread[False].max() / 2  # all ten are out of so small a random network's reach


def test_the_noise_of_a_round_can_be_made_again_and_differs_between_clients_and_rounds(server):
    me, ups = server
    ups = Replies({"a": ups["a"], "b": ups["a"]}, {"a": Hello(10), "b": Hello(10)})
    method = FedSND(steps=2)
    first = {name: own.inputs.store.values for name, own in method._noise(me, ups).items()}
    again = {name: own.inputs.store.values for name, own in method._noise(me, ups).items()}
    me.enter(2)
    later = {name: own.inputs.store.values for name, own in method._noise(me, ups).items()}
    assert torch.equal(first["a"], again["a"])
    assert not torch.equal(first["a"], first["b"])
    assert not torch.equal(first["a"], later["a"])


# Whole runs


@pytest.mark.parametrize(("own", "noise"), list(product((True, False), repeat=2)))
def test_the_ablation_is_four_configurations(digits, tmp_path, own, noise):
    chosen = digits(algorithm=QUICK | {"self_distillation": own, "noise_distillation": noise})
    record = fedstill.run(chosen, tmp_path / "run")
    assert bool(observations(record)) == noise
    plain = fedstill.run(digits(algorithm="FedAvg"), tmp_path / "plain")
    close = all(torch.allclose(value, model_of(plain)[key], atol=1e-6) for key, value in model_of(record).items())
    assert close == (not own and not noise)


def test_with_neither_half_it_is_the_plain_average_of_all_clients(digits, tmp_path):
    method = FedSND(self_distillation=False, noise_distillation=False)
    experiment = digits(algorithm={"name": "FedSND", "self_distillation": False, "noise_distillation": False})
    _, plan, _ = prepare(experiment, tmp_path)
    start = plan.make_server(silent).parameters()
    trained = []
    for name in plan.clients:
        client = plan.make_client(name, silent)
        client.enter(1)
        client.set_parameters(start)
        client.train()
        trained.append(client.parameters())
    record = fedstill.run(experiment, tmp_path / "run")
    for key, value in model_of(record).items():
        mean = np.mean([own[key].double().numpy() for own in trained], axis=0)
        np.testing.assert_allclose(value.numpy(), mean, atol=1e-6)
    assert method.title == "FedSND"


@pytest.mark.parametrize("target", [0.01, 2.31])
def test_the_record_says_how_sure_the_noise_became_and_of_what(digits, tmp_path, target):
    record = fedstill.run(digits(algorithm=QUICK | {"target": target}, rounds=2), tmp_path / "run")
    seen = observations(record)
    assert [(line["round"], line["observation"]) for line in seen] == [
        (round, f"noise of {client}") for round in (1, 2) for client in record.summary["clients"]
    ]
    sizes = {name: len(rows) for name, rows in prepare(digits(), tmp_path)[1].partition.train.items()}
    for line in seen:
        values = line["values"]
        assert values["samples"] == round(0.5 * sizes[line["observation"].removeprefix("noise of ")])
        assert sum(number for name, number in values.items() if name.startswith("label ")) == values["samples"]
    unsure = {line["round"] for line in seen if line["values"]["entropy"] > target}
    assert (target < 1) == bool(unsure)
    assert sum(f"stayed above entropy {target:g}" in note for note in record.notes) == len(unsure)


def test_clients_that_miss_classes_and_rounds_that_miss_clients(digits, tmp_path):
    partition = {"kind": "dirichlet", "alpha": 0.1, "clients": 5, "public": 0.0, "validation": 0.0,
                 "rows_per_domain": 90}  # fmt: skip
    record = fedstill.run(digits(partition=partition, participation=0.4, rounds=3), tmp_path / "run")
    for number in (1, 2, 3):
        spoken = {f"noise of {name}" for name in active(record, number)}
        assert len(spoken) == 2
        assert {line["observation"] for line in observations(record) if line["round"] == number} == spoken
    assert 0 <= record.f1() <= 1


def test_a_round_with_one_client_makes_no_noise(digits, tmp_path):
    record = fedstill.run(digits(participation=0.2, rounds=2), tmp_path / "run")
    assert len(active(record, 1)) == 1
    assert not observations(record)


def test_texts_are_invented_as_embeddings(experiment, tmp_path):
    chosen = experiment(algorithm=QUICK | {"steps": 40}, clients=TEXTCNN, server=TEXTCNN,
                        train={"epochs": 1, "batch": 16, "max_length": 12}, rounds=1)  # fmt: skip
    record = fedstill.run(chosen, tmp_path / "run")
    entropies = [line["values"]["entropy"] for line in observations(record)]
    assert len(entropies) == 3
    assert max(entropies) < np.log(3) / 2


def test_a_client_with_one_row_takes_part(tmp_path, folder_of_reviews, monkeypatch):
    monkeypatch.setenv("FEDSTILL_CACHE", str(folder_of_reviews / "cache"))
    write_shops(tmp_path)
    record = fedstill.run(one_row(tmp_path, QUICK), tmp_path / "run")
    samples = {line["observation"]: line["values"]["samples"] for line in observations(record)}
    assert samples == {"noise of large": 10.0, "noise of tiny": 1.0}


def write_shops(folder):
    """A shop of 20 rows and a shop of one, and test rows of both."""
    for name, rows in (("train", [("large", 20), ("tiny", 1)]), ("test", [("large", 4), ("tiny", 4)])):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label", "shop"])
            for shop, many in rows:
                for number in range(many):
                    word = ("poor", "great")[number % 2]
                    writer.writerow([f"{name} {shop} {number} was {word}", ("bad", "good")[number % 2], shop])


def one_row(folder, algorithm):
    return Experiment.model_validate({
        "name": "one-row",
        "corpus": {"path": str(folder / "train.csv"), "test": str(folder / "test.csv"), "domain": "shop"},
        "partition": {"kind": "domain", "public": 0.0, "validation": 0.0},
        "clients": TEXTCNN, "server": TEXTCNN, "algorithm": algorithm, "rounds": 1, "workers": 1, "device": "cpu",
        "train": {"epochs": 1, "batch": 8, "max_length": 12},
    })  # fmt: skip


@pytest.mark.parametrize("noise", [True, False])
def test_a_bag_of_words_has_no_space_for_noise_and_is_told_so_before_anybody_trains(experiment, tmp_path, noise):
    chosen = experiment(algorithm=QUICK | {"noise_distillation": noise}, rounds=1)
    if noise:
        with pytest.raises(FedstillError, match=r"bow has no word embeddings to invent texts in: choose"):
            fedstill.run(chosen, tmp_path / "run")
        assert not (tmp_path / "run/metrics.jsonl").exists() or not (tmp_path / "run/metrics.jsonl").read_text()
    else:
        assert fedstill.run(chosen, tmp_path / "run").is_finished


def test_half_the_bytes_travel_and_noise_is_made_all_the_same(digits, tmp_path):
    record = fedstill.run(digits(algorithm=QUICK, wire={"parameters": "bf16"}), tmp_path / "run")
    numbers = sum(value.numel() for value in model_of(record).values())
    up = [line for line in record.ledger if line["direction"] == "up" and line["message"] == "Parameters"]
    assert sum(line["payload"] for line in up) == 3 * 4 * numbers
    assert sum(line["bytes"] - line["encoded"] for line in up) == pytest.approx(3 * 2 * numbers, rel=0.01)
    assert len(observations(record)) == 3


@pytest.fixture
def three_rounds(digits):
    return lambda **changes: digits(rounds=3, participation=0.67, **changes)


@pytest.mark.slow
def test_two_workers_and_interruptions_give_the_same_bytes(three_rounds, tmp_path):
    whole = content(fedstill.run(three_rounds(), tmp_path / "whole").folder)
    assert content(fedstill.run(three_rounds(workers=2), tmp_path / "two").folder) == whole
    for number, stop in enumerate((stop_in(2), stop_after(3))):
        with pytest.raises(KeyboardInterrupt):
            fedstill.run(three_rounds(), tmp_path / f"stopped-{number}", tell=stop)
        assert content(fedstill.resume(tmp_path / f"stopped-{number}").folder) == whole
