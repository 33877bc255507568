"""The tokens of a phase's data for GPUs: without padding, and renumbered so that only words that occur have ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedstill.data.corpus import Ints
from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore
from fedstill.learning.fast.anatomy import Anatomy

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Packed:
    """The tokens of all texts in one sequence."""

    ids: Int32s
    positions: Int32s
    types: Int32s
    starts: Ints
    words: Ints
    """The old id of every new id; all ids up to that of padding are kept, so that padding keeps its id."""

    @classmethod
    def of(cls, data: Examples, anatomy: Anatomy, compact: bool = True) -> Packed:
        """The data's texts, in its order; ids are renumbered if `compact`."""
        assert isinstance(data.store, TokenStore)
        store = data.store
        lengths = np.maximum(store.lengths[data.rows], 0)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        within = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        places = np.repeat(store.offsets[data.rows], lengths) + within
        ids = store.ids[places]
        types = np.zeros(len(ids), np.int32) if store.types is None else store.types[places].astype(np.int32)
        padding = anatomy.words.padding_idx
        positions = within if anatomy.first_position is None else _counted(ids, starts, lengths, anatomy.first_position)
        if not compact:
            return cls(ids, positions.astype(np.int32), types, starts, np.arange(0))
        occurs = np.zeros(anatomy.words.num_embeddings, bool)
        occurs[ids] = True
        occurs[: 0 if padding is None else padding + 1] = True
        words = np.flatnonzero(occurs)
        numbers = np.zeros(len(occurs), np.int32)
        numbers[words] = np.arange(len(words), dtype=np.int32)
        return cls(numbers[ids], positions.astype(np.int32), types, starts, words)

    @cached_property
    def lengths(self) -> Ints:
        """The number of tokens of every text."""
        return np.diff(self.starts)

    def pick(self, rows: Ints) -> tuple[Int32s, Int32s, Int32s]:
        """The ids, positions and types of these texts' tokens."""
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        places = np.repeat(self.starts[rows] - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
        return self.ids[places], self.positions[places], self.types[places]


def _counted(ids: Int32s, starts: Ints, lengths: Ints, padding: int) -> Ints:
    """RoBERTa's positions: other tokens than padding are counted from the padding's id + 1; padding has its id."""
    real = ids != padding
    counted = np.concatenate([[0], np.cumsum(real)])
    own = counted[1:] - np.repeat(counted[starts[:-1]], lengths)
    return np.where(real, own + padding, padding)
