"""FedDRS: averages refined by pseudo-samples, the balance of rows, and what happens after the last round."""

import csv
from copy import deepcopy

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import softmax

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.feddrs import FedDRS, Work
from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment
from fedstill.data.corpora.tables import Form
from fedstill.parties.memory import Memory
from fedstill.plan.prepare import prepare
from fedstill.results.compare import compare, load_runs
from fedstill.results.inference import Texts, labeller, text_columns
from fedstill.wire.blends import Blending
from fedstill.wire.messages import Hello, Parameters
from fedstill.wire.replies import Replies
from tests.algorithms.test_fedsnd import TEXTCNN, active, digits, model_of, one_row, silent, write_shops  # noqa: F401
from tests.engines.conftest import content
from tests.engines.test_resume import stop_after, stop_in
from tests.models.tiny_t5 import make_tiny_t5

QUICK = {"name": "FedDRS", "sampling_steps": 4, "samples": 6, "length": 8, "post": 1, "rate": 1e-3}
STILL = {**{k: v for k, v in QUICK.items() if k != "name"}, "rate": 1e-30}
"""Refines so little that nothing but the average is left."""
COUNTS = torch.tensor([5, 0, 3])


@pytest.fixture
def texts(experiment):
    """Three shops read by small convolutions; keywords change it."""
    train = {"epochs": 1, "batch": 16, "max_length": 12}
    own = {"name": "textcnn", "embedding": 8, "filters": 6, "dropout": 0.0}
    return lambda **changes: experiment(
        **({"algorithm": QUICK, "clients": own, "server": own, "train": train, "rounds": 1} | changes)
    )


@pytest.fixture
def t5(tmp_path_factory, texts):
    words = ["lamp was great and lovely", "book was awful and poor", "usual plain game sofa shoe film soap 12345"]
    folder = make_tiny_t5(tmp_path_factory.mktemp("t5"), words, ["bad", "fine", "good"], vocabulary=200)
    return lambda **changes: texts(clients=str(folder), server=str(folder), **changes)


@pytest.fixture
def berts(texts):
    return lambda **changes: texts(clients="bert-tiny", server="bert-tiny", **changes)


@pytest.fixture
def server_of(tmp_path):
    """A server of an experiment in round 1, and the replies of clients a and b with made-up models."""

    def make(experiment, size=0.1):
        _, plan, _ = prepare(experiment, tmp_path)
        server = plan.make_server(silent)
        server.enter(1)
        models = {}
        for seed, name in enumerate(("a", "b")):
            random = torch.Generator().manual_seed(seed)
            own = server.parameters().items()
            models[name] = {k: v + size * torch.randn(v.shape, generator=random) * v.std(correction=0) for k, v in own}
        hellos = {"a": Hello(8, COUNTS), "b": Hello(3, torch.tensor([1, 1, 1]))}
        return server, Replies({name: Parameters(own) for name, own in models.items()}, hellos)

    return make


class Fed:
    """What the method sees of an engine; remembers what it was asked to send."""

    def __init__(self, server, clients, active=(), rounds=2, blending=None):
        self.server, self.clients, self.active, self.rounds, self.sent = server, clients, active, rounds, []
        self.blending = blending or Blending()

    def call(self, verb, message=None, clients=None):
        self.sent.append((verb, message))
        return Replies({}, self.clients)

    def replies(self, messages):
        return Replies(messages, self.clients, (), self.blending)


def mean_of(*models):
    return {name: np.mean([own[name].double().numpy() for own in models], axis=0) for name in models[0]}


def sampled(record, round=None):
    lines = [line for line in record.metrics if str(line.get("observation", "")).endswith(" sampling")]
    return {line["observation"] for line in lines if round is None or line["round"] == round}


# The average, and what refining leaves of it


def test_the_student_starts_from_the_plain_average_of_everything(texts, server_of):
    me, ups = server_of(texts())
    answer = FedDRS(variant="post_only").server(me, ups)
    for name, value in mean_of(ups["a"].parameters, ups["b"].parameters).items():
        np.testing.assert_allclose(answer.parameters[name].numpy(), value, atol=1e-6)


