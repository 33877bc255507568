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
    """The techniques, each of which can be switched alone; `fast: false` is short for none of them.

    Without any, a model computes as Hugging Face's own code does, with torch's own optimiser.
    """

    encoder: bool = True
    """On a CPU: our encoder over packed tokens, so that padding costs nothing in the linear layers."""
    last_layer: bool = True
    """With it: the last layer only at the position that the head looks at."""
    masks: bool = True
    """With it: dropout masks from a quicker generator."""
    vocabulary: bool = True
    """Learn with the word embeddings of the words that occur in the phase's data; the others cannot change."""
    optimiser: bool = True
    """A fused optimiser."""
    graphs: bool = True
    """On a GPU: whole steps captured as CUDA graphs, clients of one architecture stacked into one model."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return dict.fromkeys(cls.model_fields, value) if isinstance(value, bool) else value


NONE = Fast.model_validate(False)
_OFF: ContextVar[bool] = ContextVar("off", default=False)


def accelerate(module: nn.Module, fast: Fast) -> None:
    """Let the module be computed with these techniques, wherever they apply; copies of it are computed so too."""
    module.__dict__["fast_path"] = fast


def fast_of(module: nn.Module) -> Fast:
    """What the module was told; nothing while the fast path is switched off."""
    return NONE if _OFF.get() else module.__dict__.get("fast_path", NONE)


@contextmanager
def switched_off() -> Iterator[None]:
    """Inside, every module computes in its own way: for derivatives that the fast path does not have."""
    token = _OFF.set(True)
    try:
        yield
    finally:
        _OFF.reset(token)
