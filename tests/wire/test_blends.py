"""Robust blends and the cap on one client's weight, with numbers worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedstill.common.errors import FedstillError
from fedstill.wire.blends import About, Agreement, Blending, ExpGuard, make
from fedstill.wire.messages import Hello, Opinion, Parameters
from fedstill.wire.replies import Replies, uniform

ROBUST = ["median", "trimmed", "cronus", "clipped", "expguard", "agreement"]
EVEN = torch.tensor([0.25] * 4, dtype=torch.float64)


def said(values, blend="mean", max_share=None, names=None):
    """Replies with these opinions [K, N, C], of clients that all have the same number of rows."""
    names = names or [f"c{number:02d}" for number in range(len(values))]
    messages = {name: Opinion(torch.tensor(value)) for name, value in zip(names, values, strict=True)}
    return Replies(messages, {name: Hello(5) for name in names}, (), Blending(make(blend), max_share))


def first_class(*shares):
    """Opinions on one sample of two classes, as probabilities."""
    return [[[share, 1 - share]] for share in shares]


def test_the_median_of_a_class_has_half_of_the_weight_on_either_side():
    opinions = first_class(0.1, 0.2, 0.6, 0.9)
    ups = said(opinions, "median")
    even = ups.blend("logits", EVEN, "probabilities")
    np.testing.assert_allclose(even, [[0.4, 0.6]], rtol=1e-6)  # between 0.2 and 0.6, and between 0.4 and 0.8
    weights = torch.tensor([0.1, 0.1, 0.1, 0.7])
    np.testing.assert_allclose(ups.blend("logits", weights, "probabilities"), [[0.9, 0.1]], rtol=1e-6)
    fine = torch.stack([weights, EVEN.float()], 1)[:, None, :]  # each class has its own weights
    np.testing.assert_allclose(ups.blend("logits", fine, "probabilities"), [[0.9 / 1.5, 0.6 / 1.5]], rtol=1e-6)


def test_trimming_takes_its_share_of_the_weight_off_both_ends():
    ups = said(first_class(0.1, 0.2, 0.6, 0.9), {"name": "trimmed", "share": 0.25})
    np.testing.assert_allclose(ups.blend("logits", EVEN, "probabilities"), [[0.4, 0.6]], rtol=1e-6)
    # Of the weights 0.5, 0.1, 0.1, 0.3 the middle half is 0.25 of the first, 0.1, 0.1 and 0.05 of the last.
    expected = (0.25 * 0.1 + 0.1 * 0.2 + 0.1 * 0.6 + 0.05 * 0.9) / 0.5
    weights = torch.tensor([0.5, 0.1, 0.1, 0.3])
    blend = ups.blend("logits", weights, "probabilities")
    np.testing.assert_allclose(blend, [[expected, 1 - expected]], rtol=1e-6)


@given(st.integers(0, 200), st.integers(3, 12))
def test_with_equal_weights_they_are_what_numpy_and_scipy_say(seed, clients):
    values = np.random.default_rng(seed).dirichlet(np.ones(3), (clients, 4)).astype(np.float32)
    middle, cut = np.median(values, 0), stats.trim_mean(values, 1 / clients, 0)
    for blend, expected in (("median", middle), ({"name": "trimmed", "share": 1 / clients}, cut)):
        blended = said(values, blend).mean("logits", "probabilities")
        np.testing.assert_allclose(blended, expected / expected.sum(-1, keepdims=True), rtol=1e-5)


def test_logits_become_probabilities_first_and_the_blend_is_their_logarithm():
    logits = [[[math.log(share), math.log(1 - share)]] for share in (0.1, 0.2, 0.9)]
    np.testing.assert_allclose(said(logits, "median").mean("logits"), [[math.log(0.2), math.log(0.8)]], rtol=1e-5)


def test_clipping_shortens_rows_to_the_median_length():
    logits = [[[1.0, -1.0]], [[2.0, -2.0]], [[-1000.0, 1000.0]], [[11.0, 5.0]]]  # centred, the last is 3, -3
    # The lengths are 1, 2, 1000, 3 times the root of 2: the median is 2.5 times it.
    expected = (1 + 2 - 2.5 + 2.5) / 4
    np.testing.assert_allclose(said(logits, "clipped").mean("logits"), [[expected, -expected]], rtol=1e-6)


def test_cronus_is_its_filter_with_equal_weights():
    opinions = first_class(*[0.8] * 4, 0.1)
    np.testing.assert_allclose(said(opinions, "cronus").mean("logits", "probabilities"), [[0.8, 0.2]], rtol=1e-6)


def test_expguard_weighs_by_the_distance_from_the_median_over_all_rounds():
    opinions = first_class(0.5, 0.5, 0.9)
    ups = said(opinions, {"name": "expguard", "eta": 2.0})
    for number, rounds in ((1, 1), (1, 1), (2, 2), (5, 3)):  # a second blend in a round counts as the same
        now = replace(ups, blending=replace(ups.blending, round=number))
        liar = math.exp(-2 * 0.4 * rounds)  # total variation: half of 0.4 + 0.4
        first = (0.5 + 0.5 + 0.9 * liar) / (2 + liar)
        np.testing.assert_allclose(now.mean("logits", "probabilities"), [[first, 1 - first]], rtol=1e-6)


def correlated(clients: int, liars: int) -> np.ndarray:
    """Logits [K, 400, 3] of clients that see the same through noise; the first ones mean the next class."""
    random = np.random.default_rng(5)
    seen = random.normal(size=(400, 3))
    values = np.stack([seen + random.normal(size=seen.shape) for _ in range(clients)])
    values[:liars] = np.roll(values[:liars], 1, axis=-1)
    return values.astype(np.float64)


@pytest.mark.parametrize(("clients", "liars"), [(3, 1), (5, 2), (10, 4), (11, 5)])
def test_agreement_is_the_mean_of_the_honest_majority(clients, liars):
    values = correlated(clients, liars)
    np.testing.assert_allclose(said(values, "agreement").mean("logits"), values[liars:].mean(0), rtol=1e-6, atol=1e-6)


def test_agreement_is_the_methods_own_mean_where_nobody_lies_or_few_samples_tell():
    values = correlated(6, 0)
    np.testing.assert_allclose(said(values, "auto").mean("logits"), values.mean(0), rtol=1e-6, atol=1e-6)
    few = correlated(6, 2)[:, :4]
    np.testing.assert_allclose(said(few, "auto").mean("logits"), few.mean(0), rtol=1e-6, atol=1e-6)


def test_a_liar_that_learns_from_the_answers_is_not_trusted_again_at_once():
    clients = ("liar", "b", "c", "d", "e")
    honest, memory = correlated(5, 0), {}
    blend = Agreement()
    lying = honest.copy()
    lying[0] = np.roll(lying[0], 1, axis=-1)
    weights = torch.full((5, 1, 1), 0.2, dtype=torch.float64)
    shares = []
    for round, values in enumerate([honest, lying, honest, honest, honest], 1):
        mean = blend.opinions(torch.tensor(values), weights, "logits", About(clients, round, memory)).numpy()
        shares.append(bool(np.allclose(mean, values.mean(0))))
        assert shares[-1] or np.allclose(mean, values[1:].mean(0))
    assert shares == [True, False, False, False, False]  # good behaviour before is no credit, after it takes long


def test_trust_is_lost_by_a_sum_of_small_doubts_and_regained_step_by_step():
    about, trusted = About(("a", "b", "c")), []
    for margins in ([-1.5, 5.0, 0.5], [-1.0, 5.0, 0.5], [9.0, -2.5, 0.5], [0.0, 9.0, 0.5]):
        trusted.append(Agreement().trust(torch.tensor(margins, dtype=torch.float64), about).int().tolist())
    assert trusted == [[1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]]


def test_copies_of_an_opinion_count_once_together():
    values = correlated(7, 0)
    values[1] = values[2] = values[0]
    weights = np.array([1 / 3, 1 / 3, 1 / 3, 1, 1, 1, 1]) / 5
    expected = (values * weights[:, None, None]).sum(0)
    np.testing.assert_allclose(said(values, "agreement").mean("logits"), expected, rtol=1e-6, atol=1e-6)


def test_votes_that_are_the_same_are_no_copies():
    classes = np.arange(400) % 3
    classes[:20] = 0
    values = np.eye(3)[
        np.stack([classes] * 3 + [np.roll(classes, 0)] + [np.where(np.arange(400) < 20, 1, classes)] * 4)
    ]
    np.testing.assert_allclose(said(values, "agreement").mean("logits", "probabilities"), values.mean(0), rtol=1e-6)


def test_a_loud_client_that_agrees_is_lowered_and_not_left_out():
    values = correlated(5, 0)
    values[4] *= 1000
    lengths = np.linalg.norm(values - values.mean(-1, keepdims=True), axis=-1, keepdims=True).mean(1, keepdims=True)
    shorter = values * np.minimum(1, 3 * np.median(lengths, axis=0) / lengths)
    np.testing.assert_allclose(said(values, "agreement").mean("logits"), shorter.mean(0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("blend", ROBUST)
@pytest.mark.parametrize("attack", [1e3, -1e3, 3e38, math.nan, math.inf])
def test_one_of_ten_with_absurd_logits_does_not_win(blend, attack):
    random = np.random.default_rng(0)
    honest = random.normal(loc=(2.0, 0.0, -1.0), size=(9, 20, 3))
    liar = np.full((1, 20, 3), 0.0)
    liar[..., 2] = attack
    values = np.concatenate([honest, liar]).astype(np.float32)
    alone, with_liar = (said(part, blend).mean("logits") for part in (values[:9], values))
    assert with_liar.isfinite().all()
    assert (with_liar.argmax(-1) == alone.argmax(-1)).float().mean() >= 0.9
    assert (with_liar.softmax(-1) - alone.softmax(-1)).abs().max() < 0.25


@pytest.mark.parametrize("blend", ["mean", *ROBUST])
def test_the_order_of_clients_does_not_matter(blend):
    values = np.random.default_rng(3).normal(size=(6, 5, 3)).astype(np.float32)
    order = np.random.default_rng(4).permutation(6)
    one, other = said(values, blend).mean("logits"), said(values[order], blend).mean("logits")
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "most", "expected"),
    [
        ([0.7, 0.2, 0.1], 0.5, [0.5, 1 / 3, 1 / 6]),
        ([0.6, 0.35, 0.05], 0.45, [0.45, 0.45, 0.1]),  # the second is lifted above the limit in its turn
        ([1.0, 0.0, 0.0], 0.5, [0.5, 0.25, 0.25]),
        ([0.4, 0.3, 0.3], 0.5, [0.4, 0.3, 0.3]),
        ([0.9, 0.1], 0.2, [0.5, 0.5]),  # nobody can weigh less than 1/K
        ([0.9, 0.1], "auto", [0.5, 0.5]),
        ([0.9] + [0.01] * 10, "auto", [3 / 11] + [(1 - 3 / 11) / 10] * 10),
        ([0.9, 0.1], None, [0.9, 0.1]),
        ([1.0], "auto", [1.0]),
    ],
)
def test_what_one_client_may_weigh_is_limited_and_the_rest_goes_to_the_others(given, most, expected):
    weights = Blending(max_share=most).cap(torch.tensor(given, dtype=torch.float64))
    np.testing.assert_allclose(weights, expected, rtol=1e-9)


@given(st.integers(0, 200), st.integers(1, 20), st.floats(0.05, 1.0))
def test_capped_weights_sum_to_one_and_keep_their_order(seed, clients, most):
    given = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.full(clients, 0.1), (2, 3))).movedim(-1, 0)
    weights = Blending(max_share=most).cap(given)
    torch.testing.assert_close(weights.sum(0), torch.ones(2, 3, dtype=torch.float64))
    assert weights.max() <= max(most, 1 / clients) + 1e-8
    assert (weights.gather(0, given.argsort(0)).diff(dim=0) >= -1e-9).all()


def test_a_liar_about_its_size_gets_no_more_than_its_share():
    names = [f"c{number}" for number in range(10)]
    hellos = {name: Hello(10**12 if name == "c0" else 10) for name in names}
    ups = Replies({name: Opinion(torch.zeros(1, 2)) for name in names}, hellos, (), Blending(max_share="auto"))
    np.testing.assert_allclose(ups.shares, [0.3] + [0.7 / 9] * 9, rtol=1e-6)
    blended = ups.blend("logits", torch.tensor([1.0] + [0.0] * 9))
    assert torch.equal(blended, torch.zeros(1, 2))


def models(blend, *values):
    """Replies with models of one matrix and a counter."""
    sent = {f"c{n}": Parameters({"w": torch.tensor(v), "n": torch.tensor(n)}) for n, v in enumerate(values)}
    return Replies(sent, {name: Hello(5) for name in sent}, (), Blending(make(blend)))


@pytest.mark.parametrize(
    ("blend", "expected"),
    [
        ("mean", [202.0, 202.0]),
        ("median", [3.0, 3.0]),
        ("trimmed", [3.0, 3.0]),  # of 2, 3, 4
        ("clipped", [3.0, 3.0]),  # differences from 3 of at most 1: -1, -1, 0, 1, 1
    ],
)
def test_models_are_blended_number_by_number_or_clipped_around_the_median(blend, expected):
    ups = models(blend, [1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0], [1000.0, 1000.0])
    blended = ups.average("parameters", uniform(5))
    np.testing.assert_allclose(blended["w"], expected, rtol=1e-6)
    assert blended["n"] == 0
    assert blended["w"].dtype == torch.float32


def test_expguard_clips_models_and_weighs_down_those_far_away():
    ups = models({"name": "expguard", "eta": 3.0}, [1.0], [2.0], [3.0], [4.0], [1003.0])
    # Median 3, differences 2, 1, 0, 1, 1000, median difference 1: o = 1 - 1/2 for the first, 1 - 1/1000 for the last.
    near, far = math.exp(-1.5), math.exp(-3 * 0.999)
    expected = 3 + (-near - 1 + 1 + far) / (3 + near + far)
    np.testing.assert_allclose(ups.average("parameters", uniform(5))["w"], [expected], rtol=1e-6)


def test_cronus_filters_no_parameters_and_different_models_stay_refused():
    with pytest.raises(FedstillError, match="choose median, trimmed or clipped"):
        models("cronus", [1.0], [2.0]).average("parameters", uniform(2))
    with pytest.raises(FedstillError, match="cannot be averaged"):
        models("median", [1.0], [2.0, 3.0]).average("parameters", uniform(2))


@pytest.mark.parametrize("spec", ["middle", {"name": "trimmed", "share": 0.5}, {"name": "expguard", "eta": 0}])
def test_mistakes_in_the_key_are_one_sentence(spec):
    with pytest.raises(FedstillError):
        make(spec)


def test_expguard_without_a_memory_starts_anew():
    assert make("expguard") == ExpGuard()
    assert Blending().memory == {}
