"""The server's side of masks: who is in a call's circle, and the sum of what came back, without those who were lost."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from fedstill.algorithms.base import Algorithm, Answers
from fedstill.plan.plan import Plan
from fedstill.wire.blends import Blending
from fedstill.wire.crossing import Crossing
from fedstill.wire.guard import Form
from fedstill.wire.masks import CIRCLE, REVEAL, SESSION, Circle, Lost, MaskSpec, Seeds, check_key, is_masked, means
from fedstill.wire.messages import BadMessage, Hello, Message
from fedstill.wire.replies import Failure, Replies
from fedstill.wire.summed import MaskedReplies, level


class Exchange(Protocol):
    """What masks need of a conductor."""

    plan: Plan
    algorithm: Algorithm
    crossing: Crossing
    clients: Mapping[str, Hello]
    round: int

    def exchange(
        self, verb: str, message: Answers, names: Sequence[str], more: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Message], list[Failure]]:
        """The usable replies by client, and the failures of all other clients."""

    def check_quorum(self, names: Sequence[str], messages: Mapping[str, Message], failures: Sequence[Failure]) -> None:
        """Raise if too few answered."""

    def blending_now(self) -> Blending:
        """How replies are blended."""

    def form_of(self, client: str) -> Form:
        """The form of the parameters that a client can send."""


class Masking:
    """Announces circles, and opens sums."""

    def __init__(self, around: Exchange, spec: MaskSpec) -> None:
        self.around, self.spec = around, spec
        is_real = around.plan.experiment.engine == "flare"
        self.session = secrets.token_hex(16) if is_real else "simulation"
        """A federation that begins again after an interruption must not use the same masks again."""
        self.weighed = around.algorithm.masked_weights()
        self.last: Circle | None = None

    def announce(self, verb: str, names: Sequence[str]) -> dict[str, Any] | None:
        """What a call's envelope says about masks."""
        if verb == "hello":
            return {SESSION: self.session}
        owed = self.around.crossing.agreement.owed(verb)
        if not any(is_masked(kind) or kind is Message for kind in owed):
            return None
        asked = Replies({name: Message() for name in names}, self.around.clients, (), self.around.blending_now())
        most, total = level(asked, self.weighed)
        before, round = self.last, self.around.round
        self.last = Circle(
            session=self.session,
            round=round,
            verb=verb,
            number=before.number + 1 if before is not None and before.round == round else 0,
            keys={name: _key(self.around.clients[name]).hex() for name in names},
            most=most,
            total=total,
        )
        return {CIRCLE: self.last.as_json()}

    def examine(self, hello: Hello) -> None:
        """Refuse a client without a key, or with one that would spoil everybody's masks."""
        check_key(_key(hello))

    def opened(self, asked: Sequence[str], messages: dict[str, Message], failures: list[Failure]) -> MaskedReplies[Any]:
        """The mean of the masked replies. Who has not answered by now is lost for this call, whatever comes later.

        The others tell what they share with the lost; one who does not is lost too, and its reply is left out.
        """
        circle = self.last
        assert circle is not None
        kind = type(next(said for said in messages.values() if is_masked(type(said))))
        for name in [name for name, said in messages.items() if type(said) is not kind]:
            failures.append(Failure(name, "its reply is not masked as those of others."))
            del messages[name]
        seeds: dict[tuple[str, str], bytes] = {}
        newly = sorted(set(asked) - set(messages))
        while newly:
            lost = Lost(torch.tensor([circle.names.index(name) for name in newly]))
            told, failed = self.around.exchange(REVEAL, lost, sorted(messages), {CIRCLE: circle.as_json()})
            for name, said in told.items():
                seeds |= {(name, other): seed for other, seed in zip(newly, _seeds(said), strict=True)}
            failures += failed
            newly = [failure.client for failure in failed]
            for name in newly:
                del messages[name]
            self.around.check_quorum(asked, messages, failures)
        kept = {pair: seed for pair, seed in seeds.items() if pair[0] in messages}
        found = means(messages, kept, self.spec, self._integers(messages))
        who = {name: Message() for name in messages}
        return MaskedReplies(
            who, self.around.clients, tuple(failures), self.around.blending_now(), means=found, weighed=self.weighed
        )

    def _integers(self, messages: Mapping[str, Message]) -> list[str]:
        """The arrays of integers among a model's parameters."""
        name, said = next(iter(messages.items()))
        fields = [item.name for item in type(said).__dataclass_fields__.values() if item.metadata.get("of_model")]
        form = self.around.form_of(name) if fields else {}
        return [f"{field}/{key}" for field in fields for key, (_, is_float) in form.items() if not is_float]


def _key(hello: Hello) -> bytes:
    if hello.key is None:
        raise BadMessage("it sends no key, and replies are masked.")
    return bytes(hello.key.tolist())


def _seeds(message: Message) -> list[bytes]:
    assert isinstance(message, Seeds)
    return [bytes(seed) for seed in message.seeds.tolist()]
