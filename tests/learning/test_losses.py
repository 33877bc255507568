import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax, softmax
from scipy.stats import entropy as scipy_entropy

from fedstill.learning.losses import ce, distillation, entropy, hard, kl, l1, mse, probability_ce, soft_ce


def logits(seed, rows=7, classes=4):
    return torch.from_numpy(np.random.default_rng(seed).normal(0.3, 2.0, (rows, classes)))


STUDENT, TEACHER = logits(0), logits(1)
LABELS = torch.tensor([0, 3, 1, 1, 2, 0, 3])
pairs_of_logits = arrays(np.float64, (2, 5, 3), elements=st.floats(-20, 20))


def test_ce_is_minus_the_log_probability_of_the_label():
    by_hand = -log_softmax(STUDENT.numpy(), axis=1)[np.arange(7), LABELS.numpy()]
    np.testing.assert_allclose(ce(STUDENT, LABELS), by_hand, rtol=1e-12)


def test_ce_of_equal_logits_is_the_log_of_the_number_of_classes():
    assert ce(torch.zeros(1, 5, dtype=torch.float64), torch.tensor([2])).item() == pytest.approx(math.log(5))


def test_soft_ce_equals_torch_cross_entropy_with_probabilities():
    expected = F.cross_entropy(STUDENT, TEACHER.softmax(-1), reduction="none")
    torch.testing.assert_close(soft_ce(STUDENT, TEACHER), expected)


def test_probability_ce_worked_by_hand():
    # The student gives 1/4 and 3/4, the teacher 1/2 and 1/2.
    student = torch.tensor([[0.0, math.log(3.0)]], dtype=torch.float64)
    value = probability_ce(student, torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    assert value.item() == pytest.approx(0.5 * math.log(4) + 0.5 * math.log(4 / 3))


def test_soft_ce_is_kl_plus_the_teachers_entropy():
    together = kl(STUDENT, TEACHER) + torch.from_numpy(scipy_entropy(TEACHER.softmax(-1).numpy(), axis=1))
    torch.testing.assert_close(soft_ce(STUDENT, TEACHER), together)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_mean_of_kl_is_torchs_batchmean_times_the_squared_temperature(temperature):
    student, teacher = (STUDENT / temperature).log_softmax(-1), (TEACHER / temperature).softmax(-1)
    expected = F.kl_div(student, teacher, reduction="batchmean") * temperature**2
    torch.testing.assert_close(kl(STUDENT, TEACHER, temperature).mean(), expected)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_kl_of_each_sample_equals_numpy(temperature):
    p, q = (softmax(z.numpy() / temperature, axis=1) for z in (TEACHER, STUDENT))
    by_hand = temperature**2 * (p * np.log(p / q)).sum(1)
    np.testing.assert_allclose(distillation("kl", temperature)(STUDENT, TEACHER), by_hand, rtol=1e-10)


def test_kl_has_the_teacher_first():
    teacher = torch.tensor([[math.log(9.0), 0.0]], dtype=torch.float64)  # 0.9, 0.1
    student = torch.zeros(1, 2, dtype=torch.float64)  # 0.5, 0.5
    teacher_first = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)  # 0.368; the other way round it is 0.511
    assert kl(student, teacher).item() == pytest.approx(teacher_first)
    assert kl(teacher, student).item() == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1))


def test_the_gradient_of_kl_is_temperature_times_the_difference_of_probabilities():
    student = STUDENT.clone().requires_grad_()
    kl(student, TEACHER, 2.0).sum().backward()
    by_hand = 2.0 * (softmax(STUDENT.numpy() / 2, axis=1) - softmax(TEACHER.numpy() / 2, axis=1))
    np.testing.assert_allclose(student.grad, by_hand, rtol=1e-8, atol=1e-12)


@given(pairs_of_logits)
def test_kl_is_never_negative_and_zero_for_the_teacher_itself(values):
    student, teacher = torch.from_numpy(values)
    assert (kl(student, teacher) >= -1e-12).all()
    assert kl(teacher, teacher).abs().max() <= 1e-12


def test_mse_and_l1_are_means_over_classes_of_raw_logits():
    student = torch.tensor([[1.0, 2.0, 6.0]])
    teacher = torch.tensor([[0.0, 4.0, 3.0]])
    assert mse(student, teacher).tolist() == pytest.approx([(1 + 4 + 9) / 3])
    assert l1(student, teacher).tolist() == pytest.approx([(1 + 2 + 3) / 3])
    torch.testing.assert_close(mse(STUDENT, TEACHER).mean(), F.mse_loss(STUDENT, TEACHER))
    torch.testing.assert_close(l1(STUDENT, TEACHER).mean(), F.l1_loss(STUDENT, TEACHER))


def test_centred_mse_worked_by_hand():
    # Centred, the student is (-2, -1, 3) and the teacher (-7/3, 5/3, 2/3).
    value = mse(torch.tensor([[1.0, 2.0, 6.0]]), torch.tensor([[0.0, 4.0, 3.0]]), center_logits=True)
    assert value.tolist() == pytest.approx([(1 / 9 + 64 / 9 + 49 / 9) / 3])


def test_only_centred_mse_ignores_a_constant_added_to_all_logits():
    shifted = STUDENT + 3.0
    torch.testing.assert_close(mse(shifted, TEACHER, center_logits=True), mse(STUDENT, TEACHER, center_logits=True))
    assert (mse(shifted, TEACHER) - mse(STUDENT, TEACHER)).abs().max() > 1


def test_centred_mse_is_twice_kl_at_infinite_temperature():
    # T^2 KL -> (1 / 2C) sum of squared differences of centred logits, which is half their mean over classes.
    ratio = mse(STUDENT, TEACHER, center_logits=True) / kl(STUDENT, TEACHER, temperature=1e4)
    torch.testing.assert_close(ratio, torch.full_like(ratio, 2.0), rtol=1e-3, atol=0)
    raw = mse(STUDENT, TEACHER) / kl(STUDENT, TEACHER, temperature=1e4)
    assert (raw - 2.0).abs().max() > 0.1


def test_hard_is_cross_entropy_with_the_teachers_largest_class():
    by_hand = -log_softmax(STUDENT.numpy(), axis=1)[np.arange(7), TEACHER.numpy().argmax(1)]
    np.testing.assert_allclose(hard(STUDENT, TEACHER), by_hand, rtol=1e-12)


@pytest.mark.parametrize(("name", "function"), [("soft_ce", soft_ce), ("mse", mse), ("l1", l1), ("hard", hard)])
def test_a_distillation_loss_is_found_by_name(name, function):
    torch.testing.assert_close(distillation(name)(STUDENT, TEACHER), function(STUDENT, TEACHER))


def test_centring_is_passed_on_by_name():
    found = distillation("mse", center_logits=True)(STUDENT, TEACHER)
    centred = [z - z.mean(1, keepdim=True) for z in (STUDENT, TEACHER)]
    torch.testing.assert_close(found, F.mse_loss(*centred, reduction="none").mean(1))


def test_entropy_equals_scipy_and_takes_zeros():
    probabilities = np.vstack([STUDENT.softmax(-1).numpy(), [[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4]])
    np.testing.assert_allclose(
        entropy(torch.from_numpy(probabilities)), scipy_entropy(probabilities, axis=1), rtol=1e-12
    )
