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
"""What a party measures itself after, in the order in which a round comes to them."""

SERVER = "server"
"""The server's name among the parties."""

Kind = Literal["opinions", "parameters"]
"""What a codec can be chosen for."""


class BadMessage(FedstillError):
    """Something arrived that is not what was agreed."""


@dataclass(frozen=True)
class Message:
    """The base of everything that travels."""


M = TypeVar("M", bound=Message)


def array(*shape: str | int, optional: bool = False, kind: Kind | None = None) -> Any:
    """A field for an array; the guard checks the shape, where "public" and "labels" stand for their numbers.

    "asked" stands for how many rows the call's own message named, in its field `rows`.
    """
    about = {"shape": shape, "kind": kind}
    return field(default=None, metadata=about) if optional else field(metadata=about)


def opinions(*shape: str | int, optional: bool = False) -> Any:
    """An array of what a model says of samples, logits or probabilities: a codec may shrink it."""
    return array(*shape, optional=optional, kind="opinions")


def parameters(optional: bool = False) -> Any:
    """A field for a mapping of a model's parameters, or of changes to them: a codec may shrink it."""
    about = {"kind": "parameters"}
    return field(default=None, metadata=about) if optional else field(metadata=about)


@dataclass(frozen=True)
class Hello(Message):
    """What a client says of itself before the first round."""

    size: int = field(metadata={"least": 1})
    label_counts: Tensor | None = array("labels", optional=True)
    architecture: str = ""
    public_fingerprint: str = field(default="", metadata={"agreed": True})


@dataclass(frozen=True)
class Opinion(Message):
    """What a client says of the public samples, and how well it fits its own."""

    logits: Tensor = opinions("public", "labels")
    loss: float | None = None
    class_losses: Tensor | None = array("labels", optional=True)
    f1: float | None = None
    labelled_logits: Tensor | None = opinions("labelled", "labels", optional=True)


@dataclass(frozen=True)
class Answer(Message):
    """What the server says of the public samples."""

    logits: Tensor = opinions("public", "labels")


@dataclass(frozen=True)
class Scores(Message):
    """What a client says of the public samples that it was asked about."""

    logits: Tensor = opinions("asked", "labels")


@dataclass(frozen=True)
class Parameters(Message):
    """A model's parameters and buffers."""

    parameters: Mapping[str, Tensor] = parameters()


@dataclass(frozen=True)
class Done(Message):
    """A client has worked and has nothing to say."""

    loss: float | None = None
