import pytest
import torch

from fedstill.algorithms import make
from fedstill.plan.caution import cautions
from fedstill.wire.messages import Hello

MIXED = {"north": Hello(200, architecture="TextCNN/1"), "south": Hello(200, architecture="BagOfWords/2")}


@pytest.mark.parametrize("method", ["LogitAvg", "FedKD", "FedMD", "FedDF", {"name": "AdaFD", "reading": "paper"}])
def test_raw_logits_of_different_models_are_warned_of(method):
    (found,) = cautions(make(method), MIXED)
    assert "raw logits of different models (BagOfWords, TextCNN)" in found.cause
    assert "DSFL" in found.advice
    alike = {name: Hello(200, architecture="TextCNN/1") for name in MIXED}
    assert cautions(make(method), alike) == []


@pytest.mark.parametrize(
    "method", ["AdaFD", "DSFL", {"name": "FedID", "rehearsal": True}, {"name": "MHAT", "server_loss": "hard"}]
)
def test_comparable_opinions_are_not(method):
    assert cautions(make(method), MIXED) == []


@pytest.mark.parametrize("option", [{}, {"reading": "released"}, {"feedback": "none"}, {"client_rate": 0.5}])
def test_clients_that_follow_their_own_votes_are_warned_of(option):
    (found,) = cautions(make({"name": "FedID", **option}), MIXED)
    assert "FedID" in found.cause
    assert "client_rate=0.04" in found.advice


@pytest.mark.parametrize("option", [{"client_rate": 0.04}, {"rehearsal": 0.5}, {"transfer": False}])
def test_those_who_are_held_back_are_not(option):
    assert cautions(make({"name": "FedID", **option}), MIXED) == []


def test_tiny_clients_and_public_rows_unlike_their_own_are_named():
    clients = {f"c{number}": Hello(10 + 30 * number, unlike=0.5 + 0.12 * number) for number in range(5)}
    tiny, far = cautions(make("AdaFD"), clients)
    assert str(tiny).startswith("fewer than 50 training rows at c0, c1:")
    assert str(far).startswith("public rows unlike those of c4:")


def test_public_rows_unlike_half_of_the_clients_own_harm_whoever_loses():
    def far(many):
        (caution,) = cautions(
            make("AdaFD"), {f"c{number}": Hello(99, unlike=float(number < many)) for number in range(4)}
        )
        return caution

    assert far(1).cause_for(["c0", "c3"]) == "public rows unlike those of c0"
    assert far(1).cause_for(["c3"]) == ""
    assert far(2).cause_for(["c3"]) == "public rows unlike those of c0, c1"


def test_a_single_client_one_label_and_hardly_any_public_rows_are_warned_of():
    even, one = torch.tensor([60, 40]), torch.tensor([0, 100])
    clients = {"north": Hello(100, label_counts=even), "south": Hello(100, label_counts=one), "east": Hello(100)}
    (found,) = cautions(make("AdaFD"), clients, 20)
    assert found.cause_for(["south"]) == "rows of one label only at south"
    assert found.cause_for(["north"]) == ""
    few, alone = cautions(make("AdaFD"), {"north": Hello(100)}, 1)[::-1]
    assert few.cause == "only 1 public row"
    assert alone.cause == "there is only one client"
    assert len(cautions(make("FedAvg"), {"north": Hello(100)}, 0)) == 1
