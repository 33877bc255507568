"""A record's series say what its files say."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fedstill.results.record import Record
from fedstill.results.report.charts import run_charts
from fedstill.results.report.material import reading_once
from fedstill.results.report.series import RunSeries, fewer, mean_of, series
from fedstill.results.report.words import spans
from fedstill.results.runs import load_runs
from tests.results.conftest import write_run
from tests.results.report.conftest import ATTACK


def series_of(folder: Path) -> RunSeries:
    return series(load_runs([folder])[0])


def test_curves_hold_the_last_score_of_every_round(record: Record) -> None:
    shown = series_of(record.folder)
    lines = [line for line in record.metrics if line.get("split") == "test" and line["party"] == "server"]
    assert shown.scores["server"] == {line["round"]: line["f1"] for line in lines}
    assert next(iter(shown.scores)) == "server"
    assert shown.by_round[2] == record.f1()
    assert {name: curve[2] for name, curve in shown.by_domain.items()} == {
        name: record.f1(split=f"test/{name}") for name in record.summary["clients"]
    }


def test_costs_add_up_to_the_summary(record: Record) -> None:
    shown = series_of(record.folder)
    for way in ("up", "down"):
        crossed = [sum(curve.values()) for name, curve in shown.bytes.items() if name.startswith(f"{way}:")]
        assert sum(crossed) == record.summary["bytes"][way]
    assert sum(sum(curve.values()) for curve in shown.seconds.values()) == pytest.approx(
        sum(line["seconds"]["total"] for line in record.log if "seconds" in line), abs=0.01
    )


def test_weights_losses_and_gains_are_the_method_s_own(record: Record) -> None:
    shown = series_of(record.folder)
    assert shown.weights is not None
    assert [sum(column) for column in zip(*shown.weights.values, strict=True)] == pytest.approx([1.0, 1.0])
    assert set(shown.losses) == set(record.summary["clients"])
    assert list(shown.members) == record.members
    assert shown.verdict == record.verdict


def test_holdings_count_the_training_rows_of_every_client(record: Record) -> None:
    shown = series_of(record.folder)
    parts = load_file(record.folder / "partition.safetensors")
    assert shown.holdings is not None
    assert shown.holdings.rows == tuple(record.summary["labels"])
    columns = zip(*shown.holdings.values, strict=True)
    rows = {name: sum(column) for name, column in zip(shown.holdings.columns, columns, strict=True)}  # type: ignore[arg-type]
    assert rows == {name: len(parts[f"train/{name}"]) for name in record.summary["clients"]}


def test_confusion_is_that_of_the_server_s_predictions(record: Record) -> None:
    shown, stored = series_of(record.folder), load_file(record.folder / "predictions" / "server.safetensors")
    counted = Counter(zip(stored["labels"].tolist(), stored["predicted"].tolist(), strict=True))
    assert shown.confusion is not None
    assert shown.confusion.values == tuple(tuple(counted[true, said] for said in range(3)) for true in range(3))
    assert sum(one.rows for one in shown.reliability) == len(stored["rows"])


def test_what_the_clients_said_alone_comes_from_the_local_run_of_the_seed(shops: Path) -> None:
    runs = load_runs([shops])
    alone, ours = sorted(runs, key=lambda run: run.algorithm != "Local")
    found = series(ours, alone=alone).disagreements
    assert found
    assert all(ATTACK in one.text and one.alone in ours.labels for one in found)


def test_a_run_between_organisations_has_no_texts_and_nothing_from_a_corpus(record: Record, tmp_path: Path) -> None:
    folder = shutil.copytree(record.folder, tmp_path / "centre")
    for engine in ("flare", None):
        (folder / "summary.json").write_text(json.dumps(record.summary | {"engine": engine}))

        def refuse(*_: object) -> None:
            raise AssertionError("the corpus was read")

        shown = series(load_runs([folder])[0], refuse)  # type: ignore[arg-type]
        assert not shown.disagreements
        assert shown.holdings is None
        assert not shown.experiment
        assert {rows for party in shown.parties for rows in party.rows} == {None}
        assert "Only pages about simulations have texts" in shown.missing["texts"]


def test_a_corpus_that_is_gone_or_changed_is_left_out_with_a_sentence(record: Record, tmp_path: Path) -> None:
    folder = shutil.copytree(record.folder, tmp_path / "run")
    moved = (folder / "experiment.yaml").read_text().replace("reviews.csv", "gone.csv")
    (folder / "experiment.yaml").write_text(moved)
    assert "gone.csv" in series_of(folder).missing["corpus"]
    other = shutil.copy(Path(moved.split("path: ")[1].split("\n")[0].strip("\"'")).with_name("reviews.csv"), tmp_path)
    text = Path(other).read_text().replace(",good,", ",bad,")
    Path(other).write_text(text + 'x,"so-so thing",good,books\n')
    (folder / "experiment.yaml").write_text(moved.replace(str(Path(record.folder).parents[2] / "gone.csv"), other))
    assert "changed since the run" in series_of(folder).missing["corpus"]


def test_a_run_without_predictions_says_so(record: Record, tmp_path: Path) -> None:
    folder = shutil.copytree(record.folder, tmp_path / "run", ignore=shutil.ignore_patterns("predictions", "models"))
    shown = series_of(folder)
    assert shown.confusion is None
    assert not shown.reliability
    assert "keeps no predictions" in shown.missing["answers"]


def test_a_summary_alone_is_enough(tmp_path: Path) -> None:
    told = {"kind": "head", "budget": 8.0, "delta": 1e-5, "noise": "seeded", "spent": {"companies": 1.5, "sports": 2.5}}
    shown = series_of(write_run(tmp_path, "AdaFD", epsilon=told, notes=["a fallback"]))
    assert shown.epsilon == 2.5
    assert shown.facts["Privacy"].startswith("epsilon 1.50 to 2.50 of 8.00 spent")
    assert shown.scores == {}
    assert [remark.says for remark in shown.remarks] == ["a fallback"]


def test_epsilon_is_drawn_by_round(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "AdaFD")
    lines = [
        {"round": number, "party": "sports", "observation": "epsilon", "values": {"spent": number / 2, "left": 1.0}}
        for number in (1, 2)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = series_of(folder)
    assert shown.spent == {"sports": {1: 0.5, 2: 1.0}}
    assert [chart.title for chart in run_charts(shown)["went"]] == ["Epsilon by round"]


def test_many_clients_become_their_lowest_mean_and_highest() -> None:
    curves = {"server": {1: 0.5}} | {f"c{number}": {1: number / 100} for number in range(20)}
    assert fewer(curves) == {
        "server": {1: 0.5},
        "highest of 20": {1: 0.19},
        "mean of 20": {1: pytest.approx(0.095)},
        "lowest of 20": {1: 0.0},
    }


def test_means_are_over_rounds_that_all_have() -> None:
    assert mean_of([{1: 1.0, 2: 2.0}, {2: 4.0, 3: 9.0}]) == {2: 3.0}
    assert mean_of([]) == {}
    assert spans([3, 1, 2, 7, 7]) == "1–3, 7"


def test_a_corpus_is_read_once_for_all_runs(record: Record) -> None:
    times = []

    def read(*given: object) -> str:
        times.append(given)
        return "corpus"

    once = reading_once(read)  # type: ignore[arg-type]
    assert [once("spec", None), once("spec", None)] == ["corpus", "corpus"]  # type: ignore[arg-type]
    assert len(times) == 1
