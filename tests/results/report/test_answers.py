"""Confusion, reliability and disagreements, worked out by hand."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedstill.results.report.answers import (
    Answers,
    Bin,
    answers,
    calibration_error,
    confusion,
    disagreements,
    reliability,
)

ROWS = np.array([3, 5, 8, 9])
LABELS = np.array([0, 1, 1, 0])


def stored(predicted, sure=None, rows=ROWS, labels=LABELS):
    return Answers(rows, labels, np.array(predicted), None if sure is None else np.array(sure))


def test_predictions_are_read_in_the_order_of_rows_with_their_confidence(tmp_path):
    (tmp_path / "predictions").mkdir()
    logits = np.log(np.array([[0.2, 0.8], [0.9, 0.1]], np.float32))
    values = {"rows": np.array([7, 2]), "labels": np.array([0, 0]), "predicted": np.array([1, 0]), "logits": logits}
    save_file(values, tmp_path / "predictions" / "server.safetensors")
    found = answers(tmp_path, "server")
    assert found.rows.tolist() == [2, 7]
    assert found.predicted.tolist() == [0, 1]
    assert found.sure == pytest.approx([0.9, 0.8], abs=1e-6)
    assert answers(tmp_path, "nobody") is None


def test_confusion_counts_true_by_predicted_over_all_models():
    assert confusion([stored([0, 1, 0, 1]), stored([0, 0, 0, 0])], 2).tolist() == [[3, 1], [3, 1]]


def test_reliability_compares_how_sure_with_how_right():
    bins = reliability([stored([0, 1, 0, 1], [0.95, 1.0, 0.52, 0.58])])
    assert bins == [Bin(pytest.approx(0.55), 0.0, 2), Bin(pytest.approx(0.975), 1.0, 2)]
    assert calibration_error(bins) == pytest.approx((2 * 0.55 + 2 * 0.025) / 4)
    assert reliability([stored([0, 1, 0, 1])]) == []


def test_disagreements_are_about_own_rows_and_the_surest_come_first():
    texts = [f"text {number}" for number in range(10)]
    server = stored([0, 0, 0, 0], [0.6, 0.9, 0.9, 0.9])
    client = stored([0, 1, 1, 1], [0.9, 0.5, 0.8, 0.9])
    alone = {"ours": stored([0, 0, 1, 1])}
    found = disagreements(server, {"ours": client}, alone, {"ours": np.array([3, 5, 8])}, texts, ("no", "yes"))
    assert [one.text for one in found] == ["text 8", "text 5"]
    assert (found[1].label, found[1].client_says, found[1].server_says, found[1].alone) == ("yes", "yes", "no", "no")


def test_at_most_twenty_texts_are_shown_and_long_ones_are_cut():
    rows = np.arange(30)
    zeros, ones = np.zeros(30, np.int64), np.ones(30, np.int64)
    server, client = (Answers(rows, zeros, predicted, None) for predicted in (zeros, ones))
    found = disagreements(server, {"ours": client}, {}, {}, ["x" * 1000] * 30, ("no", "yes"))
    assert len(found) == 20
    assert {len(one.text) for one in found} == {401}
