"""Class codes in few bytes: an adaptive binary arithmetic coder, of the kind that CABAC is.

Every code is a sequence of yes-or-no decisions, and the coder counts, apart for each context, how often the answer was
yes. Sender and receiver count the same, in whole numbers, so that nothing but the decisions travels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedstill.wire.messages import BadMessage

TOP, WHOLE = 0xFF000000, 0xFFFFFFFF
TAIL = 4
"""Bytes that close a sequence; a reader holds as many."""


class Coder:
    """Writes decisions, or reads them again if it is given bytes."""

    def __init__(self, source: bytes | None = None) -> None:
        self.source, self.at = source, TAIL
        self.written = bytearray()
        self.low, self.high = 0, WHOLE
        self.held = int.from_bytes((source or b"")[:TAIL], "big")
        self.counts: dict[int, list[int]] = {}

    def decide(self, context: int, yes: bool) -> bool:
        """Write this decision; a reader ignores `yes` and returns the decision that was written."""
        counts = self.counts.get(context)
        if counts is None:
            counts = self.counts[context] = [2, 4]  # as if 0.4 of a decision each way had been seen
        middle = self.low + (self.high - self.low) * counts[0] // counts[1]
        if self.source is not None:
            yes = self.held <= middle
        if yes:
            self.high = middle
            counts[0] += 5
        else:
            self.low = middle + 1
        counts[1] += 5
        while not (self.low ^ self.high) & TOP:
            self._shift()
        return yes

    def _shift(self) -> None:
        if self.source is None:
            self.written.append(self.high >> 24)
        else:
            following = self.source[self.at] if self.at < len(self.source) else 0
            self.held = (self.held << 8 & WHOLE) | following
            self.at += 1
        self.low, self.high = self.low << 8 & WHOLE, (self.high << 8 & WHOLE) | 0xFF

    def close(self) -> bytes:
        """All that was written; a reader raises BadMessage unless it has read its bytes exactly to the end."""
        if self.source is not None and self.at != len(self.source):
            raise BadMessage("packed codes are too short or too long.")
        return bytes(self.written) + self.low.to_bytes(TAIL, "big")


def code_rows(
    coder: Coder, bits: int, shape: tuple[int, int], codes: Tensor | None = None, before: Tensor | None = None
) -> Tensor:
    """Write codes, uint8 [N, C], whose rows sum to 2^bits - 1; a reader is given none, and returns them.

    The contexts are the class, what is left of the sum, and the code of the last time.
    """
    levels, coarse = 2**bits - 1, max(0, bits - 3)  # more contexts than eight by eight would never be filled
    given, last = (None if rows is None else rows.tolist() for rows in (codes, before))
    done = []
    for row in range(shape[0]):
        left, found = levels, []
        for place in range(shape[1] - 1):
            code, known = 0, 0 if last is None else last[row][place]
            wanted = 0 if given is None else given[row][place]
            context = ((place << 8 | known >> coarse) << 8 | left >> coarse) << 9
            for bit in range(bits - 1, -1, -1):
                more = code | 1 << bit
                if more <= left and coder.decide(context | 1 << bits - bit | code >> bit, wanted >= more):
                    code = more
            found.append(code)
            left -= code
        done.append([*found, left][: shape[1]])
    return torch.tensor(done, dtype=torch.uint8).reshape(shape)
