"""Factored updates: enough energy, the smallest rank, never more numbers, and back again."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.wire.codecs import Passage
from fedstill.wire.codecs.low_rank import LowRank
from fedstill.wire.messages import BadMessage

SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 12))


PASSAGE = Passage("up", "books", ("server",), 1, 3)


def compress(value, energy):
    """What travels of one tensor; itself where nothing is gained."""
    parts = LowRank(energy_first=energy, energy_last=energy).encode(value, PASSAGE, {})
    return {"": value} if parts is None else parts


def expand(parts):
    return parts[""] if "" in parts else LowRank().decode(parts, PASSAGE, {})


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
    parts = compress(matrix, energy)
    squares = np.linalg.svd(matrix.double().numpy(), compute_uv=False) ** 2
    shares = np.cumsum(squares) / squares.sum()
    rank = int((shares <= energy).sum()) + 1
    if np.abs(shares - energy).min() < 1e-9:  # a tie is decided by rounding
        return
    if rank * (sum(shape) + 1) >= matrix.numel():
        assert parts == {"": matrix}
        return
    assert {name: tuple(part.shape) for name, part in parts.items()} == {
        "U": (shape[0], rank), "S": (rank,), "V": (rank, shape[1])
    }  # fmt: skip
    assert all(part.dtype == torch.float32 for part in parts.values())
    assert numbers(parts) == rank * (sum(shape) + 1) < matrix.numel()
    back = expand(parts).double()
    lost = float(((matrix.double() - back) ** 2).sum()) / squares.sum()
    assert lost == pytest.approx(1 - shares[rank - 1], abs=1e-6)
    assert 1 - lost > energy - 1e-6


@settings(deadline=None)
@given(SHAPES, st.integers(0, 99))
def test_a_matrix_of_rank_one_comes_back(shape, seed):
    random = np.random.default_rng(seed)
    matrix = torch.from_numpy(np.outer(random.normal(size=shape[0]), random.normal(size=shape[1]))).float()
    parts = compress(matrix, 0.98)
    assert numbers(parts) <= matrix.numel()
    if "S" in parts:
        assert parts["S"].shape == (1,)
    torch.testing.assert_close(expand(parts), matrix, rtol=1e-5, atol=1e-6)


def test_factors_are_those_of_a_singular_value_decomposition():
    matrix = decaying(20, 9, 3, 0.5)
    parts = compress(matrix, 0.95)
    u, s, v = parts["U"], parts["S"], parts["V"]
    theirs = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    np.testing.assert_allclose(s, theirs.S[: len(s)], rtol=1e-6)
    for ours, reference in ((u.T, theirs.U.T), (v, theirs.Vh)):
        np.testing.assert_allclose(np.abs(np.sum(ours.numpy() * reference[: len(s)], 1)), 1, rtol=1e-6)


def test_more_dimensions_are_the_first_by_all_others_and_come_back_in_shape():
    kernel = torch.outer(torch.arange(1.0, 9.0), torch.arange(15.0) - 4).reshape(8, 5, 3)
    parts = compress(kernel, 0.95)
    assert {name: tuple(part.shape) for name, part in parts.items()} == {"U": (8, 1), "S": (1,), "V": (1, 5, 3)}
    torch.testing.assert_close(expand(parts), kernel)


def test_nothing_but_zeros_has_rank_one_and_stays_nothing():
    parts = compress(torch.zeros(6, 7), 0.95)
    assert parts["U"].shape == (6, 1)
    assert torch.equal(expand(parts), torch.zeros(6, 7))


def test_vectors_and_empty_tensors_travel_as_they_are():
    for value in (torch.arange(3.0), torch.zeros(0, 3)):
        assert LowRank().encode(value, PASSAGE, {}) is None


def test_energy_rises_from_the_first_round_to_the_last():
    # Singular values 1, a, b: between the shares of the first two, 0.955 is reached by rank 1, and 0.975 is not.
    diagonal = torch.diag(torch.tensor([1.0, 0.2, 0.01, 0.001, 0.001, 0.001, 0.001, 0.001]))
    shares = (torch.diagonal(diagonal) ** 2).cumsum(0) / (torch.diagonal(diagonal) ** 2).sum()
    assert 0.95 < shares[0] < 0.965
    ranks = [
        len(LowRank().encode(diagonal, Passage("up", "books", ("server",), round, 3), {})["S"]) for round in (1, 2, 3)
    ]
    assert ranks == [1, 2, 2]
    assert len(LowRank().encode(diagonal, Passage("up", "books", ("server",), 1, 1), {})["S"]) == 1


@pytest.mark.parametrize("parts", [{}, {"U": torch.ones(3, 2)}, dict(zip("USV", [torch.ones(3, 2)] * 3, strict=True))])
def test_other_factors_are_refused(parts):
    with pytest.raises(BadMessage, match="factors that are not those of a matrix"):
        LowRank().decode(parts, PASSAGE, {})


def test_the_same_update_gives_the_same_bytes():
    one, other = (compress(decaying(40, 30, 1, 0.7), 0.95) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
