"""Numbers in eight bits, with the scale that their largest needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedstill.wire.codecs import Codec, History, Passage
from fedstill.wire.codecs.packing import refuse_unfinite
from fedstill.wire.encoding import Parts
from fedstill.wire.messages import BadMessage

LONG = 32
"""From so many numbers on a row is worth a scale of its own."""


@dataclass(frozen=True)
class Int8(Codec):
    """Sends every number as a whole multiple, -127 to 127, of a scale: no number is off by more than half of it.

    `scales: row` has a scale for each row (index of the first dimension), `tensor` one for all, and `auto` one for each
    row of 32 numbers or more. It is decoded to float32.
    """

    name: ClassVar[str] = "int8"

    scales: Literal["auto", "row", "tensor"] = "auto"

    def encode(self, value: Tensor, passage: Passage, history: History) -> Parts | None:
        if not value.numel():
            return None
        refuse_unfinite(value, self.name)
        value = value.detach().float()
        rows = _rows(value.cpu(), self.scales)
        scales = (rows.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        codes = (rows / scales[:, None]).round().clamp(-127, 127).to(torch.int8)
        return {"codes": codes.reshape(value.shape).view(torch.uint8), "scales": scales}

    def decode(self, parts: Parts, passage: Passage, history: History) -> Tensor:
        codes, scales = parts.get("codes"), parts.get("scales")
        if codes is None or scales is None or codes.dtype != torch.uint8 or scales.dtype != torch.float32:
            raise BadMessage("numbers that are not int8 with scales, which was agreed on.")
        rows = _rows(codes, self.scales) if codes.numel() else None
        if rows is None or scales.shape != (len(rows),):
            raise BadMessage(f"{scales.numel()} scales for an array of shape {tuple(codes.shape)}.")
        return (rows.view(torch.int8).float() * scales[:, None]).reshape(codes.shape)


def _rows(value: Tensor, scales: str) -> Tensor:
    """The array as the rows that have a scale each."""
    has_rows = value.ndim > 1 and (scales == "row" or (scales == "auto" and value.numel() >= LONG * len(value)))
    return value.reshape(len(value), -1) if has_rows else value.reshape(1, -1)
