"""Matrices as low-rank products that keep most of their energy: fewer numbers are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedstill.wire.codecs import Codec, History, Passage
from fedstill.wire.codecs.packing import check_size
from fedstill.wire.encoding import Parts
from fedstill.wire.messages import BadMessage

Energy = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True)
class LowRank(Codec):
    """Sends U [m, r], S [r] and V [r, ...] of a matrix, with the smallest r that keeps more than a share of its energy.

    The share rises from `energy_first` in the first round to `energy_last` in the last. Tensors with more
    dimensions are treated as matrices: the first dimension by all others. A tensor that would not shrink is sent
    unchanged. Meant for changes of parameters, which MutualKD sends; whole models lose too much.
    """

    name: ClassVar[str] = "low_rank"

    energy_first: Energy = 0.95
    energy_last: Energy = 0.98

    def encode(self, value: Tensor, passage: Passage, history: History) -> Parts | None:
        if value.ndim < 2 or not value.numel():
            return None
        done = max(0, passage.round - 1) / max(1, passage.rounds - 1)
        factors = _factors(value, self.energy_first + (self.energy_last - self.energy_first) * done)
        return None if factors is None else dict(zip("USV", factors, strict=True))

    def decode(self, parts: Parts, passage: Passage, history: History) -> Tensor:
        try:
            u, s, v = (parts[name] for name in "USV")
            if not all(part.is_floating_point() for part in (u, s, v)):
                raise RuntimeError("whole numbers")
            check_size((len(u), *v.shape[1:]), passage.largest)
            product = (u.double() * s.double()) @ v.double().flatten(1)
            return product.reshape(len(u), *v.shape[1:]).to(u.dtype)
        except (KeyError, RuntimeError, IndexError, TypeError) as error:
            raise BadMessage(f"factors that are not those of a matrix ({error}).") from error


def _factors(value: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """U, S and V; None if they have no fewer numbers than the matrix."""
    matrix = value.detach().cpu().double().flatten(1)
    is_wide = matrix.shape[0] < matrix.shape[1]
    tall = matrix.T if is_wide else matrix
    # The squared singular values are the eigenvalues of the smaller Gram matrix. For a table of word embeddings this
    # takes a tenth of an SVD's time, and despite rounding the result is an exact projection of the matrix.
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
    """The smallest r >= 1 whose first r squares sum to more than this share of all; squares are in descending order."""
    sums = squares.clamp(min=0).cumsum(0)
    return min(len(sums), 1 + int((sums <= energy * sums[-1]).sum())) if sums[-1] > 0 else 1
