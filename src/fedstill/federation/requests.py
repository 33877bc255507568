"""What the centre asks of a site and what comes back: a small header and bytes, with a number that makes asking again
harmless."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedstill.common.errors import FedstillError
from fedstill.wire.messages import BadMessage

WAIT_S = 2.0
"""How long a site keeps the centre waiting before it says that it is still at work."""
LARGE = 4 << 20
"""A reply of more bytes is announced first, so that the centre can wait for it long enough."""
SLOWEST = 100_000
"""Bytes a second that a connection is trusted to carry."""


class Refusal(FedstillError):
    """A site does not take part; its sentence holds nothing private, so that it may leave."""


def frame(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """Both as one."""
    head = json.dumps(header).encode()
    return len(head).to_bytes(4, "little") + head + payload


def unframe(raw: object) -> tuple[dict[str, Any], bytes]:
    """What was framed, if anything was."""
    if not isinstance(raw, bytes):
        raise BadMessage(f"a {type(raw).__name__} where bytes are expected.")
    size = int.from_bytes(raw[:4], "little")
    try:
        header = json.loads(raw[4 : 4 + size])
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"{len(raw)} bytes that are no frame.") from error
    if not isinstance(header, dict):
        raise BadMessage(f"{len(raw)} bytes that are no frame.")
    return header, raw[4 + size :]


def transfer_s(size: int) -> float:
    """How long that many bytes may be on their way."""
    return size / SLOWEST
