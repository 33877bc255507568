"""The crossing: what one end packs the other opens; codecs, counting, the guard, and where privacy and faults go."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.wire import codecs
from fedstill.wire.codecs import Codecs
from fedstill.wire.crossing import Agreement, Crossing
from fedstill.wire.encoding import encode
from fedstill.wire.ledger import Ledger
from fedstill.wire.messages import Answer, BadMessage, Done, Hello, Message, Opinion, Parameters, Scores

TYPES = {cls.__name__: cls for cls in (Hello, Opinion, Answer, Scores, Parameters, Done)}
OWED = {"turn": (Opinion,), "hello": (Hello,), "close": (Done,), "ask": (Scores,), "train": (Parameters,)}


@dataclass
class End:
    name: str
    wire: dict = field(default_factory=dict)


def agreement(**chosen):
    made = {kind: codecs.make(spec) for kind, spec in chosen.items()}
    return Agreement(TYPES, OWED.__getitem__, {"public": 4, "labels": 3, "labelled": 2}, "ab", 3, Codecs(**made))


def ends(*names, ledger=None, **chosen):
    """The server's end, and one for each client."""
    agreed = agreement(**chosen)
    return Crossing(agreed, End("server"), ledger), {name: Crossing(agreed, End(name)) for name in names}


def chances(seed):
    return torch.softmax(torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)), -1)


def answered(client, message, round=1):
    return client.answer(message, {"round": round, "metrics": [], "notes": []}, round)


def test_a_call_and_its_reply_arrive_as_they_were_sent_and_are_counted_where_the_server_is():
    ledger = Ledger(round=2)
    server, clients = ends("books", "films", ledger=ledger)
    answer, opinion = Answer(chances(1)), Opinion(chances(2), loss=0.5)
    calls = server.calls("turn", answer, ["books", "films"], 2)
    assert calls["books"] is calls["films"]
    heard = clients["books"].call(calls["books"])
    assert heard.envelope == {"verb": "turn", "round": 2}
    assert torch.equal(heard.message.logits, answer.logits)
    raw = answered(clients["books"], opinion, 2)
    assert torch.equal(server.reply(raw, "books", "turn", 2).message.logits, opinion.logits)
    down, up = ledger.lines()
    assert (down["direction"], down["recipients"], down["payload"]) == ("down", 2, 4 * 12)
    assert (up["direction"], up["recipients"], up["payload"]) == ("up", 1, 4 * 13)
    assert down["bytes"] == down["encoded"] == len(calls["books"])
    assert up["bytes"] == up["encoded"] == len(raw)
    assert ledger.total == 2 * len(calls["books"]) + len(raw)


def test_messages_of_equal_content_are_counted_once_though_they_are_two_objects():
    ledger = Ledger()
    server, _ = ends("a", "b", "c", ledger=ledger)
    server.calls(
        "turn", {"a": Answer(chances(1)), "b": Answer(chances(2)), "c": Answer(chances(1))}, ["a", "b", "c"], 1
    )
    assert sorted(line["recipients"] for line in ledger.lines()) == [1, 2]


@pytest.mark.parametrize("name", ["bf16", "fp16", "quantised"])
def test_any_codec_serves_any_method_and_the_ledger_has_the_bytes_before_and_after(name):
    ledger = Ledger()
    server, clients = ends("books", ledger=ledger, opinions=name)
    raw = answered(clients["books"], Opinion(chances(1), loss=0.5))
    arrived = server.reply(raw, "books", "turn", 1).message
    assert arrived.logits.dtype == torch.float32
    assert torch.equal(arrived.logits.argmax(-1), chances(1).argmax(-1))
    assert arrived.loss == 0.5
    (line,) = ledger.lines()
    assert line["payload"] == 4 * 13  # as it would be without the codec
    assert line["encoded"] == len(raw)
    assert line["encoded"] != line["bytes"]
    assert ledger.totals["up"] == len(raw)


def test_parameters_take_their_own_codec_and_integers_travel_as_they_are():
    server, clients = ends("books", parameters="bf16")
    state = {"w": torch.randn(5, 3), "steps": torch.tensor(3)}
    heard = clients["books"].call(server.calls("train", Parameters(state), ["books"], 1)["books"]).message
    assert torch.equal(heard.parameters["w"], state["w"].bfloat16().float())
    assert heard.parameters["steps"] == 3
    opinion = server.reply(answered(clients["books"], Opinion(chances(1))), "books", "turn", 1).message
    assert torch.equal(opinion.logits, chances(1))


def test_a_parameter_that_fp16_cannot_hold_is_named():
    server, _ = ends("books", parameters="fp16")
    with pytest.raises(FedstillError, match="parameters/w: a number is too large for fp16"):
        server.calls("train", Parameters({"w": torch.tensor([1e6])}), ["books"], 1)


