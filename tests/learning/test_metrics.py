import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from fedstill.learning.metrics import resampled_f1, scores


def by_scikit_learn(labels, predictions, classes, weights=None):
    options = {"labels": range(classes), "zero_division": 0, "sample_weight": weights}
    return {
        "f1": f1_score(labels, predictions, average="weighted", **options),
        "macro_f1": f1_score(labels, predictions, average="macro", **options),
        "accuracy": accuracy_score(labels, predictions, sample_weight=weights),
    }


@pytest.mark.parametrize("seed", range(8))
def test_scores_equal_scikit_learn_on_random_predictions(seed):
    generator = np.random.default_rng(seed)
    classes = int(generator.integers(2, 9))
    labels, predictions = generator.integers(0, classes, (2, int(generator.integers(1, 300))))
    assert scores(labels, predictions, classes) == pytest.approx(by_scikit_learn(labels, predictions, classes))


@pytest.mark.parametrize(
    ("labels", "predictions", "classes"),
    [
        ([0, 0, 1, 1], [0, 1, 1, 1], 4),  # two classes nobody has and nobody predicts
        ([0, 0, 1], [2, 2, 1], 3),  # a class only predicted, and one never predicted
        ([0, 0], [1, 1], 2),  # nothing right
        ([0, 0, 0], [0, 0, 0], 1),  # one class in all
        ([2], [2], 3),
    ],
)
def test_scores_equal_scikit_learn_where_classes_are_absent(labels, predictions, classes):
    labels, predictions = np.array(labels), np.array(predictions)
    assert scores(labels, predictions, classes) == pytest.approx(by_scikit_learn(labels, predictions, classes))


def test_scores_worked_by_hand():
    # class 0: 2*1/(2+1) = 2/3; class 1: 2*1/(1+2) = 2/3
    measured = scores(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
    assert measured == pytest.approx({"f1": 2 / 3, "macro_f1": 2 / 3, "accuracy": 2 / 3})


@pytest.mark.parametrize(
    ("labels", "predictions", "message"),
    [
        ([], [], "no rows"),
        ([0, 1], [0], "one length"),
        ([0, 1], [0, 3], "class 3 is not"),
        ([0, -1], [0, 1], "class -1 is not"),
    ],
)
def test_scores_refuse_what_cannot_be_scored(labels, predictions, message):
    with pytest.raises(ValueError, match=message):
        scores(np.array(labels, dtype=np.int64), np.array(predictions, dtype=np.int64), 3)


def test_resampled_f1_equals_scikit_learn_with_the_counts_as_sample_weights():
    generator = np.random.default_rng(0)
    labels, predictions = generator.integers(0, 4, (2, 60))
    counts = generator.multinomial(60, np.full(60, 1 / 60), size=20)
    counts[0, labels == 2] = 0
    expected = [by_scikit_learn(labels, predictions, 4, weights)["f1"] for weights in counts]
    np.testing.assert_allclose(resampled_f1(labels, predictions, 4, counts), expected, atol=1e-12)


def test_resampled_f1_equals_the_score_of_the_repeated_rows():
    generator = np.random.default_rng(1)
    labels, predictions = generator.integers(0, 3, (2, 40))
    rows = generator.integers(0, 40, 40)
    counts = np.bincount(rows, minlength=40)[None]
    expected = scores(labels[rows], predictions[rows], 3)["f1"]
    assert resampled_f1(labels, predictions, 3, counts)[0] == pytest.approx(expected)
