import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import fedstill
from fedstill.algorithms import make
from fedstill.algorithms.fedid import FedID
from fedstill.algorithms.feedbacks import Heard, Lesson
from fedstill.common.errors import FedstillError
from fedstill.common.randomness import key
from fedstill.models import ModelSpec, build
from fedstill.wire.messages import Hello, Scores
from fedstill.wire.replies import Replies

RATE = 0.5
SIZES = {"books": 10, "films": 20, "shoes": 70}
ALL = torch.arange(12)


class Scene:
    """A server and three clients in float64, without dropout, one plain gradient step at a time."""

    def __init__(self, bench, model="bow", rate=RATE):
        self.bench = bench
        settings = {"rate": rate, "optimiser": "sgd", "schedule": "constant", "batch": 12, "epochs": 1}
        self.server = bench.server(labelled=bench.rows(bench.test), distill=settings)
        self.clients = {name: bench.client(name, distill=settings) for name in SIZES}
        for number, party in enumerate([self.server, *self.clients.values()]):
            if model == "bert-tiny":
                party._model = self._bert(number)
            party.model.module.double()
            torch.manual_seed(number)
            for value in party.model.module.parameters():
                value.data += 0.1 * torch.randn_like(value)
        self.lesson = Lesson(12, 1, sum(SIZES.values()), torch.empty(0, dtype=torch.int32))

    def _bert(self, seed):
        model = build(ModelSpec(name="bert-tiny"), ("bad", "fine", "good"), "bert-tiny", seed)
        for module in model.module.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            elif hasattr(module, "dropout_prob"):  # the attention's own
                module.dropout_prob = 0.0
        model.module.config.attention_probs_dropout_prob = 0.0
        return model

    def shares(self):
        return {name: size / sum(SIZES.values()) for name, size in SIZES.items()}

    def hear(self):
        messages = {name: Scores(party.predict()) for name, party in self.clients.items()}
        return Replies(messages, {name: Hello(size) for name, size in SIZES.items()})

    def teach(self, algorithm):
        judges = algorithm.judges(np.random.default_rng(0), len(self.server.data.labelled), 12)
        return algorithm.teach(self.server, self.lesson, ALL, self.hear(), judges)

    def inputs(self, rows):
        return self.bench.rows(rows).batch(ALL, torch.device("cpu"))

    def logits(self, party, parameters, rows):
        with sdpa_kernel(SDPBackend.MATH):  # the others cannot be differentiated twice
            output = functional_call(party.model.module, parameters, (), self.inputs(rows))
        return output if isinstance(output, torch.Tensor) else output.logits

    def validation_loss(self, ensemble, changed=None):
        """L_val after a plain step of the server, as a function of the clients' parameters, by autograd alone."""
        theta = {name: p.detach().clone().requires_grad_() for name, p in self.server.model.module.named_parameters()}
        own = {name: dict(party.model.module.named_parameters()) for name, party in self.clients.items()} | (
            changed or {}
        )
        spoken = {name: self.logits(party, own[name], self.bench.public) for name, party in self.clients.items()}
        if ensemble == "probabilities":
            y = sum(share * spoken[name].softmax(-1) for name, share in self.shares().items())
        else:
            y = sum(share * spoken[name] for name, share in self.shares().items()).softmax(-1)
        log_p = self.logits(self.server, theta, self.bench.public).log_softmax(-1)
        loss = -(y * log_p).sum(-1).mean()
        gradients = torch.autograd.grad(loss, list(theta.values()), create_graph=True, allow_unused=True)
        rate = self.server.spec.distill.rate
        stepped = {n: p if g is None else p - rate * g for (n, p), g in zip(theta.items(), gradients, strict=True)}
        return F.cross_entropy(
            self.logits(self.server, stepped, self.bench.test), self.bench.labels[self.bench.test].long()
        )


def flat(gradients):
    return torch.cat([g.flatten() for g in gradients if g is not None])


