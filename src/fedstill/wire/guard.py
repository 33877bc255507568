"""The guard: checks that a message is as agreed, and otherwise says in one sentence what is wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedstill.wire.encoding import kinds_of
from fedstill.wire.messages import STAGES, BadMessage, Message


def check(message: Message, dimensions: Mapping[str, int], agreed: Mapping[str, Any] | None = None) -> None:
    """Refuse fields without the declared type or shape, numbers that are not finite, and numbers that are too small.

    `agreed` holds the values of fields that must be the same everywhere.
    """
    kinds = kinds_of(type(message))
    for item in dataclasses.fields(message):
        value = getattr(message, item.name)
        where = f"{type(message).__name__}.{item.name}"
        if not isinstance(value, kinds[item.name]) or isinstance(value, bool) != (bool in kinds[item.name]):
            wanted_kinds = " or ".join(kind.__name__ for kind in kinds[item.name])
            raise BadMessage(f"{where} is a {type(value).__name__}: {wanted_kinds} is expected.")
        if "least" in item.metadata and value < item.metadata["least"]:
            raise BadMessage(f"{where} is {value}: at least {item.metadata['least']} is expected.")
        if "agreed" in item.metadata and agreed is not None and value != agreed[item.name]:
            raise BadMessage(f"{where} differs from the server's: the public samples or the labels are not the same.")
        if isinstance(value, float) and not math.isfinite(value):
            raise BadMessage(f"{where} is {value}: a number is expected.")
        if isinstance(value, Tensor) and "shape" in item.metadata:
            wanted = tuple(dimensions.get(d, -1) if isinstance(d, str) else d for d in item.metadata["shape"])
            if len(wanted) != value.ndim or any(w not in (-1, s) for w, s in zip(wanted, value.shape, strict=True)):
                raise BadMessage(f"{where} has shape {tuple(value.shape)}: {wanted} is expected.")
        for part in value.values() if isinstance(value, Mapping) else [value]:
            if isinstance(part, Tensor) and part.is_floating_point() and not bool(torch.isfinite(part).all()):
                raise BadMessage(f"{where} holds values that are not finite.")


def check_measured(metrics: object, notes: object) -> None:
    """The same for what accompanies a message: metrics (scores by stage and split, or observations) and notes."""
    if not isinstance(metrics, list) or not isinstance(notes, list) or not all(isinstance(n, str) for n in notes):
        raise BadMessage("its measurements are not a list, or its notes are not a list of sentences.")
    for metric in metrics:
        if not isinstance(metric, dict) or not isinstance(metric.get("round"), int):
            raise BadMessage("a measurement without a round.")
        named = {"party", "observation", "values"} if "observation" in metric else {"party", "stage", "split"}
        numbers = {key: value for key, value in metric.items() if key not in named}
        if "observation" in metric:
            values = metric.get("values")
            numbers |= values if isinstance(values, dict) else {"values": values}
        elif metric.get("stage") not in STAGES or not isinstance(metric.get("split"), str):
            raise BadMessage(f"a measurement of stage {metric.get('stage')!r}, split {metric.get('split')!r}.")
        if not all(isinstance(value, int | float) for value in numbers.values()):
            raise BadMessage("a measurement that is no number.")
