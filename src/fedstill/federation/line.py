"""The line to the sites: a request is sent, polled until it is done, or given up."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedstill.common.events import SiteSaid
from fedstill.engines.books import Books
from fedstill.federation.files import CentreFile
from fedstill.federation.requests import HEADER, WAIT_S, frame, transfer_s, unframe
from fedstill.wire.messages import BadMessage
from fedstill.wire.replies import Failure

LONGEST = 500
"""The most characters of a site's text that are recorded."""
TOO_LARGE = "a reply that is too large: {:,} bytes at most are expected."
PAUSE_S = 0.5
"""The pause between two attempts to reach a site."""

Asked = tuple[Mapping[str, Any], bytes]
"""The header and the payload of a request."""
Ask = Callable[[str, bytes, float], bytes]
"""Send a request to a site and return its answer within a number of seconds; raises Unreachable."""


class Unreachable(Exception):
    """A site did not answer this time."""


@dataclass(frozen=True)
class Said:
    """A site's answer to a request."""

    header: Mapping[str, Any]
    payload: bytes


@dataclass(frozen=True)
class Stall(Failure):
    """A site that did not answer in time."""


class Line:
    """Asks sites, each in a thread of its own."""

    def __init__(self, ask: Ask, file: CentreFile, books: Books) -> None:
        self.ask, self.file, self.books = ask, file, books
        self.numbers = itertools.count(1)
        self.away: set[str] = set()
        """Sites that could not be reached in this call."""
        self.unheard: defaultdict[str, list[int]] = defaultdict(list)
        """The requests that were given up, by site; the site is told, and does as if they had not been."""
        self.is_over = threading.Event()

    def request(
        self,
        site: str,
        header: Mapping[str, Any],
        payload: bytes,
        given_up: threading.Event,
        within_s: float | None = None,
        largest: int = 0,
    ) -> Said | Failure:
        """Send a request and poll until it is done, the deadline has passed, or the site has been silent too long.

        `given_up` is set when nobody waits for the answer any more; `largest`: the most bytes that it can have.
        """
        deadline_s, silence_s = within_s or self.file.deadline, within_s or self.file.silence
        number, unheard = next(self.numbers), self.unheard[site]
        first = frame({**header, "number": number, "given_up": list(unheard)}, payload)
        unheard.append(number)
        poll = {"what": "poll", "number": number}
        most = 2 * HEADER + largest
        begun = heard = time.monotonic()
        on_its_way_s, next_one, why = transfer_s(len(payload)), first, "no answer"
        self.books.tell(SiteSaid(site, "asked", header["what"]))
        while True:
            now = time.monotonic()
            if self.is_over.is_set() or given_up.is_set():
                return Failure(site, "nobody waits for it any more.")
            left = min(begun + deadline_s, heard + silence_s + on_its_way_s) - now
            if left <= 0:
                self.away.add(site)
                if now >= heard + silence_s + on_its_way_s:
                    return Stall(site, f"silent for {silence_s:g} s ({why}).")
                return Stall(site, f"not done within the deadline of {deadline_s:g} s.")
            try:
                raw = self.ask(site, next_one, min(left, WAIT_S + silence_s / 3 + on_its_way_s))
                said, data = _opened(raw, most)
            except Unreachable as error:
                why = str(error)
                time.sleep(min(PAUSE_S, left))
                continue
            except BadMessage as error:
                unheard.clear()
                return Failure(site, str(error))
            if given_up.is_set():
                continue
            heard, on_its_way_s, next_one = time.monotonic(), 0.0, frame(poll)
            state = said.get("state")
            if state not in ("ready", "working"):
                unheard.clear()
            if state == "done":
                for note in said["notes"][:5] if isinstance(said.get("notes"), list) else ():
                    self.books.note(site, str(note))
                return Said(said, data)
            if state == "ready" and type(said.get("bytes")) is int and said["bytes"] > most:
                return Failure(site, TOO_LARGE.format(most))
            if state == "ready" and type(said.get("bytes")) is int and said["bytes"] > 0:
                on_its_way_s, next_one = transfer_s(said["bytes"]), frame({**poll, "takes_large": True})
            elif state == "working":
                self.books.tell(SiteSaid(site, "working", progress=said.get("progress", {})))
            elif state == "failed":
                return Failure(site, plain(said.get("reason", "no reason given")))
            else:
                self.away.add(site)
                return Failure(site, "it was restarted and has lost the call.")


def _opened(raw: object, most: int) -> tuple[dict[str, Any], bytes]:
    """A site's answer; raises BadMessage for one that is too large, before anything of it is read."""
    if isinstance(raw, bytes) and len(raw) > most:
        raise BadMessage(TOO_LARGE.format(most))
    return unframe(raw)


def plain(words: object) -> str:
    """A site's text made safe to show: shortened, and without control characters for the terminal."""
    return "".join(letter for letter in str(words)[:LONGEST] if letter.isprintable())