def feedback_gradient(scene, algorithm, lesson, name):
    """The gradient of what our client minimises, with the transfer term off."""
    me = scene.clients[name]
    me.__dict__["data"] = replace(me.data, train=me.data.train.pick(np.zeros(SIZES[name], int)))
    parameters = [p for p in me.model.module.parameters() if p.requires_grad]
    logits = scene.logits(me, dict(me.model.module.named_parameters()), scene.bench.public)
    phase = me.phase("converse", 1)
    phase.taken = 1  # no measurement of norms here
    loss = algorithm.client_step(me, Heard(name, me.size / lesson.total, lesson, 0, slice(12), me.predict()), logits)
    return parameters, torch.autograd.grad(loss, parameters, allow_unused=True)


@pytest.mark.parametrize("model", ["bow", "bert-tiny"])
@pytest.mark.parametrize("ensemble", ["probabilities", "logits"])
def test_exact_feedback_is_the_gradient_through_the_unrolled_server_step(bench, ensemble, model):
    scene = Scene(bench, model, rate=RATE if model == "bow" else 0.05)
    expected = {
        name: torch.autograd.grad(
            scene.validation_loss(ensemble), list(party.model.module.parameters()), allow_unused=True
        )
        for name, party in scene.clients.items()
    }
    algorithm = FedID(feedback="exact", ensemble=ensemble, transfer=False)
    lesson = scene.teach(algorithm)
    for name in SIZES:
        _, ours = feedback_gradient(scene, algorithm, lesson, name)
        error = (flat(ours) - flat(expected[name])).norm() / flat(expected[name]).norm()
        assert error < 1e-6


@pytest.mark.parametrize("ensemble", ["probabilities", "logits"])
def test_exact_feedback_agrees_with_finite_differences(bench, ensemble):
    scene = Scene(bench)
    torch.manual_seed(3)
    moves = {name: torch.randn_like(p) for name, p in scene.clients["films"].model.module.named_parameters()}

    def moved(size):
        own = {n: p.detach() + size * moves[n] for n, p in scene.clients["films"].model.module.named_parameters()}
        return scene.validation_loss(ensemble, {"films": own}).item()

    slope = (moved(1e-4) - moved(-1e-4)) / 2e-4
    algorithm = FedID(feedback="exact", ensemble=ensemble, transfer=False)
    _, ours = feedback_gradient(scene, algorithm, scene.teach(algorithm), "films")
    predicted = sum(float((g * moves[name]).sum()) for g, name in zip(ours, moves, strict=True))
    assert predicted == pytest.approx(slope, rel=1e-4)


def step_of(scene, algorithm):
    before = {name: p.detach().clone() for name, p in scene.server.model.module.named_parameters()}
    lesson = scene.teach(algorithm)
    after = dict(scene.server.model.module.named_parameters())
    loss = F.cross_entropy(scene.logits(scene.server, after, scene.bench.test), scene.bench.labels[scene.bench.test])
    v = torch.autograd.grad(loss, list(after.values()))
    along = sum((g * (after[name] - before[name])).sum().item() for g, name in zip(v, after, strict=True))
    return lesson, along


@pytest.mark.parametrize("ensemble", ["hard", "probabilities"])
def test_per_client_credits_sum_to_what_the_step_did_along_the_validation_gradient(bench, ensemble):
    lesson, along = step_of(Scene(bench), FedID(feedback="per_client", ensemble=ensemble))
    assert set(lesson.credits) == set(SIZES)
    assert sum(float(h) for h in lesson.credits.values()) == pytest.approx(-along, rel=1e-9)


def test_per_client_credits_approach_the_loss_difference_as_the_rate_goes_to_zero(bench):
    off = []
    for rate in (1e-1, 1e-2, 1e-3):
        credits = Scene(bench, rate=rate).teach(FedID(feedback="per_client")).credits
        difference = Scene(bench, rate=rate).teach(FedID()).feedback
        off.append(abs(sum(float(h) for h in credits.values()) / float(difference) - 1))
    assert off[0] > off[1] > off[2]
    assert off[2] < 1e-2


