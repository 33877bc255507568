import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import trim_mean

from fedstill.common.errors import FedstillError
from fedstill.wire.robust import filtered, median, most, robust_mean, trimmed

HUGE = float(np.finfo(np.float32).max)
KINDS = [("median", 0.0), ("trimmed", 0.2), ("trimmed", 0.4), ("filter", 0.2), ("filter", 0.4)]
GARBAGE = {
    "votes for a wrong class": lambda wrong, random: np.eye(3)[wrong],
    "huge votes": lambda wrong, random: HUGE * np.eye(3)[wrong],
    "huge noise": lambda wrong, random: HUGE * random.uniform(-1, 1, (len(wrong), 3)),
    "nothing": lambda wrong, random: np.zeros((len(wrong), 3)),
    "minus infinity nearly": lambda wrong, random: np.full((len(wrong), 3), -HUGE),
}


def distributions(clients, samples, classes=3, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(classes), (clients, samples))


def normal(values):
    return values / values.sum(-1, keepdims=True)


def agreeing(clients, liars, garbage, seed=0):
    """Honest opinions within 0.05 of each other, class 0 likeliest; the liars stand between them. And who is honest."""
    random = np.random.default_rng(seed)
    truth = normal(np.array([0.6, 0.25, 0.15]) + random.uniform(-0.05, 0.05, (40, 3)))
    opinions = normal(truth + random.uniform(-0.02, 0.02, (clients, 40, 3)))
    lying = random.choice(clients, liars, replace=False)
    for liar in lying:
        opinions[liar] = GARBAGE[garbage](random.integers(1, 3, 40), random)
    return torch.from_numpy(opinions), np.setdiff1d(np.arange(clients), lying)


def test_the_median_of_each_class_is_made_a_distribution():
    for clients in (4, 5):
        opinions = distributions(clients, 30)
        np.testing.assert_allclose(
            median(torch.from_numpy(opinions)).numpy(), normal(np.median(opinions, axis=0)), rtol=1e-12
        )


@pytest.mark.parametrize(("share", "clients"), [(0.0, 4), (0.1, 10), (0.25, 7), (0.4, 5), (0.4, 10)])
def test_the_trimmed_mean_cuts_that_share_off_at_each_end_of_each_class(share, clients):
    opinions = distributions(clients, 30)
    expected = normal(trim_mean(opinions, share, axis=0))
    np.testing.assert_allclose(trimmed(torch.from_numpy(opinions), share).numpy(), expected, rtol=1e-12)


def filter_one_sample(points, drops):
    """As the paper's box, for one sample: by singular values, one point at a time."""
    points = list(points)
    for _ in range(drops):
        centred = np.array(points) - np.mean(points, axis=0)
        _, singular, directions = np.linalg.svd(centred)
        along = np.array(points) @ directions[0]
        distance = np.abs(along - np.median(along))
        deviation = 1.4826 * np.median(distance)
        if singular[0] ** 2 / len(points) <= 2 * deviation**2 + 1e-12:
            break
        points.pop(int(distance.argmax()))
    return np.mean(points, axis=0), len(points)


@pytest.mark.parametrize(("clients", "classes"), [(5, 3), (10, 3), (9, 5), (10, 2)])
def test_the_filter_drops_the_farthest_while_the_widest_direction_is_too_wide(clients, classes):
    opinions = distributions(clients, 200, classes)
    opinions[:, :100] = normal(opinions[:, :100] * 0.1 + opinions[:1, :100])  # half of the samples: near agreement
    expected = [filter_one_sample(opinions[:, sample], int(0.3 * clients)) for sample in range(200)]
    assert len({kept for _, kept in expected}) > 1  # some samples lose more than others
    np.testing.assert_allclose(
        filtered(torch.from_numpy(opinions), 0.3).numpy(), np.array([mean for mean, _ in expected]), rtol=1e-9
    )


