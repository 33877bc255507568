import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.cfd import CFD, SoftLabels
from fedstill.common.errors import FedstillError
from fedstill.wire.messages import BadMessage, Hello, Sizes, encode
from fedstill.wire.quantise import pack, quantise, unpack
from fedstill.wire.replies import Failure, Replies
from tests.algorithms.test_fedgkd import shifted

NAMES = ("books", "films")
HELLOS = {name: Hello(12) for name in NAMES}


def chances(seed, rows=12):
    return torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(3), rows)).float()


def grid(probabilities, bits):
    return quantise(probabilities, bits).float() / (2**bits - 1)


def absolute(probabilities, bits, round=1):
    return SoftLabels(round, codes=pack(quantise(probabilities, bits), None, bits))


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


def test_who_does_not_take_theta_0_is_named(bench):
    with pytest.raises(FedstillError, match="films did not take it"):
        begun(bench, CFD(), failing=["films"])


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_a_client_restarts_from_theta_0_and_distils_the_servers_rounded_labels(bench, same, bits):
    _, clients = begun(bench, CFD())
    me = clients["books"]
    me.train()
    wanted = grid(chances(1), bits)
    CFD(bits_down=bits).digest(me, absolute(chances(1), bits))
    same(me, bench.after_one_step(lambda z: -(wanted * z.log_softmax(-1)).sum(-1).mean()))


def test_a_client_trains_then_speaks_in_differences_to_what_it_said_last(bench):
    _, clients = begun(bench, CFD())
    me, algorithm = clients["books"], CFD(bits_up=3)
    me.enter(1)
    first = algorithm.opine(me)
    codes = unpack(first.codes, None, 3, (12, 3))
    assert (first.round, first.since) == (1, 0)
    assert torch.equal(codes, quantise(me.predict().softmax(-1), 3))
    me.enter(4)  # it was away for two rounds
    second = algorithm.opine(me)
    assert (second.round, second.since) == (4, 1)
    assert torch.equal(unpack(second.codes, codes, 3, (12, 3)), quantise(me.predict().softmax(-1), 3))


@pytest.mark.parametrize("restart", [False, True])
def test_the_server_distils_the_mean_of_the_rounded_labels_and_answers_with_its_own_rounded_ones(bench, same, restart):
    algorithm = CFD(bits_up=2, bits_down=4, restart=restart)
    server, _ = begun(bench, algorithm)
    first = server.parameters()
    server.set_parameters(shifted(first, 9))
    server.enter(1)
    ups = {name: absolute(chances(seed), 2) for seed, name in enumerate(NAMES)}
    answer = algorithm.server(server, Replies(ups, HELLOS))

    module = bench.model().module
    module.load_state_dict(first if restart else shifted(first, 9))
    wanted = (grid(chances(0), 2) + grid(chances(1), 2)) / 2
    logits = module(**bench.rows(bench.public).batch(torch.arange(12), torch.device("cpu")))
    F.kl_div(logits.log_softmax(-1), wanted, reduction="batchmean").backward()
    same(server, {name: (value - 0.5 * value.grad).detach() for name, value in module.named_parameters()})
    assert torch.equal(unpack(answer.codes, None, 4, (12, 3)), quantise(server.predict().softmax(-1), 4))


def test_down_it_is_a_difference_only_after_rounds_that_everybody_answered_in(bench):
    algorithm = CFD(bits_up=1, bits_down=2)
    server, clients = begun(bench, algorithm)
    answer, since = None, []
    for number, present in enumerate((NAMES, NAMES, NAMES[:1], NAMES, NAMES), start=1):
        server.enter(number)
        ups = {}
        for name in present:
            clients[name].enter(number)
            if answer is not None:
                algorithm.digest(clients[name], answer)
            ups[name] = algorithm.opine(clients[name])
        answer = algorithm.server(server, Replies(ups, HELLOS))
        since.append(answer.since)
        for name in present:  # the two ends agree on what was said
            assert torch.equal(
                server.memory.mappings["received"][f"codes/{name}"], clients[name].memory.mappings["sent"]["codes"]
            )
    assert since == [0, 1, 0, 3, 4]
    for client in clients.values():
        algorithm.digest(client, answer)
        assert torch.equal(client.memory.mappings["received"]["codes/server"], server.memory.mappings["sent"]["codes"])


