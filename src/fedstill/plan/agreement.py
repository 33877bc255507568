"""What server and clients agree on about messages, derived from the algorithm's class."""

from __future__ import annotations

import difflib
import inspect
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
        near = difflib.get_close_matches(verb, [name for name in dir(type(algorithm)) if not name.startswith("_")], n=1)
        raise FedstillError(
            f"{type(algorithm).__name__} has no verb {verb!r}{f'; did you mean {near[0]!r}?' if near else '.'}"
        )
    return method  # type: ignore[no-any-return]


def owed(algorithm: Algorithm, verb: str) -> tuple[type[Message], ...]:
    """The types of message that a verb's method is annotated to return; for `turn`, those of `opine`."""
    for method in (verb_of(algorithm, verb), algorithm.opine) if verb == "turn" else (verb_of(algorithm, verb),):
        if kinds := _promised(method):
            return tuple(kinds)
    return (Message,)


def check_messages(algorithm: Algorithm) -> None:
    """Refuse a method whose `messages` lack something that it sends: it would fail only when it first sends it."""
    cls = type(algorithm)
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if name.startswith("_") or getattr(Algorithm, name, None) is method:
            continue
        for kind in _promised(method):
            if not issubclass(kind, (Hello, *cls.messages)):
                raise FedstillError(
                    f"{cls.__name__}.{name} returns a {kind.__name__}, which is not among its messages: write "
                    f"`{_with(cls, kind)}`."
                )
    ends = "round" if cls.round is not Algorithm.round else "server"
    if cls.finish is Algorithm.finish and _answers(getattr(cls, ends)):
        for kind in _promised(cls.close):
            if kind not in cls.messages:
                raise FedstillError(
                    f"{cls.__name__}: after the last round every client digests the answer and says {kind.__name__}, "
                    f"which is not among its messages: write `{_with(cls, kind)}` (or annotate `{ends}` with "
                    "`-> None` if it never answers)."
                )


def _promised(method: Callable[..., object]) -> list[type[Message]]:
    """The kinds of message that a method is annotated to return; none if it may be any."""
    try:
        promised = get_type_hints(method).get("return", Message)
    except NameError:  # a user's class may import an annotation for type checkers only
        return []
    alternatives = get_args(promised) or (promised,)
    kinds = [kind for kind in alternatives if isinstance(kind, type) and issubclass(kind, Message)]
    return [] if Message in kinds else kinds


def _answers(method: Callable[..., object]) -> bool:
    """Whether a method may return an answer: it does not if it is annotated with None."""
    try:
        return get_type_hints(method).get("return", Message) is not type(None)
    except NameError:
        return True


def _with(cls: type[Algorithm], kind: type[Message]) -> str:
    return f"messages = ({', '.join(each.__name__ for each in (*cls.messages, kind))})"


def owed_masked(algorithm: Algorithm, verb: str) -> tuple[type[Message], ...]:
    """The same where replies are masked."""
    return (Seeds,) if verb == REVEAL else tuple(masked(kind) or kind for kind in owed(algorithm, verb))
