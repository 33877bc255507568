"""One file an algorithm, named after it; found by class name, or `file.py:Class` for one of a user's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from fedstill.algorithms.base import Algorithm
from fedstill.algorithms.weightings import Weighting
from fedstill.common.chat import Chat
from fedstill.common.construct import construct
from fedstill.common.plugins import classes_in

T = TypeVar("T")


def known(base: type[T]) -> dict[str, type[T]]:
    """Our classes of that kind, by name."""
    return classes_in(sys.modules[__name__], base)


def make(spec: str | Mapping[str, Any]) -> Algorithm:
    """The algorithm of that name with those options; everything wrong with them is said here, in one sentence."""
    return construct(
        Algorithm, spec, partial(known, Algorithm), {Weighting: partial(known, Weighting), Chat: lambda: {"Chat": Chat}}
    )
