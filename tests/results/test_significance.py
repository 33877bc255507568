import numpy as np
import pytest
from scipy import stats

from fedstill.learning.metrics import METRICS, scores
from fedstill.results import significance
from fedstill.results.significance import interval_over_rows, interval_over_seeds, paired_bootstrap, paired_over_seeds


def predictions(labels, accuracy, generator, classes=3):
    """Predictions that are right with a given chance, and one class off otherwise."""
    return np.where(generator.random(len(labels)) < accuracy, labels, (labels + 1) % classes)


def by_plain_loop(labels, first, second, classes, resamples, seed):
    """Mean over seeds of the F1 difference, drawing test rows one resample at a time."""
    generator = np.random.default_rng(seed)

    def mean_f1(own, each, rows):
        return np.mean([scores(own[rows], one[rows], classes)["f1"] for one in each])

    drawn = []
    for _ in range(resamples):
        differences = []
        for own, ours, theirs in zip(labels, first, second, strict=True):
            rows = generator.integers(0, len(own), len(own))
            differences.append(mean_f1(own, ours, rows) - mean_f1(own, theirs, rows))
        drawn.append(np.mean(differences))
    return np.array(drawn)


def test_paired_t_test_worked_by_hand():
    # differences 1, 2, 3: t = 2 / (1 / sqrt(3)) on two degrees of freedom
    expected = 2 * stats.t.sf(2 * np.sqrt(3), df=2)
    assert paired_over_seeds([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx(expected)


def test_paired_t_test_needs_three_seeds():
    assert paired_over_seeds([0.6, 0.7], [0.5, 0.5]) is None


def test_paired_t_test_of_equal_scores_is_one():
    assert paired_over_seeds([0.6, 0.7, 0.8], [0.6, 0.7, 0.8]) == 1.0


def test_paired_t_test_of_equal_differences_is_zero_without_a_warning(recwarn):
    assert paired_over_seeds([0.75, 1.0, 1.25], [0.5, 0.75, 1.0]) == 0.0
    assert not recwarn


def test_interval_over_seeds_is_that_of_scipy_and_of_the_table():
    values = [0.70, 0.72, 0.75, 0.71, 0.74]
    low, high = interval_over_seeds(values)
    expected = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert (low, high) == pytest.approx(expected)
    # By hand: the deviation is 0.020736, t of four degrees of freedom 2.7764
    assert high - low == pytest.approx(2 * 2.7764 * 0.020736 / 5**0.5, rel=1e-3)
    assert interval_over_seeds([0.5, 0.6]) is None
    assert interval_over_seeds([0.5, 0.5, 0.5]) == (0.5, 0.5)


def test_paired_t_test_refuses_unequal_lengths():
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_over_seeds([1.0, 2.0, 3.0], [1.0, 2.0])


@pytest.mark.parametrize("copies", [1, 3, 7])
def test_bootstrap_of_identical_predictions_finds_nothing(copies):
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 100)
    predicted = predictions(labels, 0.7, generator)
    result = paired_bootstrap([labels], [[predicted] * copies], [[predicted]], 3, resamples=500)
    assert result == (0.0, 0.0, 0.0, 1.0)


def test_bootstrap_of_a_clear_gain_excludes_zero_and_floors_p():
    generator = np.random.default_rng(0)
    labels = [generator.integers(0, 3, 300) for _ in range(3)]
    good = [[predictions(own, 0.9, generator)] for own in labels]
    poor = [[predictions(own, 0.5, generator)] for own in labels]
    gain = paired_bootstrap(labels, good, poor, 3, resamples=1000)
    loss = paired_bootstrap(labels, poor, good, 3, resamples=1000)
    assert 0 < gain.low < gain.difference < gain.high
    assert gain.p == loss.p == 1 / 1000
    assert loss.difference == -gain.difference


def test_bootstrap_difference_is_the_mean_over_seeds_of_the_mean_over_clients():
    generator = np.random.default_rng(3)
    labels = [generator.integers(0, 4, size) for size in (80, 120)]
    server = [[predictions(own, 0.8, generator, 4)] for own in labels]
    clients = [[predictions(own, chance, generator, 4) for chance in (0.5, 0.6, 0.7)] for own in labels]
    by_seed = [
        scores(own, one, 4)["f1"] - np.mean([scores(own, each, 4)["f1"] for each in several])
        for own, (one,), several in zip(labels, server, clients, strict=True)
    ]
    assert paired_bootstrap(labels, server, clients, 4, resamples=10).difference == pytest.approx(np.mean(by_seed))


def test_bootstrap_agrees_with_a_plain_loop_over_rows():
    generator = np.random.default_rng(4)
    labels = [generator.integers(0, 3, size) for size in (90, 110)]
    first = [[predictions(own, 0.66, generator)] for own in labels]
    second = [[predictions(own, 0.6, generator), predictions(own, 0.62, generator)] for own in labels]
    result = paired_bootstrap(labels, first, second, 3, resamples=20_000, seed=1)
    drawn = by_plain_loop(labels, first, second, 3, resamples=2000, seed=2)
    error = drawn.std() / np.sqrt(2000)
    low, high = np.quantile(drawn, [0.025, 0.975])
    # a 2.5% quantile is about 2.7 times less certain than the mean; four of those is chance enough
    assert result.low == pytest.approx(low, abs=4 * 2.7 * error)
    assert result.high == pytest.approx(high, abs=4 * 2.7 * error)
    assert result.p == pytest.approx(2 * min(np.mean(drawn <= 0), np.mean(drawn >= 0)), abs=0.06)


def test_bootstrap_equals_a_plain_loop_over_the_same_resample_counts():
    generator = np.random.default_rng(5)
    labels = np.repeat([0, 1, 2], 4)
    # twelve distinct pairs of (label, first, second), so kinds of rows are the rows themselves
    first, second = np.tile([0, 0, 1, 1], 3), np.tile([0, 1, 0, 1], 3)
    result = paired_bootstrap([labels], [[first]], [[second]], 3, resamples=200, seed=9)
    order = np.lexsort((second, first, labels))
    counts = np.random.default_rng(9).multinomial(12, np.full(12, 1 / 12), size=200)
    drawn = []
    for count in counts:
        rows = generator.permutation(np.repeat(order, count))
        drawn.append(scores(labels[rows], first[rows], 3)["f1"] - scores(labels[rows], second[rows], 3)["f1"])
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert (result.low, result.high) == pytest.approx((low, high))


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.is_of_classes])
def test_bootstrap_of_every_metric_equals_a_plain_loop_over_the_same_resample_counts(name):
    labels, first, second = np.array(list(np.ndindex(2, 2, 2))).T
    result = paired_bootstrap([labels], [[first]], [[second]], 2, resamples=100, seed=9, measure=METRICS[name].measure)
    counts = np.random.default_rng(9).multinomial(8, np.full(8, 1 / 8), size=100)
    drawn = []
    for count in counts:
        rows = np.repeat(np.arange(8), count)
        drawn.append(scores(labels[rows], first[rows], 2)[name] - scores(labels[rows], second[rows], 2)[name])
    assert (result.low, result.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=1e-12)


