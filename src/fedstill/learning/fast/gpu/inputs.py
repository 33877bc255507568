"""What a captured step reads: packed tokens of every client's batch, filled up to a size for which there is a graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedstill.data.corpus import Ints
from fedstill.learning.fast.gpu.packing import Int32s

STEP, SIZES = 128, 32
"""Tokens per client are rounded up to a multiple of STEP, or of a larger number to have at most about SIZES sizes."""


@dataclass(frozen=True)
class Room:
    """What a stack has room for."""

    clients: int
    rows: int
    """The texts of a client's batch."""
    tables: tuple[int, ...]
    """The rows of each table: words, positions and types."""
    longest: int
    classes: int
    decay: float
    clip: float | None


@dataclass
class Inputs:
    """The arrays that a captured step reads; the host fills them before every replay."""

    ints: Tensor
    ids: Tensor
    positions: Tensor
    types: Tensor
    key_starts: Tensor
    query_starts: Tensor
    first: Tensor
    rows: Tensor
    epoch: Tensor
    seed: Tensor


def rounded(tokens: Ints, room: Room) -> Ints:
    """These numbers of tokens, rounded up to sizes for which graphs are captured."""
    step = STEP * max(1, math.ceil(room.longest * room.rows / (STEP * SIZES)))
    return np.asarray(-(-tokens // step) * step)


def sizes_of(shape: Room, tokens: int) -> list[int]:
    """The lengths of the parts of a step's `Inputs`."""
    every, rows = shape.clients * tokens, shape.clients * shape.rows
    texts = shape.clients * (shape.rows + fillers(shape, tokens)) + 1
    return [every, every, every, texts, texts, rows, rows, shape.clients, 1]


def fillers(shape: Room, tokens: int) -> int:
    """How many extra texts, none longer than the longest, fill the space that a client's batch may leave unused."""
    return -(-tokens // shape.longest)


def step_inputs(
    room: Room,
    tokens: int,
    batches: Sequence[tuple[Int32s, Int32s, Int32s]],
    ends: Ints,
    rows: npt.NDArray[np.int32],
    epochs: Sequence[int],
    seed: int,
) -> npt.NDArray[np.int32]:
    """The integers of a step's `Inputs`.

    `batches` has the ids, positions and types of each client's tokens; `ends` [clients, rows] says where its texts end,
    an absent text being one token of padding; `rows` and `epochs` number the targets and the sums of losses.
    """
    sizes = sizes_of(room, tokens)
    ints = np.zeros(sum(sizes), np.int32)
    ids, positions, types, key_starts, query_starts, first, wanted, epoch, noise = (
        ints[end - size : end] for end, size in zip(np.cumsum(sizes), sizes, strict=True)
    )
    client = np.arange(room.clients)[:, None]
    for number, batch in enumerate(batches):
        for place, source, many in zip((ids, positions, types), batch, (*room.tables, 0), strict=False):
            place[number * tokens : (number + 1) * tokens] = number * many
            place[number * tokens : number * tokens + len(source)] += source
    epoch[:] = epochs
    more = np.minimum(ends[:, -1:] + room.longest * np.arange(1, fillers(room, tokens) + 1), tokens)
    key_starts[1:] = (np.concatenate([ends, more], 1) + client * tokens).ravel()
    asking = np.minimum(np.arange(1, room.rows + fillers(room, tokens) + 1), room.rows)
    query_starts[1:] = (asking + client * room.rows).ravel()
    first[:] = (np.concatenate([np.zeros_like(ends[:, :1]), ends[:, :-1]], 1) + client * tokens).ravel()
    wanted[:] = rows.ravel()
    noise[0] = seed
    return ints
