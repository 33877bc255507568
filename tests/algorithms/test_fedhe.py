import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.fd import LabelMeans
from fedstill.algorithms.fedhe import FedHe
from fedstill.common.errors import FedstillError
from fedstill.wire.messages import Hello
from fedstill.wire.replies import Replies
from tests.algorithms.test_fd import COUNTS, rows_of

GOALS = torch.tensor([[3.0, -1.0, -2.0], [0.0, 0.0, 0.0], [-2.0, 0.5, 4.0]])


def test_a_client_minimises_ce_and_the_squared_distance_to_its_labels_mean_and_skips_labels_without(bench, same):
    me, labels = bench.client(), bench.labels[bench.private]
    FedHe(strength=0.3).digest(me, LabelMeans(GOALS, COUNTS))
    FedHe(strength=0.3).opine(me)

    def loss(logits):
        total = F.cross_entropy(logits, labels, reduction="sum")
        for row, label in enumerate(labels.tolist()):
            if label != 1:
                total = total + 0.3 * ((logits[row] - GOALS[label]) ** 2).mean()
        return total / 12

    same(me, bench.after_one_step(loss, rows=bench.private))


def test_a_client_says_its_mean_logits_a_label_after_training(bench):
    me = rows_of(bench, [1, 2])
    said = FedHe().opine(me)
    logits, labels = me.predict(me.data.train).numpy(), me.data.train.labels.numpy()
    assert said.counts.tolist() == [0, 4, 4]
    for label in (1, 2):
        np.testing.assert_allclose(said.means[label].numpy(), logits[labels == label].mean(0), rtol=1e-5, atol=1e-7)
    assert said.means[0].tolist() == [0, 0, 0]


class Queue:
    """A federation that notes whom it called with what, and answers with given means."""

    def __init__(self, server, said):
        self.server, self.said, self.active = server, said, sorted(said)
        self.calls = []

    def call(self, verb, message, clients):
        (name,) = clients
        self.calls.append((verb, name, message))
        return Replies({name: self.said[name]}, {name: Hello(5)})


def test_clients_are_heard_one_at_a_time_and_each_gets_the_running_mean_so_far(bench):
    random = torch.Generator().manual_seed(3)
    counts = {"books": [5, 0, 1], "films": [1, 0, 0], "shoes": [1, 0, 9]}
    said = {}
    for name, own in counts.items():
        seen = torch.tensor(own, dtype=torch.int32)
        said[name] = LabelMeans(torch.randn(3, 3, generator=random) * (seen > 0)[:, None], seen)
    server, heard, answer, orders = bench.server(), [], None, []
    for number in range(1, 7):
        server.enter(number)
        fed = Queue(server, said)
        before, answer = answer, FedHe().round(fed, answer)
        assert sorted(name for _, name, _ in fed.calls) == ["books", "films", "shoes"]
        assert fed.calls[0][2] is before
        for (_, name, _), (*_, following) in zip(fed.calls, [*fed.calls[1:], (answer,)], strict=True):
            heard.append(name)
            for label in range(3):
                reports = [said[n].means[label].numpy() for n in heard if counts[n][label]]
                assert following.counts[label] == len(reports)
                wanted = np.mean(reports, axis=0) if reports else np.zeros(3)
                np.testing.assert_allclose(following.means[label].numpy(), wanted, rtol=1e-5, atol=1e-7)
        orders.append(tuple(name for _, name, _ in fed.calls))
    assert len(set(orders)) > 1  # another order from round to round
    assert not server.has_model
    other = bench.server()
    other.set_state(server.state())
    assert torch.equal(other.memory.arrays["means"], server.memory.arrays["means"])
    assert torch.equal(other.memory.arrays["counts"], server.memory.arrays["counts"])


def test_a_round_costs_2_c2_numbers_a_client_and_any_architectures_will_do(experiment, tmp_path):
    chosen = experiment(algorithm="FedHe", clients=["bow", "textcnn", "bow"], train={"epochs": 2, "max_length": 16})
    record = fedstill.run(chosen, tmp_path / "run")
    lines = [line for line in record.ledger if line["message"] == "LabelMeans"]
    up = {line["round"]: line["payload"] for line in lines if line["direction"] == "up"}
    down = {line["round"]: (line["messages"], line["payload"]) for line in lines if line["direction"] == "down"}
    assert up == dict.fromkeys((1, 2), 4 * 9 * 3)
    # The very first client hears nothing; at the end one answer goes to everybody.
    assert down == {1: (2, 4 * 9 * 2), 2: (3, 4 * 9 * 3), 3: (1, 4 * 9)}
    assert "server" not in record.summary["scores"]
    assert make("FedHe").cost == "2C^2 a client"
    for client in record.summary["clients"]:
        assert record.summary["scores"]["clients"][client]["test"]["f1"] > 0.4


def test_clients_that_lack_classes_and_rounds_that_lack_clients(experiment, tmp_path):
    skewed = {"kind": "dirichlet", "clients": 4, "alpha": 0.05, "public": 0.3}
    record = fedstill.run(
        experiment(algorithm="FedHe", partition=skewed, participation=0.5, rounds=3), tmp_path / "run"
    )
    lines = [line for line in record.ledger if line["message"] == "LabelMeans" and line["direction"] == "up"]
    assert [line["messages"] for line in lines] == [2, 2, 2]
    assert len(record.summary["scores"]["clients"]) == 4


@pytest.mark.parametrize("strength", [-0.1, "nan"])
def test_other_strengths_are_refused(strength):
    with pytest.raises(FedstillError, match="FedHe: option 'strength'"):
        make({"name": "FedHe", "strength": strength})
