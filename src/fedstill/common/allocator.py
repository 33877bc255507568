"""The C library's allocator, told that memory which was freed will be needed again."""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""The numbers of two options in glibc's <malloc.h>."""


def keep_freed_memory() -> None:
    """Keep freed memory in this process, for the next array, where the C library is glibc; elsewhere do nothing.

    As it comes, glibc takes every array of 32 MB or more from the system and gives it back at once, so that each copy
    of a model pays for thousands of fresh pages: a third of a round of FedAvg. Only for processes that are
    fedstill's own: in a user's program, memory may be wanted elsewhere.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, -1)
