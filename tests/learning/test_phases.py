import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

from fedstill.common.errors import FedstillError
from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore
from fedstill.learning.fast import Fast, accelerate
from fedstill.learning.losses import ce, mse
from fedstill.learning.phases import EpochLosses, Phase, PhaseSettings, class_weights, share_of_rate
from fedstill.models.small import TextCNN

VOCABULARY, CLASSES = 30, 3


def texts(count, seed=0):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 9, count)
    ids = generator.integers(1, VOCABULARY, lengths.sum()).astype(np.int32)
    return Examples(TokenStore(ids, np.concatenate([[0], lengths.cumsum()]), None), np.arange(count))


def small_model(dropout=0.0, seed=0):
    torch.manual_seed(seed)
    return TextCNN(VOCABULARY, CLASSES, 0, embedding=5, filters=4, widths=(1, 2), dropout=dropout).double()


def teacher_logits(count, seed=7):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, CLASSES)))


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def rows_of_each_step(data, targets, settings, seed, rate=1e-2):
    """The order in which a phase visits its rows, found by looking at the targets it asks for."""
    seen = []

    def watching(logits, wanted):
        seen.append([int((targets == one).all(1).nonzero()) for one in wanted])
        return mse(logits, wanted)

    Phase(small_model(), data, settings, rate, seed).run(targets, watching)
    return seen


# With 13 rows in batches of 4 there are 4 steps an epoch: 12 steps in 3 epochs, of which warm-up 0.2 takes 3.
LINEAR = [(12 - step) / 12 for step in range(12)]
SCHEDULES = {
    ("linear", 0.0): LINEAR,
    ("constant", 0.0): [1.0] * 12,
    ("cosine", 0.0): [(1 + math.cos(math.pi * step / 12)) / 2 for step in range(12)],
    ("linear", 0.2): [1 / 3, 2 / 3, 1.0] + [(9 - step) / 9 for step in range(9)],
    ("constant", 0.2): [1 / 3, 2 / 3] + [1.0] * 10,
    ("cosine", 0.2): [1 / 3, 2 / 3, 1.0] + [(1 + math.cos(math.pi * step / 9)) / 2 for step in range(9)],
}
OPTIMISERS = {
    "adamw": (1e-2, {"weight_decay": 0.1}, lambda p, rate: torch.optim.AdamW(p, lr=rate, weight_decay=0.1)),
    "sgd": (
        1e-1,
        {"momentum": 0.9, "weight_decay": 0.01},
        lambda p, rate: torch.optim.SGD(p, lr=rate, momentum=0.9, weight_decay=0.01),
    ),
    "adafactor": (1e-2, {}, lambda p, rate: torch.optim.Adafactor(p, lr=rate)),
}