def test_loss_diff_is_the_validation_loss_before_less_the_one_after(bench):
    scene = Scene(bench)

    def validation():
        logits = scene.server.predict(scene.server.data.labelled)
        return float(F.cross_entropy(logits, bench.labels[bench.test]))

    before = validation()
    lesson = scene.teach(FedID())
    assert float(lesson.feedback) == pytest.approx(before - validation(), rel=1e-12)
    assert lesson.feedback.shape == (1,)
    assert float(lesson.feedback) != 0


def test_the_server_steps_on_the_votes_of_everybody_weighed_by_size(bench):
    scene = Scene(bench)
    heard = scene.hear()
    theta = {name: p.detach().clone().requires_grad_() for name, p in scene.server.model.module.named_parameters()}
    logits = scene.logits(scene.server, theta, bench.public)
    loss = sum(share * F.cross_entropy(logits, heard[name].logits.argmax(-1)) for name, share in scene.shares().items())
    gradients = torch.autograd.grad(loss, list(theta.values()))
    scene.teach(FedID())
    for (name, value), gradient in zip(theta.items(), gradients, strict=True):
        torch.testing.assert_close(scene.server.parameters()[name], (value - RATE * gradient).detach())


def test_a_client_steps_towards_the_ensemble_and_by_the_feedback_towards_its_own_labels(bench):
    scene = Scene(bench)
    algorithm = FedID(strength=3.0)
    heard, lesson = scene.hear(), scene.teach(algorithm)
    ensemble = sum(share * heard[name].logits for name, share in scene.shares().items())
    torch.testing.assert_close(lesson.ensemble, ensemble)
    me = scene.clients["films"]
    me.__dict__["data"] = replace(me.data, train=me.data.train.pick(np.zeros(20, int)))
    theta = {name: p.detach().clone().requires_grad_() for name, p in me.model.module.named_parameters()}
    logits = scene.logits(me, theta, bench.public)
    own = F.cross_entropy(logits, heard["films"].logits.argmax(-1))
    loss = F.cross_entropy(logits, ensemble.argmax(-1)) + 3.0 * 0.2 * float(lesson.feedback) * own
    gradients = torch.autograd.grad(loss, list(theta.values()))
    me.memory.arrays |= {"asked": ALL, "said": heard["films"].logits}
    algorithm.learn(me, lesson)
    for (name, value), gradient in zip(theta.items(), gradients, strict=True):
        torch.testing.assert_close(me.parameters()[name], (value - RATE * gradient).detach())


def test_a_chunk_is_as_many_steps_of_a_batch_each_and_a_feedback_for_each(bench):
    scene = Scene(bench)
    algorithm = FedID(chunk=3)
    judges = algorithm.judges(np.random.default_rng(0), 12, 5)
    lesson = algorithm.teach(scene.server, replace(scene.lesson, batch=5, steps=3), ALL, scene.hear(), judges)
    assert lesson.feedback.shape == (3,)  # 5, 5 and 2 rows
    assert scene.server.phase("converse", 3).taken == 3
    exchanges = list(FedID(chunk=2)._exchanges(np.random.default_rng(0), 12, epochs=2, batch=5))
    assert [len(rows) for rows in exchanges] == [10, 2, 10, 2]
    for epoch in (exchanges[:2], exchanges[2:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(12))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"feedback": "exact"}, "argmax"),
        ({"feedback": "per_client", "ensemble": "logits"}, "sums over clients"),
        ({"feedback": "none", "transfer": False}, "learn nothing"),
        ({"feedback": "loss"}, "feedback"),
        ({"chunk": 0}, "chunk"),
        ({"strength": -1}, "strength"),
        ({"reading": "released", "ensemble": "logits"}, "reading: released has `ensemble: hard`"),
        ({"reading": "released", "feedback": "per_client"}, "leave these options out"),
        ({"reading": "released", "chunk": 2}, "leave these options out"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, sentence):
    with pytest.raises(FedstillError, match=sentence):
        make({"name": "FedID", **options})


LABELLED = {"kind": "domain", "public": 0.3, "labelled_public": 0.2}


def test_without_labelled_rows_at_the_server_it_is_refused_before_anything_runs(experiment, tmp_path):
    with pytest.raises(FedstillError, match="labelled_public"):
        fedstill.run(experiment(algorithm="FedID"), tmp_path / "run")


