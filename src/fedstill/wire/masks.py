"""Masks: of every pair of clients one adds and one subtracts the same random numbers, so that only the sum can be read.

A reply becomes 32-bit integers: value x share of the weight x scale, plus the masks of the pairs, modulo 2^32. In the
sum over all clients the masks cancel exactly. What a pair shares depends on everything that was announced for the call
(its `Circle`): the masks of clients that were told different things do not cancel.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from fedstill.common.errors import FedstillError
from fedstill.common.settings import Settings
from fedstill.wire.messages import BadMessage, Hello, Message, array

REVEAL = "reveal"
"""The verb that asks for what a client shares with those who are lost; every client understands it."""
KEY_BYTES = 32
ONE = 1 << 30
"""The whole weight, as an integer: shares of it travel under masks too."""
WIDEST = (1 << 31) - (1 << 16)
"""The largest sum of values, as an integer: what is left below 2^31 is for the rounding of up to 130,000 clients."""
FEWEST = 2
"""A sum of one client's reply is that reply."""
CIRCLE = "circle"
SESSION = "session"

Words = npt.NDArray[np.uint32]


class MaskSpec(Settings):
    """`range`: numbers beyond it, of either sign, are cut off; the sum is exact to range / 2^31."""

    range: float = Field(256.0, gt=0, allow_inf_nan=False)

    @property
    def scale(self) -> float:
        """What numbers are multiplied by."""
        return WIDEST / self.range


@dataclass(frozen=True)
class Lost(Message):
    """The clients that are lost, as their places in the circle."""

    rows: Tensor = array("lost", holds="integers", least=0, most=1 << 31)


@dataclass(frozen=True)
class Seeds(Message):
    """What a client shares with the clients that are lost, for one call only."""

    seeds: Tensor = array("asked", KEY_BYTES, holds="integers", least=0, most=255)


@dataclass(frozen=True)
class Circle:
    """The clients whose masks cancel in one call, and how they weigh; all of them must be told the same."""

    session: str
    round: int
    verb: str
    number: int
    """Of the masked call in its round."""
    keys: Mapping[str, str]
    """The public key of every client that is asked, as hexadecimal digits."""
    most: float
    """No client counts for more rows than this; 1: all count the same."""
    total: float
    """The rows that all count for together."""

    @classmethod
    def of_json(cls, values: object) -> Circle:
        """The circle that a call announces; raises BadMessage if it is none."""
        try:
            circle = cls(**values)  # type: ignore[arg-type]
            is_right = all(type(part) is str for pair in circle.keys.items() for part in pair)
            is_right &= circle.most > 0 and circle.total > 0 and math.isfinite(circle.most + circle.total)
        except (TypeError, AttributeError) as error:
            raise BadMessage("the call announces no circle of masks.") from error
        if not is_right or len(circle.keys) < FEWEST:
            raise BadMessage(f"masks need at least {FEWEST} clients, each with a key, and a weight.")
        return circle

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @cached_property
    def digest(self) -> bytes:
        """Of everything in it."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).digest()

    @property
    def names(self) -> list[str]:
        """The clients in it, in order."""
        return sorted(self.keys)

    def share(self, size: int) -> float:
        """How much a client with so many rows counts, as a share of the whole."""
        return min(1.0, min(size, self.most) / self.total)


# Keys


def check_installed() -> None:
    """Refuse masks where the package for keys is not installed."""
    if find_spec("cryptography") is None:
        raise FedstillError('wire.mask needs keys: run `pip install "fedstill[privacy]"` first.')


def secret_of(master: bytes, session: str) -> bytes:
    """A client's private key for one session: a run that begins again must not use its masks again."""
    return _derived(master, f"fedstill key {session}".encode())


