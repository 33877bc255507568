import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstill.common.errors import FedstillError
from fedstill.wire.messages import Hello, Opinion, Parameters
from fedstill.wire.replies import Failure, Replies, uniform

K, N, C = 4, 6, 3


def logits(seed=0):
    return np.random.default_rng(seed).normal(size=(K, N, C)).astype(np.float32)


def replies(values, losses=(0.5, 0.25, 1.0, 2.0)):
    names = ["a", "b", "c", "d"]
    messages = {n: Opinion(torch.from_numpy(v), loss) for n, v, loss in zip(names, values, losses, strict=True)}
    return Replies(messages, {n: Hello(size) for n, size in zip(names, (10, 20, 30, 40), strict=True)})


@pytest.mark.parametrize(
    ("shape", "pattern"),
    [((K,), "k,knc->nc"), ((K, N, 1), "kno,knc->nc"), ((K, 1, C), "koc,knc->nc"), ((K, N, C), "knc,knc->nc")],
)
def test_blend_is_the_weighted_sum_over_clients(shape, pattern):
    weights = np.random.default_rng(1).dirichlet(np.ones(K), shape[1:])
    weights = np.moveaxis(weights, -1, 0) if len(shape) > 1 else weights
    assert weights.shape == shape
    expected = np.einsum(pattern, weights, logits())
    blended = replies(logits()).blend("logits", torch.from_numpy(weights))
    np.testing.assert_allclose(blended, expected, rtol=1e-5, atol=1e-6)
    assert blended.dtype == torch.float32


def test_the_mean_counts_everybody_the_same():
    np.testing.assert_allclose(replies(logits()).mean("logits"), logits().mean(0), rtol=1e-5, atol=1e-6)
    assert uniform(4).tolist() == [0.25] * 4


@given(st.integers(0, 1000))
def test_a_blend_of_equal_opinions_is_that_opinion(seed):
    one = logits(seed)[0]
    weights = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(K)))
    blended = replies(np.stack([one] * K)).blend("logits", weights)
    np.testing.assert_allclose(blended, one, rtol=1e-6)


def test_messages_stand_in_the_order_of_their_clients_whoever_answered_first():
    values = logits()
    ordered = replies(values)
    shuffled = Replies({name: ordered[name] for name in "cadb"}, ordered.clients)
    assert list(shuffled) == ["a", "b", "c", "d"]
    assert shuffled.column("loss").tolist() == [0.5, 0.25, 1.0, 2.0]
    assert shuffled.sizes.tolist() == [10, 20, 30, 40]
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert torch.equal(shuffled.blend("logits", weights), ordered.blend("logits", weights))


def test_columns_are_numbers_or_stacked_arrays():
    numbers, arrays = replies(logits()).column("loss"), replies(logits()).column("logits")
    assert numbers.tolist() == [0.5, 0.25, 1.0, 2.0]
    np.testing.assert_array_equal(arrays, logits())


def test_sizes_are_of_those_who_answered():
    everyone = replies(logits())
    some = Replies({name: everyone[name] for name in "bd"}, everyone.clients, (Failure("a", "late"),))
    assert some.sizes.tolist() == [20, 40]
    assert len(some) == 2
    assert "a" not in some
    assert some.failures == (Failure("a", "late"),)


def test_change_changes_one_field_in_every_message_and_nothing_else():
    before = replies(logits())
    after = before.change("logits", lambda z: z * 2)
    np.testing.assert_array_equal(after.column("logits"), logits() * 2)
    np.testing.assert_array_equal(before.column("logits"), logits())
    assert after.column("loss").tolist() == before.column("loss").tolist()
    assert after.clients == before.clients


def parameters(*values):
    names = ["a", "b", "c", "d"][: len(values)]
    sizes = dict(zip(names, (10, 20, 30, 40), strict=False))
    return Replies({n: Parameters(v) for n, v in zip(names, values, strict=True)}, {n: Hello(sizes[n]) for n in names})


def test_an_average_weighs_floats_and_takes_integers_from_the_first():
    ups = parameters(
        {"w": torch.tensor([1.0, 2.0]), "steps": torch.tensor(7)},
        {"w": torch.tensor([4.0, 8.0]), "steps": torch.tensor(9)},
    )
    average = ups.average("parameters", ups.shares)
    np.testing.assert_allclose(average["w"], [3.0, 6.0])
    assert average["steps"] == 7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_average_of_rounded_parameters_is_itself_not_rounded(dtype):
    ups = parameters({"w": torch.tensor([1.0], dtype=dtype)}, {"w": torch.tensor([1.0078125], dtype=dtype)})
    average = ups.average("parameters", torch.tensor([0.5, 0.5]))["w"]
    assert average.dtype == torch.float32
    assert average.item() == 1.00390625  # bf16 has no such number


@pytest.mark.parametrize(
    "other", [{"w": torch.zeros(3)}, {"v": torch.zeros(2)}, {"w": torch.zeros(2, dtype=torch.int64)}]
)
def test_parameters_of_another_architecture_are_not_averaged(other):
    with pytest.raises(FedstillError, match=r"b sends other parameters than a .*different architectures"):
        parameters({"w": torch.zeros(2)}, other).average("parameters", uniform(2))


def test_only_some_of_the_replies_and_only_some_rows_of_them():
    some = replies(logits()).only(["b", "d"]).rows("logits", torch.tensor([4, 0]))
    np.testing.assert_array_equal(some.column("logits"), logits()[[1, 3]][:, [4, 0]])
    assert some.shares.tolist() == [1 / 3, 2 / 3]
