"""AdaFD's three ways to weight teachers, and equal weights to compare with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from fedstill.algorithms.base import NotNegative
from fedstill.algorithms.llm import parse, prompt, statistics
from fedstill.common.chat import Chat, Unusable
from fedstill.common.errors import FedstillError
from fedstill.parties.server import Server
from fedstill.wire.messages import Opinion
from fedstill.wire.replies import Replies, uniform

SMALLEST_LOSS = 1e-8
PAPERS_BETA = 5.0


@dataclass(frozen=True)
class Weighting:
    """From the clients' losses l_k [K] to weights w_k [K] that sum to one."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """What it needs, in the same words as an algorithm's `needs`."""
    wants_f1: ClassVar[bool] = False
    """Whether clients must also send their F1 on their own validation rows."""

    def __call__(self, me: Server, ups: Replies[Opinion], losses: Tensor) -> Tensor:
        raise NotImplementedError

    @property
    def title(self) -> str:
        """Its name in tables."""
        return type(self).__name__

    @property
    def wants_labelled(self) -> bool:
        """Whether clients must also send logits for the server's labelled rows."""
        return False


@dataclass(frozen=True)
class Uniform(Weighting):
    """Equal: w_k = 1/K. Clients then send no loss, and speak on the scale that opinions are blended on."""

    def __call__(self, me: Server, ups: Replies[Opinion], losses: Tensor) -> Tensor:
        return uniform(len(ups))


@dataclass(frozen=True)
class RNWC(Weighting):
    """Reciprocal: w_k ~ 1 / l_k."""

    def __call__(self, me: Server, ups: Replies[Opinion], losses: Tensor) -> Tensor:
        reciprocal = 1.0 / losses.double().clamp(min=SMALLEST_LOSS)  # Eq. 6
        return reciprocal / reciprocal.sum()


@dataclass(frozen=True)
class ENWC(Weighting):
    """Exponential: w = softmax(-beta l). With `learnable`, beta follows the server's labelled rows."""

    beta: NotNegative | None = None
    """Null: 5, as in the paper; with AdaFD's `reading: comparable`, 1."""
    learnable: bool = False

    def __post_init__(self) -> None:
        if self.learnable and self.beta is not None and not self.beta > 0:
            raise FedstillError(f"ENWC: a learnable beta must start above 0 (given: {self.beta:g}).")

    def __call__(self, me: Server, ups: Replies[Opinion], losses: Tensor) -> Tensor:
        losses = losses.double()
        if self.learnable:
            self._learn(me, ups, losses)
        return torch.softmax(-self.current(me) * losses, 0)  # Eq. 7

    def current(self, me: Server) -> float:
        """The beta in use: the one learnt so far, or the one given."""
        given = PAPERS_BETA if self.beta is None else self.beta
        return me.memory.numbers.get("beta", given) if self.learnable else given

    def _learn(self, me: Server, ups: Replies[Opinion], losses: Tensor) -> None:
        """Follow the gradient of the blend's cross-entropy on the labelled rows; beta stays between 0.01 and 100."""
        opinions, labels = ups.column("labelled_logits").double(), me.labelled_rows().labels
        log_beta = torch.tensor(math.log(self.current(me)), dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.Adam([log_beta], lr=0.05)
        for _ in range(100):
            weights = torch.softmax(-log_beta.exp() * losses, 0)
            loss = torch.nn.functional.cross_entropy((weights[:, None, None] * opinions).sum(0), labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            with torch.no_grad():
                log_beta.clamp_(math.log(0.01), math.log(100.0))
        me.memory.numbers["beta"] = float(log_beta.detach().exp())
        me.observe("beta", {"beta": self.current(me)})

    @property
    def title(self) -> str:
        """ENWC, or ENWC with a learnt beta."""
        return "ENWC learnable" if self.learnable else "ENWC"

    @property
    def wants_labelled(self) -> bool:
        """Only a learnable beta uses labels."""
        return self.learnable


@dataclass(frozen=True)
class LLMWC(Weighting):
    """A language model returns the weights (appendix A's prompt); ENWC replaces it when its answers are unusable."""

    chat: Chat = Chat()
    beta: NotNegative = 5.0

    needs: ClassVar[frozenset[str]] = frozenset({"openai"})
    wants_f1: ClassVar[bool] = True

    def __call__(self, me: Server, ups: Replies[Opinion], losses: Tensor) -> Tensor:
        clients = [
            statistics(name, float(loss), opinion.f1 or 0.0, opinion.logits)
            for (name, opinion), loss in zip(ups.items(), losses, strict=True)
        ]
        try:
            return torch.tensor(self.chat.ask(prompt(clients), partial(parse, count=len(clients))), dtype=torch.float64)
        except Unusable as reason:
            me.notes.append(f"LLMWC fell back to ENWC(beta={self.beta:g}): {reason}")
            return ENWC(self.beta)(me, ups, losses)