def public_key(secret: bytes) -> bytes:
    """The public key of a private one."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def check_key(key: bytes) -> None:
    """Refuse a public key with which nobody could share anything."""
    _shared(bytes([1]) * KEY_BYTES, key)


def pair_seed(secret: bytes, other: str, circle: Circle) -> bytes:
    """What this client and another share for one call."""
    try:
        key = bytes.fromhex(circle.keys[other])
    except (KeyError, ValueError) as error:
        raise BadMessage(f"there is no key of {other[:60]!r}.") from error
    return _derived(_shared(secret, key), b"fedstill masks " + circle.digest)


def _shared(secret: bytes, key: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError as error:
        raise BadMessage("a key for masks that is none.") from error


def _derived(material: bytes, purpose: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose).derive(material)


class Pad:
    """The random numbers of one pair, in order: ChaCha20 under the pair's seed, which is used once."""

    def __init__(self, seed: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        self._stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()

    def take(self, many: int) -> Words:
        """The next numbers."""
        return np.frombuffer(self._stream.update(bytes(4 * many)), dtype="<u4")


# Messages under masks


def masked(cls: type[Message]) -> type[Message] | None:
    """The type that a message of opinions or parameters has under masks; None for one that holds neither.

    It has the same arrays, of integers, and the client's share of the weight; nothing else of the message is in it.
    """
    if cls not in _masked:
        _masked[cls] = _masked_type(cls)
    return _masked[cls]


_masked: dict[type[Message], type[Message] | None] = {}


def _masked_type(cls: type[Message]) -> type[Message] | None:
    kinds, limits = get_type_hints(cls), {"least": -(1 << 31), "most": (1 << 31) - 1, "holds": "integers"}
    parts: list[tuple[str, Any, Any]] = [("weight", Tensor, array(1, **limits))]  # type: ignore[arg-type]
    for item in hidden_fields(cls):
        about = {**item.metadata, **limits, "kind": None}
        default = {} if item.default is MISSING else {"default": item.default}
        parts.append((item.name, kinds[item.name], field(metadata=about, **default)))
    if len(parts) == 1:
        return None
    return make_dataclass(f"Masked{cls.__name__}", parts, bases=(Message,), frozen=True, namespace={"hides": cls})


def is_masked(cls: type) -> bool:
    """Whether messages of this type are under masks."""
    return hasattr(cls, "hides")


def hidden_fields(cls: type[Message]) -> list[Any]:
    """The fields with opinions or parameters."""
    return [item for item in fields(cls) if item.metadata.get("kind") or item.metadata.get("of_model")]


def arrays_of(message: Message) -> dict[str, Tensor]:
    """Every array of a message, by `field` or `field/key`, in the order of the names."""
    return dict(sorted(_arrays(message)))


def _arrays(message: Message) -> Iterator[tuple[str, Tensor]]:
    for item in fields(message):
        value = getattr(message, item.name)
        if isinstance(value, Mapping):
            yield from ((f"{item.name}/{key}", part) for key, part in value.items())
        elif isinstance(value, Tensor):
            yield item.name, value


def with_arrays(cls: type[Message], arrays: Mapping[str, Tensor]) -> Message:
    """A message of this type with these arrays."""
    values: dict[str, Any] = {}
    for name, value in arrays.items():
        base, is_part, key = name.partition("/")
        if is_part:
            values.setdefault(base, {})[key] = value
        else:
            values[base] = value
    return cls(**values)


# A client's side


@dataclass(frozen=True)
class Veil:
    """What a client puts over its reply to one call; the envelope is that of the call."""

    name: str
    size: int
    master: bytes
    """The secret that its keys are made of; it never leaves."""
    spec: MaskSpec
    envelope: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    def over(self, message: Message, passage: object = None) -> Message:
        """The reply as it leaves: Hello gets the public key, opinions and parameters are masked."""
        if isinstance(message, Hello):
            key = public_key(secret_of(self.master, str(self.envelope.get(SESSION))))
            return Hello(**{**vars(message), "key": torch.tensor(list(key), dtype=torch.uint8)})
        kind = masked(type(message))
        return message if kind is None else self._masked(message, kind)

    def reveal(self, asked: Message | None) -> Seeds:
        """What it shares with the clients that are lost, for this call; never so that one reply would be left alone."""
        circle, rows = self.circle, asked.rows.tolist() if isinstance(asked, Lost) else []
        names = dict(enumerate(circle.names))
        if not rows or not set(rows) <= set(names) or self.name in [names[row] for row in rows]:
            raise BadMessage("the server asks for masks with nobody, or with those who are not in the circle.")
        if len(names) - len(set(rows)) < FEWEST:
            raise BadMessage("too many clients are lost: the sum would show a single reply.")
        secret = secret_of(self.master, circle.session)
        seeds = [list(pair_seed(secret, names[row], circle)) for row in rows]
        return Seeds(torch.tensor(seeds, dtype=torch.uint8))

    @cached_property
    def circle(self) -> Circle:
        """The call's circle, of which this client is one."""
        circle = Circle.of_json(self.envelope.get(CIRCLE))
        if circle.keys.get(self.name) != public_key(secret_of(self.master, circle.session)).hex():
            raise BadMessage(f"the circle of masks has not {self.name}'s key.")
        return circle

    def _masked(self, message: Message, kind: type[Message]) -> Message:
        circle = self.circle
        if (circle.verb, circle.round) != (self.envelope.get("verb"), self.envelope.get("round")):
            raise BadMessage("the circle of masks is that of another call.")
        hidden = {item.name for item in hidden_fields(type(message))}
        if open_ones := [name for name, value in vars(message).items() if value is not None and name not in hidden]:
            raise FedstillError(f"{type(message).__name__}.{open_ones[0]} would leave without a mask.")
        share, secret = circle.share(self.size), secret_of(self.master, circle.session)
        pads = [
            (other > self.name, Pad(pair_seed(secret, other, circle))) for other in circle.keys if other != self.name
        ]
        values = {name: self._fixed(name, value, share) for name, value in arrays_of(message).items()}
        values["weight"] = np.array([round(share * ONE)], dtype=np.uint32)
        shapes = {name: value.shape for name, value in arrays_of(message).items()}
        for _, words in sorted(values.items()):
            for adds, pad in pads:
                shift(words, pad, adds)
        tensors = {name: torch.from_numpy(words.view(np.int32)) for name, words in values.items()}
        return with_arrays(kind, {name: value.reshape(shapes.get(name, (1,))) for name, value in tensors.items()})

    def _fixed(self, name: str, value: Tensor, share: float) -> Words:
        """The value times the share, as integers modulo 2^32; integers count as they are."""
        if not value.is_floating_point():
            return fixed(value.double())
        if not bool(value.isfinite().all()):
            raise FedstillError(f"{name} holds values that are not finite.")
        limit = self.spec.range
        if bool((value.abs() > limit).any()):
            self.notes.append(f"numbers beyond {limit:g} were cut off before they were masked: raise wire.mask.range.")
        return fixed(value.double().clamp(-limit, limit) * (share * self.spec.scale))


def fixed(values: Tensor) -> Words:
    """Numbers rounded to integers, modulo 2^32, in one row."""
    return values.cpu().flatten().round().long().numpy().astype(np.uint32)


def shift(words: Words, pad: Pad, adds: bool) -> None:
    """Add the pair's next numbers, or subtract them, modulo 2^32."""
    if adds:
        words += pad.take(len(words))
    else:
        words -= pad.take(len(words))


# The server's side


def summed(replies: Mapping[str, Message], seeds: Mapping[tuple[str, str], bytes]) -> dict[str, Words]:
    """The sum of masked replies by array, modulo 2^32, without the masks of (who answered, who is lost)."""
    shapes = {name: value.numel() for name, value in arrays_of(next(iter(replies.values()))).items()}
    sums = {name: np.zeros(many, dtype=np.uint32) for name, many in shapes.items()}
    for reply in replies.values():
        for name, value in arrays_of(reply).items():
            sums[name] += value.flatten().numpy().view(np.uint32)
    for (client, lost), seed in seeds.items():
        pad = Pad(seed)
        for words in sums.values():
            shift(words, pad, adds=not lost > client)
    return sums


def means(
    replies: Mapping[str, Message], seeds: Mapping[tuple[str, str], bytes], spec: MaskSpec, integers: Sequence[str] = ()
) -> dict[str, Tensor]:
    """The weighted mean of every array; of those that hold integers, the mean, rounded."""
    sums = {name: torch.from_numpy(words.view(np.int32)).double() for name, words in summed(replies, seeds).items()}
    weight = sums.pop("weight") / ONE
    shapes = {name: value.shape for name, value in arrays_of(next(iter(replies.values()))).items()}
    found = {}
    for name, total in sums.items():
        is_integer = name in integers
        mean = (total / len(replies)).round().long() if is_integer else (total / spec.scale / weight).float()
        found[name] = mean.reshape(shapes[name])
    return found
