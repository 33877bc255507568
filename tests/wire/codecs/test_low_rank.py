"""Factored updates: enough energy, the smallest rank, never more numbers, and back again."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.wire.low_rank import compress, expand

SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 12))


def numbers(parts):
    return sum(value.numel() for value in parts.values())


def decaying(rows, columns, seed, decay):
    """A random matrix whose singular values fall by that factor."""
    random = np.random.default_rng(seed)
    u, _, v = np.linalg.svd(random.normal(size=(rows, columns)), full_matrices=False)
    return torch.from_numpy((u * decay ** np.arange(min(rows, columns))) @ v).float()


@settings(deadline=None, max_examples=60)
@given(SHAPES, st.integers(0, 99), st.floats(0.05, 1.0), st.floats(0.1, 0.99))
def test_the_smallest_rank_with_more_than_the_asked_energy_travels_where_it_is_fewer_numbers(
    shape, seed, decay, energy
):
    matrix = decaying(*shape, seed, decay)
    parts = compress({"w": matrix}, energy)
    squares = np.linalg.svd(matrix.double().numpy(), compute_uv=False) ** 2
    shares = np.cumsum(squares) / squares.sum()
    rank = int((shares <= energy).sum()) + 1
    if np.abs(shares - energy).min() < 1e-9:  # a tie is decided by rounding
        return
    if rank * (sum(shape) + 1) >= matrix.numel():
        assert parts == {"w": matrix}
        return
    assert {name: tuple(part.shape) for name, part in parts.items()} == {
        "w/U": (shape[0], rank), "w/S": (rank,), "w/V": (rank, shape[1])
    }  # fmt: skip
    assert all(part.dtype == torch.float32 for part in parts.values())
    assert numbers(parts) == rank * (sum(shape) + 1) < matrix.numel()
    back = expand(parts)["w"].double()
    lost = float(((matrix.double() - back) ** 2).sum()) / squares.sum()
    assert lost == pytest.approx(1 - shares[rank - 1], abs=1e-6)
    assert 1 - lost > energy - 1e-6


@settings(deadline=None)
@given(SHAPES, st.integers(0, 99))
def test_a_matrix_of_rank_one_comes_back(shape, seed):
    random = np.random.default_rng(seed)
    matrix = torch.from_numpy(np.outer(random.normal(size=shape[0]), random.normal(size=shape[1]))).float()
    parts = compress({"w": matrix}, 0.98)
    assert numbers(parts) <= matrix.numel()
    if "w/S" in parts:
        assert parts["w/S"].shape == (1,)
    torch.testing.assert_close(expand(parts)["w"], matrix, rtol=1e-5, atol=1e-6)


def test_factors_are_those_of_a_singular_value_decomposition():
    matrix = decaying(20, 9, 3, 0.5)
    parts = compress({"w": matrix}, 0.95)
    u, s, v = parts["w/U"], parts["w/S"], parts["w/V"]
    theirs = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    np.testing.assert_allclose(s, theirs.S[: len(s)], rtol=1e-6)
    for ours, reference in ((u.T, theirs.U.T), (v, theirs.Vh)):
        np.testing.assert_allclose(np.abs(np.sum(ours.numpy() * reference[: len(s)], 1)), 1, rtol=1e-6)


def test_more_dimensions_are_the_first_by_all_others_and_come_back_in_shape():
    kernel = torch.outer(torch.arange(1.0, 9.0), torch.arange(15.0) - 4).reshape(8, 5, 3)
    parts = compress({"k": kernel}, 0.95)
    assert {name: tuple(part.shape) for name, part in parts.items()} == {"k/U": (8, 1), "k/S": (1,), "k/V": (1, 5, 3)}
    torch.testing.assert_close(expand(parts)["k"], kernel)


def test_nothing_but_zeros_has_rank_one_and_stays_nothing():
    parts = compress({"w": torch.zeros(6, 7)}, 0.95)
    assert parts["w/U"].shape == (6, 1)
    assert torch.equal(expand(parts)["w"], torch.zeros(6, 7))


def test_vectors_integers_and_empty_tensors_travel_as_they_are():
    update = {"bias": torch.arange(3.0), "steps": torch.ones(4, 4, dtype=torch.long), "none": torch.zeros(0, 3)}
    parts = compress(update, 0.95)
    assert parts.keys() == update.keys()
    assert all(parts[name] is value for name, value in update.items())
    assert expand(parts).keys() == update.keys()


def test_the_same_update_gives_the_same_bytes():
    one, other = (compress({"w": decaying(40, 30, 1, 0.7)}, 0.95) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
