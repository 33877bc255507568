"""Settings are tried on validation rows, all are written down, and the best is found again from the file."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedstill.common.errors import FedstillError
from fedstill.config.experiment import load_experiment
from fedstill.config.source import Source
from fedstill.papers.recipe import recipe_path
from fedstill.papers.tuning import FIRST_SEED, chosen, read, tries, tune, write_lines
from tests.papers.tiny import TINY, tiny_source

ROOT = Path(__file__).resolve().parents[2]


def test_every_combination_is_tried():
    assert tries({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}
    ]  # fmt: skip


def line(row, rate, score, seed=0):
    return {
        "recipe": "r", "scale": "medium", "group": "g", "row": row, "columns": ["c"], "try": {"rate": rate},
        "seed": seed, "score": score,
    }  # fmt: skip


def test_the_best_mean_is_chosen_for_each_row_and_a_try_that_failed_is_not():
    lines = [line("A", 1, 0.5), line("A", 1, 0.7, 1), line("A", 2, 0.65), line("A", 2, None, 1), line("B", 2, 0.1)]
    assert [(each["row"], each["try"]["rate"], each["score"]) for each in chosen(lines)] == [
        ("A", 1, pytest.approx(0.6)),
        ("B", 2, 0.1),
    ]


def test_lines_replace_those_of_the_same_try_and_keep_the_others(tmp_path):
    path = tmp_path / "tuning.json"
    write_lines(path, [line("A", 1, 0.5), line("A", 2, 0.6)])
    write_lines(path, [line("A", 1, 0.9)])
    assert [each["score"] for each in read(path)] == [0.9, 0.6]
    path.write_text("[")
    with pytest.raises(FedstillError, match=r"tuning.json is not JSON"):
        read(path)


def sorted_json(value):
    return json.dumps(value, sort_keys=True)


def test_every_row_gets_every_try_on_validation_rows_with_a_seed_of_its_own(reviews, tmp_path):
    text = TINY.replace("  small: {seeds: 2,", "  small: {seeds: 2, tries: {train.rate: [0.01, 0.1]},")
    out, evidence = tmp_path / "runs", tmp_path / "evidence"
    console = Console(file=io.StringIO(), width=120)
    told = tune(tiny_source(reviews, text), "tiny", "small", out, evidence, console, only=["AdaFD", "FedAvg"], jobs=1)
    found = json.loads((evidence / "tuning.json").read_text())
    assert sorted(map(sorted_json, told["tried"])) == sorted(map(sorted_json, found))
    assert sorted(each["row"] for each in told["chosen"]) == ["AdaFD", "FedAvg"]
    assert sorted((each["row"], each["try"]["train.rate"]) for each in found) == [
        ("AdaFD", 0.01), ("AdaFD", 0.1), ("FedAvg", 0.01), ("FedAvg", 0.1)
    ]  # fmt: skip
    for folder in out.glob("*/*/seed-*"):
        experiment = load_experiment(folder / "experiment.yaml")
        assert (experiment.measure, experiment.seed) == ("validation", FIRST_SEED)
    assert "train.rate" in console.file.getvalue()
    assert all(0 <= each["score"] <= 1 for each in found)


def test_a_try_that_fails_is_said_with_its_reason_and_nothing_is_written_if_all_do(reviews, tmp_path):
    tries = "  small: {seeds: 2, tries: {partition.validation: [VALUES]},"
    evidence, console = tmp_path / "evidence", Console(file=io.StringIO())
    for values, goes_on in (("0", False), ("0, 0.2", True)):
        source = tiny_source(reviews, TINY.replace("  small: {seeds: 2,", tries.replace("VALUES", values)))
        asked = (source, "tiny", "small", tmp_path / values, evidence, console)
        if goes_on:
            tried = tune(*asked, only=["FedAvg"], jobs=1)["tried"]
            assert [each["score"] is None for each in tried] == [True, False]
            assert "needs two validation rows" in console.file.getvalue()
        else:
            with pytest.raises(FedstillError, match="needs two validation rows"):
                tune(*asked, only=["FedAvg"], jobs=1)
            assert not evidence.exists()


def test_a_scale_without_tries_says_so(reviews, tmp_path):
    with pytest.raises(FedstillError, match="scale small names no settings to try"):
        tune(tiny_source(reviews), "tiny", "small", tmp_path, tmp_path, Console(file=io.StringIO()))


def test_what_was_tried_for_a_recipe_is_what_the_recipe_says():
    """Tables use the models' default rates, which are among the tries and within noise of the best everywhere."""
    for each in read(ROOT / "evidence" / "tuning.json"):
        source = Source.read(recipe_path(each["recipe"]))
        offered = source.values["scales"][each["scale"]]["tries"]
        assert all(value in offered[key] for key, value in each["try"].items())
