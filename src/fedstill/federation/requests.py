"""Requests between the centre and a site: each has a number, so that sending it twice is harmless."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.wire.messages import BadMessage

WAIT_S = 2.0
"""How long a site waits for a result before it answers that it is still working."""
LARGE = 4 << 20
"""The size of a large reply: it is announced first, so that the centre waits long enough for it."""
HEADER = 1 << 20
"""The most bytes of a frame's header."""
SLOWEST = 100_000
"""The slowest connection that is supported, in bytes per second."""


class Refusal(FedstillError):
    """A site refuses a request; the message contains nothing private and may be sent to the centre."""


def frame(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """Header and payload in one byte string."""
    head = json.dumps(header).encode()
    return len(head).to_bytes(4, "little") + head + payload


def unframe(raw: object) -> tuple[dict[str, Any], bytes]:
    """The header and payload of a frame; raises BadMessage for anything else."""
    if not isinstance(raw, bytes):
        raise BadMessage(f"a {type(raw).__name__} where bytes are expected.")
    size = int.from_bytes(raw[:4], "little")
    if size > HEADER:
        raise BadMessage(f"{len(raw)} bytes that are no frame.")
    try:
        header = json.loads(raw[4 : 4 + size])
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"{len(raw)} bytes that are no frame.") from error
    if not isinstance(header, dict):
        raise BadMessage(f"{len(raw)} bytes that are no frame.")
    return header, raw[4 + size :]


def transfer_s(size: int) -> float:
    """The longest time that the transfer of `size` bytes may take."""
    return size / SLOWEST
