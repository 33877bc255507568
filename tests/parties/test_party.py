from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from sklearn.metrics import f1_score

from fedstill.common.errors import FedstillError
from fedstill.data.examples import NO_ROWS, Examples, Labelled
from fedstill.data.tokens import TokenStore
from fedstill.learning.losses import kl
from fedstill.learning.phases import PhaseSettings
from fedstill.models import Model, ModelSpec
from fedstill.models.small import BagOfWords, TextCNN
from fedstill.models.tokenizers import HashedNgrams
from fedstill.parties.client import Client
from fedstill.parties.evaluation import Evaluation
from fedstill.parties.memory import Memory
from fedstill.parties.party import PartyData, PartySpec, Surroundings, TrainSettings
from fedstill.parties.server import Server

LABELS = ("bad", "good")
TOKENIZER = HashedNgrams(buckets=64)
WORDS = (("awful", "poor", "broken"), ("great", "lovely", "superb"))


@pytest.fixture(scope="module")
def rows():
    """Sixty short texts whose class is in their words, mostly."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 60)
    texts = [f"thing {n} is {random.choice(WORDS[label])}" for n, label in enumerate(labels)]
    ids, offsets, _ = TOKENIZER.encode(texts, None, 64)
    store = TokenStore(ids, offsets, None)
    labels[::7] = 1 - labels[::7]
    return lambda start, end: Labelled(store, np.arange(start, end), torch.from_numpy(labels[start:end]))


class Counted(BagOfWords):
    """A bag of words that knows how often it was asked."""

    asked = 0

    def forward(self, *inputs, **named):
        self.asked += 1
        return super().forward(*inputs, **named)


def bag():
    module = Counted(TOKENIZER.vocabulary, 2, TOKENIZER.pad_id, dropout=0.0)
    torch.nn.init.normal_(module.weight.weight, std=0.1, generator=torch.Generator().manual_seed(2))
    return Model(module, TOKENIZER, ModelSpec(name="bow"), LABELS, rate=0.05)


def cnn():
    torch.manual_seed(0)
    module = TextCNN(TOKENIZER.vocabulary, 2, TOKENIZER.pad_id, embedding=8, filters=4, dropout=0.5)
    return Model(module, TOKENIZER, ModelSpec(name="textcnn"), LABELS, rate=0.01)


@pytest.fixture
def client(rows):
    def make(name="books", seed=0, model=bag, **train):
        settings = {"epochs": 2, "batch": 8} | train
        spec = PartySpec(ModelSpec(name="bow"), TrainSettings(**settings), PhaseSettings(epochs=1, batch=8))
        data = PartyData(
            public=Examples(rows(0, 20).store, np.arange(20)),
            train=rows(20, 40),
            validation=rows(40, 50),
            evaluation=Evaluation(rows(40, 60), {"test": np.arange(20), "test/books": np.arange(5, 20)}),
        )
        return Client(name, spec, data, Surroundings(seed, torch.device("cpu"), "fp32"), model)

    return make


def equal(first, second):
    return set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)


# Randomness


def trained(party, rounds=(1,), times=1):
    for number in rounds:
        party.enter(number)
        for _ in range(times):
            party.train()
    return party.parameters()


@pytest.mark.parametrize("model", [bag, cnn])
def test_the_same_party_in_the_same_round_computes_the_same(client, model):
    torch.manual_seed(1)
    first = trained(client(model=model))
    torch.manual_seed(99)
    torch.rand(7)
    assert equal(first, trained(client(model=model)))


@pytest.mark.parametrize(("other", "number"), [({"seed": 1}, 1), ({"name": "films"}, 1), ({}, 2)])
def test_another_seed_party_or_round_draws_other_numbers(client, other, number):
    assert not equal(trained(client(model=cnn)), trained(client(model=cnn, **other), (number,)))


def test_training_leaves_torchs_own_generator_alone(client):
    party = client(model=cnn)
    _ = party.model
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    party.enter(1)
    party.train()
    assert torch.equal(torch.rand(3), expected)


def test_a_second_training_in_one_round_draws_other_numbers_than_the_first(client):
    # The same start, the same round: only the order of the rows can tell the two phases apart.
    party = client()
    party.enter(1)
    start = party.parameters()
    party.train()
    first = party.parameters()
    party.set_parameters(start)
    party.train()
    assert not equal(first, party.parameters())


def test_training_twice_in_a_round_is_the_same_again(client):
    assert equal(trained(client(), (1, 2), times=2), trained(client(), (1, 2), times=2))


def test_what_happened_in_earlier_rounds_does_not_change_a_rounds_draws(client):
    fresh, used = client(), client()
    trained(used, (1, 2), times=2)
    used.set_parameters(fresh.parameters())
    assert equal(trained(fresh, (3,)), trained(used, (3,)))


def test_numbers_for_another_purpose_are_other_numbers(client):
    party = client()
    party.enter(3)
    assert party.generator("laplace").random() == party.generator("laplace").random()
    assert party.generator("laplace").random() != party.generator("order").random()


# Measuring


def test_evaluating_computes_once_while_the_model_is_unchanged(client):
    party = client()
    party.enter(1)
    party.evaluate("trained")
    asked = party.model.module.asked
    party.evaluate("distilled")
    assert party.model.module.asked == asked > 0
    party.predict()
    after_prediction = party.model.module.asked
    party.evaluate("trained")
    assert party.model.module.asked == after_prediction


def write_past_the_verbs(party):
    with torch.no_grad():
        party.model.module.weight.weight.add_(torch.randn(party.model.module.weight.weight.shape))
    party.changed()


@pytest.mark.parametrize(
    "change",
    [
        lambda party: party.train(),
        lambda party: party.distill(torch.randn(20, 2), kl),
        lambda party: party.set_parameters({n: v + 1 for n, v in party.parameters().items()}),
        lambda party: party.phase("talk", steps=2).step(torch.arange(4), lambda logits: logits.sum()),
        write_past_the_verbs,
    ],
    ids=["train", "distill", "set_parameters", "phase", "changed"],
)
def test_evaluating_computes_again_when_the_model_has_changed(client, change):
    party = client()
    party.enter(1)
    party.phase("talk", steps=2)
    stale = party.scored()
    change(party)
    fresh = party.scored()
    assert torch.equal(fresh, party.predict(party.data.evaluation.data))
    assert not torch.equal(fresh, stale)


def test_evaluating_writes_a_line_a_split_with_scikit_learns_numbers(client):
    party = client()
    party.enter(4)
    party.train()
    party.evaluate("distilled", round=3)
    labels, predicted = party.data.evaluation.labels, party.scored().argmax(-1).numpy()
    assert [(m["split"], m["rows"], m["round"], m["stage"]) for m in party.metrics] == [
        ("test", 20, 3, "distilled"),
        ("test/books", 15, 3, "distilled"),
    ]
    for line, part in zip(party.metrics, (slice(0, 20), slice(5, 20)), strict=True):
        expected = f1_score(labels[part], predicted[part], average="weighted", labels=[0, 1], zero_division=0)
        assert line["f1"] == pytest.approx(expected)
        assert line["accuracy"] == pytest.approx((labels[part] == predicted[part]).mean())


def test_a_model_that_names_one_class_is_noted_with_the_round_after_which_it_did(client):
    party = client()
    party.enter(4)
    loud = torch.tensor([0.0, 99.0])
    party.set_parameters(party.parameters() | {"bias": loud})
    party.evaluate("distilled", round=3)
    party.evaluate("trained")
    assert party.notes == [f"books predicts one class ({LABELS[1]}) for nearly all test rows after round 3."]


def test_no_rows_are_predicted_as_no_rows_and_teach_nothing(client):
    party = client()
    none = party.data.public.pick(np.empty(0, np.int64))
    assert party.predict(none).shape == (0, 2)
    with pytest.raises(FedstillError, match="distill in round 0: there are no rows to learn from"):
        party.distill(torch.empty(0, 2), kl, rows=np.empty(0, np.int64))


def test_held_out_f1_is_measured_on_the_validation_rows(client):
    party = client(epochs=1)
    party.enter(1)
    party.train()
    held_out = party.data.validation
    predicted = party.predict(held_out).argmax(-1).numpy()
    expected = f1_score(held_out.labels.numpy(), predicted, average="weighted", labels=[0, 1], zero_division=0)
    assert party.held_out_f1() == pytest.approx(expected)


def test_held_out_f1_falls_back_on_the_training_rows(client):
    party = client()
    party.data = replace(party.data, validation=NO_ROWS)
    predicted = party.predict(party.data.train).argmax(-1).numpy()
    labels = party.data.train.labels.numpy()
    assert party.held_out_f1() == pytest.approx(f1_score(labels, predicted, average="weighted"))


def test_label_counts_have_a_place_for_every_class(client, rows):
    party = client()
    assert party.label_counts().tolist() == np.bincount(party.data.train.labels, minlength=2).tolist()
    ones = rows(20, 40)
    party.data = replace(party.data, train=Labelled(ones.store, ones.rows[:3], torch.zeros(3, dtype=torch.int64)))
    assert (party.label_counts().tolist(), party.size) == ([3, 0], 3)


# Learning


def test_class_weights_balance_the_loss(client, rows):
    # One step on everything: the gradient of the balanced loss, by autograd.
    party = client(epochs=1, batch=64, optimiser="sgd", rate=1.0, schedule="constant", class_weights="balanced")
    party.enter(1)
    module = bag().module
    data = rows(20, 40)
    counts = torch.bincount(data.labels, minlength=2)
    assert counts[0] != counts[1]
    loss = torch.nn.functional.cross_entropy(
        module(**data.batch(torch.arange(20), torch.device("cpu"))), data.labels, weight=20 / (2 * counts)
    )
    loss.backward()
    party.train()
    for name, value in module.named_parameters():
        torch.testing.assert_close(party.parameters()[name], (value - value.grad).detach())


def test_a_rate_factor_multiplies_the_rate_and_the_one_of_the_models_family(client):
    for party, rate in [
        (client(rate_factor=0.5), client().model.rate / 2),
        (client(rate=2e-3, rate_factor=0.25), 5e-4),
    ]:
        twin = client(rate=rate)
        for each in (party, twin):
            each.enter(1)
            each.train()
        assert equal(party.parameters(), twin.parameters())


def test_distilling_on_some_rows_of_the_public_set_moves_towards_those(client):
    party, twin = client(), client()
    party.enter(1)
    twin.enter(1)
    picked = np.array([3, 11, 17])
    targets = torch.tensor([[5.0, -5.0], [-5.0, 5.0], [5.0, -5.0]])
    party.distill(targets, kl, rows=picked)
    assert not equal(party.parameters(), twin.parameters())
    twin.data = replace(twin.data, public=Examples(twin.data.public.store, twin.data.public.rows[picked]))
    twin.distill(targets, kl)
    assert equal(party.parameters(), twin.parameters())


def test_a_phase_lives_until_the_round_ends(client):
    party = client()
    party.enter(1)
    opened = party.phase("talk", steps=3)
    assert party.phase("talk", steps=3) is opened
    assert party.has_open_phase
    party.enter(1)
    assert party.has_open_phase
    party.enter(2)
    assert not party.has_open_phase
    assert party.phase("talk", steps=3) is not opened


def test_a_client_without_rows_is_refused_by_name(client):
    party = client(name="films")
    party.data = replace(party.data, train=NO_ROWS)
    with pytest.raises(FedstillError, match="films has no labelled rows to train on"):
        party.train()
    assert party.size == 0


def test_rows_without_labels_are_not_trained_on(client):
    party = client()
    with pytest.raises(FedstillError, match="books has no labelled rows"):
        party.train(party.data.public)


# State


def test_parameters_are_a_copy(client):
    party = client()
    taken = party.parameters()
    for value in taken.values():
        value.add_(1)
    assert not equal(taken, party.parameters())


@pytest.mark.parametrize("change", ["shape", "missing", "extra"])
def test_parameters_of_another_architecture_are_refused_in_a_sentence(client, change):
    party = client()
    parameters = party.parameters()
    before = party.parameters()
    if change == "shape":
        parameters["bias"] = torch.zeros(5)
    elif change == "missing":
        del parameters["bias"]
    else:
        parameters["surplus"] = torch.zeros(1)
    with pytest.raises(FedstillError, match=r"books \(bow\) cannot take these parameters: .*(bias|surplus)") as refused:
        party.set_parameters(parameters)
    assert "\n" not in str(refused.value)
    assert torch.equal(before["bias"], party.parameters()["bias"])


def test_a_state_written_and_read_brings_back_model_and_memory(client):
    party = client()
    trained(party)
    party.memory = Memory(
        arrays={"mean": torch.arange(6.0).reshape(2, 3).t(), "counts": torch.tensor([1, 2])},
        mappings={"teacher": {"embeddings.weight": torch.randn(2, 2), "a/b": torch.zeros(1)}},
        numbers={"beta": 2.5, "rounds seen": 3},
    )
    other = client()
    other.memory = Memory(numbers={"stale": 1.0})
    other.set_state(load(save(party.state())))
    assert equal(other.parameters(), party.parameters())
    assert other.memory.numbers == {"beta": 2.5, "rounds seen": 3}
    assert equal(other.memory.arrays, party.memory.arrays)
    assert set(other.memory.mappings) == {"teacher"}
    assert equal(other.memory.mappings["teacher"], party.memory.mappings["teacher"])


def test_a_party_that_goes_on_from_a_state_ends_where_it_would_have_ended(client):
    whole = trained(client(model=cnn), (1, 2))
    first = client(model=cnn)
    trained(first)
    second = client(model=cnn)
    second.set_state(load(save(first.state())))
    assert equal(trained(second, (2,)), whole)


def test_a_server_whose_model_was_never_used_builds_and_saves_none(client):
    built = []

    def make_model():
        built.append(1)
        return bag()

    like = client()
    server = Server("server", like.spec, like.data, like.around, make_model)
    server.memory.numbers["beta"] = 1.5
    assert set(server.state()) == {"number/beta"}
    server.set_state({"number/beta": torch.tensor(0.5, dtype=torch.float64)})
    assert server.memory == Memory(numbers={"beta": 0.5})
    assert not server.has_model
    assert built == []


# Teachers and truth together


def test_labelled_rows_mixed_into_a_distillation_take_the_cross_entropy_with_their_labels(client, rows):
    me, twin = (client(model=bag) for _ in range(2))
    for party in (me, twin):
        party.spec = replace(
            party.spec,
            distill=PhaseSettings(epochs=1, batch=40, optimiser="sgd", rate=1.0, schedule="constant"),
        )
    teacher = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    me.distill(teacher, kl, also=rows(20, 40))
    module = twin.model.module
    public, private = (
        module(**part.batch(torch.arange(20), torch.device("cpu"))) for part in (rows(0, 20), rows(20, 40))
    )
    divergence = torch.nn.functional.kl_div(public.log_softmax(-1), teacher.softmax(-1), reduction="none").sum(-1)
    truth = torch.nn.functional.cross_entropy(private, rows(20, 40).labels, reduction="none")
    torch.cat([divergence, truth]).mean().backward()
    for name, value in module.named_parameters():
        torch.testing.assert_close(me.parameters()[name], (value - value.grad).detach())


def test_a_distillation_ends_when_it_is_told_to(client):
    me = client()
    answers = iter([False, True, False])
    losses = me.distill(torch.zeros(20, 2), kl, settings=PhaseSettings(epochs=5, batch=8), until=lambda: next(answers))
    assert len(losses.mean) == 2


def test_a_server_lends_scratch_models_without_touching_its_own(client, rows):
    me = Server(
        "server", client().spec, client().data, client().around, bag, lend=lambda kind: client("guest", model=bag)
    )
    me.enter(3)
    before = me.parameters()
    other = {name: value + 1 for name, value in before.items()}
    guest = me.model_from(other)
    assert guest.round == 3
    assert equal(guest.parameters(), other)
    assert me.model_from(before) is guest
    assert equal(me.parameters(), before)


def test_a_server_that_knows_no_such_architecture_says_so(client):
    me = Server("server", client().spec, client().data, client().around, bag)
    with pytest.raises(FedstillError, match="knows no model of architecture Strange"):
        me.model_from(None, "Strange/1234")


@pytest.mark.parametrize("look", [lambda me: me.predict(), lambda me: me.parameters()["weight.weight"]])
def test_who_looks_at_a_servers_model_sees_what_it_had_yet_to_learn(client, look):
    like, seen = client(), []
    for may_owe in (False, True):
        me = Server("server", like.spec, like.data, like.around, bag, may_owe=may_owe)
        for sign in (1, -1):  # the order of the works counts
            me.meanwhile(lambda me=me, sign=sign: me.distill(sign * torch.ones(20, 2).cumsum(1), kl))
        seen.append(look(me))
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=0)
