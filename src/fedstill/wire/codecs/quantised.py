"""Class probabilities in few bits: rounded to a grid, sent as differences, and entropy-coded (CFD).

DEFLATE (zlib: LZ77 and Huffman codes) replaces CABAC, the entropy coder of CFD; sizes are those of DEFLATE.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedstill.wire.codecs import Codec, History, Passage
from fedstill.wire.encoding import Parts
from fedstill.wire.messages import BadMessage

Bits = Literal[1, 2, 3, 4, 5, 6, 7, 8, 32]

SMALLEST = 1e-8
"""The probability that a zero code becomes where logits were encoded: log 0 is not finite."""


@dataclass(frozen=True)
class Quantised(Codec):
    """Rounds each row to the grid i/(2^bits - 1) so that it still sums to 1; one bit keeps only the most likely class.

    `up` and `down` are the bits per class; 32 sends the numbers unchanged. Logits arrive as log-probabilities. Codes
    are sent as differences from the sender's last codes if every receiver has those and it takes no more bytes.
    """

    name: ClassVar[str] = "quantised"

    up: Bits = 1
    down: Bits = 1

    def encode(self, value: Tensor, passage: Passage, history: History) -> Parts | None:
        bits = self._bits(passage)
        if bits == 32:
            return None
        is_logits = not _are_probabilities(value)
        codes = quantise(value.softmax(-1) if is_logits else value, bits)
        packed, since = pack(codes, None, bits), 0
        before, number = history.get("codes"), int(history.get("number", torch.tensor(0))) + 1
        has_last = all(f"to/{name}" in history for name in passage.receivers)
        if before is not None and before.shape == codes.shape and has_last:
            differences = pack(codes, before, bits)
            packed, since = (differences, number - 1) if len(differences) <= len(packed) else (packed, 0)
        history.clear()
        history |= {"codes": codes, "number": torch.tensor(number)}
        history |= {f"to/{name}": torch.tensor(True) for name in passage.receivers}
        return {"codes": packed, "about": torch.tensor([number, since, int(is_logits), *codes.shape])}

    def decode(self, parts: Parts, passage: Passage, history: History) -> Tensor:
        bits = self._bits(passage)
        if bits == 32 or parts.keys() != {"codes", "about"} or parts["about"].shape != (5,):
            raise BadMessage(f"{passage.sender} sends labels that are not in the agreed {bits} bits.")
        number, since, is_logits, rows, classes = parts["about"].tolist()
        if min(rows, classes) < 0 or (passage.largest is not None and rows * classes > passage.largest):
            raise BadMessage(f"codes of {rows} samples and {classes} classes: no call asks for so many.")
        held = int(history.get("number", torch.tensor(0)))
        if since not in (0, held) or (since and history["codes"].shape != (rows, classes)):
            raise BadMessage(
                f"{passage.sender} sends differences from its labels number {since}, but the last that arrived are "
                f"number {held}."
            )
        codes = unpack(parts["codes"], history["codes"] if since else None, bits, (rows, classes))
        if not bool((codes.sum(1) == 2**bits - 1).all()):
            raise BadMessage(f"{passage.sender} sends labels that do not sum to one.")
        history |= {"codes": codes, "number": torch.tensor(number)}
        probabilities = dequantise(codes, bits)
        return probabilities.clamp(min=SMALLEST).log() if is_logits else probabilities

    def _bits(self, passage: Passage) -> Bits:
        return self.up if passage.direction == "up" else self.down


def _are_probabilities(value: Tensor) -> bool:
    return bool((value >= 0).all()) and bool(((value.double().sum(-1) - 1).abs() < 1e-3).all())


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


def pack(codes: Tensor, before: Tensor | None, bits: int) -> Tensor:
    """The codes compressed, uint8 [bytes]; as differences (modulo 2^bits) from `before` if given."""
    differences = codes if before is None else (codes - before) & (2**bits - 1)  # uint8 wraps
    return torch.from_numpy(np.frombuffer(zlib.compress(differences.numpy().tobytes(), 9), np.uint8).copy())


def unpack(packed: Tensor, before: Tensor | None, bits: int, shape: tuple[int, int]) -> Tensor:
    """The codes in these bytes; raises BadMessage unless they are codes of this shape and number of bits."""
    if packed.dtype != torch.uint8 or packed.ndim != 1:
        raise BadMessage(f"packed codes are bytes, not {packed.dtype} of shape {tuple(packed.shape)}.")
    many = shape[0] * shape[1]
    reader = zlib.decompressobj()
    try:
        raw = reader.decompress(packed.numpy().tobytes(), many + 1)  # limited: a few bytes must not become gigabytes
    except zlib.error as error:
        raise BadMessage(f"packed codes cannot be unpacked ({error}).") from error
    if len(raw) != many or not reader.eof or reader.unused_data:
        raise BadMessage(f"packed codes are not those of {shape[0]} samples and {shape[1]} classes.")
    differences = torch.from_numpy(np.frombuffer(raw, np.uint8).copy()).reshape(shape)
    if many and int(differences.max()) >= 2**bits:
        raise BadMessage(f"packed codes have more than the {bits} bits that were agreed.")
    return differences if before is None else (differences + before) & (2**bits - 1)
