"""The crossing: everything that happens to a message between a method and the bytes, the same on every engine.

Out: method -> leaving (limits, privacy) -> codec -> bytes, counted. In: bytes -> arriving (faults) -> codec -> guard ->
method, counted. An engine carries the bytes and never looks into them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.wire import envelopes
from fedstill.wire.blob import Declared
from fedstill.wire.codecs import Codecs, Direction, Passage
from fedstill.wire.codecs.error import Error
from fedstill.wire.encoding import Parcel, Parts, Sizes, decode, encode
from fedstill.wire.guard import (
    Expected,
    Form,
    check,
    check_declared,
    check_measured,
    most_bytes,
    most_numbers,
    short,
)
from fedstill.wire.ledger import Ledger
from fedstill.wire.masks import is_masked
from fedstill.wire.messages import KINDS, SERVER, BadMessage, Hello, Kind, M, Message, fields_of

Owed = Callable[[str], tuple[type[Message], ...]]
Leaving = Callable[[Message, Passage], Message]
Arriving = Callable[[bytes, Passage], bytes]
Outgoing = Message | Mapping[str, Message] | None
"""One message for all clients, one for each, or none."""
Histories = dict[str, dict[str, Tensor]]
FormOf = Callable[[str], Form]
"""The parameters of a client's model, by the client's name."""

UNHEARD = "unheard"
"""Where the server remembers whose last reply it could not use: what their codecs remember is not what it has."""
ARRIVALS = 256
"""How many answers `Agreement.arrival` keeps."""


@dataclass(frozen=True)
class Agreement:
    """What server and clients know about messages before any is sent."""

    types: Mapping[str, type[Message]]
    """The types of message that may be sent, by name."""
    owed: Owed
    """The types of message that may be the reply to a verb."""
    dimensions: Mapping[str, int]
    """The sizes that names in declared shapes stand for, such as "labels"."""
    public_fingerprint: str
    rounds: int
    codecs: Codecs = field(default_factory=Codecs)
    required: frozenset[str] = frozenset()
    """The optional fields of replies, as `Type.field`, that the method reads."""
    rows_are_drawn: bool = True
    """Whether clients may train on fewer rows than they have."""

    def possible(self, verb: str) -> list[type[Message]]:
        """The types of message that can arrive as the reply to a verb."""
        return [cls for cls in self.types.values() if issubclass(cls, self.owed(verb))] or [Message]

    @cached_property
    def arrival(self) -> Callable[[str | None, int], Arrival]:
        """What is known of the replies to a verb, asked about so many rows, before any; None: of a server's calls.

        Conversations ask for the same thousands of times.
        """
        return lru_cache(ARRIVALS)(self._arrival)

    def _arrival(self, verb: str | None, asked: int) -> Arrival:
        possible = list(self.types.values()) if verb is None else self.possible(verb)
        expected = Expected(
            dimensions={**self.dimensions, "asked": asked},
            agreed={"public_fingerprint": self.public_fingerprint},
            required=self.required if verb is not None else frozenset(),
            coded=self.coded,
            rows_are_drawn=self.rows_are_drawn,
        )
        return Arrival(possible, expected, self.sends_parameters(possible))

    @cached_property
    def coded(self) -> frozenset[Kind]:
        """The kinds of field that have a codec."""
        return frozenset(kind for kind in KINDS if self.codecs.of(kind) is not None)

    def sends_parameters(self, types: Iterable[type[Message]]) -> bool:
        """Whether messages of these types can hold the parameters of a model."""
        return any(item.metadata.get("of_model") for cls in types for item in fields_of(cls))

    @property
    def largest_opinion(self) -> int:
        """The most numbers that an array of opinions can have."""
        sizes = self.dimensions
        return max(sizes.get("public", 0), sizes.get("labelled", 0)) * sizes.get("labels", 0)


@dataclass(frozen=True)
class Arrival:
    """The types of message that can arrive, and what they must be like."""

    possible: Sequence[type[Message]]
    expected: Expected
    has_parameters: bool
    """Whether one can hold the parameters of a model: then it must also be of the sender's form."""

    @property
    def most_bytes(self) -> int:
        """The most bytes that it can have."""
        return max(most_bytes(cls, self.expected) for cls in self.possible)


class End(Protocol):
    """What the crossing needs of a party."""

    name: str
    wire: Histories
    """What codecs remember; part of the party's state."""


