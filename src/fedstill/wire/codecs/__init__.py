"""Codecs: fewer bytes for opinions or parameters, chosen by a line of the experiment. One file a codec.

A codec works on one tensor at a time. What it must remember from one message to the next it keeps in a `History`, which
is part of its party's state.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor

from fedstill.common.construct import construct
from fedstill.common.plugins import classes_in
from fedstill.wire.encoding import Parts
from fedstill.wire.messages import Kind

Direction = Literal["up", "down"]
History = dict[str, Tensor]
"""What one party remembers of one tensor that crosses again and again."""


@dataclass(frozen=True)
class Passage:
    """Who sends a message to whom, and when it was made."""

    direction: Direction
    sender: str
    receivers: tuple[str, ...]
    round: int
    """The round whose result it is: an answer, which travels with the next round's call, is of the round before."""
    rounds: int
    largest: int | None = None
    """How many numbers an opinion can have at most, so that few bytes cannot become gigabytes."""


@dataclass(frozen=True)
class Codec:
    """How a tensor of floating-point numbers travels."""

    name: ClassVar[str]
    """As the experiment calls it."""

    def encode(self, value: Tensor, passage: Passage, history: History) -> Parts | None:
        """The tensors that travel instead, by names of the codec's own; None where the value travels as it is."""
        raise NotImplementedError

    def decode(self, parts: Parts, passage: Passage, history: History) -> Tensor:
        """The value, as far as it was kept; refuses what this codec did not make with a BadMessage."""
        raise NotImplementedError


@dataclass(frozen=True)
class Plain(Codec):
    """Everything as it is: what a method uses that names no codec, or an experiment to switch a method's own off."""

    name: ClassVar[str] = "fp32"

    def encode(self, value: Tensor, passage: Passage, history: History) -> None:
        return None


@dataclass(frozen=True)
class Codecs:
    """Which codec opinions and parameters take."""

    opinions: Codec = field(default_factory=Plain)
    parameters: Codec = field(default_factory=Plain)

    def of(self, kind: Kind | None) -> Codec | None:
        """The codec for a field of that kind; None where it changes nothing."""
        codec = None if kind is None else getattr(self, kind)
        return None if isinstance(codec, Plain) else codec


def known() -> dict[str, type[Codec]]:
    """Our codecs by name."""
    classes: dict[str, type[Codec]] = {"Plain": Plain, **classes_in(sys.modules[__name__], Codec)}
    return {cls.name: cls for cls in classes.values() if "name" in vars(cls)}


def make(spec: str | Mapping[str, Any]) -> Codec:
    """The codec of that name with those options; `file.py:Class` is one of a user's own."""
    return construct(Codec, spec, known)
