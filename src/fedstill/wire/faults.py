"""Faults: clients of a simulation that lie, or whose replies do not arrive as they were sent; for experiments on trust.

Liars know what the honest clients say: they change their replies after these have arrived, before the method sees any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedstill.common.randomness import generator
from fedstill.common.settings import Settings
from fedstill.wire.blends import probabilities, spoken
from fedstill.wire.codecs import Passage
from fedstill.wire.encoding import decode, encode
from fedstill.wire.messages import Hello, Message
from fedstill.wire.replies import Failure

FaultKind = Literal[
    "flip", "scale", "negate", "lma", "cpa", "hips", "collude", "lie", "stale", "drop", "delay", "corrupt"
]
SURE = 1e-4
"""The probability that liars leave to the other classes, where opinions are logits."""
BROKEN_BYTES = 64
UNDER_MASKS: tuple[FaultKind, ...] = ("flip", "drop", "delay", "corrupt")
"""Those that do not change what a reply says after it has arrived."""


class Fault(Settings):
    """One kind of fault and the clients that have it: `share` of all, after the first `after` of one seeded order.

    `flip`: trains on labels y + 1 mod C. Opinions: `scale` (times `factor`, also of parameters), `negate`, `lma` (sure
    of the class that the honest mean finds least likely), `cpa` (of the class least correlated with the honest mean's
    first one), `hips` (the honest opinion that is least sure of that one), `collude` (all say what the first of them
    says). `lie`: tells another `loss` or `size`. Replies: `stale` (the one before), `drop`, `delay` (too late to
    count) and `corrupt` (some bytes changed), each with this `chance` in a round.
    """

    kind: FaultKind
    share: float = Field(0.2, ge=0, le=1)
    after: float = Field(0.0, ge=0, lt=1)
    factor: float = 1000.0
    loss: float | None = None
    size: int | None = None
    chance: float = Field(1.0, gt=0, le=1)

    def among(self, clients: Sequence[str], seed: int) -> tuple[str, ...]:
        """The clients that have this fault."""
        order = generator(seed, 0, "federation", "liars").permutation(sorted(clients)).tolist()
        first = round(self.after * len(order))
        return tuple(sorted(order[first : first + round(self.share * len(order))]))


class Faults:
    """The faults of one run."""

    def __init__(self, faults: Sequence[Fault], clients: Sequence[str], seed: int) -> None:
        self.seed = seed
        self.chosen = [(fault, fault.among(clients, seed)) for fault in faults]

    def liars(self) -> dict[str, list[str]]:
        """The kinds of faults of every client that has one."""
        found: dict[str, list[str]] = {}
        for fault, names in self.chosen:
            for name in names:
                found.setdefault(name, []).append(fault.kind)
        return dict(sorted(found.items()))

    def arriving(self, raw: bytes, passage: Passage) -> bytes:
        """A reply's bytes, broken where a fault says so."""
        for fault, names in self.chosen:
            if (
                fault.kind == "corrupt"
                and passage.sender in names
                and self._strikes(fault, passage.sender, passage.round)
            ):
                random = generator(self.seed, passage.round, passage.sender, "broken bytes")
                broken = bytearray(raw)
                for place in random.integers(len(raw), size=BROKEN_BYTES).tolist():
                    broken[place] ^= int(random.integers(1, 256))
                raw = bytes(broken)
        return raw

    def act(
        self,
        verb: str,
        round: int,
        messages: Mapping[str, Message],
        types: Mapping[str, type[Message]],
        memory: dict[str, Tensor],
    ) -> dict[str, Message | Failure]:
        """What liars say instead, or why nothing of theirs arrives; `memory` keeps what `stale` ones said before."""
        said: dict[str, Message | Failure] = dict(messages)
        lying = {name for name, _ in self.liars().items()}
        honest = [message for name, message in messages.items() if name not in lying]
        for fault, names in self.chosen:
            present = [name for name in names if isinstance(said.get(name), Message)]
            for name in present:
                message = said[name]
                assert isinstance(message, Message)
                if fault.kind == "stale":
                    said[name] = _before(f"{name} {verb}", message, types, memory)
                elif fault.kind in ("drop", "delay"):
                    if self._strikes(fault, name, round):
                        said[name] = Failure(
                            name, "its reply was lost." if fault.kind == "drop" else "it was too late."
                        )
                elif fault.kind == "collude":
                    said[name] = _as_first(message, said[present[0]])
                else:
                    said[name] = _changed(fault, message, honest)
        return {name: one for name, one in said.items() if one is not messages[name]}

    def _strikes(self, fault: Fault, client: str, round: int) -> bool:
        """Whether it happens in this round; never before the first, where everybody is needed."""
        return round > 0 and generator(self.seed, round, client, f"fault {fault.kind}").random() < fault.chance


