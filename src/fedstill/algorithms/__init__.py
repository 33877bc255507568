"""Algorithms, one file each, found by class name; `file.py:Class` names a user's own class."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from fedstill.algorithms.base import Algorithm
from fedstill.algorithms.fedavg import FedAvg
from fedstill.algorithms.weightings import Weighting
from fedstill.common.chat import Chat
from fedstill.common.construct import Known, construct
from fedstill.common.plugins import classes_in

T = TypeVar("T")


def known(base: type[T]) -> dict[str, type[T]]:
    """The built-in classes of this kind, by name."""
    return classes_in(sys.modules[__name__], base)


def make(spec: str | Mapping[str, Any]) -> Algorithm:
    """The algorithm with this name and these options; raises one sentence if something is wrong with them."""
    parts: dict[type[Any], Known] = {
        Weighting: partial(known, Weighting),
        FedAvg: _averages,
        Chat: lambda: {"Chat": Chat},
    }
    return construct(Algorithm, spec, partial(known, Algorithm), parts)


def _averages() -> dict[str, type[FedAvg]]:
    return {"FedAvg": FedAvg, **known(FedAvg)}