def test_memories_survive_a_checkpoint(bench):
    algorithm = CFD()
    server, clients = begun(bench, algorithm)
    server.enter(1)
    clients["books"].enter(1)
    answer = algorithm.server(server, Replies({"books": algorithm.opine(clients["books"])}, HELLOS))
    algorithm.digest(clients["books"], answer)
    for party, twin in ((server, bench.server()), (clients["books"], bench.client())):
        twin.set_state(party.state())
        for book in ("sent", "received"):
            assert twin.memory.mappings[book].keys() == party.memory.mappings[book].keys()
            assert all(
                torch.equal(value, twin.memory.mappings[book][name])
                for name, value in party.memory.mappings[book].items()
            )


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (SoftLabels(3, 2, pack(quantise(chances(1), 2), None, 2)), "the difference to its labels of round 2.*has none"),
        (SoftLabels(3), "other labels than the 2 bits that were agreed"),
        (SoftLabels(3, probabilities=chances(1)), "other labels than the 2 bits that were agreed"),
        (absolute(chances(1, rows=11), 2), "not those of 12 samples and 3 classes"),
        (SoftLabels(3, codes=pack(torch.full((12, 3), 3, dtype=torch.uint8), None, 2)), "books.*do not sum to one"),
        (absolute(chances(1), 4), "more than the 2 bits"),
    ],
)
def test_what_the_server_cannot_read_is_refused(bench, said, complaint):
    with pytest.raises(BadMessage, match=complaint):
        CFD(bits_up=2).server(bench.server(), Replies({"books": said}, HELLOS))


def test_a_difference_to_another_round_is_refused(bench):
    _, clients = begun(bench, CFD())
    CFD().digest(clients["books"], absolute(chances(1), 1, round=3))
    with pytest.raises(BadMessage, match="labels of round 4, of which books has those of round 3 only"):
        CFD().digest(clients["books"], SoftLabels(5, 4, pack(quantise(chances(2), 1), None, 1)))


def payloads(record, direction):
    lines = [line for line in record.ledger if line["message"] == "SoftLabels" and line["direction"] == direction]
    return [line["payload"] for line in lines]


def test_a_run_in_one_bit_learns_and_its_codes_cost_a_fraction_of_the_numbers(experiment, tmp_path):
    some = {"rounds": 3, "train": {"epochs": 3, "batch": 16}, "partition": {"public": 0.4}}
    records = {
        bits: fedstill.run(
            experiment(algorithm={"name": "CFD", "bits_up": bits, "bits_down": bits}, **some), tmp_path / str(bits)
        )
        for bits in (1, 8, 32)
    }
    public = len(load_file(tmp_path / "1" / "partition.safetensors")["public"])
    assert payloads(records[32], "up") == 3 * [4 * public * 3 * 3]
    assert payloads(records[32], "down") == 3 * [4 * public * 3]
    for bits in (1, 8):
        assert sum(payloads(records[bits], "up")) < sum(payloads(records[32], "up")) / (16 if bits == 1 else 3)
    for record in records.values():
        theta = load_file(record.model_folder() / "model.safetensors")
        (line,) = [line for line in record.ledger if line["message"] == "Parameters"]
        assert (line["round"], line["recipients"]) == (0, 3)
        assert line["payload"] == 4 * sum(value.numel() for value in theta.values())
        assert record.summary["scores"]["server"]["test"]["f1"] > 0.6
        assert all(own["test"]["f1"] > 0.5 for own in record.summary["scores"]["clients"].values())


def test_the_payload_of_a_message_is_the_length_of_its_packed_codes(bench):
    said = absolute(chances(1), 3)
    assert Sizes.of(encode(said)).payload == len(said.codes) < 4 * 36


def test_clients_that_lack_classes_and_rounds_that_lack_clients(experiment, tmp_path):
    skewed = {"kind": "dirichlet", "clients": 4, "alpha": 0.05, "public": 0.3}
    record = fedstill.run(experiment(algorithm="CFD", partition=skewed, participation=0.5, rounds=4), tmp_path / "run")
    assert len(payloads(record, "up")) == 4
    assert 0 < record.summary["scores"]["server"]["test"]["f1"] < 1


@pytest.mark.parametrize("option", [{"bits_up": 0}, {"bits_up": 9}, {"bits_down": 16}, {"restart": "often"}])
def test_other_options_are_refused(option):
    with pytest.raises(FedstillError, match=f"CFD: option '{next(iter(option))}'"):
        make({"name": "CFD", **option})