def test_embeddings_are_averaged_and_never_refined_and_everything_else_is(berts, server_of):
    me, ups = server_of(berts())
    average = FedDRS(variant="post_only").server(me, ups).parameters
    refined = FedDRS(**{k: v for k, v in QUICK.items() if k != "name"}).server(me, ups).parameters
    held = [name for name in average if ".embeddings." in name]
    assert {name.split(".embeddings.")[1].split(".")[0] for name in held} == {
        "word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm",
    }  # fmt: skip
    for name, value in average.items():
        if not name.endswith("key.bias"):  # it adds the same to all scores of a text, which softmax does not see
            assert torch.equal(refined[name], value) == (name in held), name
    assert all(parameter.requires_grad for parameter in me.model.module.parameters())


def test_a_t5s_table_and_the_head_that_is_the_same_stay_at_the_average(t5, server_of):
    me, ups = server_of(t5())
    average = FedDRS(variant="post_only").server(me, ups).parameters
    refined = FedDRS(**{k: v for k, v in QUICK.items() if k != "name"}).server(me, ups).parameters
    same = {name for name, value in average.items() if torch.equal(refined[name], value)}
    assert {name for name in same if "relative_attention_bias" not in name} == {"inner.shared.weight"}
    assert me.model.module.inner.lm_head.weight is me.model.module.inner.shared.weight


def test_a_t5s_embeddings_train_at_clients_in_round_one_only(t5, tmp_path):
    _, plan, _ = prepare(t5(), tmp_path)
    client = plan.make_client("books", silent)
    moved = {}
    for number in (1, 2):
        client.enter(number)
        before = client.parameters()
        FedDRS().work(client, Work(before, rows_wanted=16))
        after = client.parameters()
        moved[number] = {name for name, value in before.items() if not torch.equal(after[name], value)}
    assert "inner.shared.weight" in moved[1]
    assert moved[2] == moved[1] - {"inner.shared.weight"}


def test_an_encoders_embeddings_train_at_clients_in_every_round(texts, tmp_path):
    _, plan, _ = prepare(texts(), tmp_path)
    client = plan.make_client("books", silent)
    client.enter(2)
    before = client.parameters()
    FedDRS().work(client, Work(before, rows_wanted=16))
    assert not torch.equal(client.parameters()["embedding.weight"], before["embedding.weight"])


# The pseudo-samples


def samples_of(method, me, ups, client="a", counts=COUNTS):
    """All sets of one client, against the student that the server has."""
    sample = method._sampler(me, 0.1)
    return list(sample(me.model_from(ups[client].parameters).model.module, counts.double()))


@pytest.mark.parametrize("start_from", ["words", "gaussian"])
def test_samples_keep_cls_and_sep_and_only_labels_that_the_client_has(berts, server_of, start_from):
    me, ups = server_of(berts())
    method = FedDRS(**STILL | {"samples": 40, "start_from": start_from})
    table = me.model.module.bert.embeddings.word_embeddings.weight.detach()
    sets = samples_of(method, me, ups)
    assert len(sets) == 3
    for batch in sets:
        assert batch.inputs.shape == (40, 8, 128)
        assert torch.equal(batch.inputs[:, 0], table[101].expand(40, -1))
        assert torch.equal(batch.inputs[:, 7], table[102].expand(40, -1))
        assert set(batch.labels.tolist()) == {0, 2}
    words = (torch.cdist(sets[0].inputs[:4, 1:7].reshape(-1, 128), table) < 1e-3).sum(1)
    assert (words > 0).all() == (start_from == "words")


def test_random_words_are_the_tokenizers_and_none_of_its_special_ones(t5, server_of):
    me, ups = server_of(t5())
    table = me.model.module.inner.shared.weight.detach()
    vocabulary = me.model.tokenizer.vocabulary
    assert vocabulary < len(table) == 200
    inputs = samples_of(FedDRS(sets=["random"], samples=300, length=8), me, ups)[0].inputs
    found = torch.cdist(inputs[:, :7].reshape(-1, 48), table).argmin(1)
    assert set(found.tolist()) == set(range(3, vocabulary))
    assert torch.equal(inputs[:, 7], table[1].expand(300, -1))


