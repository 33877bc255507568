"""Prediction with weights in eight bits: rows a second, and how often the label is that of fp32.

Three ways take turns: the fast path in fp32, the fast path with `int8`, and torch's own dynamic quantisation of the
Hugging Face module. The models learn before, on other rows than those that they predict.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from speed import NONE, RATE, Case
from torch import Tensor, nn
from turns import TURNS, Values, in_turns, spread, times

from fedstill.data.examples import Labelled
from fedstill.learning.fast import Fast, accelerate
from fedstill.learning.losses import ce
from fedstill.learning.phases import Phase, PhaseSettings
from fedstill.learning.predict import predict

ROWS = {"bert-tiny": (4000, 2000, 3), "minilm": (1200, 400, 2)}
"""To learn from and to predict, and epochs."""


def measure() -> dict[str, Values]:
    """Both models."""
    torch.set_num_threads(1)
    return {name: of(name) for name in ROWS}


def of(name: str) -> Values:
    """A model's three ways."""
    to_learn, to_predict, epochs = ROWS[name]
    case = Case.of(name, to_learn + to_predict)
    labels = case.data.labels
    assert labels is not None
    learnt = Labelled(case.data.store, case.data.rows[:to_learn], labels[:to_learn])
    data = Labelled(case.data.store, case.data.rows[to_learn:], labels[to_learn:])
    module = case.fresh(Fast())
    Phase(module, learnt, PhaseSettings(epochs=epochs), RATE, 0).run(learnt.labels, ce)
    theirs = by_torch(module)
    exact, near = predict(module, data), predict(module, data, int8=True)
    ways = {
        "fp32": lambda: predict(module, data),
        "int8": lambda: predict(module, data, int8=True),
        "torch's": lambda: predict(theirs, data),
    }
    seconds = in_turns({way: lambda own=own: own for way, own in ways.items()}, TURNS["bert-tiny"])  # type: ignore[misc]
    found = {way: times(seconds["fp32"], seconds[way]) for way in ways}
    return found["int8"] | {
        "rows": to_predict,
        "fp32_rows_per_s": to_predict / found["fp32"]["cpu_s"],
        "int8_rows_per_s": to_predict / found["int8"]["cpu_s"],
        "torch_rows_per_s": to_predict / found["torch's"]["cpu_s"],
        "same_labels": share(exact, near),
        "right_fp32": float(np.mean(exact.argmax(-1).numpy() == data.labels.numpy())),
        "right_int8": float(np.mean(near.argmax(-1).numpy() == data.labels.numpy())),
    }


def share(first: Tensor, second: Tensor) -> float:
    """Of rows with the same label."""
    return (first.argmax(-1) == second.argmax(-1)).float().mean().item()


def by_torch(module: nn.Module) -> nn.Module:
    """Torch's own way for the whole module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.backends.quantized.engine = "fbgemm"
        made: nn.Module = torch.ao.quantization.quantize_dynamic(module, {nn.Linear})
    accelerate(made, NONE)
    return made


def lines(found: dict[str, Any]) -> list[str]:
    """This part of the page."""
    return [
        "| model | fp32 rows a CPU s | int8 | torch's own int8 | int8, times as fast as fp32 | same label % "
        "| right, fp32 % | right, int8 % | rows |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {name} | {own['fp32_rows_per_s']:.0f} | {own['int8_rows_per_s']:.0f} | {own['torch_rows_per_s']:.0f} "
            f"| {spread(own)} | {100 * own['same_labels']:.1f} | {100 * own['right_fp32']:.1f} "
            f"| {100 * own['right_int8']:.1f} | {own['rows']} |"
            for name, own in found.items()
        ),
        "",
    ]
