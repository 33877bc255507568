"""Sizes and durations as people write and read them."""

from __future__ import annotations

import re


def bytes_of(size: str | None) -> int | None:
    """`4GiB` as a number of bytes."""
    if size is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)", size.strip())
    if not match:
        raise ValueError(f"{size!r} is not a size; write for example 512MiB or 4GiB")
    scale = {"K": 1, "M": 2, "G": 3}[match[2][0]]
    return int(float(match[1]) * (1024 if "i" in match[2] else 1000) ** scale)


def size_text(size: float) -> str:
    """A number of bytes as `3.2 MB`."""
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def seconds_of(duration: str | float) -> float:
    """`90s`, `30min` or `2h` as seconds; a number is seconds already."""
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return float(duration)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)", str(duration).strip())
    if not match:
        raise ValueError(f"{duration!r} is not a duration; write for example 90s, 30min or 2h")
    return float(match[1]) * {"s": 1, "min": 60, "h": 3600}[match[2]]