def test_target_and_adversary_samples_lower_the_teachers_loss_and_both_start_from_the_average(texts, server_of):
    me, ups = server_of(texts(), size=1.0)
    FedDRS(variant="post_only").server(me, ups)
    before = me.parameters()
    me.metrics.clear()
    samples_of(FedDRS(sampling_steps=40, samples=16, length=8), me, ups)
    seen = [line for line in me.metrics if "observation" in line]
    for kind in ("target", "adversary"):
        losses = [line["values"] for line in seen if line["observation"] == f"{kind} sampling"]
        assert [values["step"] for values in losses] == [0, 10, 20, 30, 40]
        assert losses[-1]["teacher"] < losses[0]["teacher"] - 0.2
    assert {line["observation"] for line in seen} == {"target sampling", "adversary sampling"}
    assert all(torch.equal(value, before[name]) for name, value in me.parameters().items())


@pytest.mark.parametrize("steps", ["batch", "sum"])
def test_the_student_takes_a_step_a_batch_or_a_step_a_pass(texts, server_of, steps):
    me, ups = server_of(texts(), size=1.0)
    method = FedDRS(sets=["random"], samples=5, length=8, optimiser="sgd", rate=0.5, steps=steps, passes=1)
    FedDRS(variant="post_only").server(me, ups)
    sample, batches = method._sampler(me, 0.1), []
    for name in ("a", "b"):
        batches += sample(me.model_from(ups[name].parameters).model.module, ups.clients[name].label_counts.double())
    module = deepcopy(me.model.module).train()
    slopes = {}
    for number, (batch, name) in enumerate(zip(batches, ("a", "b"), strict=True)):
        if steps == "batch" and number:
            descend(module, slopes)
            slopes = {}
        me.model.module.load_state_dict(ups[name].parameters)
        with torch.no_grad():
            p = torch.from_numpy(softmax(me.model.module.eval()(inputs_embeds=batch.inputs).double().numpy(), -1))
        q = module(inputs_embeds=batch.inputs).double().softmax(-1)
        loss = (p * (p / q).log()).sum(-1).mean()  # KL(p_k || p_S)
        names, values = zip(*[(n, v) for n, v in module.named_parameters() if n != "embedding.weight"], strict=True)
        for own, slope in zip(names, torch.autograd.grad(loss, values), strict=True):
            slopes[own] = slopes.get(own, 0) + slope
    descend(module, slopes)
    answer = method.server(me, ups)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(answer.parameters[name], value, rtol=1e-4, atol=1e-6)


def descend(module, slopes):
    with torch.no_grad():
        for name, value in module.named_parameters():
            value -= 0.5 * slopes.get(name, torch.zeros(()))


# Variants


@pytest.mark.parametrize(
    ("options", "in_rounds", "after"),
    [
        ({}, {"target", "adversary"}, {"target", "adversary"}),
        ({"variant": "ad_only"}, {"adversary"}, {"adversary"}),
        ({"variant": "post_only"}, set(), {"target", "adversary"}),
        ({"sets": ["random", "target"], "post": 0}, {"target"}, set()),
        ({"passes": 0, "post": 0}, set(), set()),
    ],
    ids=["mixed", "ad_only", "post_only", "sets", "nothing"],
)
def test_variants_choose_the_sets_and_when(texts, tmp_path, options, in_rounds, after):
    record = fedstill.run(texts(algorithm=QUICK | options), tmp_path / "run")
    assert sampled(record, 1) == {f"{kind} sampling" for kind in in_rounds}
    assert sampled(record, 2) == {f"{kind} sampling" for kind in after}


def test_every_pass_samples_anew(texts, server_of):
    me, ups = server_of(texts())
    FedDRS(**STILL | {"passes": 3, "sets": ["target"], "sampling_steps": 1}).server(me, ups)
    losses = [line["values"]["teacher"] for line in me.metrics if "observation" in line]
    assert len(losses) == len(set(losses)) == 3 * 2 * 2  # passes, clients, steps 0 and 1


def test_lambda_can_be_another_at_the_end(texts, server_of):
    me, ups = server_of(texts(), size=1.0)
    found = []
    for last in (None, 3.0):
        method = FedDRS(**STILL | {"variant": "ad_only", "lambda_post": last, "sampling_steps": 20})
        method.server(me, ups)
        me.metrics.clear()
        me.enter(2)
        method.finish(Fed(me, ups.clients), Work(me.parameters()))
        found.append([line["values"]["student"] for line in me.metrics if "observation" in line][-1])
        me.enter(1)
    assert found[1] > found[0]


