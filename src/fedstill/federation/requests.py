"""Requests between the centre and a site: each has a number, so that sending it twice is harmless."""

from __future__ import annotations

from fedstill.common.errors import FedstillError

WAIT_S = 2.0
"""How long a site waits for a result before it answers that it is still working."""
LARGE = 4 << 20
"""The size of a large reply: it is announced first, so that the centre waits long enough for it."""
SLOWEST = 100_000
"""The slowest connection that is supported, in bytes per second."""


class Refusal(FedstillError):
    """A site refuses a request; the message contains nothing private and may be sent to the centre."""


def transfer_s(size: int) -> float:
    """The longest time that the transfer of `size` bytes may take."""
    return size / SLOWEST