class Crossing:
    """One party's end of the crossing. The server's end counts bytes in both directions; clients count nothing."""

    def __init__(
        self,
        agreement: Agreement,
        end: End,
        ledger: Ledger | None = None,
        leaving: Sequence[Leaving] = (),
        arriving: Sequence[Arriving] = (),
        form_of: FormOf | None = None,
    ) -> None:
        self.agreement, self.end, self.ledger = agreement, end, ledger
        self.leaving, self.arriving, self.form_of = leaving, arriving, form_of

    # The server's side: calls go out, replies come in

    def calls(
        self, verb: str, message: Outgoing, names: Sequence[str], round: int, more: Mapping[str, Any] | None = None
    ) -> dict[str, bytes]:
        """The bytes for each client; a message for several clients is encoded and counted once.

        `more` is for the envelope.
        """
        calls: dict[str, bytes] = {}
        for own, receivers in _groups(message, names):
            unheard = [name for name in receivers if name in self.end.wire.get(UNHEARD, {})]
            envelope = {"verb": verb, "round": round, **({"afresh": unheard} if unheard else {}), **(more or {})}
            raw, error = self._pack(own, envelope, receivers, round - 1)
            self._count("down", verb, own, raw, len(receivers), error)
            calls |= dict.fromkeys(receivers, raw)
        return calls

    def reply(self, raw: bytes, name: str, verb: str, round: int, asked: int = -1) -> Parcel:
        """A client's reply; raises BadMessage if it is not as agreed. `asked`: how many rows it was asked about."""
        owed, arrival = self.agreement.owed(verb), self._arrival(name, verb, asked)
        parcel = self._unpack(raw, self._passage(name, [SERVER], round), arrival)
        message, envelope = parcel.message, parcel.envelope
        if "packed" in envelope:
            envelope |= envelopes.unpack(envelope.pop("packed"))
        if message is None:
            raise BadMessage(f"an empty reply: {verb} returned nothing.")
        if envelope.get("round") != round:
            raise BadMessage(f"a reply for round {short(envelope.get('round'))} in round {round}.")
        if isinstance(message, Hello) != (verb == "hello") or not isinstance(message, owed):
            raise BadMessage(f"{type(message).__name__} is no reply to {verb}.")
        if asked > 0 and Message not in owed and not _is_of_rows(type(message)) and any(map(_is_of_rows, owed)):
            raise BadMessage(f"{type(message).__name__} says nothing about the {asked} rows asked about.")
        check(message, arrival.expected)
        check_measured(envelope.setdefault("metrics", []), envelope.setdefault("notes", []), self.agreement.rounds + 1)
        error = Error.from_json(envelope.pop("error")) if "error" in envelope else None
        self.end.wire.get(UNHEARD, {}).pop(name, None)
        self._count("up", verb, message, raw, error=error)
        return parcel

    def guard(self, message: Message, name: str, verb: str, asked: int = -1) -> None:
        """Raise BadMessage if this message of a client is not as agreed."""
        check(message, self._arrival(name, verb, asked).expected)

    def most_bytes(self, name: str, verb: str, asked: int = -1) -> int:
        """The most bytes that a client's reply can have."""
        return self._arrival(name, verb, asked).most_bytes

    def forget(self, names: Iterable[str]) -> None:
        """No differences to and from these parties next time: nobody knows what arrived."""
        for name in names:
            for history in self.end.wire.values():
                history.pop(f"to/{name}", None)
            if self.end.name == SERVER:
                self.end.wire.setdefault(UNHEARD, {})[name] = torch.tensor(True)

    def as_received(self, message: M, round: int) -> M:
        """A round's message as clients will decode it; nothing is sent."""
        passage, nothing = self._passage(SERVER, [], round), type(self)(self.agreement, _Nobody())
        return cast(M, nothing._unpack(nothing._encode(message, {}, passage)[0], passage).message)

    # A client's side: a call comes in, a reply goes out

    def call(self, raw: bytes) -> Parcel:
        """The server's call; raises BadMessage if it is not as agreed."""
        arrival = self._arrival(self.end.name, None)
        parcel = self._unpack(raw, self._passage(SERVER, [self.end.name], 0), arrival)
        verb, round = parcel.envelope.get("verb"), parcel.envelope.get("round")
        if not isinstance(verb, str) or type(round) is not int:
            raise BadMessage("a call without a verb, or without a round.")
        if parcel.message is not None:
            check(parcel.message, arrival.expected)
        if (unheard := parcel.envelope.pop("afresh", None)) and isinstance(unheard, list) and self.end.name in unheard:
            self.forget([SERVER])
        return parcel

    def answer(self, message: Message | None, envelope: Mapping[str, Any], round: int) -> bytes:
        """The bytes of a reply."""
        return self._pack(message, envelope, [SERVER], round)[0]

    # Both sides

    def _passage(self, sender: str, receivers: Sequence[str], round: int) -> Passage:
        agreement = self.agreement
        direction: Direction = "down" if sender == SERVER else "up"
        return Passage(direction, sender, tuple(receivers), round, agreement.rounds)

    def _pack(
        self, message: Message | None, envelope: Mapping[str, Any], to: Sequence[str], round: int
    ) -> tuple[bytes, Error | None]:
        if message is None or not (self.leaving or self.agreement.coded):
            return encode(message, envelope), None
        passage = self._passage(self.end.name, to, round)
        for step in self.leaving:
            message = step(message, passage)
        return self._encode(message, envelope, passage)

    def _encode(self, message: Message, envelope: Mapping[str, Any], passage: Passage) -> tuple[bytes, Error | None]:
        """The bytes, and what codecs changed; a client tells it in the envelope, since the server keeps the ledger."""
        errors: list[Error] = []
        is_packed = passage.direction == "up" and bool(self.agreement.coded)
        outside = {"packed": envelopes.pack(envelope)} if is_packed else dict(envelope)

        def code(name: str, value: Tensor) -> Parts | None:
            kind = _kind(type(message), name)
            codec = self.agreement.codecs.of(kind)
            if codec is None or not value.is_floating_point():
                return None
            with self._history(f"sent {name}") as history:
                before = dict(history)
                try:
                    parts = codec.encode(value, passage, history)
                except FedstillError as error:
                    raise FedstillError(f"{name}: {error}") from error
            if parts is not None:
                own = Error.of(kind, value, codec.decode(parts, _sized(passage, kind), before))
                errors[:] = [errors[0] + own if errors else own]
                if is_packed:  # the envelope is written after the arrays
                    outside["packed"] = envelopes.pack({**envelope, "error": errors[0].as_json()})
            return parts

        raw = encode(message, outside, code)
        return raw, errors[0] if errors else None

    def _unpack(self, raw: bytes, passage: Passage, arrival: Arrival | None = None) -> Parcel:
        expected = None if arrival is None else arrival.expected

        def admit(cls: type[Message], arrays: Mapping[str, Declared]) -> None:
            if expected is not None:
                check_declared(cls, arrays, expected)

        def restore(cls: type[Message], name: str, parts: Parts) -> Tensor:
            kind = _kind(cls, name)
            codec = self.agreement.codecs.of(kind)
            if codec is None:
                raise BadMessage(f"{cls.__name__}.{name} is coded, and no codec was agreed on.")
            with self._history(f"{name} from {passage.sender}") as history:
                return codec.decode(parts, replace(passage, largest=largest(cls, name)), history)

        def largest(cls: type[Message], name: str) -> int | None:
            base, _, key = name.partition("/")
            found = None if expected is None else most_numbers(cls.__dataclass_fields__[base], key, expected)
            return self.agreement.largest_opinion if found is None and _kind(cls, name) == "opinions" else found

        for step in self.arriving:
            raw = step(raw, passage)
        if arrival is not None and len(raw) > (most := arrival.most_bytes):
            raise BadMessage(f"a message of {len(raw):,} bytes, and {most:,} at most are expected.")
        return decode(raw, self.agreement.types, restore, admit)

    def _arrival(self, client: str, verb: str | None, asked: int = -1) -> Arrival:
        """What a reply to this verb, or a call, from or to this client must be like."""
        arrival = self.agreement.arrival(verb, asked)
        if self.form_of is None or not arrival.has_parameters:
            return arrival
        return replace(arrival, expected=replace(arrival.expected, form=self.form_of(client)))

    @contextmanager
    def _history(self, name: str) -> Iterator[dict[str, Tensor]]:
        """The history under this name; it is stored only if it is not empty afterwards."""
        history = self.end.wire.get(name, {})
        yield history
        if history:
            self.end.wire[name] = history

    def _count(
        self,
        direction: Direction,
        verb: str,
        message: Message | None,
        raw: bytes,
        receivers: int = 1,
        error: Error | None = None,
    ) -> None:
        if self.ledger is not None:
            sizes = Sizes.of(message, raw)
            if is_masked(type(message)):
                sizes = Sizes(sizes.payload + sizes.indices, 0, sizes.header)
            self.ledger.count(direction, verb, type(message).__name__, sizes, len(raw), receivers, error)


