"""Envelopes packed: where a codec has made a message small, measurements would be the larger part of it."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

from fedstill.wire.messages import BadMessage

USUAL = (
    b'"party":"","observation":"values":{"stage":"distilled",{"round":1,"notes":[],"error":{"rms":0.0,"change":0.0},'
    b'"metrics":[{"round":,"stage":"trained","split":"test/","split":"test",'
    b'"f1":0.,"macro_f1":0.,"accuracy":0.,"matthews":0.,"rows":'
)
"""What measurements are made of, so that zlib knows it from the beginning; both sides need the same."""
LARGEST = 1 << 20


def pack(envelope: Mapping[str, Any]) -> str:
    """The envelope as text without a quotation mark, which JSON would have to escape."""
    packer = zlib.compressobj(9, zdict=USUAL)
    raw = packer.compress(json.dumps(envelope, separators=(",", ":")).encode())
    return base64.b85encode(raw + packer.flush()).decode()


def unpack(text: object) -> dict[str, Any]:
    """The envelope again; raises BadMessage if it cannot be read."""
    reader = zlib.decompressobj(zdict=USUAL)
    try:
        if not isinstance(text, str):
            raise TypeError("no text")
        raw = reader.decompress(base64.b85decode(text), LARGEST)
        if not reader.eof:
            raise ValueError("too long, or cut off")
        envelope = json.loads(raw)
        if not isinstance(envelope, dict):
            raise TypeError("no envelope")
    except (ValueError, TypeError, RecursionError, zlib.error) as error:
        raise BadMessage(f"an envelope that cannot be read ({error}).") from error
    return envelope