def test_what_codecs_remember_is_the_partys_and_outlives_the_crossing():
    server, clients = ends("books", opinions={"name": "quantised", "up": 4})
    for round in (1, 2, 3):
        raw = answered(clients["books"], Opinion(chances(1)), round)
        arrived = server.reply(raw, "books", "turn", round).message.logits
        clients["books"] = Crossing(clients["books"].agreement, clients["books"].end)
        server = Crossing(server.agreement, server.end)
        assert torch.allclose(arrived, chances(1), atol=1 / 15)
    assert set(clients["books"].end.wire) == {"sent logits"}
    assert set(server.end.wire) == {"logits from books"}


def test_who_failed_is_sent_no_difference():
    server, clients = ends("books", "films", opinions="quantised")
    calls = server.calls("turn", Answer(chances(1)), ["books", "films"], 1)
    clients["books"].call(calls["books"])
    server.forget(["films"])  # it never said that it had it
    again = server.calls("turn", Answer(chances(1)), ["books", "films"], 2)
    for client in clients.values():
        assert torch.equal(client.call(again[client.end.name]).message.logits.argmax(-1), chances(1).argmax(-1))


def test_the_server_can_see_its_answer_as_clients_will_and_nothing_is_remembered_of_it():
    server, clients = ends("books", opinions="quantised")
    seen = server.as_received(Answer(chances(1)), 1)
    heard = clients["books"].call(server.calls("turn", Answer(chances(1)), ["books"], 2)["books"]).message
    assert torch.equal(seen.logits, heard.logits)
    server, _ = ends("books", opinions="quantised")
    server.as_received(Answer(chances(1)), 1)
    assert not server.end.wire


@pytest.mark.parametrize(
    ("message", "verb", "complaint"),
    [
        (None, "turn", "an empty reply: turn returned nothing"),
        (Done(), "turn", "Done is no reply to turn"),
        (Hello(3, public_fingerprint="ab"), "turn", "Hello is no reply to turn"),
        (Hello(3, public_fingerprint="cd"), "hello", "public_fingerprint differs from the server's"),
        (Opinion(torch.ones(5, 3)), "turn", r"has shape \(5, 3\): \(4, 3\) is expected"),
        (Opinion(torch.full((4, 3), torch.nan)), "turn", "not finite"),
        (Scores(torch.ones(3, 3)), "ask", r"\(2, 3\) is expected"),
    ],
)
def test_what_was_not_agreed_is_refused_and_not_counted(message, verb, complaint):
    ledger = Ledger()
    server, clients = ends("books", ledger=ledger)
    with pytest.raises(BadMessage, match=complaint):
        server.reply(answered(clients["books"], message), "books", verb, 1, asked=2)
    assert not list(ledger.lines())


def test_the_guard_stands_at_the_client_too():
    server, clients = ends("books")
    with pytest.raises(BadMessage, match="not finite"):
        clients["books"].call(encode(Answer(torch.full((4, 3), torch.inf)), {"verb": "turn", "round": 1}))
    with pytest.raises(BadMessage, match=r"Answer.logits is 3e\+38: at most 1e\+06 is expected"):
        clients["books"].call(server.calls("turn", Answer(torch.full((4, 3), 3e38)), ["books"], 1)["books"])
    with pytest.raises(BadMessage, match=r"Answer.logits holds torch.int64: floats are expected"):
        clients["books"].call(server.calls("turn", Answer(torch.ones(4, 3).long()), ["books"], 1)["books"])
    with pytest.raises(BadMessage, match=r"has shape \(9, 3\)"):
        clients["books"].call(server.calls("turn", Answer(torch.ones(9, 3)), ["books"], 1)["books"])


def test_a_reply_of_another_round_is_refused():
    server, clients = ends("books")
    with pytest.raises(BadMessage, match="a reply for round 1 in round 2"):
        server.reply(answered(clients["books"], Opinion(chances(1))), "books", "turn", 2)


def test_something_coded_is_refused_where_no_codec_was_agreed_on():
    _, coded = ends("books", opinions="bf16")
    server, _ = ends("books")
    with pytest.raises(BadMessage, match=r"Opinion.logits is coded, and no codec was agreed on"):
        server.reply(answered(coded["books"], Opinion(chances(1))), "books", "turn", 1)


def test_what_leaves_passes_the_ends_own_steps_before_the_codec_and_what_arrives_others_before_it_is_read():
    seen = []

    def hide_loss(message: Message, passage) -> Message:
        seen.append((passage.direction, passage.sender, passage.receivers, passage.round))
        return replace(message, loss=None)

    agreed = agreement()
    client = Crossing(agreed, End("books"), leaving=[hide_loss])
    server = Crossing(agreed, End("server"), arriving=[lambda raw, passage: raw[:-1]])
    raw = answered(client, Opinion(chances(1), loss=0.5), 2)
    assert seen == [("up", "books", ("server",), 2)]
    assert Crossing(agreed, End("server")).reply(raw, "books", "turn", 2).message.loss is None
    with pytest.raises(BadMessage, match="unreadable"):
        server.reply(raw, "books", "turn", 2)


