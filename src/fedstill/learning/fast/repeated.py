"""A function that is called many times on the same tensors: on a GPU it is captured as a CUDA graph, and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from fedstill.learning.fast.anatomy import dissect
from fedstill.learning.fast.settings import fast_of

WARM = 3
"""Calls before the capture: they compile kernels and fill caches, which is not possible during one."""


class Repeated:
    """Calls `function`, which takes nothing and reads and writes the same tensors every time.

    `models` are those that it asks. Where all of them are of a kind whose forward pass can be captured, and may use
    graphs (`fast.graphs`), calls after the first few are replays, which do not wait for Python.
    """

    def __init__(self, function: Callable[[], object], device: torch.device, *models: nn.Module) -> None:
        self.function, self.device, self.calls = function, device, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.can = device.type == "cuda" and all(fast_of(each).graphs and dissect(each) is not None for each in models)

    def __call__(self) -> None:
        """One call, in the order of the caller's other work."""
        if self.graph is not None:
            self.graph.replay()
        elif self.can and self.calls == WARM:
            self._call_and_capture()
        else:
            self.function()
        self.calls += 1

    def _call_and_capture(self) -> None:
        here, side = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        graph, before = torch.cuda.CUDAGraph(), LAST.get(self.device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            self.function()  # on this stream too, where products have a workspace of their own
            # Another thread may be copying states out of the card, which would end a capture of any other mode.
            graph.capture_begin(None if before is None else before.pool(), capture_error_mode="thread_local")
            self.function()
            graph.capture_end()
        here.wait_stream(side)
        self.graph = LAST[self.device] = graph


LAST: dict[torch.device, torch.cuda.CUDAGraph] = {}
"""The last capture on each card: the next one takes the memory that this one needs only while it is replayed."""


@contextmanager
def short_products(device: torch.device) -> Iterator[None]:
    """Inside, products of fp32 numbers on a GPU have 10 bits after the point (TF32): enough to descend on inputs."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
