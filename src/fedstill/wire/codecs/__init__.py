"""Codecs make opinions or parameters smaller; a line of the experiment chooses one. Each codec has its own file.

A codec works on one tensor at a time. What it must remember between messages is in a `History`, which is part of the
state of the party that sends or receives. A sender remembers, under the same names, what its receivers do, so that it
can decode what it sends: the ledger reports the error.
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
"""What a codec remembers, on one party's side, about a tensor that is sent repeatedly."""


@dataclass(frozen=True)
class Passage:
    """A message's sender, receivers and round."""

    direction: Direction
    sender: str
    receivers: tuple[str, ...]
    round: int
    """The round that produced the message: an answer is sent with the next round's call, but is of the round before."""
    rounds: int
    largest: int | None = None
    """The most numbers that an opinion can have, so that a small message cannot decode to gigabytes."""


@dataclass(frozen=True)
class Codec:
    """Encodes a floating-point tensor in fewer bytes, and decodes it."""

    name: ClassVar[str]
    """Its name in an experiment."""

    def encode(self, value: Tensor, passage: Passage, history: History) -> Parts | None:
        """The tensors to send instead, under names that the codec chooses; None to send the value unchanged."""
        raise NotImplementedError

    def decode(self, parts: Parts, passage: Passage, history: History) -> Tensor:
        """The value, except for what encoding lost; raises BadMessage for parts that this codec did not make."""
        raise NotImplementedError


@dataclass(frozen=True)
class Plain(Codec):
    """Sends everything unchanged: the default, and how an experiment switches off a method's own codec."""

    name: ClassVar[str] = "fp32"

    def encode(self, value: Tensor, passage: Passage, history: History) -> None:
        return None


@dataclass(frozen=True)
class Codecs:
    """The codec of opinions and the codec of parameters."""

    opinions: Codec = field(default_factory=Plain)
    parameters: Codec = field(default_factory=Plain)

    def of(self, kind: Kind | None) -> Codec | None:
        """The codec for a field of this kind; None if it changes nothing."""
        codec = None if kind is None else getattr(self, kind)
        return None if isinstance(codec, Plain) else codec

    @property
    def shrink(self) -> bool:
        """Whether messages shall be small."""
        return self.of("opinions") is not None or self.of("parameters") is not None


def known() -> dict[str, type[Codec]]:
    """The built-in codecs by name."""
    classes: dict[str, type[Codec]] = {"Plain": Plain, **classes_in(sys.modules[__name__], Codec)}
    return {cls.name: cls for cls in classes.values() if "name" in vars(cls)}


def make(spec: str | Mapping[str, Any]) -> Codec:
    """The codec with this name and these options; `file.py:Class` names a user's own class."""
    return construct(Codec, spec, known, {Codec: known})
