import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.fedmd import Consensus, FedMD
from fedstill.common.errors import FedstillError
from fedstill.data.examples import Labelled
from fedstill.plan.prepare import prepare
from fedstill.wire.encoding import decode
from tests.engines.test_resume import stop_after

CLIENTS = ("books", "films", "shoes")
LAST = torch.tensor([1, 4, 5, 9], dtype=torch.int32)
NEXT = torch.tensor([0, 4, 11], dtype=torch.int32)


def mean_opinion(rows=4, seed=5):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))


# A client


def test_a_client_digests_by_the_mean_absolute_difference_on_the_rows_asked_about_last(bench, same):
    me = bench.client()
    FedMD().digest(me, Consensus(NEXT, LAST, mean_opinion()))
    same(me, bench.after_one_step(lambda logits: (logits[LAST] - mean_opinion()).abs().mean()))


def test_a_client_may_digest_by_another_loss(bench, same):
    me = bench.client()
    FedMD(client_loss="hard").digest(me, Consensus(NEXT, LAST, mean_opinion()))
    votes = mean_opinion().argmax(-1)
    same(me, bench.after_one_step(lambda logits: torch.nn.functional.cross_entropy(logits[LAST], votes)))


def test_a_client_digests_then_revisits_then_speaks_of_the_rows_asked_about_next(bench, same):
    me, twin = bench.client(), bench.client()
    said = FedMD().communicate(me, Consensus(NEXT, LAST, mean_opinion()))
    FedMD().digest(twin, Consensus(NEXT, LAST, mean_opinion()))
    twin.train()
    same(me, twin.parameters(), tolerance=0)
    torch.testing.assert_close(said.logits, twin.predict()[NEXT])


def test_the_last_digest_is_followed_by_the_own_rows_too(bench, same):
    me, twin = bench.client(), bench.client()
    FedMD().close(me, Consensus(None, LAST, mean_opinion()))
    FedMD().digest(twin, Consensus(None, LAST, mean_opinion()))
    twin.train()
    same(me, twin.parameters(), tolerance=0)


def test_in_the_first_round_there_is_nothing_to_digest(bench, same):
    me, twin = bench.client(), bench.client()
    FedMD().communicate(me, Consensus(NEXT))
    twin.train()
    same(me, twin.parameters(), tolerance=0)


# A federation: small subsets, labelled rows at the server, and somebody absent in every round

SOME = {
    "algorithm": {"name": "FedMD", "subset": 10},
    "partition": {"public": 0.4, "labelled_public": 0.3},
    "rounds": 3,
    "participation": 0.67,
}


@pytest.fixture
def interrupted(experiment, tmp_path):
    """What a run had written down when it was stopped after a round: its plan, its answer, and its clients as then."""

    def stop(number, **changes):
        folder, asked = tmp_path / f"stopped-{number}", experiment(**(SOME | changes))
        with pytest.raises(KeyboardInterrupt):
            fedstill.run(asked, folder, tell=stop_after(number))
        _, plan, _ = prepare(asked, tmp_path / "other")
        (written,) = (folder / "checkpoint" / "state").glob(f"answer-*.{number}")
        clients = {}
        for name in plan.clients:
            clients[name] = plan.make_client(name, lambda event: None)
            clients[name].set_state(load_file(folder / "checkpoint" / "state" / f"{name}.{number}.safetensors"))
        return plan, decode(written.read_bytes(), {"Consensus": Consensus}).message, clients

    return stop


def test_the_answer_is_the_plain_mean_of_what_the_clients_think_of_the_subset(interrupted):
    uneven = {"kind": "dirichlet", "clients": 3, "alpha": 0.5, "public": 0.3}
    _, answer, clients = interrupted(1, participation=1.0, partition=uneven)
    assert len({client.size for client in clients.values()}) > 1  # and yet everybody counts the same
    said = [client.predict().double().numpy()[answer.last.numpy()] for client in clients.values()]
    np.testing.assert_allclose(answer.logits.numpy(), np.mean(said, axis=0), rtol=1e-5, atol=1e-6)
    assert answer.rows is None


def test_every_round_asks_about_other_rows_each_once(interrupted):
    plan, first, _ = interrupted(1, participation=1.0)
    _, second, _ = interrupted(2, participation=1.0)
    for answer in (first, second):
        assert answer.last.dtype == torch.int32
        assert len(set(answer.last.tolist())) == 10
        assert 0 <= min(answer.last.tolist()) <= max(answer.last.tolist()) < len(plan.partition.public)
    assert first.last.tolist() != second.last.tolist()