@pytest.mark.parametrize(
    ("options", "title"),
    [
        ({}, "FedDRS (mixed)"),
        ({"variant": "post_only"}, "FedDRS (post only)"),
        ({"sets": ["random", "target"], "post": 0}, "FedDRS (random, target)"),
        ({"passes": 0}, "FedDRS (mixed)"),
        ({"passes": 0, "post": 0}, "FedDRS (no samples)"),
        ({"variant": "post_only", "post": 0}, "FedDRS (no samples)"),
    ],
)
def test_the_title_says_which_samples_are_drawn(options, title):
    assert make({"name": "FedDRS", **options}).title == title


# Another base (Table 3's FedOpt)


def test_rounds_of_a_base_are_its_steps_and_its_last_model_is_processed(texts, server_of):
    me, ups = server_of(texts(), size=1.0)
    theta = me.parameters()
    method = make({"name": "FedDRS", **STILL, "passes": 0, "base": {"name": "FedOpt", "rate": 0.1, "tau": 0.01}})
    assert method.title == "FedDRS (mixed) after FedOpt"
    answer = method.server(me, ups)
    after = {}
    for name, mean in mean_of(ups["a"].parameters, ups["b"].parameters).items():
        change = mean - theta[name].double().numpy()
        m, v = 0.1 * change, 0.99 * 0.01**2 + 0.01 * change**2
        after[name] = theta[name].double().numpy() + 0.1 * m / (np.sqrt(v) + 0.01)
        np.testing.assert_allclose(answer.parameters[name].numpy(), after[name], rtol=1e-4, atol=1e-6)
    me.enter(2)
    method.finish(Fed(me, ups.clients), answer)
    for name, value in after.items():
        np.testing.assert_allclose(me.parameters()[name].numpy(), value, rtol=1e-4, atol=1e-6)
    assert sampled_kinds(me) == {"target sampling", "adversary sampling"}


@pytest.mark.parametrize("base", ["FedAvg", "FedOpt"])
def test_after_processing_the_processed_model_is_measured(texts, server_of, base):
    me, ups = server_of(texts(), size=1.0)
    method = make(QUICK | {"rate": 0.5, "passes": 0, "base": base})
    answer = method.server(me, ups)
    me.evaluate("distilled")
    before = me.scored()
    me.enter(2)
    method.finish(Fed(me, ups.clients), answer)
    assert torch.equal(me.scored(), me.predict(me.data.evaluation.data))
    assert not torch.equal(me.scored(), before)


def sampled_kinds(party):
    return {line["observation"] for line in party.metrics if "observation" in line}


def test_a_base_that_needs_public_samples_is_refused(texts, server_of):
    me, _ = server_of(texts())
    with pytest.raises(FedstillError, match="FedDRS has no public samples, and FedAUX needs them"):
        make({"name": "FedDRS", "base": "FedAUX"}).admit(me)


def test_the_average_can_be_weighted_by_rows_and_balance_makes_them_equal(texts, server_of):
    me, ups = server_of(texts(), size=1.0)  # a has 8 rows, b has 3
    for options, share in (({"balance": False}, 8 / 11), ({}, 1 / 2), ({"min_samples": 5}, 5 / 8)):
        FedDRS(**STILL | {"passes": 0, "weights": "size"} | options).server(me, ups)
        for name, value in me.parameters().items():
            a, b = (ups[client].parameters[name].double().numpy() for client in "ab")
            np.testing.assert_allclose(value.numpy(), share * a + (1 - share) * b, rtol=1e-5, atol=1e-6)


# After the last round


