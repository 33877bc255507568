import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.fedopt import FedOpt
from fedstill.common.errors import FedstillError
from fedstill.wire.messages import Hello, Parameters
from fedstill.wire.replies import Replies
from tests.algorithms.test_fedgkd import shifted
from tests.algorithms.test_parameters import Fed

HELLOS = {"books": Hello(10), "films": Hello(30)}


@pytest.mark.parametrize(("weights", "shares"), [("size", (0.25, 0.75)), ("uniform", (0.5, 0.5))])
def test_three_rounds_are_adam_on_the_mean_update(bench, weights, shares):
    me = bench.server()
    algorithm = FedOpt(rate=0.1, beta1=0.8, beta2=0.95, tau=1e-2, weights=weights)
    theta = {name: value.double().numpy() for name, value in algorithm.start(Fed(me, HELLOS)).parameters.items()}
    m = {name: np.zeros_like(value) for name, value in theta.items()}
    v = {name: np.full_like(value, 1e-4) for name, value in theta.items()}
    for seed in range(3):
        ups = {name: shifted(me.parameters(), 10 * seed + number) for number, name in enumerate(HELLOS)}
        answer = algorithm.server(me, Replies({name: Parameters(own) for name, own in ups.items()}, HELLOS))
        for name, value in theta.items():
            books, films = (ups[client][name].double().numpy() for client in HELLOS)
            change = shares[0] * books + shares[1] * films - value
            m[name] = 0.8 * m[name] + 0.2 * change
            v[name] = 0.95 * v[name] + 0.05 * change**2
            theta[name] = value + 0.1 * m[name] / (np.sqrt(v[name]) + 1e-2)
            np.testing.assert_allclose(answer.parameters[name].numpy(), theta[name], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(me.parameters()[name].numpy(), theta[name], rtol=1e-5, atol=1e-6)


def test_nothing_learnt_moves_nothing(bench, same):
    me = bench.server()
    before = me.parameters()
    FedOpt().server(me, Replies({name: Parameters(before) for name in HELLOS}, HELLOS))
    same(me, before, tolerance=0)


def test_buffers_are_averaged_and_integers_are_the_first_clients(bench):
    me = bench.server()
    me.model.module.norm = nn.BatchNorm1d(2)
    theta = me.parameters()
    ups = {
        name: theta | {"norm.running_var": torch.full((2,), value), "norm.num_batches_tracked": torch.tensor(number)}
        for number, (name, value) in enumerate(zip(HELLOS, (0.0, 1.0), strict=True), start=4)
    }
    # A rate at which Adam would make a variance negative.
    FedOpt(rate=100.0).server(me, Replies({name: Parameters(own) for name, own in ups.items()}, HELLOS))
    after = me.parameters()
    assert after["norm.running_var"].tolist() == [0.75, 0.75]
    assert after["norm.num_batches_tracked"] == 4
    assert (
        set(me.memory.mappings["m"])
        == set(me.memory.mappings["v"])
        == {name for name, _ in me.model.module.named_parameters()}
    )


def test_layers_that_share_a_parameter_still_share_it(bench):
    me = bench.server()
    me.model.module.twin = nn.Embedding.from_pretrained(me.model.module.weight.weight, freeze=False)
    me.model.module.twin.weight = me.model.module.weight.weight
    ups = {name: shifted(me.parameters(), 1) for name in HELLOS}
    for own in ups.values():
        own["twin.weight"] = own["weight.weight"]
    answer = FedOpt().server(me, Replies({name: Parameters(own) for name, own in ups.items()}, HELLOS)).parameters
    assert torch.equal(answer["twin.weight"], answer["weight.weight"])
    assert not torch.equal(answer["weight.weight"], bench.model().module.weight.weight)


def test_a_run_costs_what_fedavg_does_and_learns(experiment, tmp_path):
    chosen = experiment(
        algorithm={"name": "FedOpt", "rate": 0.1}, rounds=4, train={"epochs": 3, "batch": 16}, participation=0.67
    )
    record = fedstill.run(chosen, tmp_path / "run")
    server = load_file(record.model_folder() / "model.safetensors")
    numbers = 4 * sum(value.numel() for value in server.values())
    lines = [line for line in record.ledger if line["message"] == "Parameters"]
    assert sum(line["payload"] for line in lines if line["direction"] == "up") == 4 * 2 * numbers
    assert [line["payload"] for line in lines if line["direction"] == "down"] == 5 * [numbers]
    assert record.summary["scores"]["server"]["test"]["f1"] > 0.6
    assert make("FedOpt").cost == "P(K+1)"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"rate": 0}, "'rate'.*greater than 0"),
        ({"beta1": 1}, "'beta1'.*less than 1"),
        ({"tau": 0}, "'tau'.*greater than 0"),
        ({"weights": "rows"}, "'weights'.*'uniform' or 'size'"),
    ],
)
def test_other_options_are_refused(options, complaint):
    with pytest.raises(FedstillError, match=complaint):
        make({"name": "FedOpt", **options})