OPTIONS = [
    {},
    {"feedback": "per_client"},
    {"feedback": "exact", "ensemble": "logits"},
    {"feedback": "none"},
    {"transfer": False, "chunk": 2},
    {"rehearsal": 1, "chunk": 2},
    {"reading": "released"},
    {"rehearsal": 1, "feedback": "exact", "ensemble": "probabilities"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_conversation_runs_and_its_record_is_complete(experiment, tmp_path, options):
    chosen = experiment(algorithm={"name": "FedID", **options}, partition=LABELLED)
    record = fedstill.run(chosen, tmp_path / "run")
    stages = {(line["party"], line["stage"]) for line in record.metrics if "stage" in line}
    assert {("server", "distilled"), ("books", "trained"), ("books", "distilled")} <= stages
    ratios = [line for line in record.metrics if line.get("observation") == "gradient norms"]
    assert len(ratios) == (0 if options.get("feedback") == "none" else 2 * 3)
    lines = [json.loads(line) for line in (record.folder / "ledger.jsonl").read_text().splitlines()]
    up = sum(line["payload"] for line in lines if line["message"] == "Scores")
    public = 3 * (18 - 4)  # of 60 rows a domain 30%, less a fifth of them
    assert up == 2 * 1 * 3 * public * 3 * 4  # rounds, epochs, clients, rows, classes, bytes


def test_a_public_set_smaller_than_a_batch_is_one_step_a_pass_and_said(experiment, tmp_path):
    chosen = experiment(algorithm="FedID", partition=LABELLED, train={"epochs": 1, "batch": 64}, rounds=1)
    record = fedstill.run(chosen, tmp_path / "run")
    assert any("smaller than a batch" in note for note in record.summary["notes"])


def test_who_diverges_is_told_what_to_lower(experiment, tmp_path):
    distill = {"rate": 1e38, "optimiser": "sgd"}
    with pytest.raises(FedstillError, match=r"distill\.rate"):
        fedstill.run(experiment(algorithm="FedID", partition=LABELLED, distill=distill), tmp_path / "run")


# Rehearsal

FEEDBACKS = [
    {"feedback": "none"},
    {"feedback": "loss_diff"},
    {"feedback": "per_client"},
    {"feedback": "exact", "ensemble": "probabilities"},
    {"feedback": "exact", "ensemble": "logits"},
]


def own_feedback(options, lesson, said, logits):
    """What Eq. 14 adds for the client films, which has a fifth of all rows."""
    if options["feedback"] == "exact":
        moved = logits.softmax(-1) if options["ensemble"] == "probabilities" else logits
        return 0.2 * (lesson.gradient * moved).sum()
    if options["feedback"] == "none":
        return 0.0
    h = 0.2 * lesson.feedback[0] if options["feedback"] == "loss_diff" else lesson.credits["films"][0]
    return h * F.cross_entropy(logits, said.argmax(-1))


@pytest.mark.parametrize("options", FEEDBACKS)
def test_a_rehearsing_client_takes_one_adamw_step_on_the_sum_of_both_losses(bench, options):
    scene = Scene(bench)
    algorithm = FedID(rehearsal=1.0, client_rate=0.25, **options)
    heard, lesson = scene.hear(), scene.teach(algorithm)
    settings = {"optimiser": "adamw", "rate": 0.04, "schedule": "constant", "batch": 12, "epochs": 1}
    me = bench.client("films", train={"batch": 5}, distill=settings)
    me._model = scene.clients["films"].model
    me.__dict__["data"] = replace(me.data, train=bench.rows(np.tile(bench.private, 2)[:20]))
    said = heard["films"].logits

    theta = {name: p.detach().clone().requires_grad_() for name, p in me.model.module.named_parameters()}
    logits = scene.logits(me, theta, bench.public)
    loss = F.cross_entropy(logits, lesson.ensemble.argmax(-1)) + own_feedback(options, lesson, said, logits)
    first = me.generator("rehearsal 0").permutation(20)[:5]
    private = functional_call(
        me.model.module, theta, (), me.data.train.batch(torch.from_numpy(first), torch.device("cpu"))
    )
    loss = loss + F.cross_entropy(private, me.data.train.labels[first])
    optimiser = torch.optim.AdamW(theta.values(), lr=0.25 * 0.04, weight_decay=0)
    loss.backward()
    optimiser.step()

    me.memory.arrays |= {"asked": ALL, "said": said}
    algorithm.learn(me, lesson)
    for name, value in theta.items():
        torch.testing.assert_close(me.parameters()[name], value.detach(), rtol=1e-9, atol=1e-12)


def test_rehearsal_takes_a_clients_rows_in_turn_in_a_new_order_every_pass(bench):
    scene = Scene(bench)
    me = bench.client("films", train={"batch": 5}, distill={"batch": 2})
    asked = []
    algorithm = FedID(rehearsal=1.0, feedback="none")
    lesson = replace(scene.teach(FedID(feedback="none")), batch=2, steps=6)
    phase = me.phase("converse", 6)
    whole, phase.logits = phase.logits, lambda data, rows, passes=None: (
        asked.append(data.rows[rows.numpy()].tolist()), whole(data, rows, passes))[1]  # fmt: skip
    me.memory.arrays |= {"asked": ALL, "said": me.predict()}
    algorithm.learn(me, lesson)
    private = asked[1::2]
    assert [len(rows) for rows in private] == [5, 5, 2, 5, 5, 2]
    passes = [np.concatenate(private[:3]).tolist(), np.concatenate(private[3:]).tolist()]
    assert all(sorted(rows) == bench.private.tolist() for rows in passes)
    assert passes[0] != passes[1]


def test_without_rehearsal_no_private_row_is_read_in_a_conversation(bench):
    scene = Scene(bench)
    lesson = scene.teach(FedID())
    me = scene.clients["films"]
    me.memory.arrays |= {"asked": ALL, "said": me.predict()}
    me.__dict__["data"] = replace(me.data, train=me.data.train.pick(np.empty(0, int)))
    FedID().learn(me, lesson)
    assert FedID().rehearsal == 0


def test_the_title_names_rehearsal():
    assert [make({"name": "FedID", "rehearsal": much}).title for much in (False, True, 0.5)] == [
        "FedID",
        "FedID w/ rehearsal",
        "FedID w/ rehearsal 0.5",
    ]


# As released


def with_dropout(party, seed):
    torch.manual_seed(seed)
    module = party.model.module.double()
    module.dropout.p = 0.4
    for value in module.parameters():
        value.data += 0.1 * torch.randn_like(value)
    return party, copy.deepcopy(module)


def new_adamw_step(module, loss, rate):
    module.zero_grad()
    loss.backward()
    torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.0).step()


def test_as_released_the_server_has_a_new_optimiser_every_batch_and_measures_in_train_mode(bench):
    settings = {"rate": 0.05, "optimiser": "adamw", "schedule": "linear", "batch": 6, "epochs": 1}
    server, module = with_dropout(bench.server(labelled=bench.rows(bench.test), distill=settings), 3)
    generator = torch.Generator().manual_seed(1)
    hellos = {name: Hello(size) for name, size in SIZES.items()}
    spoken = {name: torch.randn(12, 3, generator=generator, dtype=torch.float64) for name in SIZES}
    algorithm = FedID(reading="released")
    shards = list(algorithm._exchanges(np.random.default_rng(0), 12, 1, 6))
    assert [rows.tolist() for rows in shards] == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]
    judges = algorithm.judges(np.random.default_rng(4), 12, 6)
    lesson, told = Lesson(6, 2, 100, torch.empty(0, dtype=torch.int32)), []
    for rows in shards:
        ups = Replies({name: Scores(logits[rows]) for name, logits in spoken.items()}, hellos)
        lesson = algorithm.teach(server, lesson, rows, ups, judges)
        told.append(float(lesson.feedback))

    torch.manual_seed(key(0, 0, "server", "converse"))
    module.train()
    order = np.random.default_rng(4).permutation(12)  # all labelled rows take turns
    expected = []
    for rows, judge in zip(shards, (order[:6], order[6:]), strict=True):

        def measured(judge=judge):
            batch = bench.rows(bench.test).batch(torch.from_numpy(judge), torch.device("cpu"))
            return F.cross_entropy(module(**batch), bench.labels[bench.test][judge]).item()

        before = measured()
        logits = module(**bench.rows(bench.public).batch(rows, torch.device("cpu")))
        votes = sum(SIZES[n] / 100 * F.cross_entropy(logits, spoken[n][rows].argmax(-1)) for n in SIZES)
        new_adamw_step(module, votes, 0.05)
        expected.append(before - measured())
    assert told == pytest.approx(expected, rel=1e-9)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(server.parameters()[name], value, rtol=1e-9, atol=1e-12)


