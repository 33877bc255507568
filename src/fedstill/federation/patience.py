"""Which sites stalled, and for how long they are not asked again."""

from __future__ import annotations

from collections import Counter


class Patience:
    """A site that stalls is not asked for 1, 2, 4, 8, ... rounds; a good answer sets it back to 1."""

    def __init__(self) -> None:
        self.stalls: Counter[str] = Counter()
        """How often a site has stalled since its last good answer."""
        self.rests: dict[str, int] = {}
        """In how many rounds a site is asked again."""
        self.reasons: dict[str, str] = {}
        self.stalled_now: set[str] = set()
        """Sites that stalled in this round: a round has one or more calls, and counts once."""

    def stall(self, site: str, reason: str) -> None:
        """The site did not answer in time."""
        self.reasons[site] = reason
        if site not in self.stalled_now:
            self.stalled_now.add(site)
            self.stalls[site] += 1
            self.rests[site] = 2 ** (self.stalls[site] - 1) + 1

    def answer(self, site: str) -> None:
        """The site gave a good answer."""
        self.stalls.pop(site, None)

    def begin_round(self) -> None:
        """A round is about to begin."""
        self.rests = {site: rounds - 1 for site, rounds in self.rests.items() if rounds > 1}
        self.stalled_now.clear()

    def ask_all(self) -> None:
        """Everybody is asked the next time."""
        self.rests.clear()
