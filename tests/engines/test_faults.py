"""Clients that lie or fail, in whole runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedstill import Experiment, FedstillError, resume, run
from fedstill.plan.prepare import prepare
from tests.engines.conftest import content
from tests.engines.test_blends import quick
from tests.engines.test_resume import stop_after

Small = Callable[..., Experiment]

ATTACKS: list[dict[str, Any]] = [
    {"kind": "flip"},
    {"kind": "scale", "factor": 100},
    {"kind": "negate"},
    {"kind": "lma"},
    {"kind": "cpa"},
    {"kind": "hips"},
    {"kind": "lie", "loss": 0, "size": 1000},
    {"kind": "stale"},
    {"kind": "drop"},
    {"kind": "delay"},
    {"kind": "corrupt"},
]


@pytest.mark.parametrize("fault", ATTACKS, ids=lambda fault: str(fault["kind"]))
def test_every_fault_runs_is_noted_and_changes_the_result(small: Small, tmp_path: Path, fault: dict[str, Any]) -> None:
    settings = {"quorum": 0.5, "rounds": 2, "algorithm": {"name": "AdaFD", "reading": "paper"}}
    honest = run(quick(small, **settings), tmp_path / "honest")
    record = run(quick(small, **settings, faults=[fault | {"share": 0.34}]), tmp_path / "run")
    assert content(record.folder) != content(honest.folder)
    assert f"is made to lie or fail: {fault['kind']}." in (record.folder / "log.jsonl").read_text()


def test_liars_and_what_they_said_last_come_back_after_an_interruption(small: Small, tmp_path: Path) -> None:
    chosen = quick(small, rounds=3, faults=[{"kind": "stale", "share": 0.34}, {"kind": "negate", "share": 0.34}])
    whole = run(chosen, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(chosen, tmp_path / "run", tell=stop_after(2))
    assert content(resume(tmp_path / "run").folder) == content(whole.folder)


def test_flipped_labels_are_those_of_the_liars_training_rows(small: Small, tmp_path: Path) -> None:
    chosen = quick(small, faults=[{"kind": "flip", "share": 0.34}])
    _, honest, _ = prepare(quick(small), tmp_path)
    _, plan, _ = prepare(chosen, tmp_path)
    (liar,) = chosen.faults[0].among(list(plan.clients), chosen.seed)
    rows = plan.partition.train[liar]
    classes = int(honest.row_labels.max()) + 1
    assert (plan.row_labels[rows] == (honest.row_labels[rows] + 1) % classes).all()
    assert (plan.row_labels != honest.row_labels).sum() == len(rows)


def test_a_federation_has_no_faults(small: Small) -> None:
    with pytest.raises(FedstillError, match="faults are for simulations"):
        small(faults=[{"kind": "flip"}], engine="flare")
