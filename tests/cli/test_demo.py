"""The demo's flow at a size that takes seconds; `make demo` itself shows the real one."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console

from fedstill import Experiment, Record
from fedstill.cli import demo
from fedstill.data.partition import PartitionSpec
from fedstill.models import ModelSpec


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same methods on 60 tweets a domain with models of milliseconds."""
    real = demo.experiment

    def experiment(algorithm: demo.Method, seed: int, full: bool) -> Experiment:
        small = {
            "partition": PartitionSpec(rows_per_domain=60),
            "clients": ModelSpec(name="bow"),
            "server": ModelSpec(name="bow"),
            "workers": 1,
        }
        return real(algorithm, seed, full).model_copy(update=small)

    monkeypatch.setattr(demo, "experiment", experiment)


def test_the_real_demo_has_five_clients_with_four_kinds_of_model_and_differs_in_the_method_only() -> None:
    ours, plain = (demo.experiment(name, 0, full=False) for name in ("AdaFD", "LogitAvg"))
    assert [spec.name for spec in ours.clients] == ["bert-tiny", "bow", "bert-tiny", "textcnn", "bigru"]  # type: ignore[union-attr]
    assert ours.model_copy(update={"name": "", "algorithm": {}}) == plain.model_copy(
        update={"name": "", "algorithm": {}}
    )


def test_the_last_line_ends_with_the_gain_and_a_second_demo_uses_its_runs_again(tiny: None, tmp_path: Path) -> None:
    console = Console(width=100, record=True, file=(tmp_path / "shown").open("w"))
    gain = demo.demo(console, tmp_path / "runs")
    shown = console.export_text()
    assert shown.rstrip().endswith(f"{gain:+.1f} points")
    records = {name: Record(tmp_path / "runs" / f"demo-{name}" / "seed-0") for name in ("local", "adafd")}
    own = {
        name: 100 * (records["adafd"].f1(name, f"test/{name}") - records["local"].f1(name, f"test/{name}"))
        for name in records["adafd"].summary["clients"]
    }
    said = " ".join(shown.split())
    assert f"On their own tweets they gained {fmean(own.values()):+.1f} points on average; " in said
    assert all((f"{name} {lost:+.1f} (" in said) == (lost < -1) for name, lost in own.items())
    assert ("none of them lost more than a point." in said) == (min(own.values()) >= -1)
    assert "Centralized is an upper bound" in shown
    assert f"Page: {tmp_path / 'runs' / 'report.html'}" in shown.replace("\n", "")
    assert (tmp_path / "runs" / "report.html").read_bytes().startswith(b"<!DOCTYPE html>")
    before = (tmp_path / "runs/demo-adafd/seed-0/summary.json").stat().st_mtime_ns
    assert demo.demo(console, tmp_path / "runs") == gain
    assert (tmp_path / "runs/demo-adafd/seed-0/summary.json").stat().st_mtime_ns == before
    assert (
        "4 runs of an earlier demo used again; `fedstill demo --fresh` runs everything anew." in console.export_text()
    )
    assert demo.demo(console, tmp_path / "runs", fresh=True) == gain
    assert (tmp_path / "runs/demo-adafd/seed-0/summary.json").stat().st_mtime_ns > before


@pytest.mark.slow
def test_the_full_demo_runs_all_methods_over_three_seeds_and_keeps_what_is_finished(tiny: None, tmp_path: Path) -> None:
    console = Console(width=160, record=True, file=(tmp_path / "shown").open("w"))
    gain = demo.demo(console, tmp_path / "runs", full=True)
    shown = console.export_text()
    for method in ("AdaFD w/ ENWC", "AdaFD w/ RNWC", "LogitAvg", "DSFL", "MHAT", "FedKD", "Local", "Centralized"):
        assert method in shown
    assert "paired t-test over 3 seeds" in shown
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")}
    assert len(before) == 24
    assert demo.demo(console, tmp_path / "runs", full=True) == gain
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")}