def reference_loop(model, data, targets, batches, make_optimiser, rate, factors):
    """Plain torch: one optimiser over all the steps, the rate of every step given as a number."""
    optimiser = make_optimiser(list(model.parameters()), rate)
    losses = []
    for rows, factor in zip(batches, factors, strict=True):
        for group in optimiser.param_groups:
            group["lr"] = rate * factor
        batch = data.store.batch(np.array(rows))
        logits = model(torch.from_numpy(batch["input_ids"]), torch.from_numpy(batch["attention_mask"]))
        loss = ((logits - targets[rows]) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append((len(rows), loss.item()))
    return losses


def a_phase(settings, rate):
    """A model after a phase, its losses, and the data, targets and batches for a loop that does the same."""
    data, targets, model = texts(13), teacher_logits(13), small_model()
    found = Phase(model, data, settings, rate, seed=5).run(targets, mse)
    return model, found, (data, targets, rows_of_each_step(data, targets, settings, seed=5))


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize(("schedule", "warmup"), SCHEDULES)
def test_a_phase_is_one_optimiser_and_one_schedule_over_all_its_epochs(name, schedule, warmup):
    rate, options, make_optimiser = OPTIMISERS[name]
    settings = PhaseSettings(epochs=3, batch=4, optimiser=name, schedule=schedule, warmup=warmup, **options)
    ours, found, beside = a_phase(settings, rate)
    reference = small_model()
    losses = reference_loop(reference, *beside, make_optimiser, rate, SCHEDULES[schedule, warmup])
    torch.testing.assert_close(weights_of(ours), weights_of(reference), rtol=1e-9, atol=1e-12)
    assert (weights_of(ours) - weights_of(small_model())).abs().max() > 1e-3
    by_epoch = [losses[start : start + 4] for start in (0, 4, 8)]
    assert found.mean == pytest.approx([sum(n * loss for n, loss in epoch) / 13 for epoch in by_epoch])


# The factors on the rate where a schedule over 12 steps begins again every epoch (of 4 steps) or every batch.
RESTARTS = {
    ("epoch", "linear"): [1.0, 11 / 12, 10 / 12, 9 / 12] * 3,
    ("epoch", "constant"): [1.0] * 12,
    ("batch", "linear"): [1.0] * 12,
    ("batch", "cosine"): [1.0] * 12,
}


def reference_with_restarts(model, data, targets, batches, make_optimiser, rate, factors, every):
    """Plain torch: a new optimiser for every `every` steps."""
    losses = []
    for start in range(0, len(batches), every):
        some = slice(start, start + every)
        losses += reference_loop(model, data, targets, batches[some], make_optimiser, rate, factors[some])
    return losses


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize(("restart", "schedule"), RESTARTS)
def test_a_restart_is_a_new_optimiser_and_the_schedule_from_its_beginning(name, restart, schedule):
    rate, options, make_optimiser = OPTIMISERS[name]
    settings = PhaseSettings(epochs=3, batch=4, optimiser=name, schedule=schedule, restart=restart, **options)
    ours, found, beside = a_phase(settings, rate)
    reference = small_model()
    losses = reference_with_restarts(
        reference, *beside, make_optimiser, rate, RESTARTS[restart, schedule],
        every=4 if restart == "epoch" else 1,
    )  # fmt: skip
    torch.testing.assert_close(weights_of(ours), weights_of(reference), rtol=1e-9, atol=1e-12)
    assert found.mean[2] == pytest.approx(sum(n * loss for n, loss in losses[8:]) / 13)
    never, _, _ = a_phase(settings.model_copy(update={"restart": "never"}), rate)
    if name != "sgd" or schedule != "constant":
        assert (weights_of(ours) - weights_of(never)).abs().max() > 1e-4


def test_epochs_that_a_gpu_runs_one_by_one_have_the_rates_of_the_whole_phase_from_its_beginning():
    settings = PhaseSettings(epochs=3, batch=4, restart="epoch", weight_decay=0.1)
    data, targets = texts(13), teacher_logits(13)
    ours, reference = small_model(), small_model()
    whole, batches = Phase(ours, data, settings, 1e-2, seed=5), []
    for number in range(3):
        one = whole._one_epoch(number)
        assert (one.settings.restart, one.settings.epochs) == ("never", 1)
        one.run(targets, mse)
        batches += rows_of_each_step(data, targets, one.settings, seed=5 + number)
    make_optimiser, factors = OPTIMISERS["adamw"][2], RESTARTS["epoch", "linear"]
    reference_with_restarts(reference, data, targets, batches, make_optimiser, 1e-2, factors, every=4)
    torch.testing.assert_close(weights_of(ours), weights_of(reference), rtol=1e-9, atol=1e-12)
    assert len({tuple(rows) for rows in batches if len(rows) == 4}) == 9  # every epoch has an order of its own


def test_every_epoch_visits_every_row_once_in_an_order_of_its_own():
    settings = PhaseSettings(epochs=3, batch=4)
    steps = rows_of_each_step(texts(13), teacher_logits(13), settings, seed=5)
    assert [len(rows) for rows in steps] == [4, 4, 4, 1] * 3
    epochs = [[row for rows in steps[start : start + 4] for row in rows] for start in (0, 4, 8)]
    assert all(sorted(epoch) == list(range(13)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs} | {tuple(range(13))}) == 4


def test_the_last_step_of_the_linear_schedule_still_learns_with_one_step_s_share():
    data, targets = texts(8), teacher_logits(8)
    phase = Phase(small_model(), data, PhaseSettings(epochs=2, batch=4), rate=0.4, seed=0)
    phase.run(targets, mse)
    assert phase.optimiser.param_groups[0]["lr"] == pytest.approx(0.4 / 4)


@given(
    schedule=st.sampled_from(["linear", "cosine", "constant"]),
    warmup=st.floats(0, 0.99),
    steps=st.integers(1, 50),
    beyond=st.integers(0, 5),
)
def test_the_rate_rises_to_the_full_rate_and_never_leaves_zero_to_one(schedule, warmup, steps, beyond):
    settings = PhaseSettings(schedule=schedule, warmup=warmup)
    shares = [share_of_rate(settings, step, steps) for step in range(steps + beyond)]
    assert all(0 <= share <= 1 for share in shares)
    assert max(shares) == 1
    peak = shares.index(1)
    assert shares[: peak + 1] == sorted(shares[: peak + 1])
    assert shares[peak:] == sorted(shares[peak:], reverse=True)


def test_a_step_uses_exactly_the_rows_it_is_given():
    data, targets = texts(9), teacher_logits(9)
    ours, reference = small_model(), small_model()
    phase = Phase(ours, data, PhaseSettings(optimiser="sgd", schedule="linear"), rate=0.1, seed=0, steps=3)
    batches = [[8, 1], [0, 3, 5], [1]]
    values = [phase.step(torch.tensor(rows), lambda z, rows=rows: mse(z, targets[rows]).mean()) for rows in batches]
    losses = reference_loop(
        reference, data, targets, batches, lambda p, rate: torch.optim.SGD(p, lr=rate), 0.1, [1.0, 2 / 3, 1 / 3]
    )
    torch.testing.assert_close(weights_of(ours), weights_of(reference), rtol=1e-10, atol=1e-13)
    assert [value.item() for value in values] == pytest.approx([loss for _, loss in losses])


def test_the_epoch_loss_counts_samples_not_batches():
    data, labels = texts(10), torch.tensor([0, 0, 1, 2, 1, 0, 1, 2, 2, 0])
    model = small_model()
    whole = data.store.batch(np.arange(10))
    each = F.cross_entropy(
        model(torch.from_numpy(whole["input_ids"]), torch.from_numpy(whole["attention_mask"])), labels, reduction="none"
    )
    # So small a rate leaves the model as it is: batches of 4, 4 and 2 must give the mean over the ten.
    settings = PhaseSettings(epochs=2, batch=4, optimiser="sgd")
    found = Phase(model, data, settings, rate=1e-14, seed=0).run(labels, ce)
    assert found.mean == pytest.approx([each.mean().item()] * 2, rel=1e-9)
    by_class = [each[labels == c].mean().item() for c in range(CLASSES)]
    assert found.by_class[0] == pytest.approx(by_class, rel=1e-9)
    assert found.by_class[1] == pytest.approx(by_class, rel=1e-9)


def test_a_class_that_does_not_occur_has_no_loss():
    found = Phase(small_model(), texts(4), PhaseSettings(epochs=1), 1e-3, 0).run(torch.tensor([0, 2, 2, 0]), ce)
    assert [math.isnan(loss) for loss in found.by_class[0]] == [False, True, False]


def test_losses_by_class_are_empty_for_a_teachers_logits():
    found = Phase(small_model(), texts(4), PhaseSettings(epochs=2), 1e-3, 0).run(teacher_logits(4), mse)
    assert found.by_class == [[], []]


def test_the_epoch_loss_is_measured_in_train_mode():
    data, labels = texts(12), torch.arange(12) % CLASSES
    settings = PhaseSettings(epochs=1, batch=12, optimiser="sgd")
    with_dropout, without = (
        Phase(small_model(dropout), data, settings, 1e-14, 0).run(labels, ce).mean[0] for dropout in (0.5, 0.0)
    )
    assert abs(with_dropout - without) > 1e-4


def test_best_is_the_epoch_with_the_smallest_loss_and_the_first_of_equals():
    assert EpochLosses([3.0, 1.0, 2.0, 1.0], []).best() == 1


def test_class_weights_give_every_class_that_occurs_the_same_say():
    labels = torch.tensor([0, 0, 0, 0, 1, 3, 3, 0])
    balanced = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels.numpy())
    found = class_weights(labels, 5)
    assert found[[0, 1, 3]].tolist() == pytest.approx(balanced.tolist())
    assert found[[2, 4]].tolist() == [0, 0]
    assert [found[labels][labels == c].sum().item() for c in (0, 1, 3)] == pytest.approx([8 / 3] * 3)