@pytest.mark.parametrize("pretrain", [True, False])
def test_everybody_learns_the_labelled_public_rows_first_unless_told_otherwise(interrupted, same, pretrain):
    plan, _, clients = interrupted(1, participation=1.0, algorithm={"name": "FedMD", "pretrain": pretrain})
    labelled = plan.partition.labelled
    assert len(labelled) > 0
    for name in CLIENTS:
        alone = plan.make_client(name, lambda event: None)
        if pretrain:
            alone.train(Labelled(alone.data.public.store, labelled, torch.from_numpy(plan.row_labels[labelled])))
        alone.enter(1)
        alone.train()
        same(clients[name], alone.parameters(), tolerance=0)


def test_the_labels_cross_once_to_everybody_and_only_where_there_are_any(experiment, tmp_path):
    record = fedstill.run(experiment(**SOME), tmp_path / "some")
    labelled = len(load_file(tmp_path / "some" / "partition.safetensors")["labelled"])
    (line,) = [line for line in record.ledger if line["message"] == "Labels"]
    assert (line["round"], line["recipients"], line["indices"]) == (0, 3, 4 * labelled)
    record = fedstill.run(experiment(algorithm="FedMD"), tmp_path / "none")
    assert not [line for line in record.ledger if line["message"] == "Labels"]


def test_a_round_costs_the_subset_times_classes_times_k_plus_1_numbers(experiment, tmp_path):
    for subset, folder in ((10, "few"), (5000, "all")):
        record = fedstill.run(experiment(algorithm={"name": "FedMD", "subset": subset}), tmp_path / folder)
        samples = len(load_file(tmp_path / folder / "partition.safetensors")["public"])
        asked = min(subset, samples)
        crossed = sum(line["payload"] for line in record.ledger if line["message"] in ("Scores", "Consensus"))
        assert crossed == 2 * 4 * asked * 3 * (3 + 1)
    assert make("FedMD").cost == "N_r C (K+1)"


def test_clients_that_were_absent_digest_the_last_consensus_too_and_the_server_has_no_model(experiment, tmp_path):
    record = fedstill.run(experiment(**SOME | {"participation": 0.34}), tmp_path / "run")
    for number in (1, 2, 3):
        assert len({m["party"] for m in record.metrics if m["round"] == number and m["stage"] == "trained"}) == 1
    ended = {m["party"] for m in record.metrics if m["round"] == 3 and m["stage"] == "distilled"}
    assert ended == set(CLIENTS)
    assert {m["party"] for m in record.metrics} <= set(CLIENTS)
    assert not (tmp_path / "run" / "models" / "server").exists()


def test_clients_that_digest_learn_from_each_other(experiment, tmp_path):
    # Each client has rows of nearly one class only: alone it cannot know the others.
    apart = {"partition": {"kind": "dirichlet", "clients": 3, "alpha": 0.05, "public": 0.3}, "train": {"epochs": 3}}
    f1 = {}
    for name in ("Local", "FedMD"):
        record = fedstill.run(experiment(algorithm=name, rounds=3, **apart), tmp_path / name)
        stage = "trained" if name == "Local" else "distilled"
        last = [m for m in record.metrics if m["round"] == 3 and m.get("stage") == stage and m["split"] == "test"]
        f1[name] = np.mean([m["f1"] for m in last])
    assert f1["FedMD"] > f1["Local"] + 0.1


SHORT = """
from dataclasses import dataclass

from fedstill.algorithms.fedmd import FedMD, Scores


@dataclass(frozen=True)
class Short(FedMD):
    def communicate(self, me, question):
        said = super().communicate(me, question)
        return Scores(said.logits[1:]) if me.name == "films" else said
"""


def test_a_client_that_leaves_out_a_row_is_refused(experiment, tmp_path):
    (tmp_path / "own.py").write_text(SHORT)
    own = {"name": f"{tmp_path}/own.py:Short", "subset": 10}
    with pytest.raises(FedstillError, match=r"films: Scores.logits has shape \(9, 3\): \(10, 3\) is expected"):
        fedstill.run(experiment(algorithm=own), tmp_path / "run")


def test_a_subset_of_nothing_is_refused():
    with pytest.raises(FedstillError, match="FedMD: option 'subset'"):
        make({"name": "FedMD", "subset": 0})
