"""Which techniques of the fast path are on, and for which models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic import model_validator
from torch import nn

from fedstill.common.settings import Settings


class Fast(Settings):
    """The techniques; each can be switched on or off alone. `fast: false` switches all of them off.

    Then a model computes with Hugging Face's own code and learns with torch's default optimiser.
    """

    encoder: bool = True
    """On a CPU: our encoder over packed tokens, so that padding costs nothing in the linear layers."""
    last_layer: bool = True
    """With `encoder`: compute the last layer only at the position that the head uses."""
    masks: bool = True
    """With `encoder`: dropout masks from a faster generator."""
    vocabulary: bool = True
    """Learn only the embeddings of words that occur in the phase's data; the others cannot change in it."""
    optimiser: bool = True
    """A fused optimiser."""
    graphs: bool = True
    """On a GPU: whole steps captured as CUDA graphs, clients of one architecture stacked into one model."""
    steps: bool = True
    """With `graphs`: also phases that are taken step by step (conversations)."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return dict.fromkeys(cls.model_fields, value) if isinstance(value, bool) else value


NONE = Fast.model_validate(False)
_OFF: ContextVar[bool] = ContextVar("off", default=False)


def accelerate(module: nn.Module, fast: Fast) -> None:
    """Compute the module with these techniques wherever they apply; its copies too."""
    module.__dict__["fast_path"] = fast


def fast_of(module: nn.Module) -> Fast:
    """The module's techniques; none while the fast path is switched off."""
    return NONE if _OFF.get() else module.__dict__.get("fast_path", NONE)


@contextmanager
def switched_off() -> Iterator[None]:
    """Inside, every module computes with its own code, which has the derivatives that the fast path lacks."""
    token = _OFF.set(True)
    try:
        yield
    finally:
        _OFF.reset(token)
