"""Numbers rounded to 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.wire.codecs import Codec, History, Passage
from fedstill.wire.encoding import Parts
from fedstill.wire.messages import BadMessage


@dataclass(frozen=True)
class Rounded(Codec):
    """Sends every number in fewer bits; it is decoded to float32."""

    dtype: ClassVar[torch.dtype]

    def encode(self, value: Tensor, passage: Passage, history: History) -> Parts:
        rounded = value.to(self.dtype)
        if not bool(torch.isfinite(rounded).all()):
            raise FedstillError(f"a number is too large for {self.name}: send bf16, or fp32.")
        return {self.name: rounded}

    def decode(self, parts: Parts, passage: Passage, history: History) -> Tensor:
        value = parts.get(self.name)
        if value is None or value.dtype != self.dtype:
            raise BadMessage(f"numbers that are not {self.name}, which was agreed on.")
        return value.float()


@dataclass(frozen=True)
class BFloat16(Rounded):
    """8 bits of precision and the range of float32: the better choice for parameters."""

    name: ClassVar[str] = "bf16"
    dtype: ClassVar[torch.dtype] = torch.bfloat16


@dataclass(frozen=True)
class Float16(Rounded):
    """11 bits of precision, numbers up to 65,504."""

    name: ClassVar[str] = "fp16"
    dtype: ClassVar[torch.dtype] = torch.float16