def test_weighted_training_follows_torchs_weighted_cross_entropy():
    data, labels = texts(6), torch.tensor([0, 0, 0, 0, 1, 2])
    weights = class_weights(labels, CLASSES).double()
    ours, reference = small_model(), small_model()
    found = Phase(ours, data, PhaseSettings(epochs=1, optimiser="sgd"), 0.5, 0).run(labels, ce, weights)
    whole = data.store.batch(np.arange(6))
    logits = reference(torch.from_numpy(whole["input_ids"]), torch.from_numpy(whole["attention_mask"]))
    loss = F.cross_entropy(logits, labels, weight=weights)
    gradients = torch.autograd.grad(loss, list(reference.parameters()))
    expected = weights_of(reference) - 0.5 * torch.cat([g.flatten() for g in gradients])
    torch.testing.assert_close(weights_of(ours), expected, rtol=1e-10, atol=1e-13)
    assert found.mean == pytest.approx([loss.item()])


def test_a_loss_that_explodes_is_an_error_that_says_what_to_do():
    settings = PhaseSettings(epochs=3, batch=2, optimiser="sgd", schedule="constant")
    phase = Phase(small_model(), texts(12), settings, rate=1e200, seed=0)
    with pytest.raises(
        FedstillError, match=r"loss became (nan|inf) in epoch 1: lower the rate \(1e\+200\), or set `clip`"
    ):
        phase.run(teacher_logits(12), mse)


