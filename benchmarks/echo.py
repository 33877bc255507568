"""A method of one's own that only sends: what an exchange costs when nobody computes anything."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedstill import Algorithm, Client
from fedstill.algorithms.base import Answers, Federation
from fedstill.wire.messages import Message, array

SIZES = {"10 KB": (10_000, 25), "1 MB": (1_000_000, 15), "50 MB": (50_000_000, 5)}


@dataclass(frozen=True)
class Blob(Message):
    """That many numbers."""

    numbers: Tensor = array(-1)


@dataclass(frozen=True)
class Echo(Algorithm):
    """Every client says what it was told, of several sizes; the medians are observations of the server."""

    messages: ClassVar[tuple[type[Message], ...]] = (Blob,)

    def echo(self, me: Client, blob: Blob) -> Blob:
        """What a client does."""
        return blob

    def round(self, fed: Federation, answer: Answers) -> None:
        """All sizes, each some times."""
        for size, (many, times) in SIZES.items():
            blob, seconds = Blob(torch.arange(many // 4, dtype=torch.float32)), []
            for _ in range(times):
                began = time.perf_counter()
                fed.call("echo", blob)
                seconds.append(time.perf_counter() - began)
            fed.server.observe(size, {"median_ms": 1000 * float(np.median(seconds)), "exchanges": times})
