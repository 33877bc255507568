"""Notes of a run that are about one party, read back from their words."""

from __future__ import annotations

import re

from fedstill.parties.party import ONE_CLASS

TIMES = re.compile(r" \(\d+x\)$")
"""How often a run says a note."""
FALLEN = re.compile(rf"(.+?) {ONE_CLASS} \(.*\) for nearly all test rows(?: after round (\d+))?\.")


def fallen(note: str) -> tuple[str, int] | None:
    """Whose model names one class, and after which round (0: an earlier revision did not say); None of other notes."""
    found = FALLEN.fullmatch(TIMES.sub("", note))
    return (found[1], int(found[2] or 0)) if found else None