def test_another_number_of_targets_than_samples_is_refused():
    with pytest.raises(FedstillError, match="5 targets for 6 samples"):
        Phase(small_model(), texts(6), PhaseSettings(), 1e-3, 0).run(teacher_logits(5), mse)


def trained(seed, dropout=0.4):
    model = small_model(dropout)
    losses = Phase(model, texts(12), PhaseSettings(epochs=2, batch=4), 1e-2, seed).run(torch.arange(12) % CLASSES, ce)
    return weights_of(model), losses.mean


def test_the_same_seed_gives_the_same_bits_whatever_was_drawn_in_between():
    first, losses = trained(3)
    torch.manual_seed(99)
    torch.rand(1000)
    second, again = trained(3)
    assert torch.equal(first, second)
    assert losses == again


def test_another_seed_gives_another_model():
    assert not torch.allclose(trained(3)[0], trained(4)[0])


def test_a_phase_leaves_the_global_generator_alone():
    model = small_model(0.5)
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    run, stepped = (Phase(model, texts(8), PhaseSettings(epochs=1, batch=4), 1e-2, 0) for _ in range(2))
    run.run(torch.arange(8) % CLASSES, ce)
    stepped.step(torch.tensor([0, 1]), lambda logits: logits.sum())
    assert torch.equal(torch.rand(3), expected)


def test_interleaved_phases_give_what_they_give_one_after_the_other():
    data, targets = texts(12), teacher_logits(12)
    batches = [torch.tensor([0, 5, 7]), torch.tensor([1, 2]), torch.tensor([11, 3, 4, 6])]

    def open_phases():
        settings = PhaseSettings(batch=4)
        return [Phase(small_model(0.5, seed), data, settings, 1e-2, seed, steps=3) for seed in (1, 2)]

    def step(phase, rows):
        phase.step(rows, lambda logits: mse(logits, targets[rows]).mean())

    one_by_one, interleaved = open_phases(), open_phases()
    for phase in one_by_one:
        for rows in batches:
            step(phase, rows)
    for rows in batches:
        for phase in reversed(interleaved):
            step(phase, rows)
    for alone, mixed in zip(one_by_one, interleaved, strict=True):
        assert torch.equal(weights_of(alone.model), weights_of(mixed.model))