def test_at_the_end_the_last_known_models_of_all_are_averaged_and_the_last_student_is_thrown_away(texts, server_of):
    me, ups = server_of(texts(), size=1.0)
    method = FedDRS(**STILL)
    method.server(me, ups)
    me.enter(2)
    later = {name: value + 1.0 for name, value in ups["b"].parameters.items()}
    student = method.server(me, Replies({"b": Parameters(later)}, ups.clients))
    for name, value in later.items():
        torch.testing.assert_close(student.parameters[name], value, rtol=1e-6, atol=1e-6)
    fed = Fed(me, ups.clients | {"never": Hello(4, COUNTS)})
    me.enter(3)
    method.finish(fed, student)
    expected = mean_of(ups["a"].parameters, later)
    ((verb, answer),) = fed.sent
    assert verb == "close"
    for name, value in expected.items():
        np.testing.assert_allclose(me.parameters()[name].numpy(), value, atol=1e-6)
        np.testing.assert_allclose(answer.parameters[name].numpy(), value, atol=1e-6)
    stages = {(line["round"], line["stage"]) for line in me.metrics if "split" in line}
    assert stages == {(2, "processed")}


def test_at_the_end_nobody_weighs_more_than_max_share(texts, server_of):
    me, ups = server_of(texts(), size=1.0)  # a has 8 rows, b has 3
    method = FedDRS(**STILL | {"weights": "size", "balance": False})
    method.server(me, ups)
    me.enter(2)
    method.finish(Fed(me, ups.clients, blending=Blending(max_share=0.6)), Work(me.parameters()))
    for name, value in me.parameters().items():
        a, b = (ups[client].parameters[name].double().numpy() for client in "ab")
        np.testing.assert_allclose(value.numpy(), 0.6 * a + 0.4 * b, rtol=1e-5, atol=1e-6)


def test_without_post_processing_the_last_student_is_the_result(texts, server_of):
    me, ups = server_of(texts())
    method = FedDRS(**STILL | {"post": 0})
    student = method.server(me, ups)
    assert me.memory == Memory()
    fed = Fed(me, ups.clients)
    method.finish(fed, student)
    assert fed.sent == [("close", student)]
    assert not me.metrics or all("stage" not in line for line in me.metrics)


def test_the_summary_takes_the_processed_model_and_rounds_do_not_depend_on_it(texts, tmp_path):
    options = {"participation": 0.67, "rounds": 3}
    after = fedstill.run(texts(algorithm=QUICK | {"rate": 0.1}, **options), tmp_path / "after")
    without = fedstill.run(texts(algorithm=QUICK | {"rate": 0.1, "post": 0}, **options), tmp_path / "without")
    distilled = [
        [line for line in record.metrics if line.get("stage") == "distilled" and line["party"] == "server"]
        for record in (after, without)
    ]
    assert distilled[0] == distilled[1]
    processed = [line for line in after.metrics if line.get("stage") == "processed"]
    assert {(line["round"], line["party"]) for line in processed} == {(3, "server")}
    test = next(line for line in processed if line["split"] == "test")
    assert after.f1() == test["f1"]
    assert not [line for line in without.metrics if line.get("stage") == "processed"]
    for client in after.summary["clients"]:
        assert all(torch.equal(v, model_of(after)[k]) for k, v in model_of(after, client).items())


# Balance


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, 9),
        ({"min_samples": 12}, 12),
        ({"balance": False}, 30),
    ],
)
def test_all_active_clients_are_asked_for_as_many_rows_as_the_smallest_of_them_has(texts, server_of, options, wanted):
    me, _ = server_of(texts())
    sizes = {"a": 5, "b": 9, "c": 30}
    fed = Fed(me, {name: Hello(size, COUNTS) for name, size in sizes.items()}, active=("b", "c"))
    fed.call = lambda verb, message: (
        fed.sent.append(message) or Replies({"b": Parameters(me.parameters())}, fed.clients)
    )
    FedDRS(**STILL | {"passes": 0, "post": 0} | options).round(fed, Work(me.parameters()))
    assert fed.sent[0].rows_wanted == wanted


@pytest.mark.parametrize("rows", [None, 3])
def test_a_client_trains_on_that_many_rows_drawn_anew_every_round(texts, tmp_path, rows):
    _, plan, _ = prepare(texts(train={"epochs": 1, "batch": 1, "max_length": 12, "rows": rows}), tmp_path)
    told = []
    client = plan.make_client("books", told.append)
    everything = client.size
    found = []
    for number, wanted in ((1, 5), (2, 5), (3, 10_000)):
        client.enter(number)
        told.clear()
        FedDRS().work(client, Work(plan.make_server(silent).parameters(), rows_wanted=wanted))
        assert told[-1].steps == min(wanted, everything, rows or everything)
        found.append(client.parameters()["head.weight"])
    assert not torch.equal(found[0], found[1])


