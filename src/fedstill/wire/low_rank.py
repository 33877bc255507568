"""Updates of matrices as the few directions that hold most of their energy: fewer numbers travel."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

FACTORS = ("U", "S", "V")


def compress(update: Mapping[str, Tensor], energy: float) -> dict[str, Tensor]:
    """Every matrix as U [m, r], S [r] and V [r, ...] with the smallest r that keeps more than that share of its energy.

    Tensors of more dimensions are matrices of their first by all others. What would not shrink travels as it is.
    """
    parts: dict[str, Tensor] = {}
    for name, value in update.items():
        factors = _factors(value, energy) if value.ndim >= 2 and value.is_floating_point() and value.numel() else None
        parts |= {name: value} if factors is None else dict(zip(_names(name), factors, strict=True))
    return parts


def expand(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The update again, as far as it was kept."""
    update: dict[str, Tensor] = {}
    for part, value in parts.items():
        name, _, factor = part.rpartition("/")
        if factor not in FACTORS:
            update[part] = value
        elif factor == "U":
            _, s, v = (parts[other].double() for other in _names(name))
            product = (value.double() * s) @ v.flatten(1)
            update[name] = product.reshape(len(value), *v.shape[1:]).to(value.dtype)
    return update


def _names(name: str) -> list[str]:
    return [f"{name}/{factor}" for factor in FACTORS]


def _factors(value: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """U, S and V; or None where they are no fewer numbers than the matrix."""
    matrix = value.detach().cpu().double().flatten(1)
    is_wide = matrix.shape[0] < matrix.shape[1]
    tall = matrix.T if is_wide else matrix
    # The squares of the singular values are the eigenvalues of the smaller Gram matrix: a tenth of a decomposition's
    # work for a table of word embeddings, and what is kept is an exact projection of the matrix whatever the rounding.
    squares, directions = torch.linalg.eigh(tall.T @ tall)
    rank = _rank(squares.flip(0), energy)
    if rank * (sum(matrix.shape) + 1) >= matrix.numel():
        return None
    right = directions.flip(1)[:, :rank]
    left = tall @ right
    s = left.norm(dim=0)
    left = left / s.clamp(min=torch.finfo(s.dtype).tiny)
    u, v = (right, left.T) if is_wide else (left, right.T)
    kept = value.dtype if value.dtype == torch.float64 else torch.float32
    return u.to(kept), s.to(kept), v.reshape(rank, *value.shape[1:]).to(kept)


def _rank(squares: Tensor, energy: float) -> int:
    """The smallest r >= 1 whose first r squares sum to more than that share of all; squares fall."""
    sums = squares.clamp(min=0).cumsum(0)
    return min(len(sums), 1 + int((sums <= energy * sums[-1]).sum())) if sums[-1] > 0 else 1
