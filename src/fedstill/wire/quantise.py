"""Class probabilities in few bits: rounded to a grid, sent as differences, and entropy-coded.

DEFLATE (zlib: LZ77 and Huffman codes) stands in for CFD's CABAC, which is a video coder's; sizes are DEFLATE's.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from fedstill.wire.messages import BadMessage


def quantise(probabilities: Tensor, bits: int) -> Tensor:
    """Each row on the grid i/(2^bits - 1), as integers uint8 [N, C] that sum to 2^bits - 1.

    Largest remainders are rounded up, ties by class order: rows still sum to one, and one bit is the most likely class.
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
    """The bytes, uint8 [bytes], of codes as differences (modulo 2^bits) to those sent before, if any were."""
    differences = codes if before is None else (codes - before) & (2**bits - 1)  # uint8 wraps
    return torch.from_numpy(np.frombuffer(zlib.compress(differences.numpy().tobytes(), 9), np.uint8).copy())


def unpack(packed: Tensor, before: Tensor | None, bits: int, shape: tuple[int, int]) -> Tensor:
    """The codes in those bytes; refuses bytes that hold anything else than so many codes of so many bits."""
    if packed.dtype != torch.uint8 or packed.ndim != 1:
        raise BadMessage(f"packed codes are bytes, not {packed.dtype} of shape {tuple(packed.shape)}.")
    many = shape[0] * shape[1]
    reader = zlib.decompressobj()
    try:
        raw = reader.decompress(packed.numpy().tobytes(), many + 1)  # a few bytes may not become gigabytes
    except zlib.error as error:
        raise BadMessage(f"packed codes cannot be unpacked ({error}).") from error
    if len(raw) != many or not reader.eof or reader.unused_data:
        raise BadMessage(f"packed codes are not those of {shape[0]} samples and {shape[1]} classes.")
    differences = torch.from_numpy(np.frombuffer(raw, np.uint8).copy()).reshape(shape)
    if many and int(differences.max()) >= 2**bits:
        raise BadMessage(f"packed codes have more than the {bits} bits that were agreed.")
    return differences if before is None else (differences + before) & (2**bits - 1)
