"""MutualKD: two losses, a private teacher, factored updates."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

import fedstill
from fedstill.algorithms.mutual_kd import MutualKD, Student, changed, difference
from fedstill.common.errors import FedstillError
from fedstill.data.artefacts import fetch
from fedstill.learning.losses import ce
from fedstill.learning.mutual import Learner, Outputs, learn_mutually, mutual_losses
from fedstill.learning.phases import Phase, PhaseSettings
from fedstill.wire.codecs import Passage
from fedstill.wire.codecs.low_rank import LowRank
from fedstill.wire.messages import Hello
from fedstill.wire.replies import Replies
from tests.engines.conftest import content
from tests.engines.test_resume import stop_after

PLAIN = PhaseSettings(epochs=1, batch=64, optimiser="sgd", rate=0.1, schedule="constant")

CNN = {"name": "textcnn", "embedding": 16, "filters": 8}
SMALL = {"clients": CNN, "server": CNN, "train": {"epochs": 2, "max_length": 16}}


def tiny_bert(folder, hidden=16, layers=2, heads=2, seed=0, dropout=0.0, scale=4.0):
    """A folder with a random BERT of bert-tiny's vocabulary, far enough from zero for all terms to matter."""
    config = BertConfig(
        vocab_size=30522, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=32,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, num_labels=3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertForSequenceClassification(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(1.0 if "LayerNorm" in name else scale)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(fetch("bert-tiny")).save_pretrained(folder)
    return folder


def softmax_kl(first, second):
    """KL(first || second), from its definition."""
    p, q = first.softmax(-1), second.softmax(-1)
    return (p * (p / q).log()).sum(-1).mean()


def test_the_two_losses_are_the_papers():
    torch.manual_seed(0)
    t, s = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    y = torch.tensor([0, 2, 1, 1, 0])
    ce_t, ce_s = F.cross_entropy(t, y), F.cross_entropy(s, y)
    teacher, student = mutual_losses(Outputs(t), Outputs(s), ce(t, y), ce(s, y))
    assert float(teacher) == pytest.approx(float(ce_t + softmax_kl(s, t) / (ce_t + ce_s)), abs=1e-12)
    assert float(student) == pytest.approx(float(ce_s + softmax_kl(t, s) / (ce_t + ce_s)), abs=1e-12)


def bert(tmp_path, name, **shape):
    folder = tiny_bert(tmp_path / name, **shape)
    return BertForSequenceClassification.from_pretrained(folder).double()


def reference_losses(teacher, student, batch, labels):
    """Both losses with hidden states and attentions, a row and a layer at a time, constants held by hand."""
    outputs = []
    for module in (teacher, student):
        module.set_attn_implementation("eager")
        outputs.append(module(**batch, output_hidden_states=True, output_attentions=True))
    ces = [F.cross_entropy(output.logits, labels) for output in outputs]
    denominator = (ces[0] + ces[1]).item()
    losses = []
    for me in (0, 1):
        kl = softmax_kl(outputs[1 - me].logits.detach(), outputs[me].logits)
        layers = []
        for number in range(2):  # the student's two; the teacher has four
            numbers = (2 * number + 1, number)
            hidden, attention = [], []
            for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
                h = [outputs[k].hidden_states[1 + numbers[k]][row, :length] for k in (0, 1)]
                a = [outputs[k].attentions[numbers[k]][row, :, :length, :length] for k in (0, 1)]
                hidden.append(((h[me] - h[1 - me].detach()) ** 2).flatten())
                attention.append(((a[me] - a[1 - me].detach()) ** 2).flatten())
            layers.append(torch.cat(hidden).mean() + torch.cat(attention).mean())
        losses.append(ces[me] + (kl + sum(layers) / 2) / denominator)
    return losses


def test_one_step_of_both_is_autograds_with_hidden_states_and_attentions_of_real_tokens_only(bench, tmp_path):
    teacher, student = bert(tmp_path, "t", layers=4, seed=1), bert(tmp_path, "s", seed=2)
    data = bench.rows(np.array([0, 4, 7, 9]))  # bags of hashed words as tokens, of different lengths
    batch = data.batch(torch.arange(4), torch.device("cpu"))
    assert len(set(batch["attention_mask"].sum(1).tolist())) > 1
    learners = [Learner(Phase(m, data, PLAIN, 0.1, 3), ce) for m in (teacher, student)]
    twins = [bert(tmp_path, "t", layers=4, seed=1), bert(tmp_path, "s", seed=2)]
    losses = reference_losses(*twins, batch, data.labels)
    means = learn_mutually(*learners, data.labels)
    assert means[0] == pytest.approx([float(loss.detach()) for loss in losses], abs=1e-9)
    for module, twin, loss in zip((teacher, student), twins, losses, strict=True):
        parameters = dict(twin.named_parameters())
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, retain_graph=True)
        for (name, value), gradient in zip(parameters.items(), gradients, strict=True):
            wanted = value if gradient is None else value - 0.1 * gradient
            torch.testing.assert_close(module.get_parameter(name), wanted, rtol=0, atol=1e-9)
        assert module.config._attn_implementation == "sdpa"


def test_balanced_class_weights_weigh_both_cross_entropies():
    torch.manual_seed(1)
    t, s, y = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 0, 1, 2])
    weights = torch.tensor([0.5, 1.0, 2.0])
    ces = [F.cross_entropy(z, y, weight=weights) for z in (t, s)]
    teacher, student = mutual_losses(Outputs(t), Outputs(s), ce(t, y), ce(s, y), weights=weights[y])
    torch.testing.assert_close(teacher, ces[0] + softmax_kl(s, t) / sum(ces))
    torch.testing.assert_close(student, ces[1] + softmax_kl(t, s) / sum(ces))


