"""Only the most likely classes of every sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedstill.wire.codecs import Codec, History, Passage
from fedstill.wire.codecs.packing import SMALLEST, are_probabilities, check_size, join, refuse_unfinite, split
from fedstill.wire.encoding import Parts
from fedstill.wire.messages import BadMessage


@dataclass(frozen=True)
class TopK(Codec):
    """Sends the `k` most likely classes of each sample, in as few bits as they need, and their probabilities in fp16.

    All other classes share what is left of the probability evenly. Logits arrive as log-probabilities.
    """

    name: ClassVar[str] = "top_k"

    k: Annotated[int, Field(ge=1)] = 1

    def encode(self, value: Tensor, passage: Passage, history: History) -> Parts | None:
        if value.ndim != 2 or not value.numel():
            return None
        refuse_unfinite(value, self.name)
        is_logits = not are_probabilities(value)
        probabilities = (value.softmax(-1) if is_logits else value).detach().cpu().float()
        rows, classes = probabilities.shape
        top = probabilities.sort(dim=1, descending=True, stable=True)
        k = min(self.k, classes)
        likely, places = top.values[:, :k].to(torch.float16), top.indices[:, :k]
        bits = np.unpackbits(places.numpy().astype(">u4").view(np.uint8)).reshape(-1, 32)[:, 32 - _bits(classes) :]
        body = likely.numpy().tobytes() + np.packbits(bits).tobytes()
        return {"classes": join((rows, classes, int(is_logits)), body)}

    def decode(self, parts: Parts, passage: Passage, history: History) -> Tensor:
        (rows, classes, is_logits), body = split(parts, "classes", 3)
        check_size((rows, classes), passage.largest)
        k, width = min(self.k, classes), _bits(classes)
        many = rows * k
        if not many or len(body) != 2 * many + (many * width + 7) // 8:
            raise BadMessage(
                f"{len(body)} bytes are not the {self.k} likeliest of {classes} classes of {rows} samples."
            )
        likely = torch.from_numpy(np.frombuffer(body[: 2 * many], "<f2").astype(np.float32)).reshape(rows, k)
        bits = np.unpackbits(np.frombuffer(body[2 * many :], np.uint8), count=many * width).reshape(many, width)
        weights = 1 << np.arange(width, dtype=np.int64)[::-1]
        places = torch.from_numpy(bits.astype(np.int64) @ weights).reshape(rows, k)
        if not bool(((likely >= 0) & (likely <= 1)).all()) or int(places.max()) >= classes:
            raise BadMessage("classes that do not exist, or numbers that are no probabilities.")
        left = (1 - likely.sum(1, keepdim=True)).clamp(min=0) / max(1, classes - k)
        probabilities = left.repeat(1, classes).scatter(1, places, likely)
        probabilities = probabilities.clamp(min=SMALLEST)
        probabilities = probabilities / probabilities.sum(1, keepdim=True)
        return probabilities.log() if is_logits else probabilities


def _bits(classes: int) -> int:
    """The bits that tell so many classes apart."""
    return max(1, (classes - 1).bit_length())
