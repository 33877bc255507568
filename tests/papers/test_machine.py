"""What a run was made with, as its line in the evidence says it."""

from __future__ import annotations

from pathlib import Path

from fedstill.papers.machine import device_name, machine_of, note_machine


def test_the_precision_is_named_where_it_is_not_the_devices_usual_one(tmp_path: Path) -> None:
    usual = device_name("cpu")
    for precision, expected in (("auto", usual), ("fp32", usual), ("bf16", f"{usual}, bf16")):
        note_machine(tmp_path, "cpu", precision)
        assert machine_of(tmp_path)["device"] == expected


def test_a_folder_without_a_note_says_that_nothing_is_known(tmp_path: Path) -> None:
    assert machine_of(tmp_path) == {"commit": "of unknown revision", "device": "an unknown machine"}
