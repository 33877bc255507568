"""The parameters that changed most since the receiver last heard of them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.wire.codecs import Codec, History, Passage
from fedstill.wire.codecs.packing import join, refuse_unfinite, split
from fedstill.wire.encoding import Parts
from fedstill.wire.messages import BadMessage

SMALL = 256
"""Arrays with fewer numbers are always sent whole."""


@dataclass(frozen=True)
class TopChanges(Codec):
    """Sends the largest differences to what the receiver has: a `share` of the numbers, in bf16, and where they are.

    What is not sent stays a difference, and is sent when it has grown large enough. The first time, and to a receiver
    that missed a message, everything is sent, in fp32. Both sides keep one more copy of the parameters.
    """

    name: ClassVar[str] = "top_changes"

    share: Annotated[float, Field(gt=0, le=1)] = 0.02

    def encode(self, value: Tensor, passage: Passage, history: History) -> Parts | None:
        if value.numel() < SMALL:
            return None
        if not passage.receivers:
            raise FedstillError(
                f"the method must know what arrives, and {self.name} cannot say: take low_rank or int8."
            )
        refuse_unfinite(value, self.name)
        value = value.detach().cpu().float()
        known, number = history.get("known"), int(history.get("number", torch.tensor(0))) + 1
        has_last = all(f"to/{name}" in history for name in passage.receivers)
        if known is None or known.shape != value.shape or not has_last:
            parts: Parts = {"whole": value, "which": join((number, 0))}
            known = value.clone()
        else:
            differences = (value - known).flatten()
            many = max(1, round(self.share * differences.numel()))
            places = differences.abs().sort(descending=True, stable=True).indices[:many].sort().values
            changes = differences[places].to(torch.bfloat16)
            mask = np.zeros(differences.numel(), np.uint8)
            mask[places.numpy()] = 1
            parts = {"changes": changes, "which": join((number, number - 1), _pack(mask))}
            known = _changed(known, places, changes)
        history.clear()
        history |= {"known": known, "number": torch.tensor(number)}
        history |= {f"to/{name}": torch.tensor(True) for name in passage.receivers}
        return parts

    def decode(self, parts: Parts, passage: Passage, history: History) -> Tensor:
        (number, since), packed = split(parts, "which", 2)
        known, held = history.get("known"), int(history.get("number", torch.tensor(0)))
        if not since:
            value = parts.get("whole")
            if value is None or value.dtype != torch.float32:
                raise BadMessage("numbers that are neither whole nor changes.")
        else:
            changes = parts.get("changes")
            if known is None or since != held:
                raise BadMessage(f"{passage.sender} sends changes to its number {since}, but number {held} came last.")
            places = torch.from_numpy(np.flatnonzero(_unpack(packed, known.numel())))
            if changes is None or changes.dtype != torch.bfloat16 or changes.shape != places.shape:
                raise BadMessage("changes without their places.")
            value = _changed(known, places, changes)
        history |= {"known": value, "number": torch.tensor(number)}
        return value.clone()


def _changed(known: Tensor, places: Tensor, changes: Tensor) -> Tensor:
    flat = known.flatten().clone()
    flat[places] += changes.float()
    return flat.reshape(known.shape)


def _pack(mask: NDArray[np.uint8]) -> bytes:
    return zlib.compress(np.packbits(mask).tobytes(), 9)


def _unpack(packed: bytes, many: int) -> NDArray[np.uint8]:
    size = (many + 7) // 8
    reader = zlib.decompressobj()
    try:
        raw = reader.decompress(packed, size + 1)
    except zlib.error as error:
        raise BadMessage(f"places that cannot be unpacked ({error}).") from error
    if len(raw) != size or not reader.eof or reader.unused_data:
        raise BadMessage("places of another array.")
    return np.unpackbits(np.frombuffer(raw, np.uint8), count=many)
