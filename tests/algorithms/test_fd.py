import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.fd import FD, LabelMeans
from fedstill.common.errors import FedstillError
from fedstill.data.examples import Labelled
from fedstill.wire.messages import Hello
from fedstill.wire.replies import Replies

GOALS = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.0, 0.0], [0.0, 0.25, 0.75]])
COUNTS = torch.tensor([2, 0, 1], dtype=torch.int32)


def rows_of(bench, labels, name="books"):
    """A client with rows of these labels only."""
    me = bench.client(name)
    kept = bench.private[np.isin(bench.labels[bench.private].numpy(), labels)]
    me.data.__dict__["train"] = Labelled(bench.store, kept, bench.labels[kept])
    return me


def test_a_client_minimises_ce_and_the_divergence_from_its_labels_mean_and_skips_labels_without(bench, same):
    me, labels = bench.client(), bench.labels[bench.private]
    FD(strength=2.0).digest(me, LabelMeans(GOALS, COUNTS))
    FD(strength=2.0).opine(me)

    def loss(logits):
        chances, total = logits.softmax(-1), F.cross_entropy(logits, labels, reduction="sum")
        for row, label in enumerate(labels.tolist()):
            for c in range(3):
                if GOALS[label, c] > 0:
                    total = total + 2.0 * GOALS[label, c] * (GOALS[label, c] / chances[row, c]).log()
        return total / 12

    same(me, bench.after_one_step(loss, rows=bench.private))


def test_nobody_has_answered_in_the_first_round(bench, same):
    me, twin = bench.client(), bench.client()
    FD().opine(me)
    twin.train()
    same(me, twin.parameters(), tolerance=0)


def test_digesting_changes_no_model_and_is_kept_until_the_next_answer(bench, same):
    me = bench.client()
    before = me.parameters()
    FD().digest(me, LabelMeans(GOALS, COUNTS))
    same(me, before, tolerance=0)
    other = bench.client()
    other.set_state(me.state())
    assert torch.equal(other.memory.arrays["means"], GOALS)
    assert torch.equal(other.memory.arrays["counts"], COUNTS)


def test_a_client_says_its_mean_probabilities_a_label_after_training_and_marks_labels_that_it_lacks(bench):
    me = rows_of(bench, [0, 2])
    said = FD().opine(me)
    chances, labels = me.predict(me.data.train).softmax(-1).numpy(), me.data.train.labels.numpy()
    assert said.counts.tolist() == [4, 0, 4]
    for label in (0, 2):
        np.testing.assert_allclose(said.means[label].numpy(), chances[labels == label].mean(0), rtol=1e-6)
    assert said.means[1].tolist() == [0, 0, 0]


def test_everybody_gets_the_mean_of_the_others_that_have_the_label(bench):
    random = torch.Generator().manual_seed(3)
    means = torch.rand(3, 3, 3, generator=random)
    counts = torch.tensor([[5, 1, 0], [2, 0, 0], [9, 0, 7]], dtype=torch.int32)
    names = ("books", "films", "shoes")
    ups = {name: LabelMeans(means[k] * (counts[k] > 0)[:, None], counts[k]) for k, name in enumerate(names)}
    answers = FD().server(bench.server(), Replies(ups, {name: Hello(5) for name in (*names, "toys")}))

    for k, name in enumerate((*names, "toys")):  # toys sat the round out
        for label in range(3):
            others = [means[j, label].numpy() for j in range(3) if j != k and counts[j, label] > 0]
            assert answers[name].counts[label] == len(others)
            wanted = np.mean(others, axis=0) if others else np.zeros(3)
            np.testing.assert_allclose(answers[name].means[label].numpy(), wanted, rtol=1e-6)
    assert answers["books"].counts.tolist() == [2, 0, 1]


def test_a_client_alone_hears_of_no_label(bench):
    said = LabelMeans(GOALS, COUNTS)
    answer = FD().server(bench.server(), Replies({"books": said}, {"books": Hello(5)}))["books"]
    assert answer.counts.tolist() == [0, 0, 0]
    assert not answer.means.any()


def test_the_server_never_builds_a_model(bench):
    me = bench.server()
    FD().server(me, Replies({"books": LabelMeans(GOALS, COUNTS)}, {"books": Hello(5)}))
    assert not me.has_model


def test_a_round_costs_2_c2_k_numbers_and_any_architectures_will_do(experiment, tmp_path):
    chosen = experiment(algorithm="FD", clients=["bow", "textcnn", "bow"], train={"epochs": 2, "max_length": 16})
    record = fedstill.run(chosen, tmp_path / "run")
    lines = [line for line in record.ledger if line["message"] == "LabelMeans"]
    up = {line["round"]: line["payload"] for line in lines if line["direction"] == "up"}
    down = {line["round"]: line["payload"] for line in lines if line["direction"] == "down"}
    assert up == dict.fromkeys((1, 2), 4 * 9 * 3)
    assert down == dict.fromkeys((2, 3), 4 * 9 * 3)  # the last one at the end
    assert "server" not in record.summary["scores"]
    assert make("FD").cost == "2C^2 K"
    for client in record.summary["clients"]:
        assert record.summary["scores"]["clients"][client]["test"]["f1"] > 0.4


def test_clients_that_lack_classes_and_rounds_that_lack_clients(experiment, tmp_path):
    skewed = {"kind": "dirichlet", "clients": 4, "alpha": 0.05, "public": 0.3}
    record = fedstill.run(experiment(algorithm="FD", partition=skewed, participation=0.5, rounds=3), tmp_path / "run")
    lines = [line for line in record.ledger if line["message"] == "LabelMeans" and line["direction"] == "up"]
    assert [line["messages"] for line in lines] == [2, 2, 2]
    assert len(record.summary["scores"]["clients"]) == 4


@pytest.mark.parametrize("strength", [-0.1, "inf", "much"])
def test_other_strengths_are_refused(strength):
    with pytest.raises(FedstillError, match="FD: option 'strength'"):
        make({"name": "FD", "strength": strength})