def with_teacher(bench, **settings):
    client = bench.client(**settings)
    client.make_extra = lambda spec, name: bench.model(seed=11)
    return client


def test_a_client_starts_from_the_students_theta_and_sends_what_it_changed(bench):
    me, theta = with_teacher(bench), bench.server().parameters()
    me.enter(1)
    algorithm = MutualKD()
    algorithm.digest(me, Student(whole=theta))
    update = algorithm.opine(me).update
    batch = bench.rows(bench.private).batch(torch.arange(12), torch.device("cpu"))
    labels = bench.labels[bench.private]
    student, teacher = bench.model().module, bench.model(seed=11).module
    z, t = student(**batch), teacher(**batch).detach()
    loss = F.cross_entropy(z, labels)
    loss = loss + softmax_kl(t, z) / (loss.detach() + F.cross_entropy(t, labels))
    loss.backward()
    for name, value in student.named_parameters():
        torch.testing.assert_close(update[name], -0.5 * value.grad, rtol=1e-4, atol=1e-6)
    assert len(me.notes) == 1
    assert "logits only" in me.notes[0]
    me.enter(2)
    algorithm.opine(me)
    assert len(me.notes) == 1


def shrunk(update, round=1, rounds=2):
    """An update as it travels down: what the codec keeps of it."""
    passage = Passage("down", "server", (), round, rounds)
    parts = {name: LowRank().encode(value, passage, {}) for name, value in update.items()}
    return {name: update[name] if part is None else LowRank().decode(part, passage, {}) for name, part in parts.items()}


class Fed:
    """A federation whose clients have said these updates."""

    def __init__(self, server, ups):
        self.server, self.ups, self.clients = server, ups, ups.clients

    def call(self, verb, message):
        return self.ups

    def as_received(self, message):
        return Student(update=shrunk(message.update))


@pytest.mark.parametrize(("weights", "shares"), [("uniform", (0.5, 0.5)), ("size", (0.25, 0.75))])
def test_the_server_applies_the_mean_as_it_travels(bench, weights, shares):
    me = bench.server()
    before = me.parameters()
    torch.manual_seed(2)
    updates = [{name: torch.randn_like(value) for name, value in before.items()} for _ in range(2)]
    hellos = {"a": Hello(10), "b": Hello(30)}
    ups = Replies({name: Student(update=update) for name, update in zip("ab", updates, strict=True)}, hellos)
    answer = MutualKD(weights=weights).round(Fed(me, ups), None)
    mean = {
        name: (shares[0] * updates[0][name].double() + shares[1] * updates[1][name].double()).float() for name in before
    }
    assert all(torch.equal(answer.update[name], mean[name]) for name in mean)
    after = changed(before, shrunk(mean))
    assert all(torch.equal(value, after[name]) for name, value in me.parameters().items())


def test_differences_add_up_and_integers_are_taken_as_they_are():
    before = {"w": torch.tensor([1.0, 2.0]), "count": torch.tensor(3)}
    after = {"w": torch.tensor([1.5, 1.0]), "count": torch.tensor(9)}
    update = difference(after, before)
    assert update["count"] == 9
    assert all(torch.equal(value, after[name]) for name, value in changed(before, update).items())


def test_factors_travel_and_everybody_ends_with_the_same_student(experiment, tmp_path):
    record = fedstill.run(experiment(algorithm="MutualKD", **SMALL), tmp_path / "run")
    server = load_file(record.model_folder() / "model.safetensors")
    for client in record.summary["clients"]:
        own = load_file(record.model_folder(client) / "model.safetensors")
        assert all(torch.equal(own[name], value) for name, value in server.items())
    whole = 4 * sum(value.numel() for value in server.values())
    lines = [line for line in record.ledger if line["message"] == "Student"]
    assert [(line["payload"], line["recipients"]) for line in lines if line["direction"] == "down"] == 3 * [(whole, 3)]
    saved = {(line["round"], line["direction"]): line["bytes"] - line["encoded"] for line in lines}
    assert saved.pop((1, "down")) == 0  # the first student goes as it is
    assert all(bytes > 0 for bytes in saved.values())
    assert any("logits only" in note for note in record.summary["notes"])


