"""How the centre and a site speak: frames with a number each, which makes asking again harmless."""

from __future__ import annotations

from fedstill.common.errors import FedstillError

WAIT_S = 2.0
"""How long a site keeps the centre waiting before it says that it is still at work."""
LARGE = 4 << 20
"""A reply of more bytes is announced first, so that the centre can wait for it long enough."""
SLOWEST = 100_000
"""Bytes a second that a connection is trusted to carry."""


class Refusal(FedstillError):
    """A site does not take part; its sentence holds nothing private, so that it may leave."""


def transfer_s(size: int) -> float:
    """How long that many bytes may be on their way."""
    return size / SLOWEST