def test_as_released_a_client_votes_in_train_mode_and_has_a_new_optimiser_every_batch(bench):
    settings = {"rate": 0.05, "optimiser": "adamw", "schedule": "linear", "batch": 6, "epochs": 1}
    client, module = with_dropout(bench.client("films", distill=settings), 5)
    client.__dict__["data"] = replace(client.data, train=client.data.train.pick(np.zeros(20, int)))
    algorithm = FedID(reading="released")
    shards = [torch.arange(0, 12, 2), torch.arange(1, 12, 2)]
    ensembles = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    helped = torch.tensor([0.3, -0.2], dtype=torch.float64)
    said, lesson = [], Lesson(6, 2, 100, torch.empty(0, dtype=torch.int32))
    for rows, ensemble, h in zip(shards, ensembles, helped, strict=True):
        said.append(algorithm.converse(client, replace(lesson, rows=rows.int())).logits)
        lesson = Lesson(6, 2, 100, torch.empty(0, dtype=torch.int32), ensemble, h[None])
    algorithm.converse(client, lesson)

    torch.manual_seed(key(0, 0, "films", "converse"))
    module.train()
    for rows, ensemble, h, theirs in zip(shards, ensembles, helped, said, strict=True):
        batch = bench.rows(bench.public).batch(rows, torch.device("cpu"))
        spoken = module(**batch).detach()
        torch.testing.assert_close(theirs, spoken, rtol=1e-9, atol=1e-12)
        logits = module(**batch)
        own = 0.2 * h * F.cross_entropy(logits, spoken.argmax(-1))
        new_adamw_step(module, F.cross_entropy(logits, ensemble.argmax(-1)) + own, 0.05)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(client.parameters()[name], value, rtol=1e-9, atol=1e-12)


