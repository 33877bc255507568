import numpy as np
import pytest
import torch

from fedstill.data.examples import Labelled, TensorStore
from fedstill.parties.evaluation import Evaluation


def evaluation(labels):
    labels = torch.as_tensor(labels)
    rows = np.arange(len(labels))
    return Evaluation(Labelled(TensorStore("x", torch.zeros(len(labels), 1)), rows, labels), {"test": rows})


def predicting(classes):
    return torch.nn.functional.one_hot(torch.as_tensor(classes), 3).float()


@pytest.mark.parametrize(
    ("labels", "predicted", "fallen"),
    [
        ([0, 1, 2] * 10, [1] * 29 + [0], 1),
        ([0, 1, 2] * 10, [1] * 27 + [0] * 3, None),  # only 90% of the rows
        ([1] * 27 + [0] * 3, [1] * 30, None),  # nearly all rows are of that class
        ([0, 1, 2] * 6, [1] * 18, None),  # too few rows
    ],
)
def test_a_model_has_fallen_into_one_class(labels, predicted, fallen):
    assert evaluation(labels).only_class(predicting(predicted)) == fallen
