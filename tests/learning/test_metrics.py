import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from fedstill.learning.metrics import METRICS, positive_f1, resampled, scores

# scikit-learn's remark on a single class; what it then says is what is tested
pytestmark = pytest.mark.filterwarnings("ignore:A single label was found")


def by_scikit_learn(labels, predictions, classes, weights=None):
    options = {"labels": range(classes), "zero_division": 0, "sample_weight": weights}
    expected = {
        "f1": f1_score(labels, predictions, average="weighted", **options),
        "macro_f1": f1_score(labels, predictions, average="macro", **options),
        "accuracy": accuracy_score(labels, predictions, sample_weight=weights),
        "matthews": matthews_corrcoef(labels, predictions, sample_weight=weights),
    }
    if classes == 2:
        options["labels"] = None
        expected["positive_f1"] = f1_score(labels, predictions, average="binary", pos_label=1, **options)
    return expected


@st.composite
def answers(draw):
    """Labels, predictions and the number of classes, of which some may be absent."""
    classes = draw(st.integers(1, 6))
    rows = draw(st.lists(st.tuples(*[st.integers(0, classes - 1)] * 2), min_size=1, max_size=60))
    labels, predictions = np.array(rows, dtype=np.int64).T
    return labels, predictions, classes


@given(answers())
def test_scores_equal_scikit_learn(answer):
    assert scores(*answer) == pytest.approx(by_scikit_learn(*answer), abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "predictions", "classes"),
    [
        ([0, 0, 1, 1], [0, 1, 1, 1], 4),  # two classes nobody has and nobody predicts
        ([0, 0, 1], [2, 2, 1], 3),  # a class only predicted, and one never predicted
        ([0, 0], [1, 1], 2),  # nothing right
        ([0, 0], [0, 0], 2),  # no positive anywhere
        ([0, 1, 1], [1, 1, 1], 2),  # one class predicted for all: no correlation
        ([0, 0, 0], [0, 0, 0], 1),  # one class in all
        ([2], [2], 3),
    ],
)
def test_scores_equal_scikit_learn_where_classes_are_absent(labels, predictions, classes):
    labels, predictions = np.array(labels), np.array(predictions)
    assert scores(labels, predictions, classes) == pytest.approx(by_scikit_learn(labels, predictions, classes))


def test_scores_worked_by_hand():
    # true, predicted: (0, 0) once, (0, 1) once, (1, 1) twice. F1 of class 0: 2*1/(2+1), of class 1: 2*2/(2+3).
    # Matthews: (tp*tn - fp*fn) / sqrt(3 * 2 * 2 * 1) = (2*1 - 1*0) / sqrt(12).
    expected = {
        "f1": (2 / 3 + 4 / 5) / 2,
        "macro_f1": (2 / 3 + 4 / 5) / 2,
        "accuracy": 3 / 4,
        "matthews": 2 / 12**0.5,
        "positive_f1": 4 / 5,
    }
    assert scores(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), 2) == pytest.approx(expected)


def test_matthews_holds_for_more_rows_than_products_of_counts_fit_integers():
    labels = np.repeat([0, 1], 200_000)
    predictions = np.roll(labels, 50_000)
    # A quarter of each class is wrong: (tp*tn - fp*fn) / 200,000**2 = 0.75**2 - 0.25**2.
    assert scores(labels, predictions, 2)["matthews"] == pytest.approx(0.5)


def test_the_positive_class_is_for_two_classes_only():
    assert "positive_f1" not in scores(np.array([0, 1]), np.array([0, 1]), 3)
    with pytest.raises(ValueError, match="for two classes, not for 3"):
        positive_f1(np.eye(3))


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


@pytest.mark.parametrize("classes", [2, 4])
def test_resampled_equals_scikit_learn_with_the_counts_as_sample_weights(classes):
    generator = np.random.default_rng(0)
    labels, predictions = generator.integers(0, classes, (2, 60))
    counts = generator.multinomial(60, np.full(60, 1 / 60), size=20)
    counts[0, labels == 1] = 0
    expected = [by_scikit_learn(labels, predictions, classes, weights) for weights in counts]
    for name in expected[0]:
        measured = resampled(METRICS[name].measure, labels, predictions, classes, counts)
        np.testing.assert_allclose(measured, [one[name] for one in expected], atol=1e-12)


@given(answers(), st.integers(0, 2**32 - 1))
def test_resampled_equals_the_score_of_the_repeated_rows(answer, seed):
    labels, predictions, classes = answer
    rows = np.random.default_rng(seed).integers(0, len(labels), len(labels))
    counts = np.bincount(rows, minlength=len(labels))[None]
    for name, expected in scores(labels[rows], predictions[rows], classes).items():
        measured = resampled(METRICS[name].measure, labels, predictions, classes, counts)
        assert measured == pytest.approx([expected], abs=1e-12)