def test_as_released_public_batches_are_as_even_as_can_be_and_the_same_every_pass():
    shards = [rows.tolist() for rows in FedID(reading="released")._exchanges(np.random.default_rng(0), 10, 2, 4)]
    assert shards == 2 * [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


def test_the_title_says_as_released_only_where_nothing_else_is_changed():
    released = {"name": "FedID", "reading": "released"}
    changes = [{}, {"feedback": "none"}, {"client_rate": 0.04}, {"rehearsal": 1}]
    assert [make(released | change).title for change in changes] == [
        "FedID as released",
        "FedID as released",
        "FedID (released)",
        "FedID (released) w/ rehearsal",
    ]


def test_client_rate_is_a_factor_on_the_clients_steps_alone(bench):
    moved = []
    for rate in (1.0, 0.25):
        scene = Scene(bench)
        lesson = scene.teach(FedID(client_rate=rate, feedback="none"))
        me = scene.clients["films"]
        me.memory.arrays |= {"asked": ALL, "said": me.predict()}
        before = me.parameters()
        FedID(client_rate=rate, feedback="none").learn(me, lesson)
        moved.append(torch.cat([(me.parameters()[name] - value).flatten() for name, value in before.items()]))
        server = scene.server.parameters()
    torch.testing.assert_close(moved[1], 0.25 * moved[0])
    other = Scene(bench)
    other.teach(FedID(feedback="none"))
    assert all(torch.equal(other.server.parameters()[name], value) for name, value in server.items())
