"""Functions that are called many times: the same calls with and without a graph; captures need a card."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedstill.learning.fast import Fast, accelerate
from fedstill.learning.fast.repeated import WARM, Repeated
from fedstill.learning.noise import Batch, Descent, make_sure
from fedstill.learning.pseudo import Reader, Sampling, descend, sampling_loss
from fedstill.models.small import TextCNN
from tests.learning.fast.test_gpu import model

needs_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
EMBEDDED = "inputs_embeds"


def test_every_call_counts_once_on_a_cpu() -> None:
    total = torch.zeros(())
    repeated = Repeated(lambda: total.add_(1), torch.device("cpu"))
    for _ in range(WARM + 4):
        repeated()
    assert repeated.graph is None
    assert total == WARM + 4


@needs_card
def test_every_call_counts_once_with_a_graph_and_a_later_graph_takes_the_same_memory() -> None:
    for size in (5, 50_000):
        total, ones = torch.zeros(size, device="cuda"), torch.ones(size, device="cuda")
        repeated = Repeated(lambda a=total, b=ones: a.add_((b * 3).relu() - 2), total.device)  # type: ignore[misc]
        for _ in range(WARM + 7):
            repeated()
        assert repeated.graph is not None
        assert (total == WARM + 7).all()


@needs_card
def test_models_of_a_kind_that_may_not_be_capturable_go_on_without_a_graph() -> None:
    total = torch.zeros((), device="cuda")

    def reads_back() -> None:
        total.add_(1 if float(total) >= 0 else 5)

    other = TextCNN(30, 3, 0)
    accelerate(other, Fast())
    repeated = Repeated(reads_back, total.device, other)
    for _ in range(WARM + 4):
        repeated()
    assert repeated.graph is None
    assert float(total) == WARM + 4


def bert(seed: int, graphs: bool) -> nn.Module:
    module = model("bert", 0.0, seed).eval()
    accelerate(module, Fast(graphs=graphs))
    return module


def start(module: nn.Module, many: int = 6) -> Tensor:
    width = module.get_input_embeddings().embedding_dim  # type: ignore[operator]
    return torch.randn(many, 8, width, generator=torch.Generator().manual_seed(3)).cuda()


@needs_card
@pytest.mark.parametrize("strength", [0.0, 0.1])
def test_pseudo_samples_are_the_same_by_replays(strength: float) -> None:
    ends = []
    for graphs in (False, True):
        teacher, student = bert(1, graphs), bert(2, graphs)
        labels = torch.tensor([0, 1, 2, 0, 1, 2], device="cuda")
        how = Sampling(steps=20, strength=strength)
        loss = sampling_loss(Reader(EMBEDDED), teacher, student, how)
        began = start(teacher)
        ends.append(descend(loss, began, labels, torch.ones(8, 1, device="cuda"), how, models=[teacher, student]))
        assert not torch.equal(ends[-1], began)
    assert torch.allclose(*ends, atol=2e-3)


@needs_card
def test_noise_is_the_same_by_replays() -> None:
    ends = []
    for graphs in (False, True):
        module = bert(1, graphs).requires_grad_(False)
        batches = [Batch(bert(seed, False).state_dict(), start(module), torch.arange(6) % 3) for seed in (1, 2)]
        ends.append(torch.stack(make_sure(module, EMBEDDED, batches, Descent(1e-9, 12), stacked=False)))
    assert not torch.equal(ends[0][0], ends[0][1])
    assert torch.allclose(*ends, atol=5e-2)  # Adam's first steps follow the sign of the gradient
    assert (ends[0] - ends[1]).abs().mean() < 1e-3
