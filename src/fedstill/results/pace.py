"""How long a run still takes, from what its rounds took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

LAST = 5
"""Rounds whose mean says how long the next one takes."""


class Took(NamedTuple):
    """The seconds of a round, and how many of them all clients need to digest an answer."""

    seconds: float
    digest_s: float


@dataclass(frozen=True)
class Left:
    """The seconds that a run still takes; `is_whole`: with the last digest, which follows the last round."""

    now_s: float
    """Of the round, or the digest, that goes on now."""
    later_s: float = 0.0
    is_whole: bool = True

    @property
    def seconds(self) -> float:
        """All of them."""
        return self.now_s + self.later_s

    def after(self, seconds: float) -> Left:
        """What is left when so many more have passed; a round that is late takes nothing from those after it."""
        return replace(self, now_s=max(0.0, self.now_s - seconds))

    def __str__(self) -> str:
        """About how long that is."""
        about = "about" if self.is_whole else "more than"
        if self.seconds < 100:
            return f"{about} {max(1, round(self.seconds))} s left"
        if self.seconds < 100 * 60:
            return f"{about} {self.seconds / 60:.0f} min left"
        return f"{about} {self.seconds / 3600:.1f} h left"


def left(took: Mapping[int, Took], rounds: int) -> Left | None:
    """What is left after the last of these rounds; None if that is not known.

    In the first round most methods have no answer to digest: it says least how long the others take.
    """
    whole = [each for number, each in sorted(took.items()) if number > 1 or each.digest_s][-LAST:]
    more = rounds - max(took, default=rounds)
    if not whole:
        return Left(usual := took[max(took)].seconds, usual * (more - 1), is_whole=False) if more else None
    usual, digest_s = fmean(each.seconds for each in whole), fmean(each.digest_s for each in whole)
    return Left(usual, usual * (more - 1) + digest_s) if more else Left(digest_s)
