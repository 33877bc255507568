import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.cfd import CFD
from fedstill.common.errors import FedstillError
from fedstill.wire.codecs.quantised import quantise
from fedstill.wire.messages import Answer, Hello, Opinion
from fedstill.wire.replies import Failure, Replies
from tests.algorithms.test_fedgkd import shifted

NAMES = ("books", "films")
HELLOS = {name: Hello(12) for name in NAMES}


def chances(seed, rows=12):
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(3), rows)).float()


def grid(probabilities, bits):
    return quantise(probabilities, bits).float() / (2**bits - 1)


class Fed:
    """Calls its clients here and now."""

    def __init__(self, server, clients, failing=()):
        self.server, self.parties, self.clients, self.failing = server, clients, dict.fromkeys(clients), failing

    def call(self, verb, message, clients):
        said = {
            name: getattr(self.algorithm, verb)(self.parties[name], message)
            for name in clients if name not in self.failing
        }  # fmt: skip
        return Replies(said, {}, tuple(Failure(name, "it is away") for name in self.failing))


def begun(bench, algorithm, failing=()):
    """A server and two clients after the start, which nobody else's theta can have survived."""
    server, clients = bench.server(), {name: bench.client(name) for name in NAMES}
    for number, client in enumerate(clients.values()):
        client.set_parameters(shifted(client.parameters(), number))
    fed = Fed(server, clients, failing)
    fed.algorithm = algorithm
    assert algorithm.start(fed) is None
    return server, clients


def test_everybody_starts_from_the_servers_model_and_keeps_it(bench, same):
    server, clients = begun(bench, CFD())
    for client in clients.values():
        same(client, server.parameters(), tolerance=0)
        client.train()
        for name, value in server.parameters().items():
            assert torch.equal(client.memory.mappings["theta_0"][name], value)


def test_who_did_not_take_theta_0_fails_alone(bench):
    _, clients = begun(bench, CFD(), failing=["films"])
    with pytest.raises(FedstillError, match="did not take the model that everybody starts from"):
        CFD().opine(clients["films"])
    assert CFD().opine(clients["books"]).logits.isfinite().all()


def test_a_client_restarts_from_theta_0_and_distils_the_servers_labels(bench, same):
    _, clients = begun(bench, CFD())
    me = clients["books"]
    me.train()
    wanted = grid(chances(1), 3)
    CFD().digest(me, Answer(wanted))
    same(me, bench.after_one_step(lambda z: -(wanted * z.log_softmax(-1)).sum(-1).mean()))


def test_a_client_trains_then_sends_its_probabilities(bench):
    _, clients = begun(bench, CFD())
    me = clients["books"]
    me.enter(1)
    assert torch.equal(CFD().opine(me).logits, me.predict().softmax(-1))


@pytest.mark.parametrize("restart", [False, True])
def test_the_server_distils_the_mean_of_the_labels_and_answers_with_its_own(bench, same, restart):
    algorithm = CFD(restart=restart)
    server, _ = begun(bench, algorithm)
    first = server.parameters()
    server.set_parameters(shifted(first, 9))
    server.enter(1)
    ups = {name: Opinion(grid(chances(seed), 2)) for seed, name in enumerate(NAMES)}
    answer = algorithm.server(server, Replies(ups, HELLOS))

    module = bench.model().module
    module.load_state_dict(first if restart else shifted(first, 9))
    wanted = (grid(chances(0), 2) + grid(chances(1), 2)) / 2
    logits = module(**bench.rows(bench.public).batch(torch.arange(12), torch.device("cpu")))
    F.kl_div(logits.log_softmax(-1), wanted, reduction="batchmean").backward()
    same(server, {name: (value - 0.5 * value.grad).detach() for name, value in module.named_parameters()})
    assert torch.equal(answer.logits, server.predict().softmax(-1))


def encoded(record, direction, message):
    lines = [line for line in record.ledger if line["message"] == message and line["direction"] == direction]
    return [line["encoded"] - line["header"] for line in lines]


def test_a_run_in_one_bit_learns_and_its_codes_cost_a_fraction_of_the_numbers(experiment, tmp_path):
    some = {"rounds": 3, "train": {"epochs": 3, "batch": 16}, "partition": {"public": 0.4}}
    records = {
        bits: fedstill.run(
            experiment(algorithm="CFD", wire={"opinions": {"name": "quantised", "up": bits, "down": bits}}, **some),
            tmp_path / str(bits),
        )
        for bits in (1, 8, 32)
    }
    public = len(load_file(tmp_path / "1" / "partition.safetensors")["public"])
    assert encoded(records[32], "up", "Opinion") == 3 * [4 * public * 3 * 3]
    assert encoded(records[32], "down", "Answer") == 3 * [4 * public * 3]
    for bits, least in ((1, 8), (8, 2)):  # five integers travel with each
        assert sum(encoded(records[bits], "up", "Opinion")) < sum(encoded(records[32], "up", "Opinion")) / least
    for record in records.values():
        theta = load_file(record.model_folder() / "model.safetensors")
        (line,) = [line for line in record.ledger if line["message"] == "Parameters"]
        assert (line["round"], line["recipients"]) == (0, 3)
        assert line["payload"] == 4 * sum(value.numel() for value in theta.values())
        assert record.summary["scores"]["server"]["test"]["f1"] > 0.6
        assert all(own["test"]["f1"] > 0.5 for own in record.summary["scores"]["clients"].values())


def test_one_bit_is_the_default_and_one_line_away(experiment, tmp_path):
    record = fedstill.run(experiment(algorithm="CFD", rounds=2), tmp_path / "one")
    as_they_are = fedstill.run(experiment(algorithm="CFD", rounds=2, wire={"opinions": "fp32"}), tmp_path / "all")
    assert sum(encoded(record, "up", "Opinion")) < sum(encoded(as_they_are, "up", "Opinion")) / 4


def test_clients_that_lack_classes_and_rounds_that_lack_clients(experiment, tmp_path):
    skewed = {"kind": "dirichlet", "clients": 4, "alpha": 0.05, "public": 0.3}
    record = fedstill.run(experiment(algorithm="CFD", partition=skewed, participation=0.5, rounds=4), tmp_path / "run")
    assert len(encoded(record, "up", "Opinion")) == 4
    assert 0 < record.summary["scores"]["server"]["test"]["f1"] < 1


def test_other_options_are_refused():
    with pytest.raises(FedstillError, match="CFD: option 'restart'"):
        make({"name": "CFD", "restart": "often"})
