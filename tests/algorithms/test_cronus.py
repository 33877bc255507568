import csv

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import softmax

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.cronus import Cronus
from fedstill.common.errors import FedstillError
from tests.algorithms.conftest import LABELS, reviews


def probabilities(rows=12, seed=3):
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(3), rows)).float()


def after_one_joint_step(bench, soft_labels, rate=0.5):
    """One step on all 24 rows: cross-entropy with soft labels on the public ones, with the truth on the private."""
    module = bench.model().module
    everything = np.concatenate([bench.public, bench.private])
    logits = module(**bench.rows(everything).batch(torch.arange(24), torch.device("cpu")))
    public = -(soft_labels * logits[:12].log_softmax(-1)).sum()
    private = torch.nn.functional.cross_entropy(logits[12:], bench.labels[bench.private], reduction="sum")
    ((public + private) / 24).backward()
    return {name: (value - rate * value.grad).detach() for name, value in module.named_parameters()}


# A client


def test_before_anybody_has_answered_a_client_trains_alone_and_sends_probabilities(bench, same):
    me, twin = bench.client(), bench.client()
    me.enter(1)
    opinion = Cronus().turn(me, None)
    twin.enter(1)
    twin.train()
    same(me, twin.parameters(), tolerance=0)
    np.testing.assert_allclose(opinion.logits.numpy(), softmax(twin.predict().double().numpy(), -1), rtol=1e-5)


@pytest.mark.parametrize("number", [2, 5])
def test_with_an_answer_a_turn_is_one_joint_phase_also_for_a_client_that_joins_late(bench, same, number):
    me = bench.client()
    me.enter(number)
    opinion = Cronus().turn(me, fedstill.Answer(probabilities()))
    same(me, after_one_joint_step(bench, probabilities()))
    np.testing.assert_allclose(opinion.logits.numpy(), softmax(me.predict().double().numpy(), -1), rtol=1e-5)


def test_soft_labels_of_zero_and_one_are_learnt_like_hard_ones(bench, same):
    votes = torch.eye(3)[torch.arange(12) % 3]
    for option in ({}, {"client_loss": "hard"}, {"client_loss": "kl"}):
        me = bench.client()
        Cronus(**option).digest(me, fedstill.Answer(votes))
        same(me, after_one_joint_step(bench, votes))


# The server


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"mean": "median"}, lambda p: np.median(p, axis=0)),
        ({"mean": "trimmed", "share": 0.4}, lambda p: np.sort(p, axis=0)[1:2].mean(0)),
        ({"mean": "trimmed", "share": 0.0}, lambda p: p.mean(0)),
        ({"mean": "filter", "share": 0.0}, lambda p: p.mean(0)),
    ],
)
def test_the_answer_is_the_chosen_mean_of_the_probabilities_and_no_model_learns(bench, opinions, option, expected):
    me, said = bench.server(), [probabilities(seed=seed) for seed in range(3)]
    answer = Cronus(**option).server(me, opinions(logits=said))
    values = expected(np.stack([p.double().numpy() for p in said]))
    np.testing.assert_allclose(answer.logits.numpy(), values / values.sum(-1, keepdims=True), rtol=1e-6)
    assert answer.logits.dtype == torch.float32
    assert not me.has_model


def test_the_filter_leaves_out_the_client_that_contradicts_the_others(bench, opinions):
    honest = [probabilities() * 0.9 + 0.1 * probabilities(seed=seed) for seed in (4, 5)]
    lie = torch.eye(3)[probabilities().argmin(-1)]
    answer = Cronus(share=0.34).server(bench.server(), opinions(logits=[honest[0], lie, honest[1]]))
    np.testing.assert_allclose(answer.logits.numpy(), (honest[0] + honest[1]).numpy() / 2, rtol=1e-5)


def test_numbers_of_another_width_do_not_change_the_width_of_the_answer(bench, opinions):
    said = [probabilities(), probabilities().double() * 1e300, probabilities()]
    answer = Cronus(mean="median").server(bench.server(), opinions(logits=said))
    assert answer.logits.dtype == torch.float32
    assert bool(torch.isfinite(answer.logits).all())


def test_a_share_that_protects_from_nobody_is_noted_once(bench, opinions):
    for option, numbers, notes in (({}, (1, 2), 1), ({"mean": "median"}, (1,), 0), ({"share": 0.4}, (1,), 0)):
        me = bench.server()
        for number in numbers:
            me.enter(number)
            Cronus(**option).server(me, opinions(logits=[probabilities()] * 3))
        assert len(me.notes) == notes
        assert all("0.2 of 3 clients is less than one" in note for note in me.notes)


