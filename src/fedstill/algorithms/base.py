"""What an algorithm is: hooks for both sides of a round, and the messages that travel between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import Field

from fedstill.common.errors import FedstillError
from fedstill.parties.client import Client
from fedstill.parties.server import Server
from fedstill.wire.codecs import Codecs
from fedstill.wire.messages import Answer, Done, Hello, M, Message, Opinion
from fedstill.wire.replies import Replies, Weights

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Types of options; the limits are checked when an algorithm is made from an experiment."""

MASKED = (
    "LogitAvg, DSFL, FedED, FedMD, FedAvg, FedOpt and FedGKD can be masked, AdaFD with `weighting: Uniform`, MHAT with "
    "`server_loss: kl`, and FedKD except in its `original` reading"
)

Role = Literal["method", "baseline", "upper bound"]

Answers = Message | Mapping[str, Message] | None


class Federation(Protocol):
    """What an algorithm sees of an engine: the server, the clients' names, and `call`, the only way to reach them."""

    clients: Mapping[str, Hello]
    active: Sequence[str]
    round: int
    rounds: int

    @property
    def server(self) -> Server:
        """The server, after all of its work in the last round."""

    def call(self, verb: str, message: Answers = None, clients: Sequence[str] | None = None) -> Replies[Any]:
        """Run a method of the algorithm on the active clients (or those named), each with its message."""

    def replies(self, messages: dict[str, M]) -> Replies[M]:
        """Messages that the server kept, by client, to be blended and capped like those of a call."""

    def as_received(self, message: M) -> M:
        """This round's answer as clients will decode it: a codec may change it."""


@dataclass(frozen=True)
class Algorithm:
    """A method of a paper: what a client does, what the server does, and which messages are sent.

    A round calls every client once: it digests the last answer, works and replies. Conversations override `round`.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """Any of "public", "labelled", "label_counts", "pooled", "parameters" (one architecture for all): checked first."""
    has_server_model: ClassVar[bool] = True
    role: ClassVar[Role] = "method"
    """In tables, methods are compared with the best of the baselines."""
    messages: ClassVar[tuple[type[Message], ...]] = (Opinion, Answer, Done)
    blends: ClassVar[bool] = True
    """Whether the experiment's `blend` applies; if not, any other than `mean` is refused."""
    codecs: ClassVar[Codecs] = Codecs()
    """The codecs of these messages, unless the experiment's `wire:` says otherwise."""
    paper: ClassVar[str] = ""
    cost: ClassVar[str] = ""
    """Numbers sent per round, one multicast down: N public samples, C classes, K clients, P parameters."""

    def admit(self, me: Server) -> None:
        """Refuse, in one sentence, models that the method cannot work with; before anything runs."""

    def start(self, fed: Federation) -> Answers:
        """Before round 1."""
        return None

    def digest(self, me: Client, answer: Any) -> None:
        """A client learns from an answer."""

    def settle(self, me: Client, answer: Any) -> None:
        """A client takes in the last answer, this one; by default as any other."""
        self.digest(me, answer)

    def opine(self, me: Client) -> Message:
        """A client works and replies."""
        raise NotImplementedError(f"{type(self).__name__} must say what a client does: define opine(self, me).")

    def server(self, me: Server, ups: Replies[Any]) -> Answers:
        """The server receives all replies, works, and answers."""
        raise NotImplementedError(f"{type(self).__name__} must say what the server does: define server(self, me, ups).")

    def round(self, fed: Federation, answer: Answers) -> Answers:
        """Everything from one answer to the next."""
        ups = fed.call("turn", answer)
        return self.server(fed.server, ups)

    def finish(self, fed: Federation, answer: Answers) -> None:
        """After the last round every client, active in it or not, digests the last answer."""
        if answer is not None:
            fed.call("close", answer, clients=list(fed.clients))

    # What a client runs when called; conversations add verbs of their own.

    def hello(self, me: Client, nothing: None) -> Hello:
        """What a client tells about itself before the first round."""
        counts = me.label_counts() if me.tells_label_counts else None
        return Hello(me.size, counts, me.kind.architecture, me.public_fingerprint, me.unlike_public)

    def turn(self, me: Client, answer: Message | None) -> Message:
        """One client's part of a round: digest the answer of the round before, then work and reply."""
        self._digest(me, answer)
        opinion = self.opine(me)
        me.evaluate("trained")
        return opinion

    def close(self, me: Client, answer: Message | None) -> Done:
        """One client's part after the last round."""
        self._digest(me, answer, is_last=True)
        return Done()

    def _digest(self, me: Client, answer: Message | None, is_last: bool = False) -> None:
        if answer is not None:
            with me.timed("digest"):
                self.settle(me, answer) if is_last else self.digest(me, answer)
                if me.round > 1:  # an answer from before the first round is not a round's result
                    me.evaluate("distilled", round=me.round - 1)

    @property
    def title(self) -> str:
        """The name of this configuration in tables."""
        return type(self).__name__

    @property
    def blends_raw_logits(self) -> bool:
        """Whether the models with the largest logits count most, so that different models cannot be compared."""
        return False

    @property
    def follows_own_votes(self) -> bool:
        """Whether clients learn hard labels that they voted for themselves, with nothing that holds them back."""
        return False

    def reads(self) -> frozenset[str]:
        """The optional fields of replies, as `Type.field`, that the server reads: a reply without them is refused."""
        return frozenset()

    def leaks(self) -> str | None:
        """What it does with private rows besides training on them, as a clause; None: nothing. `privacy` forbids it."""
        return None

    def masked_weights(self) -> Weights:
        """How clients weigh, if the weighted sum of their replies is all that the server uses; raises if it is not."""
        raise FedstillError(f"{type(self).__name__} looks at single replies, and masks leave only their sum: {MASKED}.")

    def requires(self) -> frozenset[str]:
        """`needs`, and what the chosen options need: many methods have an option `labelled`."""
        return self.needs | ({"labelled"} if getattr(self, "labelled", False) else set())