@dataclass
class _Nobody:
    """Takes the place of a party when nothing shall be remembered."""

    name: str = SERVER
    wire: Histories = field(default_factory=dict)


def _sized(passage: Passage, kind: Kind | None) -> Passage:
    """The largest opinion says nothing about parameters."""
    return passage if kind == "opinions" else replace(passage, largest=None)


def asked_of(message: Outgoing, names: Sequence[str]) -> dict[str, int]:
    """The number of rows that a call asks each client about; -1 if the call has no `rows`."""
    if not isinstance(message, Mapping):
        return dict.fromkeys(names, _asked(message))
    return {name: _asked(message.get(name)) for name in names}


def _asked(message: Message | None) -> int:
    rows = getattr(message, "rows", None)
    return -1 if rows is None else len(rows)


def _groups(message: Outgoing, names: Sequence[str]) -> list[tuple[Message | None, list[str]]]:
    """The clients that receive equal messages; compared by content, since after a resume equal messages are copies."""
    if not isinstance(message, Mapping):
        return [(message, list(names))] if names else []
    encoded: dict[int, bytes] = {}
    groups: dict[bytes, tuple[Message | None, list[str]]] = {}
    for name in names:
        own = message.get(name)
        if id(own) not in encoded:
            encoded[id(own)] = encode(own)
        groups.setdefault(encoded[id(own)], (own, []))[1].append(name)
    return list(groups.values())


def _is_of_rows(cls: type[Message]) -> bool:
    """Whether such a message has something for every row that was asked about."""
    return any("asked" in item.metadata.get("shape", ()) for item in fields_of(cls))


def _kind(cls: type[Message], name: str) -> Kind | None:
    """The kind of the field that a tensor belongs to; the tensor's name is `field`, or `field/key`."""
    found = cls.__dataclass_fields__.get(name.partition("/")[0])
    return None if found is None else found.metadata.get("kind")
