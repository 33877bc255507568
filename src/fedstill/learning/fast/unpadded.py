"""A batch without padding: the tokens of all its texts in one sequence, the longest text first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedstill.data.corpus import Ints
from fedstill.learning.fast.products import MULTIPLE

SHORTER = 0.7
"""Attention pads within groups; a text shorter than this share of its group's longest begins a new group."""


class Unpadded:
    """The positions of a batch's real tokens, and groups of texts of similar length for attention.

    After the tokens are rows for nothing, at least one, which make their number a multiple: the rest.
    """

    def __init__(self, mask: npt.NDArray[np.bool_]) -> None:
        lengths = mask.sum(1)
        order = np.argsort(-lengths, kind="stable")
        lengths = lengths[order]
        row, self.columns = mask[order].nonzero()
        self.rows = order[row]
        """`rows` and `columns`: where in the batch each packed token is."""
        starts = np.cumsum(lengths) - lengths
        self.firsts = torch.from_numpy(starts)
        """The first packed token of each text, the longest text first."""
        self.back = torch.from_numpy(np.argsort(order))
        """For each text of the batch, its number among the sorted texts."""
        self.count = len(row)
        self.rest = MULTIPLE - self.count % MULTIPLE
        self.groups = [Group(starts[some], lengths[some], some, self.count) for some in _similar(lengths)]

    def pick(self, values: npt.NDArray[np.int64]) -> Tensor:
        """The packed tokens' values from an array of the batch's shape; the rest is zero."""
        picked = np.zeros(self.count + self.rest, np.int64)
        picked[: self.count] = values[self.rows, self.columns]
        return torch.from_numpy(picked)

    def without_rest(self, states: Tensor) -> Tensor:
        """These packed states, now with zeros in the rest: no text sees it, and it has no gradient."""
        states[self.count :] = 0
        return states


class Group:
    """Texts of similar length, padded to the longest of them; they are consecutive among the packed tokens."""

    def __init__(self, starts: Ints, lengths: Ints, texts: slice, count: int) -> None:
        self.texts, self.rows, self.width = texts, len(lengths), int(lengths[0])
        self.tokens = slice(int(starts[0]), int(starts[-1] + lengths[-1]))
        self.is_full = self.tokens.stop - self.tokens.start == self.rows * self.width
        columns = np.arange(self.width)
        self.is_token = columns < lengths[:, None]
        self.sources = np.where(self.is_token, starts[:, None] + columns, count)
        """The packed token at each place; at padding, the first row of the rest."""
        self._made: dict[tuple[str, int, int], Tensor] = {}

    def pad(self, states: Tensor) -> Tensor:
        """Packed states as [rows, width, size]; the values at padding are arbitrary."""
        if self.is_full:
            return states[self.tokens].view(self.rows, self.width, -1)
        return states.index_select(0, torch.from_numpy(self.sources.reshape(-1))).view(self.rows, self.width, -1)

    def spread(self, states: Tensor, parts: int, heads: int) -> Tensor:
        """Packed states [tokens and rest, parts * heads * size] as [parts, rows * heads, width, size]."""
        if (index := self._made.get(("spread", parts, heads))) is None:
            inner = np.arange(parts)[:, None, None, None] * heads + np.arange(heads)[:, None]
            index = torch.from_numpy((self.sources[:, None, :] * (parts * heads) + inner).reshape(-1))
            self._made["spread", parts, heads] = index
        size = states.shape[1] // (parts * heads)
        return states.view(-1, size).index_select(0, index).view(parts, self.rows * heads, self.width, size)

    def gather(self, states: Tensor, parts: int, heads: int, packed: Tensor) -> None:
        """The reverse of `spread`: write states into `packed`, at their tokens' places."""
        if (index := self._made.get(("gather", parts, heads))) is None:
            row, column = (numbers[:, None, None] for numbers in self.is_token.nonzero())
            outer = np.arange(parts)[:, None] * self.rows + row
            index = torch.from_numpy(((outer * heads + np.arange(heads)) * self.width + column).reshape(-1))
            self._made["gather", parts, heads] = index
        size = states.shape[-1]
        torch.index_select(states.view(-1, size), 0, index, out=packed[self.tokens].view(-1, size))

    def bias(self, heads: int, like: Tensor) -> Tensor:
        """Minus infinity at padding, else 0; to be added to scores [rows * heads, ..., width]."""
        if (bias := self._made.get(("bias", 1, heads))) is None:
            values = np.repeat(np.where(self.is_token, 0.0, -np.inf), heads, axis=0)[:, None]
            bias = self._made["bias", 1, heads] = torch.from_numpy(values).to(like.dtype)
        return bias


def _similar(lengths: Ints) -> list[slice]:
    """Consecutive parts of the falling lengths, each with similar lengths."""
    bounds = [0]
    for number, length in enumerate(lengths.tolist()):
        if length < SHORTER * lengths[bounds[-1]]:
            bounds.append(number)
    return [slice(*pair) for pair in zip(bounds, [*bounds[1:], len(lengths)], strict=True)]
