"""What an algorithm is: hooks for both sides of a round, and the messages that travel between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import Field

from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.codecs import Codecs
from fedstill.wire.messages import Answer, Done, Hello, M, Message, Opinion
from fedstill.wire.replies import Replies

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Numbers as options want them; checked when an algorithm is made from an experiment."""

Role = Literal["method", "baseline", "upper bound"]

Answers = Message | Mapping[str, Message] | None


class Federation(Protocol):
    """What an algorithm sees of an engine: the server, the clients' names, and the one crossing point."""

    server: Server
    clients: Mapping[str, Hello]
    active: Sequence[str]
    round: int
    rounds: int

    def call(self, verb: str, message: Answers = None, clients: Sequence[str] | None = None) -> Replies[Any]:
        """Run a method of the algorithm on the active clients (or those named), each with its message."""

    def as_received(self, message: M) -> M:
        """This round's answer as clients will have it: a codec may round it on the way."""


@dataclass(frozen=True)
class Algorithm:
    """A method of a paper: what a client does, what the server does, what travels.

    A round is one call a client: it digests the last answer, then works and speaks. Override `round` for conversations.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """Of "public", "labelled", "label_counts", "pooled", "parameters" (one architecture for all): checked first."""
    has_server_model: ClassVar[bool] = True
    role: ClassVar[Role] = "method"
    """In tables, methods are measured against the best of the baselines."""
    messages: ClassVar[tuple[type[Message], ...]] = (Opinion, Answer, Done)
    codecs: ClassVar[Codecs] = Codecs()
    """How they travel, unless the experiment's `wire:` says otherwise."""
    paper: ClassVar[str] = ""
    cost: ClassVar[str] = ""
    """Numbers a round with one multicast down: N public samples, C classes, K clients."""

    def admit(self, me: Server) -> None:
        """Refuse, in one sentence, models that the method cannot work with; before anything runs."""

    def start(self, fed: Federation) -> Answers:
        """Before round 1."""
        return None

    def digest(self, me: Client, answer: Any) -> None:
        """A client takes in an answer."""

    def opine(self, me: Client) -> Message:
        """A client works and speaks."""
        raise NotImplementedError(f"{type(self).__name__} must say what a client does: define opine(self, me).")

    def server(self, me: Server, ups: Replies[Any]) -> Answers:
        """The server hears everybody, works, and answers."""
        raise NotImplementedError(f"{type(self).__name__} must say what the server does: define server(self, me, ups).")

    def round(self, fed: Federation, answer: Answers) -> Answers:
        """Everything from one answer to the next."""
        return self.server(fed.server, fed.call("turn", answer))

    def finish(self, fed: Federation, answer: Answers) -> None:
        """After the last round every client, active in it or not, digests the last answer."""
        if answer is not None:
            fed.call("close", answer, clients=list(fed.clients))

    # What a client runs when called; conversations add verbs of their own.

    def hello(self, me: Client, nothing: None) -> Hello:
        """What a client says of itself before the first round."""
        counts = me.label_counts() if me.tells_label_counts else None
        return Hello(me.size, counts, me.kind.architecture, me.public_fingerprint)

    def turn(self, me: Client, answer: Message | None) -> Message:
        """One client's part of a round: digest the answer of the round before, then speak."""
        self._digest(me, answer)
        opinion = self.opine(me)
        me.evaluate("trained")
        return opinion

    def close(self, me: Client, answer: Message | None) -> Done:
        """One client's part of the end."""
        self._digest(me, answer)
        return Done()

    def _digest(self, me: Client, answer: Message | None) -> None:
        if answer is not None:
            self.digest(me, answer)
            if me.round > 1:  # what came before the first round is no round's result
                me.evaluate("distilled", round=me.round - 1)

    @property
    def title(self) -> str:
        """How tables call this configuration."""
        return type(self).__name__

    def requires(self) -> frozenset[str]:
        """`needs`, and what the chosen options need besides: `labelled: true` is such an option of many."""
        return self.needs | ({"labelled"} if getattr(self, "labelled", False) else set())
