"""Weights by the rows that clients train on, and the balance of these rows, for methods that average parameters."""

import pytest

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.averaging import Limit
from fedstill.common.events import Step
from fedstill.wire.messages import Hello, Parameters
from fedstill.wire.replies import Replies


@pytest.mark.parametrize("name", ["FedAvg", "FedOpt", "FedDF", "FedAUX", "MutualKD", "FedDRS"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"weights": "uniform"}, [1 / 3, 1 / 3, 1 / 3]),
        ({"weights": "size", "balance": False}, [0.1, 0.3, 0.6]),
        ({"weights": "size", "balance": True}, [1 / 3, 1 / 3, 1 / 3]),
        ({"weights": "size", "balance": True, "min_samples": 20}, [0.2, 0.4, 0.4]),
    ],
)
def test_every_method_has_the_same_weights(name, options, expected):
    hellos = {"a": Hello(10), "b": Hello(30), "c": Hello(60)}
    ups = Replies({client: Parameters({}) for client in hellos}, hellos)
    assert make({"name": name, **options}).shares(ups).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("rows", "size"), [(None, 12), (5, 5), (50, 12)])
def test_n_k_is_the_number_of_rows_that_a_client_trains_on(bench, rows, size):
    client = bench.client(train={"rows": rows})
    assert client.size == len(client.training_rows()) == make("FedAvg").hello(client, None).size == size


def test_a_limit_holds_until_the_next_one(bench):
    client, method = bench.client(), make({"name": "FedAvg", "balance": True})
    found = []
    for limit in (None, 4, 7, 100):
        if limit:
            method.limit(client, Limit(limit))
        found.append(len(method.rows(client)))
    assert found == [12, 4, 7, 12]


@pytest.mark.parametrize("name", ["FedAvg", "FedDF", "MutualKD"])
def test_a_balanced_round_trains_on_as_many_rows_as_the_smallest_client_has(experiment, tmp_path, name):
    partition = {"kind": "dirichlet", "alpha": 1.0, "clients": 3, "validation": 0.0}
    steps = {}
    for balance in (False, True):
        told = []
        chosen = experiment(
            algorithm={"name": name, "balance": balance}, partition=partition, train={"epochs": 1, "batch": 1}, rounds=1
        )
        fedstill.run(chosen, tmp_path / str(balance), tell=told.append)
        events = [event for event in told if isinstance(event, Step) and event.phase == "train"]
        steps[balance] = {event.party: event.steps for event in events}
    assert len(set(steps[False].values())) > 1
    assert set(steps[True].values()) == {min(steps[False].values())}
