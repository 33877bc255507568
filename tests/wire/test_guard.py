import pytest
import torch

from fedstill.wire.guard import check
from fedstill.wire.messages import BadMessage, Hello, Opinion, Scores
from tests.wire.test_encoding import Everything, opinion

DIMENSIONS = {"public": 4, "labels": 3, "labelled": 2}


def test_the_guard_lets_a_right_message_pass():
    check(opinion(), DIMENSIONS)
    check(Hello(5, torch.tensor([1, 2, 2]), "bert"), DIMENSIONS)
    check(Everything({"w": torch.ones(9)}, 1, "x", rows=torch.ones(77)), DIMENSIONS)  # unknown dimensions are free


@pytest.mark.parametrize("shape", [(5, 3), (4, 2), (3, 4), (12,), (4, 3, 1), ()])
def test_the_guard_refuses_another_shape(shape):
    with pytest.raises(BadMessage, match=r"Opinion.logits has shape .*: \(4, 3\) is expected"):
        check(Opinion(torch.ones(shape)), DIMENSIONS)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_the_guard_refuses_what_is_not_finite(bad):
    poisoned = torch.ones(4, 3)
    poisoned[2, 1] = bad
    with pytest.raises(BadMessage, match=r"Opinion.logits holds values that are not finite"):
        check(Opinion(poisoned), DIMENSIONS)
    with pytest.raises(BadMessage, match=r"Opinion.loss is (nan|inf|-inf)"):
        check(Opinion(torch.ones(4, 3), loss=bad), DIMENSIONS)
    with pytest.raises(BadMessage, match=r"Everything.weights holds values that are not finite"):
        check(Everything({"fine": torch.ones(2), "w": poisoned}, 1, "x"), DIMENSIONS)


def test_the_guard_refuses_what_a_message_cannot_hold():
    with pytest.raises(BadMessage, match=r"Hello.size is a list"):
        check(Hello([1, 2]), DIMENSIONS)


def test_the_guard_knows_how_many_rows_were_asked_about():
    scores = Scores(torch.zeros(4, 3))
    check(scores, {"labels": 3, "asked": 4})
    with pytest.raises(BadMessage, match=r"\(4, 3\): \(5, 3\) is expected"):
        check(scores, {"labels": 3, "asked": 5})


def test_the_guard_refuses_a_fingerprint_that_was_not_agreed_on():
    check(Hello(5, public_fingerprint="ab"), DIMENSIONS, {"public_fingerprint": "ab"})
    with pytest.raises(BadMessage, match=r"Hello.public_fingerprint differs from the server's"):
        check(Hello(5, public_fingerprint="ab"), DIMENSIONS, {"public_fingerprint": "cd"})
