"""Running from a program: rows in memory, algorithms as objects, progress."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml

import fedstill
from fedstill import FedstillError
from fedstill.results.report.material import Material
from tests.api.conftest import files_of
from tests.conftest import write_reviews


def test_rows_in_memory_and_in_a_file_give_the_same_run(
    small: fedstill.Experiment, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    columns = {"text": ["title", "body"], "label": "stars", "domain": "shop"}
    corpora = {
        "file": {"path": str(write_reviews(tmp_path / "reviews.csv")), **columns},
        "list": {"table": rows, **columns},
        "frame": {"table": pandas.DataFrame(rows), **columns},
    }
    runs = [
        fedstill.run(small.changed(corpus=corpus), tmp_path / name, progress=False) for name, corpus in corpora.items()
    ]
    first, *others = [files_of(run.folder) for run in runs]
    assert all(first == other for other in others)


def test_a_run_keeps_its_rows_and_only_the_columns_that_it_uses(
    record: fedstill.Record, rows: list[dict[str, Any]]
) -> None:
    (kept,) = record.folder.glob("rows-*.jsonl")
    assert [json.loads(line) for line in kept.read_text().splitlines()] == [
        {name: row[name] for name in ("title", "body", "stars", "shop")} for row in rows
    ]
    assert yaml.safe_load((record.folder / "experiment.yaml").read_text())["corpus"]["path"] == str(kept.resolve())
    assert not (record.folder / "code.json").exists()  # which has hashes of own code only


def test_a_moved_folder_still_has_its_rows(record: fedstill.Record, tmp_path: Path) -> None:
    moved = fedstill.Record(shutil.copytree(record.folder, tmp_path / "elsewhere"))
    (kept,) = moved.folder.glob("rows-*.jsonl")
    kept.write_text(kept.read_text().replace("novel", "n0vel"))  # would not be noticed in the first folder
    assert "was changed since its run began" in Material.of(moved).problem
    assert Material.of(record).corpus is not None


def test_an_interrupted_run_goes_on_from_its_folder_alone(
    small: fedstill.Experiment, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    whole = fedstill.run(small.changed(rounds=2), tmp_path / "whole", progress=False)

    def stop_after_one(event: object) -> None:
        if type(event).__name__ == "RoundDone":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedstill.run(small.changed(rounds=2), tmp_path / "begun", tell=stop_after_one)
    shutil.move(tmp_path / "begun", tmp_path / "moved")
    resumed = fedstill.resume(str(tmp_path / "moved"), progress=False)
    assert files_of(resumed.folder) == files_of(whole.folder)


def test_other_rows_are_another_experiment(
    small: fedstill.Experiment, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    def stop(event: object) -> None:
        if type(event).__name__ == "Begun":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedstill.run(small, tmp_path / "run", tell=stop)
    columns = {"text": ["title", "body"], "label": "stars", "domain": "shop"}
    with pytest.raises(FedstillError, match=r"holds an unfinished run; go on"):
        fedstill.run(small, tmp_path / "run")
    with pytest.raises(FedstillError, match=r"another experiment \(it differs in corpus.path\)"):
        fedstill.run(small.changed(corpus={"table": rows[:-1], **columns}), tmp_path / "run")


def test_progress_is_that_of_the_command_line_or_none(
    small: fedstill.Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fedstill.run(small, tmp_path / "shown")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "3 clients, 156 private and 48 public rows, 1 round, 1 worker" in shown.err
    assert "round 1/1: server F1" in shown.err
    fedstill.run(small, tmp_path / "silent", progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_program_that_workers_would_run_again_is_told_so(tmp_path: Path) -> None:
    write_reviews(tmp_path / "reviews.csv")
    (tmp_path / "program.py").write_text(
        "import fedstill\n"
        "corpus = {'path': 'reviews.csv', 'text': 'body', 'label': 'stars', 'domain': 'shop'}\n"
        "fedstill.run(fedstill.Experiment(corpus=corpus, clients='bow', server='bow', rounds=1, workers=2))\n"
    )
    ended = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode
    (last,) = ended.stderr.splitlines()[-1:]
    assert "put what runs under `if __name__ == '__main__':`, or set workers=1" in last


def test_an_experiment_may_be_a_file(small: fedstill.Experiment, reviews: Path, tmp_path: Path) -> None:
    columns = {"text": ["title", "body"], "label": "stars", "domain": "shop"}
    file = tmp_path / "experiment.yaml"
    file.write_text(small.changed(corpus={"path": str(reviews), **columns}).to_yaml())
    assert fedstill.run(str(file), str(tmp_path / "run"), progress=False).is_finished