@pytest.mark.parametrize(("kind", "share"), KINDS)
@given(
    one=arrays.arrays(np.float64, (4, 3), elements=st.floats(1e-6, 1.0)),
    clients=st.integers(1, 11),
)
@settings(max_examples=25, deadline=None)
def test_what_all_clients_agree_on_is_the_mean(kind, share, one, clients):
    opinions = torch.from_numpy(normal(one)).expand(clients, 4, 3)
    torch.testing.assert_close(robust_mean(kind, opinions, share), opinions.mean(0), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("kind", "share"), KINDS)
@given(seed=st.integers(0, 10_000), clients=st.integers(1, 11), steps=st.sampled_from([2, 3, 1000]))
@settings(max_examples=40, deadline=None)
def test_the_order_of_the_clients_changes_not_a_bit(kind, share, seed, clients, steps):
    # With few steps many opinions are equally far out: a tie must not be decided by who comes first.
    random = np.random.default_rng(seed)
    opinions = torch.from_numpy(random.integers(0, steps + 1, (clients, 20, 3)) / steps)
    shuffled = opinions[torch.from_numpy(random.permutation(clients))]
    assert torch.equal(robust_mean(kind, opinions, share), robust_mean(kind, shuffled, share))


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize(("clients", "liars"), [(5, 2), (10, 4)])
@pytest.mark.parametrize(("kind", "share"), [("median", 0.0), ("trimmed", 0.4)])
def test_median_and_trimmed_mean_survive_two_liars_in_five(kind, share, clients, liars, garbage):
    opinions, honest = agreeing(clients, liars, garbage)
    result = robust_mean(kind, opinions, share).numpy()
    lowest, highest = opinions[honest].numpy().min(0), opinions[honest].numpy().max(0)
    # Each class stays between the honest ones; dividing by the sum moves it by no more than theirs can differ.
    assert (result >= lowest / highest.sum(-1, keepdims=True) - 1e-12).all()
    assert (result <= highest / lowest.sum(-1, keepdims=True) + 1e-12).all()
    assert (result.argmax(-1) == 0).all()


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize(("clients", "liars"), [(5, 1), (10, 2)])
def test_the_filter_finds_one_liar_in_five(clients, liars, garbage):
    opinions, honest = agreeing(clients, liars, garbage)
    np.testing.assert_allclose(filtered(opinions, 0.2).numpy(), opinions[honest].mean(0).numpy(), rtol=1e-9)


@pytest.mark.parametrize("garbage", ["votes for a wrong class", "huge votes"])
def test_the_plain_mean_does_not_survive_the_same_liars(garbage):
    opinions, _ = agreeing(5, 2, garbage)
    lying = np.bincount(opinions.mean(0).argmax(-1).numpy(), minlength=3)[1:].sum()
    assert lying > 10  # of 40: where both lie alike


@pytest.mark.parametrize(("kind", "share"), KINDS)
@given(lies=arrays.arrays(np.float64, (2, 3, 4), elements=st.floats(allow_nan=False, allow_infinity=False)))
@settings(max_examples=50, deadline=None)
def test_no_finite_numbers_make_the_result_anything_but_a_distribution(kind, share, lies):
    opinions = torch.from_numpy(np.concatenate([distributions(3, 3, 4), lies]))
    result = robust_mean(kind, opinions, share)
    assert bool((result >= 0).all())
    np.testing.assert_allclose(result.sum(-1).numpy(), 1.0, rtol=1e-12)


@pytest.mark.parametrize(("kind", "share"), KINDS)
def test_a_sample_that_all_deny_every_class_is_uniform(kind, share):
    np.testing.assert_array_equal(robust_mean(kind, torch.zeros(5, 2, 4), share).numpy(), np.full((2, 4), 0.25))


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_trimming_everybody_away_is_refused(clients):
    with pytest.raises(FedstillError, match=f"of {clients} opinions at each end leaves none: choose `share` below"):
        trimmed(torch.full((clients, 2, 3), 1 / 3), 0.5 if clients == 2 else 1.0)


def test_a_share_is_at_most_so_many_clients():
    assert [most(0.2, clients) for clients in (4, 5, 9, 10)] == [0, 1, 1, 2]
    assert most(0.29, 100) == 29  # 28.999999999999996 in floating point