def test_a_codec_of_ones_own_is_a_file_and_a_line(tmp_path):
    (tmp_path / "signs.py").write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\nimport torch\n"
        "from fedstill.wire.codecs import Codec\n\n"
        "@dataclass(frozen=True)\nclass Signs(Codec):\n    name: ClassVar[str] = 'signs'\n    scale: float = 1.0\n"
        "    def encode(self, value, passage, history):\n        return {'s': (value > 0).to(torch.uint8)}\n"
        "    def decode(self, parts, passage, history):\n        return (parts['s'].float() * 2 - 1) * self.scale\n"
    )
    own = {"name": f"{tmp_path / 'signs.py'}:Signs", "scale": 0.5}
    server, clients = ends("books", opinions=own)
    raw = answered(clients["books"], Opinion(torch.tensor([[1.0, -2.0, 3.0]] * 4)))
    assert server.reply(raw, "books", "turn", 1).message.logits[0].tolist() == [0.5, -0.5, 0.5]


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("bf61", "there is no codec 'bf61'; did you mean 'bf16'"),
        ({"name": "quantised", "up": 9}, "Quantised: option 'up'"),
        ({"name": "low_rank", "energy_last": 1.0}, "LowRank: option 'energy_last'"),
        ({"name": "bf16", "bits": 3}, "BFloat16 has no option 'bits'"),
        ({"up": 3}, "the codec needs a name; known: fp32"),
        (7, "the codec is a name or"),
    ],
)
def test_a_mistaken_codec_is_one_sentence(spec, complaint):
    with pytest.raises(FedstillError, match=complaint):
        codecs.make(spec)


def test_every_mapping_of_tensors_says_whether_a_codec_may_shrink_it():
    @dataclass(frozen=True)
    class Mine(Message):
        weights: Mapping[str, Tensor]

    agreed = replace(agreement(parameters="bf16"), types={"Mine": Mine})
    sent = Crossing(agreed, End("server")).calls("turn", Mine({"w": torch.tensor([0.1])}), ["books"], 2)
    assert Crossing(agreed, End("books")).call(sent["books"]).message.weights["w"] == torch.tensor(0.1)


def test_a_client_whose_reply_was_lost_sends_everything_next_time():
    server, clients = ends("books", "films", opinions={"name": "quantised", "up": 4})
    books = clients["books"]
    for round in (1, 2, 3, 4):
        calls = server.calls("turn", None, ["books", "films"], round)
        assert books.call(calls["books"]).envelope == {"verb": "turn", "round": round}
        raw = answered(books, Opinion(chances(round)), round)
        if round == 2:
            server.forget(["books"])  # it was late
        else:
            arrived = server.reply(raw, "books", "turn", round).message.logits
            torch.testing.assert_close(arrived, chances(round), rtol=0, atol=1 / 15)
    assert b"afresh" not in server.calls("turn", None, ["books"], 5)["books"]


def test_the_ledger_knows_what_codecs_changed_in_both_directions():
    ledger = Ledger(round=1)
    server, clients = ends("books", ledger=ledger, opinions={"name": "quantised", "up": 2, "down": 3})
    said = {"up": chances(1), "down": chances(2)}
    heard = clients["books"].call(server.calls("turn", Answer(said["down"]), ["books"], 2)["books"]).message.logits
    reply = server.reply(answered(clients["books"], Opinion(said["up"])), "books", "turn", 1)
    assert "error" not in reply.envelope
    arrived = {"up": reply.message.logits, "down": heard}
    for line in ledger.lines():
        off = (said[line["direction"]] - arrived[line["direction"]]).abs()
        assert line["rms"] == pytest.approx(float(off.square().mean().sqrt()), rel=5e-3)
        assert line["change"] == pytest.approx(float(off.max()), rel=5e-3)


def test_measurements_travel_packed_beside_a_codec_and_arrive_as_they_were():
    metrics = [{"round": 1, "stage": "trained", "split": "test", "f1": 0.5, "rows": 4}]
    for chosen, is_packed in (({}, False), ({"opinions": "fp16"}, True)):
        server, clients = ends("books", **chosen)
        raw = clients["books"].answer(Opinion(chances(1)), {"round": 1, "metrics": metrics, "notes": ["so"]}, 1)
        assert (b"packed" in raw) == is_packed
        envelope = server.reply(raw, "books", "turn", 1).envelope
        assert envelope == {"round": 1, "metrics": metrics, "notes": ["so"]}
