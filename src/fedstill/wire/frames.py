"""Frames: a small header and bytes as one, for pipes, sockets and calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedstill.wire.messages import BadMessage


def frame(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """Header and payload in one piece."""
    head = json.dumps(header).encode()
    return len(head).to_bytes(4, "little") + head + payload


def unframe(raw: object) -> tuple[dict[str, Any], bytes]:
    """Header and payload, if that is a frame."""
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
