"""Measurements and notes packed: where a codec has made a message small, they would be the larger part of it."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from fedstill.wire.messages import BadMessage

USUAL = (
    b'"party":"","observation":"values":{[],[{"round":,"stage":"distilled","stage":"trained","split":"test/",'
    b'"split":"test","f1":0.,"macro_f1":0.,"accuracy":0.,"matthews":0.,"rows":'
)
"""What measurements are made of, so that zlib knows it from the beginning; both sides need the same."""
LARGEST = 1 << 20


def pack(metrics: list[Any], notes: list[str]) -> str:
    """Both as text without a quotation mark, which JSON would have to escape."""
    packer = zlib.compressobj(9, zdict=USUAL)
    raw = packer.compress(json.dumps([metrics, notes], separators=(",", ":")).encode())
    return base64.b85encode(raw + packer.flush()).decode()


def unpack(text: object) -> tuple[Any, Any]:
    """Metrics and notes again, of whatever type they are; raises BadMessage if they cannot be read."""
    reader = zlib.decompressobj(zdict=USUAL)
    try:
        if not isinstance(text, str):
            raise TypeError("no text")
        raw = reader.decompress(base64.b85decode(text), LARGEST)
        if not reader.eof:
            raise ValueError("too long, or cut off")
        metrics, notes = json.loads(raw)
    except (ValueError, TypeError, RecursionError, zlib.error) as error:
        raise BadMessage(f"measurements that cannot be read ({error}).") from error
    return metrics, notes