# Whole runs


def test_images_are_sampled_as_pixels(digits, tmp_path):  # noqa: F811
    record = fedstill.run(digits(algorithm=QUICK), tmp_path / "run")
    assert sampled(record) == {"target sampling", "adversary sampling"}
    plain = fedstill.run(digits(algorithm=QUICK | {"passes": 0, "post": 0}), tmp_path / "plain")
    assert not any(torch.equal(value, model_of(plain)[k]) for k, value in model_of(record).items() if "head" in k)


def test_a_t5_goes_through_all_of_it(t5, tmp_path):
    record = fedstill.run(t5(algorithm=QUICK | {"variant": "ad_only"}, rounds=2), tmp_path / "run")
    assert sampled(record) == {"adversary sampling"}
    assert "generated_accuracy" in record.summary["scores"]["server"]["test"]


def test_a_bag_of_words_and_too_long_texts_are_refused_before_anybody_trains(experiment, berts, tmp_path):
    wrong = {
        "bow has no word embeddings to invent texts in": experiment(algorithm=QUICK),
        "bert-tiny reads 512 tokens at most, not 600": berts(algorithm=QUICK | {"length": 600}),
    }
    for number, (says, chosen) in enumerate(wrong.items()):
        with pytest.raises(FedstillError, match=says):
            fedstill.run(chosen, tmp_path / f"run-{number}")
        metrics = tmp_path / f"run-{number}/metrics.jsonl"
        assert not metrics.exists() or not metrics.read_text()


@pytest.mark.parametrize("floor", [1, 6])
def test_a_client_with_one_row_sets_the_measure_unless_there_is_a_floor(
    tmp_path, folder_of_reviews, monkeypatch, floor
):
    monkeypatch.setenv("FEDSTILL_CACHE", str(folder_of_reviews / "cache"))
    write_shops(tmp_path)
    record = fedstill.run(one_row(tmp_path, QUICK | {"min_samples": floor}), tmp_path / "run")
    assert record.is_finished
    assert sampled(record, 2) == {"target sampling", "adversary sampling"}


