"""Whether a conversation goes well: numbers stay finite, and both parts of a loss are large enough to matter."""

import numpy as np
import pytest
import torch

from fedstill.common.errors import FedstillError
from fedstill.data.examples import Examples, TensorStore
from fedstill.learning.health import MEASURE_EVERY, add_gradient_norms, norm_ratio, refuse_divergence
from fedstill.learning.phases import Phase, PhaseSettings


def test_gradient_norms_are_added_up_now_and_then_and_compared_in_the_end():
    model = torch.nn.Linear(2, 1, bias=False)
    data = Examples(TensorStore("input", torch.zeros(1, 2)), np.arange(1))
    phase, sums = Phase(model, data, PhaseSettings(), 0.1, 0, steps=200), {}
    inputs = torch.tensor([3.0, 4.0])  # the gradient of w x is x, of length 5
    for phase.taken in range(MEASURE_EVERY + 1):
        add_gradient_norms(sums, phase, large=2 * model(inputs).sum(), small=0.1 * model(inputs).sum())
    assert sums == pytest.approx({"large norm": 2 * 10.0, "small norm": 2 * 0.5})
    assert norm_ratio(sums, "small", "large") == pytest.approx({"small / large": 0.05})
    assert not sums
    assert norm_ratio(sums, "small", "large") == {}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_who_diverged_is_named(bad):
    refuse_divergence("films", torch.tensor([1.0, 2.0]))
    with pytest.raises(FedstillError, match=r"films diverged.*distill\.rate"):
        refuse_divergence("films", torch.tensor([1.0, bad]))
