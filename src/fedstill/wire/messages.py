"""Messages: flat frozen dataclasses of numbers, strings, arrays, or mappings from names to arrays.

A field says what it holds, so that the guard can check it and a codec can shrink it, whatever the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torch import Tensor

from fedstill.common.errors import FedstillError

STAGES = ("trained", "distilled", "processed")
"""The parts of a round after which parties are measured, in order."""

SERVER = "server"
"""The server's name among the parties."""

Kind = Literal["opinions", "parameters"]
"""The kinds of field that a codec can be chosen for."""


class BadMessage(FedstillError):
    """A message that is not as agreed."""


@dataclass(frozen=True)
class Message:
    """The base class of all messages."""


M = TypeVar("M", bound=Message)


def array(*shape: str | int, optional: bool = False, kind: Kind | None = None) -> Any:
    """A field for an array; the guard checks its shape, in which "public" is the number of public samples, and so on.

    "asked" is the length of the field `rows` in the call that the message replies to.
    """
    about = {"shape": shape, "kind": kind}
    return field(default=None, metadata=about) if optional else field(metadata=about)


def opinions(*shape: str | int, optional: bool = False) -> Any:
    """A field for an array of a model's logits or probabilities for samples: a codec may shrink it."""
    return array(*shape, optional=optional, kind="opinions")


def parameters(optional: bool = False) -> Any:
    """A field for a mapping of a model's parameters, or of changes to them: a codec may shrink it."""
    about = {"kind": "parameters"}
    return field(default=None, metadata=about) if optional else field(metadata=about)


@dataclass(frozen=True)
class Hello(Message):
    """What a client tells about itself before the first round."""

    size: int = field(metadata={"least": 1})
    label_counts: Tensor | None = array("labels", optional=True)
    architecture: str = ""
    public_fingerprint: str = field(default="", metadata={"agreed": True})
    unlike: float | None = None
    """How well words alone tell its rows from the public ones: 0.5, as a coin would, to 1."""


@dataclass(frozen=True)
class Opinion(Message):
    """A client's predictions for the public samples, and how well it fits its own rows."""

    logits: Tensor = opinions("public", "labels")
    loss: float | None = None
    class_losses: Tensor | None = array("labels", optional=True)
    f1: float | None = None
    labelled_logits: Tensor | None = opinions("labelled", "labels", optional=True)
    competence: Tensor | None = array("public", optional=True)


@dataclass(frozen=True)
class Answer(Message):
    """The server's answer for the public samples."""

    logits: Tensor = opinions("public", "labels")


@dataclass(frozen=True)
class Scores(Message):
    """A client's predictions for the public samples that it was asked about."""

    logits: Tensor = opinions("asked", "labels")


@dataclass(frozen=True)
class Parameters(Message):
    """A model's parameters and buffers."""

    parameters: Mapping[str, Tensor] = parameters()


@dataclass(frozen=True)
class Done(Message):
    """A client has done its work and sends no opinion."""

    loss: float | None = None
