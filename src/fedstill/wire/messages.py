"""Messages: flat frozen dataclasses of numbers, strings, arrays, or mappings from names to arrays.

A field says what it holds, so that the guard can check it and a codec can shrink it, whatever the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, TypeVar

from torch import Tensor

from fedstill.common.errors import FedstillError

STAGES = ("trained", "distilled", "processed")
"""The parts of a round after which parties are measured, in order."""

SERVER = "server"
"""The server's name among the parties."""

Kind = Literal["opinions", "parameters"]
"""The kinds of field that a codec can be chosen for."""
KINDS: tuple[Kind, ...] = ("opinions", "parameters")
Holds = Literal["floats", "integers"]
"""What the numbers of an array are."""

MOST_ROWS = 10**9
"""The most rows that a client can have."""
MOST_LOGIT = 1e6
"""The largest logit, of either sign: a blend of larger ones has no digits left for those of others."""
MOST_LOSS = 1e12
"""The largest loss."""
MOST_PARAMETER = 1e12
"""The largest parameter, of either sign."""


class BadMessage(FedstillError):
    """A message that is not as agreed."""


@dataclass(frozen=True)
class Message:
    """The base class of all messages."""


M = TypeVar("M", bound=Message)


def fields_of(cls: type[Message]) -> tuple[Field[Any], ...]:
    """The fields of a type of message, which `dataclasses.fields` would gather anew for every message."""
    if cls not in _fields:
        _fields[cls] = fields(cls)
    return _fields[cls]


_fields: dict[type[Message], tuple[Field[Any], ...]] = {}


def number(least: float, most: float, optional: bool = False) -> Any:
    """A field for an integer or a float in this range."""
    about = {"least": least, "most": most}
    return field(default=None, metadata=about) if optional else field(metadata=about)


def array(
    *shape: str | int,
    optional: bool = False,
    kind: Kind | None = None,
    holds: Holds | None = None,
    least: float | None = None,
    most: float | None = None,
    below: str | None = None,
) -> Any:
    """A field for an array; the guard checks its shape, in which "public" is the number of public samples, and so on.

    "asked" is the length of the field `rows` in the call that the message replies to. `least` and `most` limit its
    numbers; `below` names the dimension that they count, such as "public" for the numbers of public samples.
    """
    limits = {"least": 0 if below is not None else least, "most": most, "below": below}
    about: dict[str, Any] = {"shape": shape, "kind": kind, "holds": "integers" if below is not None else holds}
    about |= {name: limit for name, limit in limits.items() if limit is not None}
    return field(default=None, metadata=about) if optional else field(metadata=about)


def opinions(*shape: str | int, optional: bool = False) -> Any:
    """A field for an array of a model's logits or probabilities for samples: a codec may shrink it."""
    return array(*shape, optional=optional, kind="opinions", holds="floats", least=-MOST_LOGIT, most=MOST_LOGIT)


def parameters(optional: bool = False, coded: bool = True, whole: bool = True) -> Any:
    """A field for a mapping of a model's parameters, or of changes to them: a codec may shrink it if it is `coded`.

    `whole`: the names and shapes are those of the client's model, no more and no less.
    """
    about: dict[str, Any] = {"kind": "parameters" if coded else None, "of_model": True, "whole": whole}
    about |= {"least": -MOST_PARAMETER, "most": MOST_PARAMETER}
    return field(default=None, metadata=about) if optional else field(metadata=about)


@dataclass(frozen=True)
class Hello(Message):
    """What a client tells about itself before the first round."""

    size: int = number(1, MOST_ROWS)
    label_counts: Tensor | None = array("labels", optional=True, holds="integers", least=0, most=MOST_ROWS)
    architecture: str = ""
    public_fingerprint: str = field(default="", metadata={"agreed": True})
    unlike: float | None = number(0, 1, optional=True)
    """How well words alone tell its rows from the public ones: 0.5, as a coin would, to 1."""
    key: Tensor | None = array(32, optional=True, holds="integers", least=0, most=255)
    """Its public key, where replies are masked."""


@dataclass(frozen=True)
class Opinion(Message):
    """A client's predictions for the public samples, and how well it fits its own rows."""

    logits: Tensor = opinions("public", "labels")
    loss: float | None = number(0, MOST_LOSS, optional=True)
    class_losses: Tensor | None = array("labels", optional=True, holds="floats", least=-1, most=MOST_LOSS)
    """-1 for a class that the client has no rows of."""
    f1: float | None = number(0, 1, optional=True)
    labelled_logits: Tensor | None = opinions("labelled", "labels", optional=True)
    competence: Tensor | None = array("public", optional=True, holds="floats", least=0)


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

    loss: float | None = number(0, MOST_LOSS, optional=True)
