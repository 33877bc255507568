"""Lists and numbers in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def counted(number: int, noun: str) -> str:
    """`1 round`, `3 rounds`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def ranged(numbers: Iterable[int]) -> str:
    """`3`, or `1 to 3` if they are not all the same."""
    every = sorted(set(numbers))
    return str(every[0]) if len(every) == 1 else f"{every[0]} to {every[-1]}"
