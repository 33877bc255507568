"""The methods that exchange parameters: FedAvg, FedDF, FedED."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import fedstill
from fedstill.algorithms.fedavg import FedAvg
from fedstill.algorithms.feddf import FedDF
from fedstill.algorithms.feded import FedED
from fedstill.common.errors import FedstillError
from fedstill.wire.messages import Hello, Parameters
from fedstill.wire.replies import Replies


class Fed:
    """What `start` sees of an engine."""

    def __init__(self, server, clients):
        self.server, self.clients = server, clients


def one_round(algorithm, server, clients, sizes):
    hellos = {name: Hello(size, architecture=server.model.architecture) for name, size in sizes.items()}
    first = algorithm.start(Fed(server, hellos))
    ups = {}
    for name, client in clients.items():
        algorithm.digest(client, first[name] if isinstance(first, dict) else first)
        ups[name] = algorithm.opine(client)
    return algorithm.server(server, Replies(ups, hellos))


# FedAvg


def test_fedavg_of_clients_with_the_same_rows_and_one_step_each_is_centralised_sgd(bench):
    server, central = bench.server(pooled=bench.rows(bench.private)), bench.server(pooled=bench.rows(bench.private))
    for party in (server, central):
        party.model.module.double()
    clients = {name: bench.client(name) for name in ("books", "films", "shoes")}
    for client in clients.values():
        client.model.module.double()
    one_round(FedAvg(), server, clients, {"books": 12, "films": 12, "shoes": 12})
    central.train(central.pooled)
    for name, value in central.parameters().items():
        torch.testing.assert_close(server.parameters()[name], value, rtol=1e-12, atol=1e-12)


def test_fedavg_weighs_parameters_by_rows(bench):
    server = bench.server()
    values = {name: {k: torch.full_like(v, number) for k, v in server.parameters().items()} for name, number in
              (("books", 1.0), ("films", 2.0), ("shoes", 4.0))}  # fmt: skip
    hellos = {"books": Hello(10), "films": Hello(20), "shoes": Hello(70)}
    answer = FedAvg().server(server, Replies({n: Parameters(v) for n, v in values.items()}, hellos))
    for value in answer.parameters.values():
        torch.testing.assert_close(value, torch.full_like(value, 0.1 * 1 + 0.2 * 2 + 0.7 * 4))


def test_fedavg_in_bf16_sends_half_the_bytes_and_stays_close(experiment, tmp_path):
    records = {
        width: fedstill.run(experiment(algorithm="FedAvg", wire={"parameters": width}), tmp_path / width)
        for width in ("fp32", "bf16", "fp16")
    }
    lines = {width: [line for line in r.ledger if line["verb"] != "hello"] for width, r in records.items()}
    payload = {width: sum(line["payload"] for line in of) for width, of in lines.items()}
    assert payload["bf16"] == payload["fp16"] == payload["fp32"]  # before the codec
    saved = {width: sum(line["bytes"] - line["encoded"] for line in r.ledger) for width, r in records.items()}
    assert saved == {"fp32": 0, "bf16": payload["fp32"] // 2, "fp16": payload["fp32"] // 2}
    exact = records["fp32"].model().module.state_dict()
    for width, digits in (("bf16", 2**-8), ("fp16", 2**-11)):
        for name, value in records[width].model().module.state_dict().items():
            worst = (value - exact[name]).abs().max() / exact[name].abs().max()
            assert 0 < worst < 40 * digits


def test_fedavg_everybody_ends_with_the_servers_model_and_the_ledger_counts_each_broadcast_once(experiment, tmp_path):
    record = fedstill.run(experiment(algorithm="FedAvg"), tmp_path / "run")
    server = load_file(record.model_folder() / "model.safetensors")
    for client in record.summary["clients"]:
        own = load_file(record.model_folder(client) / "model.safetensors")
        assert all(torch.equal(own[name], value) for name, value in server.items())
    numbers = sum(value.numel() for value in server.values())
    lines = [line for line in record.ledger if line["message"] == "Parameters"]
    up = sum(line["payload"] for line in lines if line["direction"] == "up")
    down = {line["round"]: (line["payload"], line["recipients"]) for line in lines if line["direction"] == "down"}
    assert up == 2 * 3 * 4 * numbers
    assert down == dict.fromkeys((1, 2, 3), (4 * numbers, 3))  # theta_0, theta_1, and theta_2 at the end


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedED"])
def test_different_architectures_are_refused_by_name_before_any_training(experiment, tmp_path, algorithm):
    chosen = experiment(algorithm=algorithm, clients=["bow", "textcnn", "bow"])
    with pytest.raises(FedstillError, match=rf"{algorithm} exchanges parameters.*\(bow\): films has another"):
        fedstill.run(chosen, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists() or not (tmp_path / "run/metrics.jsonl").read_text()


# FedED


def test_feded_distils_the_logits_weighed_by_rows_and_sends_its_parameters(bench, opinions, same):
    me, ups = bench.server(), opinions()
    answer = FedED().server(me, ups)
    blend = np.einsum("k,knc->nc", [0.1, 0.2, 0.7], ups.column("logits").double().numpy())
    wanted = torch.as_tensor(blend, dtype=torch.float32).softmax(-1)
    same(me, bench.after_one_step(lambda z: (wanted * (wanted.log() - z.log_softmax(-1))).sum(-1).mean()))
    same(me, answer.parameters)


def test_feded_with_labelled_mixes_the_servers_labels_in(bench, opinions, same):
    me, ups = bench.server(labelled=bench.rows(bench.test)), opinions()
    FedED(labelled=True).server(me, ups)
    teacher = torch.as_tensor(np.einsum("k,knc->nc", [0.1, 0.2, 0.7], ups.column("logits").double().numpy())).float()
    module = bench.model().module
    public, truth = (
        module(**bench.rows(rows).batch(torch.arange(12), torch.device("cpu"))) for rows in (bench.public, bench.test)
    )
    each = F.kl_div(public.log_softmax(-1), teacher.softmax(-1), reduction="none").sum(-1)
    loss = torch.cat([each, F.cross_entropy(truth, bench.labels[bench.test], reduction="none")]).mean()
    loss.backward()
    same(me, {name: (value - 0.5 * value.grad).detach() for name, value in module.named_parameters()})


# FedDF


def lending(bench, server):
    """The server lends scratch models of the one architecture there is."""
    server.lend = lambda architecture: bench.server(labelled=server.data.labelled)
    return server


def test_feddf_with_one_client_reproduces_that_client(bench, same):
    server, client = lending(bench, bench.server()), bench.client()
    one_round(FedDF(rate=0.5), server, {"books": client}, {"books": 12})
    same(server, client.parameters(), tolerance=1e-6)


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({}, 0.25),
        ({"weights": "uniform"}, 0.5),
        ({"balance": True}, 0.5),
        ({"balance": True, "min_samples": 20}, 1 / 3),
    ],
)
def test_feddf_distils_the_mean_of_all_models_into_their_average(bench, same, options, share):
    server = lending(bench, bench.server())
    hellos = {name: Hello(size, architecture=server.model.architecture) for name, size in (("a", 10), ("b", 30))}
    torch.manual_seed(5)
    models = {name: {k: v + torch.randn_like(v) for k, v in server.parameters().items()} for name in hellos}
    FedDF(rate=0.5, **options).server(server, Replies({n: Parameters(v) for n, v in models.items()}, hellos))

    module = bench.model().module
    batch = bench.rows(bench.public).batch(torch.arange(12), torch.device("cpu"))
    teachers = []
    for parameters in models.values():
        module.load_state_dict(parameters)
        teachers.append(module(**batch).detach())
    module.load_state_dict({k: share * models["a"][k] + (1 - share) * models["b"][k] for k in models["a"]})
    wanted = torch.stack(teachers).mean(0).softmax(-1)
    F.kl_div(module(**batch).log_softmax(-1), wanted, reduction="batchmean").backward()
    same(server, {name: (value - 0.5 * value.grad).detach() for name, value in module.named_parameters()})


def test_feddf_keeps_the_epoch_that_labelled_rows_like_best(bench, same):
    labelled = bench.rows(bench.test)
    harmful = lending(bench, bench.server(labelled=labelled, distill={"epochs": 6}))
    hello = {"books": Hello(12, architecture=harmful.model.architecture)}
    good = bench.client()
    good.train(labelled)
    # A teacher that says the opposite can only harm: the plain average is kept, and two epochs were enough to see it.
    bad = {name: -20 * value for name, value in good.parameters().items()}
    ups = Replies({"books": Parameters(good.parameters()), "films": Parameters(bad)}, hello | {"films": Hello(1)})
    ups.clients["films"].__dict__["architecture"] = harmful.model.architecture
    average = ups.average("parameters", ups.shares)
    seen = []
    harmful.around.__dict__["tell"] = lambda event: seen.append(event.done)
    FedDF(rate=5.0).server(harmful, ups)
    assert max(seen) == 2
    same(harmful, average)


def test_feddf_as_released_weighs_teachers_by_rows_decays_linearly_and_chooses_nothing(bench, same):
    settings = {"epochs": 2, "rate": 2.0, "optimiser": "sgd", "schedule": "linear"}
    labelled = bench.rows(bench.test)
    server = bench.server(labelled=labelled, distill=settings)
    server.lend = lambda architecture: bench.server(labelled=labelled)
    hellos = {name: Hello(size, architecture=server.model.architecture) for name, size in (("a", 10), ("b", 30))}
    torch.manual_seed(5)
    models = {name: {k: v + torch.randn_like(v) for k, v in server.parameters().items()} for name in hellos}
    FedDF(reading="released").server(server, Replies({n: Parameters(v) for n, v in models.items()}, hellos))

    module = bench.model().module
    batch = bench.rows(bench.public).batch(torch.arange(12), torch.device("cpu"))
    teachers = {}
    for name, parameters in models.items():
        module.load_state_dict(parameters)
        teachers[name] = module(**batch).detach()
    module.load_state_dict({k: 0.25 * models["a"][k] + 0.75 * models["b"][k] for k in models["a"]})
    wanted = (0.25 * teachers["a"] + 0.75 * teachers["b"]).softmax(-1)
    for rate in (2.0, 1.0):  # two steps of a linear schedule
        module.zero_grad()
        F.kl_div(module(**batch).log_softmax(-1), wanted, reduction="batchmean").backward()
        with torch.no_grad():
            for value in module.parameters():
                value -= rate * value.grad
    same(server, {name: value.detach() for name, value in module.named_parameters()}, tolerance=1e-5)


def test_feddf_averages_by_architecture_and_everybody_gets_its_own_kind_back(experiment, tmp_path):
    chosen = experiment(algorithm="FedDF", clients=["bow", "textcnn", "bow"], train={"epochs": 1, "max_length": 16})
    record = fedstill.run(chosen, tmp_path / "run")
    models = {name: load_file(record.model_folder(name) / "model.safetensors") for name in record.summary["clients"]}
    server = load_file(record.model_folder() / "model.safetensors")
    assert all(torch.equal(models["books"][name], value) for name, value in server.items())
    assert all(torch.equal(models["shoes"][name], value) for name, value in server.items())
    assert set(models["films"]) != set(server)
    kinds = {(line["round"], line["recipients"]) for line in record.ledger if line["direction"] == "down"}
    assert {(1, 2), (1, 1), (2, 2), (2, 1)} <= kinds  # two bags of words share one message, the textcnn has its own


def test_feddf_goes_on_where_an_architecture_sits_a_round_out(experiment, tmp_path):
    chosen = experiment(
        algorithm="FedDF", clients=["bow", "textcnn", "bow"], participation=0.34, rounds=3,
        train={"epochs": 1, "max_length": 16},
    )  # fmt: skip
    record = fedstill.run(chosen, tmp_path / "run")
    assert record.summary["scores"]["server"]["test"]["f1"] > 0
