"""Class probabilities in few bits: rounded to a grid, and entropy-coded given what was sent last (CFD).

CFD sends differences and codes them with CABAC. Here the last codes are contexts of an arithmetic coder instead, which
takes fewer bytes than differences do.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedstill.wire.codecs import Codec, History, Passage
from fedstill.wire.codecs.entropy import Coder, code_rows
from fedstill.wire.codecs.packing import SMALLEST, are_probabilities, check_size, join, refuse_unfinite, split
from fedstill.wire.encoding import Parts
from fedstill.wire.messages import BadMessage

Bits = Literal[1, 2, 3, 4, 5, 6, 7, 8, 32]

MOST_DECISIONS = 1 << 22
"""Beyond so many decisions of the arithmetic coder, which take seconds, codes are packed by zlib instead."""


@dataclass(frozen=True)
class Quantised(Codec):
    """Rounds each row to the grid i/(2^bits - 1) so that it still sums to 1; one bit keeps only the most likely class.

    `up` and `down` are the bits per class; 32 sends the numbers unchanged. Logits arrive as log-probabilities. Codes
    are packed given the sender's last codes, if every receiver has those.
    """

    name: ClassVar[str] = "quantised"

    up: Bits = 1
    down: Bits = 1

    def encode(self, value: Tensor, passage: Passage, history: History) -> Parts | None:
        bits = self._bits(passage)
        if bits == 32 or value.ndim != 2 or not value.numel():
            return None
        refuse_unfinite(value, self.name)
        is_logits = not are_probabilities(value)
        codes = quantise(value.softmax(-1) if is_logits else value, bits)
        before, held = history.get("codes"), int(history.get("number", torch.tensor(0)))
        has_last = all(f"to/{name}" in history for name in passage.receivers)
        if before is None or before.shape != codes.shape or not has_last:
            before = None
        history.clear()
        history |= {"codes": codes, "number": torch.tensor(held + 1)}
        history |= {f"to/{name}": torch.tensor(True) for name in passage.receivers}
        about = held + 1, 0 if before is None else held, int(is_logits), *codes.shape
        return {"codes": join(about, pack(codes, before, bits))}

    def decode(self, parts: Parts, passage: Passage, history: History) -> Tensor:
        bits = self._bits(passage)
        if bits == 32 or parts.keys() != {"codes"}:
            raise BadMessage(f"{passage.sender} sends labels that are not in the agreed {bits} bits.")
        (number, since, is_logits, rows, classes), packed = split(parts, "codes", 5)
        check_size((rows, classes), passage.largest)
        held = int(history.get("number", torch.tensor(0)))
        if since not in (0, held) or (since and history["codes"].shape != (rows, classes)):
            raise BadMessage(
                f"{passage.sender} sends differences from its labels number {since}, but the last that arrived are "
                f"number {held}."
            )
        codes = unpack(packed, history["codes"] if since else None, bits, (rows, classes))
        history |= {"codes": codes, "number": torch.tensor(number)}
        probabilities = dequantise(codes, bits)
        return probabilities.clamp(min=SMALLEST).log() if is_logits else probabilities

    def _bits(self, passage: Passage) -> Bits:
        return self.up if passage.direction == "up" else self.down


def quantise(probabilities: Tensor, bits: int) -> Tensor:
    """Each row rounded to the grid i/(2^bits - 1), as integers i, uint8 [N, C], that sum to 2^bits - 1.

    The largest remainders are rounded up, ties in class order: with one bit, only the most likely class is 1.
    """
    levels = 2**bits - 1
    exact = probabilities.double()
    exact = exact / exact.sum(1, keepdim=True) * levels
    whole = exact.floor()
    missing = levels - whole.sum(1, keepdim=True)
    places = (exact - whole).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    codes: Tensor = (whole + (places < missing)).to(torch.uint8)
    return codes


def dequantise(codes: Tensor, bits: int) -> Tensor:
    """The probabilities that the integers stand for."""
    return torch.div(codes, 2**bits - 1)


def pack(codes: Tensor, before: Tensor | None, bits: int) -> bytes:
    """The codes in few bytes, in fewer if `before` is given and like them."""
    if codes.numel() * bits <= MOST_DECISIONS:
        code_rows(coder := Coder(), bits, (codes.shape[0], codes.shape[1]), codes, before)
        return coder.close()
    differences = codes if before is None else (codes - before) & (2**bits - 1)  # uint8 wraps
    return zlib.compress(differences.numpy().tobytes(), 9)


def unpack(packed: bytes, before: Tensor | None, bits: int, shape: tuple[int, int]) -> Tensor:
    """The codes in these bytes; raises BadMessage unless they are codes of this shape and number of bits."""
    if shape[0] * shape[1] * bits <= MOST_DECISIONS:
        codes = code_rows(coder := Coder(packed), bits, shape, before=before)
        coder.close()
        return codes
    codes = _inflate(packed, shape)
    if before is not None:
        codes = (codes + before) & (2**bits - 1)
    if not bool((codes.long().sum(1) == 2**bits - 1).all()):
        raise BadMessage("packed codes do not sum to one.")
    return codes


def _inflate(packed: bytes, shape: tuple[int, int]) -> Tensor:
    many = shape[0] * shape[1]
    reader = zlib.decompressobj()
    try:
        raw = reader.decompress(packed, many + 1)  # limited: a few bytes must not become gigabytes
    except zlib.error as error:
        raise BadMessage(f"packed codes cannot be unpacked ({error}).") from error
    if len(raw) != many or not reader.eof or reader.unused_data:
        raise BadMessage(f"packed codes are not those of {shape[0]} samples and {shape[1]} classes.")
    return torch.from_numpy(np.frombuffer(raw, np.uint8).copy()).reshape(shape)
