"""What server and clients agree on about messages, derived from the algorithm's class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import get_args, get_type_hints

from fedstill.algorithms.base import Algorithm
from fedstill.common.errors import FedstillError
from fedstill.wire.codecs import Codecs
from fedstill.wire.crossing import Agreement
from fedstill.wire.masks import REVEAL, Lost, Seeds, masked
from fedstill.wire.messages import Hello, Message


def agree(
    algorithm: Algorithm,
    dimensions: Mapping[str, int],
    public_fingerprint: str,
    rounds: int,
    codecs: Codecs,
    rows_are_drawn: bool = True,
    mask: bool = False,
) -> Agreement:
    """The messages that this algorithm may send, and their shapes."""
    types: list[type[Message]] = [Hello, *algorithm.messages]
    owe = partial(owed, algorithm)
    if mask:
        types += [Lost, Seeds, *filter(None, map(masked, algorithm.messages))]
        owe = partial(owed_masked, algorithm)
    return Agreement(
        types={cls.__name__: cls for cls in types},
        owed=cache(owe),
        dimensions=dimensions,
        public_fingerprint=public_fingerprint,
        rounds=rounds,
        codecs=codecs,
        required=algorithm.reads(),
        rows_are_drawn=rows_are_drawn,
    )


def verb_of(algorithm: Algorithm, verb: str) -> Callable[..., Message | None]:
    """The method of the algorithm's class that a call names; nothing else can be called."""
    method = getattr(type(algorithm), verb, None)
    if verb.startswith("_") or not callable(method):
        raise FedstillError(f"{type(algorithm).__name__} has no verb {verb!r}.")
    return method  # type: ignore[no-any-return]


def owed(algorithm: Algorithm, verb: str) -> tuple[type[Message], ...]:
    """The types of message that a verb's method is annotated to return; for `turn`, those of `opine`."""
    for method in (verb_of(algorithm, verb), algorithm.opine) if verb == "turn" else (verb_of(algorithm, verb),):
        try:
            promised = get_type_hints(method).get("return", Message)
        except NameError:  # a user's class may import an annotation for type checkers only
            continue
        kinds = tuple(k for k in get_args(promised) or (promised,) if isinstance(k, type) and issubclass(k, Message))
        if kinds and Message not in kinds:
            return kinds
    return (Message,)


def owed_masked(algorithm: Algorithm, verb: str) -> tuple[type[Message], ...]:
    """The same where replies are masked."""
    return (Seeds,) if verb == REVEAL else tuple(masked(kind) or kind for kind in owed(algorithm, verb))
