"""The encoder's matrix products: in fp32 by MKL, as torch does them, by oneDNN, as we do on some processors; in bf16.

The ways take turns. On an Intel processor the first two are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import torch
from speed import RATE, ROWS, Case
from turns import TURNS, Results, Work, in_turns, spread, times

from fedstill.learning.fast import Fast, products
from fedstill.learning.losses import ce
from fedstill.learning.phases import Phase, PhaseSettings
from fedstill.learning.precision import Precision
from fedstill.learning.predict import predict

WHATS = ("train", "predict")


def measure() -> Results:
    """Training and predicting by both models."""
    torch.set_num_threads(1)
    found: Results = {}
    for name in ROWS:
        case = Case.of(name, ROWS[name])
        for what in WHATS:
            ways = {"MKL": by_mkl(work(case, what)), "ours": work(case, what), "bf16": work(case, what, "bf16")}
            seconds = in_turns(ways, TURNS[name])
            for base, own in (("MKL", "ours"), ("ours", "bf16")):
                ratio = times(seconds[base], seconds[own])
                found[f"{what} {name}, {own} against {base}"] = ratio | {"rows_per_s": len(case.data) / ratio["cpu_s"]}
    return found


def work(case: Case, what: str, precision: Precision = "fp32") -> Callable[[], Work]:
    """An epoch, or predicting all rows."""

    def make() -> Work:
        module = case.fresh(Fast())
        if what == "predict":
            return lambda: predict(module, case.data, precision)
        return lambda: Phase(module, case.data, PhaseSettings(epochs=1), RATE, 0, precision).run(case.data.labels, ce)

    return make


def by_mkl(make: Callable[[], Work]) -> Callable[[], Work]:
    """The same with torch's own products."""

    def made() -> Work:
        ready = make()

        def run() -> None:
            with patch.object(products, "uses_onednn", lambda: False):
                ready()

        return run

    return made


def lines(found: Results) -> list[str]:
    """This part of the page."""
    return [
        "| what | rows a CPU second, fp32 | in bf16 | fp32 against MKL's | bf16 against fp32 |",
        "|---|---|---|---|---|",
        *(
            f"| {work} | {own['rows_per_s']:.0f} | {narrow['rows_per_s']:.0f} | {spread(own)} | {spread(narrow)} |"
            for work in (f"{what} {name}" for name in ROWS for what in WHATS)
            for own, narrow in [(found[f"{work}, ours against MKL"], found[f"{work}, bf16 against ours"])]
        ),
        "",
    ]