def _before(key: str, message: Message, types: Mapping[str, type[Message]], memory: dict[str, Tensor]) -> Message:
    """The client's reply before this one; the first time, this one."""
    last = memory.get(key)
    memory[key] = torch.frombuffer(bytearray(encode(message)), dtype=torch.uint8)
    found = None if last is None else decode(last.numpy().tobytes(), types).message
    return message if found is None or isinstance(message, Hello) else found


def _as_first(message: Message, first: Message | Failure) -> Message:
    """The message with the opinions and parameters of the first liar's."""
    if type(first) is not type(message):
        return message
    return replace(message, **{name: getattr(first, name) for name, _ in _contents(message)})


def _changed(fault: Fault, message: Message, honest: Sequence[Message]) -> Message:
    """What a liar sends instead of a message of its own."""
    if fault.kind == "lie":
        lies: dict[str, Any] = {"loss": fault.loss, "size": fault.size}
        return replace(
            message, **{k: v for k, v in lies.items() if v is not None and getattr(message, k, None) is not None}
        )
    changes: dict[str, Any] = {}
    for name, value in _contents(message):
        if fault.kind in ("scale", "negate"):
            factor = fault.factor if fault.kind == "scale" else -1.0
            is_opposite = fault.kind == "negate" and isinstance(value, Tensor) and _are_probabilities(value)
            changes[name] = (1 - value) / (value.shape[-1] - 1) if is_opposite else _times(value, factor)
        elif fault.kind in ATTACKS and isinstance(value, Tensor):
            others = [getattr(other, name, None) for other in honest]
            alike = [other for other in others if isinstance(other, Tensor) and other.shape == value.shape]
            if alike:
                changes[name] = _attack(fault.kind, torch.stack(alike)).to(value.dtype)
    return replace(message, **changes)


def _contents(message: Message) -> Iterator[tuple[str, Any]]:
    """The fields with opinions or parameters, by name."""
    for item in fields(message):
        value = getattr(message, item.name)
        if item.metadata.get("kind") is not None and value is not None:
            yield item.name, value


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, Mapping):
        return {name: _times(part, factor) for name, part in value.items()}
    return value * factor if value.is_floating_point() else value


def _are_probabilities(values: Tensor) -> bool:
    """A liar knows the method, and so what opinions hold; here they are looked at."""
    return bool((values >= 0).all()) and bool(((values.sum(-1) - 1).abs() < 1e-2).all())


def _attack(kind: str, honest: Tensor) -> Tensor:
    """What liars say where honest clients say [K, N, C]."""
    holds: Literal["logits", "probabilities"] = "probabilities" if _are_probabilities(honest) else "logits"
    wrong = ATTACKS[kind](probabilities(honest, holds))
    return spoken(wrong.clamp(min=SURE) if holds == "logits" else wrong, holds)


def _least_likely(said: Tensor) -> Tensor:
    """LMA: one-hot on the class that the mean finds least likely."""
    return _one_hot(said.mean(0).argmin(-1), said)


def _least_correlated(said: Tensor) -> Tensor:
    """CPA: one-hot on the class whose mean probability varies least like that of the mean's first class."""
    mean = said.mean(0)
    return _one_hot(torch.corrcoef(mean.T).nan_to_num(0.0).argmin(-1)[mean.argmax(-1)], said)


def _inside_the_hull(said: Tensor) -> Tensor:
    """HIPS: on each sample, the honest opinion with the least probability of the mean's first class."""
    first = said.mean(0).argmax(-1)
    sure = said.gather(-1, first[None, :, None].expand(len(said), -1, 1)).squeeze(-1)
    return said[sure.argmin(0), torch.arange(said.shape[1])]


def _one_hot(classes: Tensor, said: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(classes, said.shape[-1]).double()


ATTACKS: dict[str, Callable[[Tensor], Tensor]] = {
    "lma": _least_likely,
    "cpa": _least_correlated,
    "hips": _inside_the_hull,
}