def test_dropout_draws_anew_at_every_step_and_differs_between_seeds():
    def losses(seed):
        phase = Phase(small_model(0.5), texts(8), PhaseSettings(optimiser="sgd"), 1e-14, seed, steps=3)
        targets = teacher_logits(8)
        return [phase.step(torch.arange(8), lambda z: mse(z, targets).mean()).item() for _ in range(3)]

    assert len(set(losses(0) + losses(1))) == 6
    assert losses(0) == losses(0)


@pytest.mark.parametrize(("clip", "share"), [(0.5, 0.5), (1e6, 1.0)])
def test_clip_shortens_the_whole_gradient_to_its_norm_and_no_more(clip, share):
    data, targets = texts(6), 50 * teacher_logits(6)
    model, reference = small_model(), small_model()
    whole = data.store.batch(np.arange(6))
    logits = reference(torch.from_numpy(whole["input_ids"]), torch.from_numpy(whole["attention_mask"]))
    gradients = torch.autograd.grad(mse(logits, targets).mean(), list(reference.parameters()))
    gradient = torch.cat([g.flatten() for g in gradients])
    assert gradient.norm() > 1
    settings = PhaseSettings(epochs=1, optimiser="sgd", schedule="constant", clip=clip)
    before = weights_of(model)
    Phase(model, data, settings, 1.0, 0).run(targets, mse)
    expected = gradient if share == 1.0 else gradient * clip / gradient.norm()
    torch.testing.assert_close(before - weights_of(model), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_the_optimiser_is_fused_only_for_a_model_that_was_told(name):
    told, other, plain = small_model(), small_model(), small_model()
    accelerate(told, Fast())
    accelerate(other, Fast(optimiser=False))
    settings = PhaseSettings(epochs=2, batch=4, optimiser=name)
    phases = [Phase(model, texts(8), settings, 1e-2, 0) for model in (told, other, plain)]
    assert [bool(phase.optimiser.defaults["fused"]) for phase in phases] == [True, False, False]
    for phase in phases:
        phase.run(teacher_logits(8), mse)
    torch.testing.assert_close(weights_of(told), weights_of(other), rtol=1e-9, atol=1e-12)
    assert torch.equal(weights_of(other), weights_of(plain))


def test_frozen_parameters_stay_as_they_are():
    model = small_model()
    model.embedding.weight.requires_grad_(False)
    embedding, head = model.embedding.weight.clone(), model.head.weight.detach().clone()
    Phase(model, texts(8), PhaseSettings(epochs=2, batch=4, weight_decay=0.1), 1e-2, 0).run(teacher_logits(8), mse)
    assert torch.equal(model.embedding.weight, embedding)
    assert not torch.allclose(model.head.weight, head)


def test_a_phase_of_no_epochs_changes_nothing():
    model = small_model()
    before = weights_of(model)
    assert Phase(model, texts(8), PhaseSettings(epochs=0), 1e-2, 0).run(teacher_logits(8), mse).mean == []
    assert torch.equal(weights_of(model), before)


def test_whoever_watches_is_told_the_steps_and_the_loss_of_each_epoch():
    told = []
    phase = Phase(small_model(), texts(25), PhaseSettings(epochs=2, batch=1), 1e-3, 0)
    losses = phase.run(teacher_logits(25), mse, watch=lambda *event: told.append(event))
    assert [(done, steps) for done, steps, _ in told] == [(20, 50), (25, 50), (40, 50), (50, 50)]
    assert math.isnan(told[0][2])
    assert [loss for _, _, loss in told[1:]] == [losses.mean[0], losses.mean[0], losses.mean[1]]
