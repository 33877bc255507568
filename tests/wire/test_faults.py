"""Faults: who lies, and what liars say where honest clients say this."""

import pytest
import torch

from fedstill.wire.codecs import Passage
from fedstill.wire.faults import Fault, Faults
from fedstill.wire.messages import Done, Hello, Opinion, Parameters
from fedstill.wire.replies import Failure

CLIENTS = [f"c{number}" for number in range(5)]
TYPES = {cls.__name__: cls for cls in (Hello, Opinion, Parameters, Done)}
HONEST = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.3, 0.5], [0.5, 0.4, 0.1], [0.6, 0.1, 0.3]])


def acted(*faults, opinions=None, **message):
    """What one liar of five sends, where all honest clients say HONEST and it says this."""
    every = [Fault.model_validate(fault) for fault in faults]
    (liar,) = every[0].among(CLIENTS, 0)
    messages = {name: Opinion(HONEST, loss=0.5) for name in CLIENTS}
    messages[liar] = Opinion(torch.eye(3)[[0, 0, 0, 0]] if opinions is None else opinions, **message)
    said = Faults(every, CLIENTS, 0).act("turn", 1, messages, TYPES, {})
    assert set(said) <= {liar}
    return said.get(liar)


def test_faults_fall_on_the_clients_of_one_seeded_order():
    names = [f"c{number}" for number in range(10)]
    few, many = (Fault(kind="flip", share=share).among(names, 3) for share in (0.2, 0.4))
    others = Fault(kind="scale", share=0.3, after=0.4).among(names, 3)
    assert (len(few), len(many), len(others)) == (2, 4, 3)
    assert set(few) < set(many)
    assert not set(others) & set(many)
    assert few == Fault(kind="drop", share=0.2).among(names[::-1], 3)
    assert Fault(kind="flip", share=0.4).among(names, 4) != many


def test_lma_is_sure_of_the_least_likely_class():
    assert acted({"kind": "lma"}).logits.argmax(-1).tolist() == [2, 0, 2, 1]
    assert torch.equal(acted({"kind": "lma"}).logits.sum(-1), torch.ones(4))


def test_cpa_is_sure_of_the_class_least_correlated_with_the_first():
    correlation = torch.corrcoef(HONEST.double().T)
    wrong = [int(correlation[top].argmin()) for top in HONEST.argmax(-1).tolist()]
    assert acted({"kind": "cpa"}).logits.argmax(-1).tolist() == wrong


def test_hips_says_what_the_least_sure_honest_client_says():
    fault = Fault(kind="hips")
    (liar,) = fault.among(CLIENTS, 0)
    honest = [name for name in CLIENTS if name != liar]
    tops = dict(zip(honest, (0.9, 0.8, 0.6, 0.7), strict=True))
    messages = {name: Opinion(torch.tensor([[top, 1 - top]])) for name, top in tops.items()}
    messages[liar] = Opinion(torch.tensor([[0.5, 0.5]]))
    said = Faults([fault], CLIENTS, 0).act("turn", 1, messages, TYPES, {})[liar]
    torch.testing.assert_close(said.logits, torch.tensor([[0.6, 0.4]]))


def test_where_opinions_are_logits_liars_speak_in_logits():
    fault = Fault(kind="lma")
    (liar,) = fault.among(CLIENTS, 0)
    messages = {name: Opinion(torch.tensor([[3.0, -1.0, 0.0]])) for name in CLIENTS}
    said = Faults([fault], CLIENTS, 0).act("turn", 1, messages, TYPES, {})[liar].logits
    assert said.argmax(-1).tolist() == [1]
    assert said.isfinite().all()


def test_scaled_and_negated_opinions():
    own = torch.tensor([[2.0, -1.0, 0.0]] * 4)
    assert torch.equal(acted({"kind": "scale", "factor": 10}, opinions=own).logits, 10 * own)
    assert torch.equal(acted({"kind": "negate"}, opinions=own).logits, -own)
    torch.testing.assert_close(acted({"kind": "negate"}, opinions=HONEST).logits, (1 - HONEST) / 2)
    both = acted({"kind": "scale", "factor": 10}, {"kind": "negate"}, opinions=own).logits
    assert torch.equal(both, -10 * own)


def test_liars_about_losses_and_sizes():
    assert acted({"kind": "lie", "loss": -1e9}, loss=0.7).loss == -1e9
    fault = Fault(kind="lie", size=10**12)
    (liar,) = fault.among(CLIENTS, 0)
    said = Faults([fault], CLIENTS, 0).act("hello", 0, dict.fromkeys(CLIENTS, Hello(5)), TYPES, {})
    assert {name: hello.size for name, hello in said.items()} == {liar: 10**12}


def test_parameters_are_scaled_and_counters_stay():
    sent = Parameters({"w": torch.ones(2), "n": torch.tensor(3)})
    fault = Fault(kind="scale", factor=5)
    (liar,) = fault.among(CLIENTS, 0)
    said = Faults([fault], CLIENTS, 0).act("turn", 1, dict.fromkeys(CLIENTS, sent), TYPES, {})[liar]
    assert said.parameters["w"].tolist() == [5, 5]
    assert said.parameters["n"] == 3


def test_colluders_all_say_what_the_first_of_them_says():
    fault = Fault(kind="collude", share=0.6)
    first, *others = fault.among(CLIENTS, 0)
    messages = {name: Opinion(torch.full((1, 2), float(number)), loss=1.0) for number, name in enumerate(CLIENTS)}
    said = Faults([fault], CLIENTS, 0).act("turn", 1, messages, TYPES, {})
    assert all(torch.equal(said[name].logits, messages[first].logits) for name in others)


def test_stale_ones_send_their_reply_before_this_one():
    faults, memory = Faults([Fault(kind="stale")], CLIENTS, 0), {}
    (liar,) = faults.liars()
    for round in (1, 2, 3):
        messages = {name: Opinion(torch.full((1, 2), float(round))) for name in CLIENTS}
        said = faults.act("turn", round, messages, TYPES, memory)
        assert float(said.get(liar, messages[liar]).logits[0, 0]) == max(1, round - 1)


@pytest.mark.parametrize("kind", ["drop", "delay"])
def test_lost_and_late_replies_are_failures_but_not_before_the_first_round(kind):
    faults = Faults([Fault(kind=kind)], CLIENTS, 0)
    messages = dict.fromkeys(CLIENTS, Done())
    assert faults.act("hello", 0, messages, TYPES, {}) == {}
    (failure,) = faults.act("turn", 1, messages, TYPES, {}).values()
    assert isinstance(failure, Failure)
    rare = Faults([Fault(kind=kind, chance=0.3)], CLIENTS, 0)
    struck = [round for round in range(1, 101) if rare.act("turn", round, messages, TYPES, {})]
    assert 15 < len(struck) < 45


def test_corrupt_replies_have_other_bytes_the_same_each_time():
    faults = Faults([Fault(kind="corrupt")], CLIENTS, 0)
    (liar,) = faults.liars()
    raw = bytes(range(256)) * 4
    passages = {name: Passage("up", name, ("server",), 1, 3) for name in CLIENTS}
    arrived = {name: faults.arriving(raw, passage) for name, passage in passages.items()}
    assert [name for name, own in arrived.items() if own != raw] == [liar]
    assert faults.arriving(raw, passages[liar]) == arrived[liar]
    assert len(arrived[liar]) == len(raw)
