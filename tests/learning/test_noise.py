"""Noise that a model is sure about: the descent by hand, together and alone, and where it stops."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from fedstill.learning.noise import Batch, Descent, make_sure
from fedstill.models.images import LeNet, SmallCNN
from fedstill.models.small import TextCNN


def lenet(seed):
    torch.manual_seed(seed)
    return LeNet(1, 12, 10, hidden=20)


def cnn(seed):
    torch.manual_seed(seed)
    return SmallCNN(1, 8, 10, filters=4, hidden=12)


def textcnn(seed):
    torch.manual_seed(seed)
    return TextCNN(30, 3, 0, embedding=6, filters=5, widths=(2, 3))


MODELS = {"lenet": (lenet, "pixels", (1, 12, 12)), "cnn": (cnn, "pixels", (1, 8, 8)),
          "textcnn": (textcnn, "inputs_embeds", (7, 6))}  # fmt: skip


def noise(many, shape, seed=0, dtype=torch.float64):
    return torch.randn(many, *shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def frozen(module):
    return module.eval().requires_grad_(False)


def entropies(module, name, values):
    """By numpy, in float64."""
    with torch.no_grad():
        logits = module(**{name: values}).double().numpy()
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return -(p * np.log(np.maximum(p, 1e-300))).sum(-1)


@pytest.mark.parametrize(("kind", "target"), [("lenet", 0.1), ("textcnn", 0.01)])
@pytest.mark.parametrize("stacked", [False, True])
def test_the_entropy_of_a_fresh_models_noise_falls_to_the_target(kind, target, stacked):
    make, name, shape = MODELS[kind]
    module = frozen(make(3))
    drawn = noise(20, shape, dtype=torch.float32)
    before = entropies(module, name, drawn).mean()
    [made] = make_sure(module, name, [Batch(module.state_dict(), drawn)], Descent(target, 300), stacked)
    assert before > 0.5
    assert entropies(module, name, made).mean() <= target
    assert made.shape == drawn.shape


def test_with_too_few_steps_the_noise_is_as_far_as_they_reach():
    # A fresh network with group norm: larger inputs do not make it surer, so no number of steps would do.
    module = frozen(cnn(3))
    drawn = noise(20, (1, 8, 8), dtype=torch.float32)
    reached = []
    for steps in (1, 3, 6):
        [made] = make_sure(module, "pixels", [Batch(module.state_dict(), drawn)], Descent(steps=steps), stacked=False)
        reached.append(entropies(module, "pixels", made).mean())
    assert entropies(module, "pixels", drawn).mean() > reached[0] > reached[1] > reached[2] > 0.01


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, pixels):
        return self.inner(pixels)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("wanted", [None, torch.tensor([0, 1, 2, 0, 1])])
def test_the_descent_is_adam_on_the_summed_entropies_or_cross_entropies(stacked, wanted):
    module = Tiny().double()
    drawn = noise(5, (4,))
    how = Descent(target=1e-9, steps=7, rate=0.2)
    made = make_sure(frozen(module), "pixels", [Batch(module.state_dict(), drawn, wanted)], how, stacked)

    leaf = drawn.clone().requires_grad_()
    first, second = np.zeros((5, 4)), np.zeros((5, 4))
    for step in range(1, 8):
        logits = module(leaf)
        p = logits.softmax(-1)
        loss = -(p * p.log()).sum() if wanted is None else F.cross_entropy(logits, wanted, reduction="sum")
        gradient = torch.autograd.grad(loss, leaf)[0].numpy()
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        step_ = 0.2 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        leaf = (leaf.detach() - torch.from_numpy(step_)).requires_grad_()
    torch.testing.assert_close(made[0], leaf.detach(), rtol=1e-9, atol=1e-9)


def test_the_descent_is_torchs_adam():
    module = frozen(Tiny().double())
    drawn = noise(5, (4,))
    [made] = make_sure(module, "pixels", [Batch(module.state_dict(), drawn)], Descent(1e-9, 9, 0.1), stacked=False)
    leaf = drawn.clone().requires_grad_()
    adam = torch.optim.Adam([leaf], lr=0.1)
    for _ in range(9):
        adam.zero_grad()
        torch.special.entr(module(leaf).softmax(-1)).sum().backward()
        adam.step()
    torch.testing.assert_close(made, leaf.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("balanced", [False, True])
def test_batches_of_several_models_and_sizes_come_out_the_same_together_and_alone(kind, balanced):
    make, name, shape = MODELS[kind]
    module = make(0).double().eval()
    batches = []
    for seed, size in enumerate((3, 5, 2)):
        own = {key: value.clone() for key, value in make(seed + 5).double().state_dict().items()}
        batches.append(Batch(own, noise(size, shape, seed), torch.arange(size) % 3 if balanced else None))
    how = Descent(target=1e-9, steps=5)
    together = make_sure(frozen(module), name, batches, how, stacked=True)
    alone = [make_sure(module, name, [batch], how, stacked=False)[0] for batch in batches]
    in_pairs = make_sure(module, name, batches, Descent(1e-9, 5, together=2), stacked=True)
    for batch, one, other, third in zip(batches, together, alone, in_pairs, strict=True):
        assert one.shape == batch.values.shape
        assert not torch.equal(one, batch.values)
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(third, other, rtol=1e-9, atol=1e-9)


def test_parameters_that_came_in_half_the_bytes_are_taken_alone_and_together():
    module = frozen(cnn(0))
    half = {key: value.bfloat16() for key, value in module.state_dict().items()}
    drawn = noise(4, (1, 8, 8), dtype=torch.float32)
    one, other = (
        make_sure(module, "pixels", [Batch(half, drawn)], Descent(steps=3), stacked)[0] for stacked in (True, False)
    )
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_batch_that_is_sure_stays_where_it_is_while_others_go_on(stacked):
    module = frozen(Tiny().double())
    batches = [Batch(module.state_dict(), noise(size, (4,), size)) for size in (6, 30)]
    exactly = make_sure(module, "pixels", batches[:1], Descent(1e-9, steps=8), stacked=False)[0]
    how = Descent(target=entropies(module, "pixels", exactly).mean() + 1e-9, steps=30)
    assert entropies(module, "pixels", batches[1].values).mean() > how.target
    first, second = make_sure(module, "pixels", batches, how, stacked)
    torch.testing.assert_close(first, exactly, rtol=1e-9, atol=1e-9)  # no step after the target was reached
    other = make_sure(module, "pixels", batches[1:], how, stacked=False)[0]
    torch.testing.assert_close(second, other, rtol=1e-9, atol=1e-9)
    again = make_sure(module, "pixels", [Batch(module.state_dict(), first), batches[1]], how, stacked)
    assert torch.equal(again[0], first)
    assert not torch.equal(again[1], batches[1].values)


@pytest.fixture(scope="module")
def reader_of_digits():
    """A small network that tells digits apart."""
    digits = load_digits()
    images = torch.from_numpy(digits.images[:600]).float()[:, None] / 8 - 1
    labels = torch.from_numpy(digits.target[:600])
    torch.manual_seed(0)
    module = SmallCNN(1, 8, 10, filters=8, hidden=32, dropout=0.0)
    adam = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(100):
        adam.zero_grad()
        F.cross_entropy(module(images), labels).backward()
        adam.step()
    frozen(module)
    assert (module(images).argmax(-1) == labels).float().mean() > 0.9
    return module


@pytest.mark.parametrize("stacked", [False, True])
def test_noise_for_given_classes_becomes_as_much_of_each(reader_of_digits, stacked):
    drawn = noise(40, (1, 8, 8), dtype=torch.float32)
    wanted = torch.arange(40) % 10
    assert torch.bincount(reader_of_digits(drawn).argmax(-1), minlength=10).max() > 6  # it has its favourites
    parameters = reader_of_digits.state_dict()
    [made] = make_sure(reader_of_digits, "pixels", [Batch(parameters, drawn, wanted)], Descent(), stacked)
    assert torch.bincount(reader_of_digits(made).argmax(-1), minlength=10).tolist() == [4] * 10
    assert entropies(reader_of_digits, "pixels", made).mean() <= 0.01


def test_a_model_that_is_sure_of_the_wrong_class_does_not_end_the_descent(reader_of_digits):
    parameters = reader_of_digits.state_dict()
    drawn = noise(40, (1, 8, 8), dtype=torch.float32)
    [sure] = make_sure(reader_of_digits, "pixels", [Batch(parameters, drawn)], Descent(), stacked=False)
    assert entropies(reader_of_digits, "pixels", sure).mean() <= 0.01
    wanted = (reader_of_digits(sure).argmax(-1) + 1) % 10
    [made] = make_sure(reader_of_digits, "pixels", [Batch(parameters, sure, wanted)], Descent(), stacked=False)
    assert torch.equal(reader_of_digits(made).argmax(-1), wanted)
