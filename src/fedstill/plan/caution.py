"""What is known to go wrong in a federation, said before its first round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fedstill.algorithms.base import Algorithm
from fedstill.common.words import counted, listed
from fedstill.data.likeness import UNLIKE
from fedstill.wire.messages import Hello

TINY = 50
"""A client with fewer training rows learns little that is worth telling."""
FEW = 20
"""Fewer public rows tell the clients nothing of each other."""


@dataclass(frozen=True)
class Caution:
    """A cause of harm as a clause, the advice that goes with it, and whose harm it is, if not everybody's."""

    cause: str
    advice: str
    clients: tuple[str, ...] = ()
    hurts_all: bool = False
    """Whether others suffer by it, too: then it is named whoever lost."""

    def __str__(self) -> str:
        return f"{self._about(self.clients)}: {self.advice}"

    def cause_for(self, lost: Collection[str]) -> str:
        """The clause for those who lost; empty if it is about others."""
        own = [name for name in self.clients if name in lost or self.hurts_all]
        return self._about(own) if own or not self.clients else ""

    def _about(self, names: Sequence[str]) -> str:
        return f"{self.cause} {listed(names)}" if names else self.cause


def cautions(method: Algorithm, clients: Mapping[str, Hello], public: int | None = None) -> list[Caution]:
    """What these clients, with this method and so many public rows, if that is known, should be warned of."""
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
                f"fewer than {TINY} training rows at",
                "too few to learn from, or to say what was gained.",
                tuple(tiny),
            )
        )
    if one_label := [name for name, hello in clients.items() if _labels(hello) == 1]:
        found.append(
            Caution(
                "rows of one label only at",
                "it learns to give that label to everything, and teaches it; give it rows of others, or leave it out.",
                tuple(one_label),
            )
        )
    if len(clients) == 1:
        found.append(Caution("there is only one client", "it has nobody to learn from."))
    if public is not None and public < FEW and "public" in method.requires():
        found.append(
            Caution(
                f"only {counted(public, 'public row')}",
                "too few to tell each other anything by; set partition.public, or take rows from another corpus "
                "(`public`).",
            )
        )
    if far := [name for name, hello in clients.items() if (hello.unlike or 0) >= UNLIKE]:
        found.append(
            Caution(
                "public rows unlike those of",
                "words alone tell them apart; opinions about such rows say little, so take public rows from the same "
                "field.",
                tuple(far),
                hurts_all=2 * len(far) >= len(clients),  # so many opinions then say little
            )
        )
    return found


def _labels(hello: Hello) -> int | None:
    """How many labels a client's training rows have, if it tells."""
    return None if hello.label_counts is None else int((hello.label_counts > 0).sum())
