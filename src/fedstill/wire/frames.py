"""Frames: a small header and a payload in one byte string, for pipes, sockets and calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedstill.wire.messages import BadMessage


def frame(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """Header and payload in one byte string."""
    head = json.dumps(header).encode()
    return len(head).to_bytes(4, "little") + head + payload


def unframe(raw: object) -> tuple[dict[str, Any], bytes]:
    """The header and payload of a frame; raises BadMessage for anything else."""
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
