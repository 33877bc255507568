import math

import pytest
import torch

from fedstill.learning.fast.masks import Masks

LIKE = torch.zeros(())


def draw(shape, probability, seed=0, is_quick=True, like=LIKE):
    torch.manual_seed(seed)
    return Masks(is_quick).draw(shape, probability, like)


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.9])
def test_numbers_drop_with_the_probability_and_the_others_grow_to_keep_the_expectation(probability):
    count = 400_000
    mask = draw((1000, 400), probability)
    dropped = int((mask == 0).sum())
    # A binomial count lies within five standard deviations of its mean but once in two million times.
    assert abs(dropped - count * probability) < 5 * math.sqrt(count * probability * (1 - probability)) + count / 65536
    kept = mask[mask != 0]
    assert kept.unique().numel() == 1
    assert kept[0].item() == pytest.approx(1 / (1 - probability), rel=2e-4)


def test_neighbours_drop_independently():
    gone = (draw((1_000_000,), 0.25) == 0).double()
    for distance in (1, 2, 3, 4, 8):  # four numbers come out of one word
        both = (gone[distance:] * gone[:-distance]).mean().item()
        assert both == pytest.approx(1 / 16, abs=5 * math.sqrt(1 / 16 * 15 / 16 / 1e6))


def test_masks_of_one_pass_and_of_the_next_differ():
    torch.manual_seed(0)
    first, second = Masks(True), Masks(True)
    drawn = [masks.draw((50, 50), 0.5, LIKE) for masks in (first, first, second)]
    agreement = [(a == b).double().mean().item() for a, b in ((drawn[0], drawn[1]), (drawn[0], drawn[2]))]
    assert agreement == pytest.approx([0.5, 0.5], abs=5 * 0.5 / 50)


@pytest.mark.parametrize("is_quick", [True, False])
def test_the_same_state_of_torchs_generator_gives_the_same_masks_and_another_gives_others(is_quick):
    first, again, other = (draw((64, 7), 0.4, seed, is_quick) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_quick_pass_draws_one_number_from_torch_and_no_more():
    torch.manual_seed(5)
    torch.randint(2**63 - 1, ())
    expected = torch.rand(3)
    torch.manual_seed(5)
    masks = Masks(True)
    masks.draw((100, 100), 0.1, LIKE)
    assert torch.equal(torch.rand(3), expected)


def test_nothing_drops_with_probability_zero_and_everything_with_one():
    assert draw((3, 4), 0.0) is None
    assert torch.equal(draw((3, 4), 1.0), torch.zeros(3, 4))


@pytest.mark.parametrize("is_quick", [True, False])
@pytest.mark.parametrize("shape", [(1,), (3, 5, 7), (2, 0)])
def test_masks_have_the_shape_and_the_precision_asked_for(shape, is_quick):
    mask = draw(shape, 0.5, is_quick=is_quick, like=LIKE.double())
    assert mask.shape == shape
    assert mask.dtype == torch.float64
    assert set(mask.flatten().tolist()) <= {0.0, 2.0}