def test_bootstrap_is_reproducible_and_does_not_depend_on_the_chunk(monkeypatch):
    generator = np.random.default_rng(6)
    labels = generator.integers(0, 3, 200)
    first, second = predictions(labels, 0.7, generator), predictions(labels, 0.65, generator)
    whole = paired_bootstrap([labels], [[first]], [[second]], 3, resamples=700)
    monkeypatch.setattr(significance, "COUNTS_AT_ONCE", 1000)
    assert paired_bootstrap([labels], [[first]], [[second]], 3, resamples=700) == whole


def test_seeds_tested_on_the_same_rows_do_not_narrow_the_interval():
    generator = np.random.default_rng(7)
    labels = generator.integers(0, 3, 300)
    first, second = predictions(labels, 0.7, generator), predictions(labels, 0.65, generator)
    one = paired_bootstrap([labels], [[first]], [[second]], 3)
    four = paired_bootstrap([labels] * 4, [[first]] * 4, [[second]] * 4, 3, same_rows=True)
    apart = paired_bootstrap([labels] * 4, [[first]] * 4, [[second]] * 4, 3)
    assert four == pytest.approx(one)
    assert apart.high - apart.low == pytest.approx((one.high - one.low) / 2, rel=0.1)


def test_same_rows_with_different_labels_are_refused():
    with pytest.raises(ValueError, match="labels differ"):
        paired_bootstrap(
            [np.array([0, 1]), np.array([1, 0])], [[np.array([0, 1])]] * 2, [[np.array([0, 1])]] * 2, 2, same_rows=True
        )


def test_interval_covers_the_true_difference_about_as_often_as_promised():
    generator = np.random.default_rng(8)
    covered = 0
    for _ in range(200):
        labels = generator.integers(0, 3, 200)
        first, second = (predictions(labels, 0.7, generator) for _ in range(2))
        result = paired_bootstrap([labels], [[first]], [[second]], 3, resamples=400)
        covered += result.low <= 0 <= result.high
    # 190 of 200 expected; the standard deviation of a binomial is 3
    assert 180 <= covered <= 199


def test_the_interval_of_one_score_is_that_of_resampled_rows():
    # 70 of 100 right: the share of right rows in a resample is a binomial count of 100 with chance 0.7
    labels = np.zeros(100, np.int64)
    predicted = np.where(np.arange(100) < 70, 0, 1)
    low, high = interval_over_rows(labels, predicted, 2, METRICS["accuracy"].measure)
    assert (low, high) == pytest.approx(stats.binom.ppf([0.025, 0.975], 100, 0.7) / 100, abs=0.0101)