@pytest.mark.parametrize("share", [0.5, -0.1])
def test_a_share_that_no_majority_can_stand_is_refused(share):
    with pytest.raises(FedstillError, match="Cronus: option 'share'"):
        make({"name": "Cronus", "mean": "trimmed", "share": share})


def test_tables_name_the_mean_where_it_is_not_the_papers():
    titles = [make({"name": "Cronus", "mean": mean}).title for mean in ("filter", "median", "trimmed")]
    assert titles == ["Cronus", "Cronus (median)", "Cronus (trimmed)"]


# A federation


def test_the_clients_speak_of_every_public_sample_and_the_server_has_no_model(experiment, tmp_path):
    record = fedstill.run(experiment(algorithm="Cronus"), tmp_path / "run")
    samples = len(load_file(tmp_path / "run" / "partition.safetensors")["public"])
    crossed = sum(line["payload"] for line in record.ledger if line["message"] in ("Opinion", "Answer"))
    assert crossed == 2 * 4 * samples * 3 * (3 + 1)
    assert make("Cronus").cost == "NC(K+1)"
    assert {m["party"] for m in record.metrics} == {"books", "films", "shoes"}
    assert not (tmp_path / "run" / "models" / "server").exists()


# Garbage

LIARS = """
from dataclasses import dataclass

import torch

from fedstill import Answer, Opinion
from fedstill.algorithms.cronus import Cronus


@dataclass(frozen=True)
class Attacked(Cronus):
    liars: tuple[str, ...] = ()
    garbage: str = "votes"

    def opine(self, me):
        opinion = super().opine(me)
        if me.name not in self.liars:
            return opinion
        if self.garbage == "huge noise":
            return Opinion(1e5 * torch.from_numpy(me.generator("garbage").normal(size=opinion.logits.shape)).float())
        votes = torch.eye(3)[(opinion.logits.argmax(-1) + 1) % 3]  # all together for the class next to the likeliest
        return Opinion(1e5 * votes if self.garbage == "huge votes" else votes)


@dataclass(frozen=True)
class Plain(Attacked):
    def server(self, me, ups):
        return Answer(ups.mean("logits").clamp(min=0))
"""


@pytest.fixture
def accuracy(experiment, tmp_path, monkeypatch):
    """The honest clients' mean accuracy after two rounds on 600 reviews, which all clients have alike."""
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "own.py").write_text(LIARS)
    texts, labels = reviews(600)
    with (tmp_path / "reviews.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], *zip(texts, (LABELS[n] for n in labels), strict=True)])

    def measure(kind, clients, liars, blend="auto", **options):
        names = [f"client-{number:0{len(str(clients))}}" for number in range(1, liars + 1)]
        asked = experiment(
            corpus={"path": str(tmp_path / "reviews.csv")},
            partition={"kind": "iid", "clients": clients, "public": 0.3, "validation": 0.0, "test": 0.2},
            algorithm={"name": f"{tmp_path}/own.py:{kind}", "liars": names, **options},
            blend=blend,
        )
        record = fedstill.run(asked, tmp_path / f"run-{liars}-{options.get('garbage')}")
        last = [m for m in record.metrics if m.get("stage") == "distilled" and m["round"] == 2 and m["split"] == "test"]
        assert len(last) == clients
        return np.mean([m["accuracy"] for m in last if m["party"] not in names])

    return measure


@pytest.mark.parametrize(
    ("option", "clients", "liars", "garbage"),
    [
        ({"mean": "median"}, 5, 2, "votes"),
        ({"mean": "median"}, 5, 2, "huge noise"),
        ({"mean": "trimmed", "share": 0.4}, 5, 2, "huge votes"),
        ({"mean": "median"}, 10, 4, "votes"),
        ({"mean": "trimmed", "share": 0.4}, 10, 4, "votes"),
        ({"mean": "filter", "share": 0.2}, 5, 1, "votes"),
        ({"mean": "filter", "share": 0.2}, 5, 1, "huge votes"),
        ({"mean": "filter", "share": 0.2}, 10, 2, "votes"),
    ],
)
def test_clients_learn_nearly_as_well_as_without_liars(accuracy, option, clients, liars, garbage):
    honest = accuracy("Attacked", clients, 0, **option)
    assert honest > 0.95
    assert accuracy("Attacked", clients, liars, garbage=garbage, **option) > honest - 0.1


@pytest.mark.parametrize(("clients", "liars", "garbage"), [(5, 2, "votes"), (5, 1, "huge votes"), (10, 4, "votes")])
def test_the_plain_mean_would_have_collapsed(accuracy, clients, liars, garbage):
    honest = accuracy("Plain", clients, 0, blend="mean")
    assert honest > 0.95
    assert accuracy("Plain", clients, liars, blend="mean", garbage=garbage) < honest - 0.25
