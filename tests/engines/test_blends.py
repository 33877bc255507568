"""The keys `blend` and `max_share` in whole runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedstill import Experiment, FedstillError, resume, run
from tests.engines.conftest import content
from tests.engines.test_resume import stop_after

Small = Callable[..., Experiment]
LABELLED = {"kind": "domain", "public": 0.3, "labelled_public": 0.2}
BLENDS = ["median", "trimmed", {"name": "cronus", "share": 0.34}, "clipped", "expguard"]


def quick(small: Small, **changes: Any) -> Experiment:
    settings = {"clients": "bow", "server": "bow", "train": {"epochs": 1, "max_length": 16}, "rounds": 2}
    return small(**(settings | changes))


@pytest.mark.parametrize(
    "algorithm", ["AdaFD", {"name": "AdaFD", "reading": "paper"}, "DSFL", "FedID", "Cronus", "FedMD"], ids=str
)
def test_every_blend_serves_every_method_of_opinions(small: Small, tmp_path: Path, algorithm: Any) -> None:
    chosen = quick(small, algorithm=algorithm, partition=LABELLED, rounds=1)
    found = [
        content(run(chosen.model_copy(update={"blend": blend}), tmp_path / str(number)).folder)
        for number, blend in enumerate(["mean", *BLENDS])
    ]
    assert found[0] not in found[1:]


@pytest.mark.parametrize("blend", ["median", "trimmed", "clipped", "expguard"])
@pytest.mark.parametrize("algorithm", ["FedAvg", "FedDF"])
def test_so_it_is_with_methods_of_parameters(small: Small, tmp_path: Path, algorithm: str, blend: str) -> None:
    assert run(quick(small, algorithm=algorithm, blend=blend, rounds=1), tmp_path / "run").is_finished


def test_expguard_remembers_over_an_interruption(small: Small, tmp_path: Path) -> None:
    chosen = quick(small, blend="expguard", rounds=3)
    whole = run(chosen, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(chosen, tmp_path / "run", tell=stop_after(2))
    assert content(resume(tmp_path / "run").folder) == content(whole.folder)


def test_a_limit_nobody_reaches_changes_no_byte_and_one_that_all_reach_makes_them_equal(
    small: Small, tmp_path: Path
) -> None:
    def record(name: str, **changes: Any) -> dict[str, bytes]:
        return content(run(quick(small, rounds=1, algorithm="FedAvg", **changes), tmp_path / name).folder)

    assert record("auto") == record("none", max_share=None)
    even = {"name": "FedAvg", "weights": "uniform"}
    assert record("third", max_share=0.01) == content(
        run(quick(small, rounds=1, algorithm=even), tmp_path / "even").folder
    )


def test_what_makes_no_sense_is_refused(small: Small) -> None:
    with pytest.raises(FedstillError, match="FD uses every client's reply by itself"):
        small(algorithm="FD", blend="median")
    with pytest.raises(FedstillError, match="there is no blend 'medain'"):
        small(blend="medain")
    with pytest.raises(ValueError, match="max_share"):
        small(max_share=0)