@pytest.fixture
def two_tasks(tmp_path, folder_of_reviews, monkeypatch):
    """News of three topics and mail of two, a client each, one head for both or a head a task."""
    monkeypatch.setenv("FEDSTILL_CACHE", str(folder_of_reviews / "cache"))
    kinds = {"news": ("sport", "money", "art"), "mail": ("ham", "spam")}
    for task, labels in kinds.items():
        with (tmp_path / f"{task}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for number in range(60):
                label = labels[number % len(labels)]
                writer.writerow([f"{task} {number} about {label} and more {label}", label])
    own = {"name": "textcnn", "embedding": 8, "filters": 6}
    return lambda **changes: Experiment.model_validate(
        {
            "name": "tasks",
            "corpus": {"name": "tasks", "tasks": {task: {"path": str(tmp_path / f"{task}.csv")} for task in kinds}},
            "partition": {"kind": "task_dirichlet", "alpha": 0, "public": 0.0, "validation": 0.0, "test": 0.2},
            "clients": own, "server": own, "algorithm": QUICK, "rounds": 2, "workers": 1, "device": "cpu",
            "train": {"epochs": 1, "batch": 8, "max_length": 12, "heads": "task"},
        }
        | changes
    )  # fmt: skip


@pytest.mark.parametrize("adversary", ["ce", "kl"])
def test_with_a_head_a_task_no_prediction_leaves_its_task_and_tasks_count_the_same(two_tasks, tmp_path, adversary):
    experiment = two_tasks(algorithm=QUICK | {"adversary": adversary})
    record = fedstill.run(experiment, tmp_path / "run")
    assert all(torch.isfinite(value).all() for value in model_of(record).values())
    _, plan, corpus = prepare(experiment, tmp_path)
    tasks = np.array(plan.label_tasks)
    saved = load_file(record.folder / "predictions/server.safetensors")
    rows, logits = saved["rows"].numpy(), saved["logits"].numpy()
    predicted = np.array([max(np.flatnonzero(tasks == tasks[corpus.labels[row]]), key=own.__getitem__)
                          for row, own in zip(rows, logits, strict=True)])  # fmt: skip
    server = plan.make_server(silent)
    evaluation = server.data.evaluation
    assert evaluation.data.rows.tolist() == rows.tolist()
    assert evaluation.decide(torch.from_numpy(logits)).tolist() == predicted.tolist()
    scores = record.summary["scores"]["server"]
    accuracy = []
    for number, task in enumerate(corpus.domain_names):
        own = corpus.domains[rows] == number
        right = (predicted == corpus.labels[rows])[own].mean()
        assert scores[f"test/{task}"]["accuracy"] == pytest.approx(right)
        accuracy.append(right)
    assert scores["tasks"]["accuracy"] == pytest.approx(np.mean(accuracy))
    compared = compare(load_runs([record.folder]))
    assert compared.rows[0].domains["mean over tasks"].mean == pytest.approx(np.mean(accuracy))


@pytest.mark.parametrize("within_task", [False, True])
def test_with_one_head_samples_are_answered_by_all_labels_or_by_those_of_their_task(two_tasks, server_of, within_task):
    me, ups = server_of(two_tasks(train={"epochs": 1, "batch": 8, "max_length": 12}), size=1.0)
    tasks = me.model.label_tasks
    assert tasks.tolist() == [0, 0, 1, 1, 1]
    method = FedDRS(**STILL | {"within_task": within_task, "samples": 20})
    for batch in samples_of(method, me, ups, counts=torch.ones(5)):
        logits = me.model_from(ups["a"].parameters).model.module.eval()(inputs_embeds=batch.inputs).detach()
        if within_task:
            logits[tasks[batch.labels][:, None] != tasks] = -torch.inf
        said = batch.teacher.log_probabilities[:, 0].exp()
        np.testing.assert_allclose(said.numpy(), softmax(logits.numpy(), -1), atol=1e-6)
        assert torch.isclose(said.sum(1), torch.ones(20)).all()


def test_texts_are_labelled_for_the_task_that_is_named(two_tasks, tmp_path):
    run = fedstill.run(two_tasks(algorithm="FedAvg", rounds=1), tmp_path / "run").folder
    texts = Texts.survey(tmp_path / "news.csv", text_columns(run, ["text"]), Form())
    labelled = list(labeller(run, "server", "mail").label(texts))
    assert {row["predicted"] for row in labelled} <= {"mail/ham", "mail/spam"}
    assert all(
        row["probability_mail/ham"] + row["probability_mail/spam"] == pytest.approx(1, abs=1e-5) for row in labelled
    )
    for task, says in ((None, "name one of them"), ("post", "it has no task 'post'")):
        with pytest.raises(FedstillError, match=f"this run has the tasks mail, news: {says}"):
            labeller(run, "server", task)


@pytest.mark.parametrize(("smallest", "notes"), [(2, 1), (20, 0)])
def test_a_client_so_small_that_it_starves_the_others_is_told_of(texts, server_of, smallest, notes):
    me, _ = server_of(texts())
    fed = Fed(
        me, {name: Hello(size, COUNTS) for name, size in {"a": smallest, "b": 30, "c": 30}.items()}, ("a", "b", "c")
    )
    fed.call = lambda verb, message: Replies({"b": Parameters(me.parameters())}, fed.clients)
    FedDRS(**STILL | {"passes": 0, "post": 0}).round(fed, Work(me.parameters()))
    assert sum(f"trains on {smallest} rows at most" in note for note in me.notes) == notes


@pytest.mark.slow
def test_two_workers_and_interruptions_give_the_same_bytes(texts, tmp_path):
    options = {"rounds": 3, "participation": 0.67}
    whole = fedstill.run(texts(**options), tmp_path / "whole")
    assert len(active(whole, 1)) == 2
    assert content(fedstill.run(texts(**options, workers=2), tmp_path / "two").folder) == content(whole.folder)
    for number, stop in enumerate((stop_in(2), stop_after(3))):
        with pytest.raises(KeyboardInterrupt):
            fedstill.run(texts(**options), tmp_path / f"stopped-{number}", tell=stop)
        assert content(fedstill.resume(tmp_path / f"stopped-{number}").folder) == content(whole.folder)
