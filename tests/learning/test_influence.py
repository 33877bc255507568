import numpy as np
import pytest
import torch

from fedstill.common.errors import FedstillError
from fedstill.data.examples import Labelled
from fedstill.data.tokens import TokenStore
from fedstill.learning.fast import Fast, accelerate
from fedstill.learning.influence import Moment, differentiable, gradient
from fedstill.learning.losses import ce, probability_ce
from fedstill.learning.phases import Phase, PhaseSettings
from fedstill.models import ModelSpec, build

SETTINGS = PhaseSettings(optimiser="sgd", schedule="linear", batch=6)


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    lengths = random.integers(3, 9, 12)
    store = TokenStore(
        random.integers(5, 900, lengths.sum()).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)]), None
    )
    return Labelled(store, np.arange(12), torch.from_numpy(random.integers(0, 3, 12)))


def phase_of(name, data):
    model = build(ModelSpec(name=name), ("a", "b", "c"), "bert-tiny", 0)
    accelerate(model.module, Fast())  # as in a run: where derivatives are needed it must give way
    return Phase(model.module.double(), data, SETTINGS, rate=0.1, seed=1, steps=4)


@pytest.mark.parametrize("name", ["bert-tiny", "textcnn", "bigru", "bow"])
def test_influence_is_the_slope_of_the_log_probabilities_under_the_masks_of_the_step(data, name):
    phase = phase_of(name, data)
    rows = torch.arange(6)
    seen = []
    moment = Moment.of(phase)
    with differentiable():
        phase.step(rows, lambda logits: seen.append(logits.detach()) or probability_ce(logits, torch.eye(3)[:1]).mean())
    direction = gradient(phase.model, data.pick(np.arange(6, 12)), phase.device)
    found = moment.influence(rows, direction)

    def log_p(size):
        with torch.no_grad(), moment.stream.copy()(), differentiable():
            moved = {n: p + size * direction[n] for n, p in moment.theta.items()}
            output = torch.func.functional_call(phase.model, moved, (), data.batch(rows, phase.device))
            return (output if isinstance(output, torch.Tensor) else output.logits).log_softmax(-1)

    torch.testing.assert_close(log_p(0.0), seen[0].log_softmax(-1))  # the masks are those of the step, dropout and all
    slope = (log_p(1e-5) - log_p(-1e-5)) / 2e-5
    torch.testing.assert_close(found, slope, rtol=1e-5, atol=1e-8)


def test_a_moment_knows_the_rate_of_its_step_and_disturbs_nothing(data):
    watched, plain = phase_of("textcnn", data), phase_of("textcnn", data)
    for number in range(3):
        moment = Moment.of(watched)
        assert moment.rate == pytest.approx(0.1 * (1 - number / 4))
        for phase in (watched, plain):
            phase.step(torch.arange(6), lambda logits: probability_ce(logits, torch.eye(3)[:1]).mean())
        moment.influence(torch.arange(6), {n: torch.ones_like(p) for n, p in watched.model.named_parameters()})
    for ours, theirs in zip(watched.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_the_gradient_is_taken_in_eval_mode_and_leaves_no_trace(data):
    phase = phase_of("bow", data)
    found = gradient(phase.model, data, phase.device)
    phase.model.eval()
    loss = ce(phase.model(**data.batch(torch.arange(12), phase.device)), data.labels).mean()
    expected = torch.autograd.grad(loss, list(phase.model.parameters()))
    for ours, theirs in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert all(p.grad is None for p in phase.model.parameters())


class Stubborn(torch.autograd.Function):
    """A layer of somebody's own, with a backward derivative only."""

    @staticmethod
    def forward(inputs):
        return inputs.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class OneWay(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Embedding(900, 3)

    def forward(self, input_ids, attention_mask):
        return Stubborn.apply(self.weight(input_ids).sum(1))


def test_a_layer_without_a_forward_derivative_is_said(data):
    phase = Phase(OneWay(), data, SETTINGS, rate=0.1, seed=1, steps=4)
    direction = gradient(phase.model, data, phase.device)
    with pytest.raises(FedstillError, match=r"OneWay has a layer without a forward derivative on cpu.*loss_diff"):
        Moment.of(phase).influence(torch.arange(6), direction)