def test_who_had_no_part_in_a_round_gets_the_whole_student(experiment, tmp_path):
    record = fedstill.run(experiment(algorithm="MutualKD", rounds=3, participation=0.67, **SMALL), tmp_path / "run")
    server = load_file(record.model_folder() / "model.safetensors")
    whole = 4 * sum(value.numel() for value in server.values())
    last = [line for line in record.ledger if line["direction"] == "down" and line["round"] == 4]
    assert all(line["payload"] == whole for line in last)
    assert sorted((line["encoded"] > whole, line["recipients"]) for line in last) == [(False, 2), (True, 1)]
    for client in record.summary["clients"]:
        own = load_file(record.model_folder(client) / "model.safetensors")
        assert all(torch.equal(own[name], value) for name, value in server.items())


def test_raw_updates_cost_what_fedavg_does(experiment, tmp_path):
    record = fedstill.run(experiment(algorithm="MutualKD", wire={"parameters": "fp32"}), tmp_path / "run")
    fedavg = fedstill.run(experiment(algorithm="FedAvg"), tmp_path / "fedavg")
    payload, theirs = (sum(line["payload"] for line in r.ledger) for r in (record, fedavg))
    assert payload == theirs
    assert all(line["bytes"] == line["encoded"] for line in record.ledger)


@pytest.fixture
def berts(experiment, tmp_path):
    """A federation of random BERTs with dropout."""

    def make(**changes):
        folder = str(tiny_bert(tmp_path / "bert", hidden=32, dropout=0.1))
        settings = {
            "clients": folder,
            "server": folder,
            "train": {"epochs": 3, "batch": 4, "max_length": 16, "rate": 3e-3},
        }
        return experiment(**({"algorithm": "MutualKD"} | settings | changes))

    return make


@pytest.mark.slow
def test_a_federation_of_berts_learns_and_ends_the_same_after_an_interruption(berts, tmp_path):
    chosen = berts(rounds=2)
    record = fedstill.run(chosen, tmp_path / "whole")
    assert record.score("accuracy") > 0.6
    assert not record.notes
    observed = [line["values"] for line in record.metrics if line.get("observation") == "mutual"]
    assert len(observed) == 2 * 3
    with pytest.raises(KeyboardInterrupt):
        fedstill.run(chosen, tmp_path / "run", tell=stop_after(1))
    assert content(fedstill.resume(tmp_path / "run").folder) == content(record.folder)


def test_the_teacher_is_its_own_model_that_stays(bench):
    me = with_teacher(bench)
    algorithm, theta = MutualKD(), bench.server().parameters()
    me.enter(1)
    algorithm.digest(me, Student(whole=theta))
    algorithm.opine(me)
    kept = me.extra("teacher").parameters()
    fresh = bench.model(seed=11).module.state_dict()
    assert any(not torch.equal(kept[name], value) for name, value in fresh.items())
    again = with_teacher(bench)
    again.set_state(me.state())
    assert all(torch.equal(again.extra("teacher").parameters()[name], value) for name, value in kept.items())


def test_a_teacher_of_another_width_is_refused_in_one_sentence(berts, tmp_path):
    wide = tiny_bert(tmp_path / "wide", hidden=16)
    with pytest.raises(FedstillError, match=r"has width 16 and 2 heads, the student .* 32 and 2"):
        fedstill.run(berts(algorithm={"name": "MutualKD", "teacher": str(wide)}), tmp_path / "run")


def test_a_teacher_with_more_layers_is_taken(berts, tmp_path):
    deep = tiny_bert(tmp_path / "deep", hidden=32, layers=3)
    record = fedstill.run(berts(algorithm={"name": "MutualKD", "teacher": str(deep)}, rounds=1), tmp_path / "run")
    assert math.isfinite(record.score("accuracy"))


def test_a_teacher_that_reads_otherwise_is_refused_in_one_sentence(experiment, tmp_path):
    with pytest.raises(FedstillError, match=r"teacher \(textcnn\) reads with another tokenizer than .* \(bow\)"):
        fedstill.run(experiment(algorithm={"name": "MutualKD", "teacher": "textcnn"}), tmp_path / "run")


def test_a_teacher_that_is_not_there_is_told_once_before_anybody_trains(experiment, tmp_path):
    with pytest.raises(FedstillError, match="round 0: 0 of 3 clients answered") as error:
        fedstill.run(experiment(algorithm={"name": "MutualKD", "teacher": "nosuchmodel"}), tmp_path / "run")
    assert str(error.value).count("is no local path") == 1
    assert "books, films, shoes: " in str(error.value)
