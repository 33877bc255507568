"""Random numbers that depend on what is computed, never on when or where."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch


def key(seed: int, round: int, party: str, purpose: str) -> int:
    """A 63-bit seed for one purpose of one party in one round, the same on every machine."""
    digest = hashlib.sha256(f"{seed}/{round}/{party}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(seed: int, round: int, party: str, purpose: str) -> np.random.Generator:
    """A numpy generator with that seed."""
    return np.random.default_rng(key(seed, round, party, purpose))


class Noise(Protocol):
    """Where noise comes from: one of numpy's generators in a simulation, the operating system at a real site."""

    def normal(self, *, scale: float, size: Any) -> Any:
        """Gaussian numbers around 0."""

    def random(self, size: int) -> Any:
        """Numbers from 0 to 1."""


class SystemNoise:
    """Random numbers from the operating system: no seed, so nobody can draw them again."""

    def random(self, size: int) -> npt.NDArray[np.float64]:
        """Numbers in (0, 1), in steps of 2^-53."""
        bits = np.frombuffer(os.urandom(8 * size), np.uint64) >> np.uint64(11)
        return (bits.astype(np.float64) + 0.5) * 2.0**-53

    def normal(self, *, scale: float, size: Any) -> npt.NDArray[np.float64]:
        """Gaussian numbers around 0, by Box and Muller's transform."""
        many = int(np.prod(size))
        lengths, angles = np.sqrt(-2 * np.log(self.random(many))), 2 * np.pi * self.random(many)
        drawn: npt.NDArray[np.float64] = scale * (lengths * np.cos(angles)).reshape(size)
        return drawn


class Stream:
    """A private state of torch's global generators, so that interleaved phases do not disturb each other."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        with torch.random.fork_rng(devices=[device] if self.cuda else []):
            torch.manual_seed(seed)
            self.state = self._read()

    def copy(self) -> Stream:
        """A stream that draws what this one would, without changing it."""
        twin = object.__new__(Stream)
        twin.device, twin.cuda, twin.state = self.device, self.cuda, self.state
        return twin

    def _read(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        return torch.get_rng_state(), torch.cuda.get_rng_state(self.device) if self.cuda else None

    @staticmethod
    def _write(state: tuple[torch.Tensor, torch.Tensor | None], device: torch.device) -> None:
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1], device)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Inside, torch draws from this stream; afterwards from the generator state it had before."""
        outside = self._read()
        self._write(self.state, self.device)
        try:
            yield
        finally:
            self.state = self._read()
            self._write(outside, self.device)
