"""What is known to go wrong in a federation, said before its first round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedstill.algorithms.base import Algorithm
from fedstill.common.words import listed
from fedstill.data.likeness import UNLIKE
from fedstill.wire.messages import Hello

TINY = 50
"""A client with fewer training rows learns little that is worth telling."""


@dataclass(frozen=True)
class Caution:
    """A cause of harm as a clause, and the advice that goes with it."""

    cause: str
    advice: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.advice}"


def cautions(method: Algorithm, clients: Mapping[str, Hello]) -> list[Caution]:
    """What these clients, with this method, should be warned of."""
    found = []
    kinds = sorted({hello.architecture.partition("/")[0] for hello in clients.values()})
    if len({hello.architecture for hello in clients.values()}) > 1 and method.blends_raw_logits:
        found.append(
            Caution(
                f"{method.title} blends the raw logits of different models ({', '.join(kinds)})",
                "the model with the largest logits decides; use `algorithm: AdaFD` as it comes, or DSFL, which blend "
                "probabilities.",
            )
        )
    if method.follows_own_votes:
        found.append(
            Caution(
                f"{method.title}'s clients follow their own votes",
                "with small models most runs end with one class for nearly all rows; set `algorithm.rehearsal=1` "
                "or `algorithm.client_rate=0.04` (docs/fedid.md).",
            )
        )
    if tiny := [name for name, hello in clients.items() if hello.size < TINY]:
        found.append(
            Caution(
                f"fewer than {TINY} training rows at {listed(tiny)}",
                "too few to learn from, or to say what was gained.",
            )
        )
    if far := [name for name, hello in clients.items() if (hello.unlike or 0) >= UNLIKE]:
        found.append(
            Caution(
                f"public rows unlike those of {listed(far)}",
                "words alone tell them apart; opinions about such rows say little, so take public rows from the same "
                "field.",
            )
        )
    return found
