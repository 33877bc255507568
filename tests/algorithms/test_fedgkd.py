import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.fedgkd import FedGKD, GlobalModels
from fedstill.common.errors import FedstillError
from fedstill.parties.memory import Memory
from fedstill.wire.encoding import decode, encode
from fedstill.wire.guard import Expected, check
from fedstill.wire.messages import Hello, Parameters
from fedstill.wire.replies import Replies
from tests.algorithms.test_parameters import Fed


def shifted(parameters, seed):
    random = torch.Generator().manual_seed(seed)
    return {name: value + torch.randn(value.shape, generator=random) for name, value in parameters.items()}


@pytest.mark.parametrize("strength", [0.1, 3.0])
def test_a_client_minimises_ce_and_the_divergence_from_the_mean_model_on_its_own_rows(bench, same, strength):
    me = bench.client()
    newest, mean = shifted(me.parameters(), 1), shifted(me.parameters(), 2)
    algorithm = FedGKD(strength=strength)
    algorithm.digest(me, GlobalModels(newest, mean))
    said = algorithm.opine(me)

    batch = bench.rows(bench.private).batch(torch.arange(12), torch.device("cpu"))
    module = bench.model().module
    module.load_state_dict(mean)
    teacher = module(**batch).detach().softmax(-1)
    module.load_state_dict(newest)
    logits = module(**batch)
    divergence = (teacher * (teacher.log() - logits.log_softmax(-1))).sum(-1).mean()
    (F.cross_entropy(logits, bench.labels[bench.private]) + strength * divergence).backward()
    same(me, {name: (value - 0.5 * value.grad).detach() for name, value in module.named_parameters()})
    same(me, said.parameters, tolerance=0)
    assert me.memory == Memory()


def test_where_no_mean_is_sent_the_teacher_is_the_model_that_the_client_starts_from(bench, same):
    me, twin = bench.client(), bench.client()
    newest = shifted(me.parameters(), 1)
    for client, answer in ((me, GlobalModels(newest)), (twin, GlobalModels(newest, newest))):
        FedGKD(strength=2.0).digest(client, answer)
        FedGKD(strength=2.0).opine(client)
    same(me, twin.parameters(), tolerance=0)


def test_the_server_sends_the_newest_model_and_the_mean_of_the_last_ones(bench):
    me, algorithm = bench.server(), FedGKD(models=3)
    past = [me.parameters()]
    first = algorithm.start(Fed(me, {}))
    assert first.mean is None
    hellos = {"books": Hello(10), "films": Hello(30)}
    for seed in (1, 3, 5, 7):
        two = {name: shifted(past[0], seed + number) for number, name in enumerate(hellos)}
        answer = algorithm.server(me, Replies({name: Parameters(value) for name, value in two.items()}, hellos))
        past.append({key: (two["books"][key] + two["films"][key]) / 2 for key in past[0]})
        last = past[-3:]
        for key in past[0]:
            torch.testing.assert_close(answer.newest[key], past[-1][key])
            torch.testing.assert_close(answer.mean[key], sum(model[key] for model in last) / len(last))
    assert sorted(me.memory.mappings) == ["model 0", "model 1", "model 2"]


def test_weights_by_size(bench):
    me, hellos = bench.server(), {"books": Hello(10), "films": Hello(30)}
    two = {name: {k: torch.full_like(v, number) for k, v in me.parameters().items()}
           for number, name in enumerate(hellos)}  # fmt: skip
    answer = FedGKD(weights="size").server(me, Replies({n: Parameters(v) for n, v in two.items()}, hellos))
    assert all(torch.allclose(value, torch.full_like(value, 0.75)) for value in answer.newest.values())


def test_one_model_to_remember_is_never_sent_twice(bench):
    me, algorithm = bench.server(), FedGKD(models=1)
    algorithm.start(Fed(me, {}))
    ups = Replies({"books": Parameters(shifted(me.parameters(), 1))}, {"books": Hello(10)})
    assert algorithm.server(me, ups).mean is None


def test_both_models_travel(bench):
    newest, mean = bench.server().parameters(), shifted(bench.server().parameters(), 1)
    for message in (GlobalModels(newest), GlobalModels(newest, mean)):
        arrived = decode(encode(message), {"GlobalModels": GlobalModels}).message
        check(arrived, Expected({}))
        assert all(torch.equal(arrived.newest[key], value) for key, value in newest.items())
        assert (arrived.mean is None) == (message.mean is None)


def test_a_run_costs_pk_up_and_twice_p_down_but_in_round_1(experiment, tmp_path):
    record = fedstill.run(experiment(algorithm="FedGKD", train={"epochs": 3, "batch": 16}), tmp_path / "run")
    model = load_file(record.model_folder() / "model.safetensors")
    numbers = 4 * sum(value.numel() for value in model.values())
    lines = [line for line in record.ledger if line["message"] in ("GlobalModels", "Parameters")]
    up = {line["round"]: line["payload"] for line in lines if line["direction"] == "up"}
    down = {line["round"]: (line["payload"], line["recipients"]) for line in lines if line["direction"] == "down"}
    assert up == {1: 3 * numbers, 2: 3 * numbers}
    assert down == {1: (numbers, 3), 2: (2 * numbers, 3), 3: (2 * numbers, 3)}
    assert record.summary["scores"]["server"]["test"]["f1"] > 0.6
    assert make("FedGKD").cost == "PK up, 2P down"


def test_some_clients_a_round_are_enough(experiment, tmp_path):
    record = fedstill.run(experiment(algorithm="FedGKD", participation=0.34, rounds=3), tmp_path / "run")
    assert record.summary["scores"]["server"]["test"]["f1"] > 0.3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"models": 0}, "'models'.*greater than or equal to 1"),
        ({"strength": -1}, "'strength'.*greater than or equal to 0"),
        ({"weights": "rows"}, "'weights'.*'uniform' or 'size'"),
        ({"teachers": 5}, "no option 'teachers'"),
    ],
)
def test_other_options_are_refused(options, complaint):
    with pytest.raises(FedstillError, match=complaint):
        make({"name": "FedGKD", **options})
