import json
from statistics import stdev

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file
from scipy import stats

from fedstill.common.errors import FedstillError
from fedstill.common.events import Begun, Measured, RoundDone
from fedstill.learning.metrics import METRICS, Metric, scores
from fedstill.results.compare import compare, load_runs, to_dict
from fedstill.results.progress import Progress
from fedstill.results.runs import Unpaired, predictions
from fedstill.results.table import render
from tests.results.conftest import CLIENTS, pooled_test, write_run
from tests.strangers import common_folder, unreadable


def stored(folder):
    return json.loads((folder / "summary.json").read_text())["scores"]


def row_of(comparison, method):
    return next(row for row in comparison.rows if row.method == method)


def text_of(comparison, width=200):
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(render(comparison, width))
    return capture.get()


def test_rows_hold_means_and_sample_deviations_over_seeds(tmp_path):
    folders = [write_run(tmp_path, "FedAvg", seed) for seed in range(3)]
    row = compare(load_runs([tmp_path])).rows[0]
    overall = [stored(folder)["server"]["test"]["f1"] for folder in folders]
    sports = [stored(folder)["server"]["test/sports"]["f1"] for folder in folders]
    clients = [np.mean([each["test"]["f1"] for each in stored(folder)["clients"].values()]) for folder in folders]
    assert (row.overall.mean, row.overall.deviation) == pytest.approx((np.mean(overall), stdev(overall)))
    assert (row.domains["sports"].mean, row.domains["sports"].deviation) == pytest.approx(
        (np.mean(sports), stdev(sports))
    )
    assert row.clients_mean.mean == pytest.approx(np.mean(clients))
    assert (row.bytes_up, row.bytes_down, row.seconds, row.seeds) == (1_500_000, 500_000, 13.0, (0, 1, 2))


@pytest.mark.parametrize(
    ("metric", "caption"), [("accuracy", "Accuracy in points"), ("matthews", "Matthews correlation times 100")]
)
def test_scores_differences_and_tests_are_in_the_headline_metric(tmp_path, metric, caption):
    metrics = [metric, "f1"]
    ours = [stored(write_run(tmp_path, "AdaFD", seed, accuracy=0.9, metrics=metrics)) for seed in range(3)]
    theirs = [stored(write_run(tmp_path, "FedAvg", seed, accuracy=0.6, metrics=metrics)) for seed in range(3)]
    comparison = compare(load_runs([tmp_path]), resamples=1000)
    row = row_of(comparison, "AdaFD")
    first, second = ([run["server"]["test"][metric] for run in runs] for runs in (ours, theirs))
    assert comparison.metric == to_dict(comparison)["metric"] == metric
    assert row.overall.mean == pytest.approx(np.mean(first))
    assert row.domains["sports"].mean == pytest.approx(np.mean([run["server"]["test/sports"][metric] for run in ours]))
    assert row.difference.mean == pytest.approx(np.mean(first) - np.mean(second))
    assert row.difference.p_seeds == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert row.difference.bootstrap.difference == pytest.approx(row.difference.mean)
    assert comparison.notes[0].startswith(f"{caption} after the last round")


def test_a_correlation_below_zero_is_still_above_a_missing_score(tmp_path):
    write_run(tmp_path, "FedAvg", metrics=["matthews"], scores={"server": {"test": {"matthews": -1.0}}})
    write_run(tmp_path, "FedMD", metrics=["matthews"], scores={"server": {"test": {"f1": 0.5}}})
    comparison = compare(load_runs([tmp_path]), resamples=100)
    assert [row.method for row in comparison.rows] == ["FedMD", "FedAvg"]
    assert row_of(comparison, "FedMD").overall is None


def test_a_metric_is_one_entry_of_one_table(tmp_path, monkeypatch):
    def wrong(confusion):
        return 1 - np.trace(confusion, axis1=-2, axis2=-1) / confusion.sum((-2, -1))

    monkeypatch.setitem(METRICS, "error", Metric(wrong, "error rate", "Share of wrong rows in percent", classes=3))
    labels = np.array([0, 1, 2, 2, 1])
    assert scores(labels, np.array([0, 1, 2, 1, 0]), 3)["error"] == pytest.approx(0.4)
    assert "error" not in scores(labels, labels, 4)
    write_run(tmp_path, "AdaFD", metrics=["error", "f1"], accuracy=0.9)
    write_run(tmp_path, "FedAvg", metrics=["error", "f1"], accuracy=0.6)
    comparison = compare(load_runs([tmp_path]), resamples=100)
    assert comparison.notes[0].startswith("Share of wrong rows in percent after the last round")
    difference = row_of(comparison, "AdaFD").difference
    assert difference.bootstrap.difference == pytest.approx(difference.mean)
    console = Console(width=200)
    with console.capture() as shown, Progress(console) as tell:
        tell(Begun(rounds=1, metric="error", models={"server": "bow"}))
        tell(Measured({"round": 1, "party": "server", "stage": "distilled", "split": "test", "error": 0.4}))
        tell(RoundDone(1, 1, 7))
    assert "round 1/1: server error rate 40.0, 7 B" in shown.get()


def test_a_method_without_a_server_is_scored_by_its_clients(tmp_path):
    folder = write_run(tmp_path, "Local", server=False)
    comparison = compare(load_runs([tmp_path]))
    row, clients = comparison.rows[0], stored(folder)["clients"]
    assert row.overall.mean == pytest.approx(np.mean([each["test"]["f1"] for each in clients.values()]))
    assert row.domains["sports"].mean == clients["sports"]["test/sports"]["f1"]
    assert any(note.startswith("* Local has no server model") for note in comparison.notes)
    write_run(tmp_path, "LogitAvg")
    local, other = (line for line in text_of(compare(load_runs([tmp_path]))).splitlines() if line.startswith("Lo"))
    assert local.split()[1:4] == [f"{100 * value:.1f}*" for value in _scores_of(row)]
    assert "*" not in other


def test_clients_that_were_tested_on_their_own_rows_have_a_column_of_their_own(tmp_path):
    pooled = stored(write_run(tmp_path / "other", "Local", server=False))["clients"]
    own = {name: {f"test/{name}": scores[f"test/{name}"]} for name, scores in pooled.items()}
    write_run(tmp_path, "Local", server=False, name="own", scores={"clients": own})
    comparison = compare(load_runs([tmp_path / "own"]))
    mean = np.mean([scores[f"test/{name}"]["f1"] for name, scores in own.items()])
    assert comparison.rows[0].clients_own.mean == pytest.approx(mean)
    lines = text_of(comparison).splitlines()
    assert any(f" {100 * mean:.1f} " in line for line in lines if line.startswith("Local"))
    assert any("own" in line.split() for line in lines[:2])
    assert any(note.startswith("Own test: the mean of the clients' own models") for note in comparison.notes)
    assert not any(note.startswith("Clients' mean") for note in comparison.notes)


def test_at_eighty_columns_no_word_of_a_comparison_is_broken(tmp_path):
    names = ["telecommunications", "pharmaceuticals", "entertainment", "transportation", "manufacturing"]
    split = {f"test/{name}": {"f1": 0.5} for name in names} | {"test": {"f1": 0.5}}
    write_run(tmp_path, "AdaFD w/ ENWC", algorithm="AdaFD", scores={"server": split, "clients": {}})
    lines = text_of(compare(load_runs([tmp_path])), 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert set(names) <= {word for line in lines for word in line.split()}


def _scores_of(row):
    return [row.overall.mean, *(row.domains[name].mean for name in CLIENTS)]


def test_the_best_baseline_is_neither_a_papers_method_nor_the_upper_bound(tmp_path):
    write_run(tmp_path, "Centralized", accuracy=0.95)
    write_run(tmp_path, "AdaFD w/ ENWC", accuracy=0.9, algorithm="AdaFD")
    write_run(tmp_path, "FedAvg", accuracy=0.7)
    write_run(tmp_path, "Local", server=False, alone=0.5)
    comparison = compare(load_runs([tmp_path]), resamples=100)
    assert comparison.against == "FedAvg"
    assert [row.method for row in comparison.rows] == ["Local", "FedAvg", "AdaFD w/ ENWC", "Centralized"]
    assert row_of(comparison, "FedAvg").difference is None
    assert "Centralized is an upper bound: it sees all private data." in comparison.notes


@pytest.mark.parametrize("number", [3, 4])
def test_many_models_that_predict_one_class_are_one_note(tmp_path, number):
    one_class = "predicts one class (good) for nearly all test rows after round"
    notes = [f"c{place} {one_class} {2 if place else 3}." for place in range(number)]
    write_run(tmp_path, "AdaFD", notes=["other", *notes])
    told = [note for note in compare(load_runs([tmp_path])).notes if note.startswith("AdaFD, seed 0: ")]
    one = "one class was predicted for nearly all test rows: by 3 models after round 2 (c1, c2, c3), "
    one += "1 model after round 3 (c0)."
    assert told == [f"AdaFD, seed 0: {note}" for note in ("other", *(notes if number == 3 else [one]))]


def test_a_note_of_an_earlier_revision_names_no_round(tmp_path):
    notes = [f"c{place} predicts one class (good) for nearly all test rows." for place in range(4)]
    write_run(tmp_path, "AdaFD", notes=notes)
    (told,) = [note for note in compare(load_runs([tmp_path])).notes if "one class" in note]
    assert told.endswith("test rows: by 4 models (c0, c1, c2 and 1 more).")


def test_without_a_baseline_there_are_no_differences(tmp_path):
    write_run(tmp_path, "AdaFD")
    write_run(tmp_path, "FedID")
    comparison = compare(load_runs([tmp_path]))
    assert comparison.against is None
    assert "No baseline among these runs" in comparison.notes[0]
    assert "vs" not in text_of(comparison).split("\n")[0]


@pytest.mark.parametrize("against", [None, "DSFL"])
def test_a_method_alone_is_not_compared_with_itself(tmp_path, against):
    for seed in range(3):
        write_run(tmp_path, "DSFL", seed)
    comparison = compare(load_runs([tmp_path]), against)
    assert comparison.against is None
    assert "vs DSFL" not in text_of(comparison)
    assert comparison.notes[0].endswith("over seeds. No other method among these runs, so no differences.")
    with pytest.raises(FedstillError, match="no run of 'FedAvg'"):
        compare(load_runs([tmp_path]), "FedAvg")


@pytest.mark.parametrize("against", ["fedmd W/ mean", "FEDMD", "tweets-fedmd-w-mean"])
def test_against_takes_a_method_an_algorithm_or_a_name_in_any_case(tmp_path, against):
    write_run(tmp_path, "FedMD w/ mean", algorithm="FedMD", accuracy=0.5)
    write_run(tmp_path, "FedAvg", accuracy=0.8)
    assert compare(load_runs([tmp_path]), against, resamples=100).against == "FedMD w/ mean"


def test_an_unknown_against_names_the_nearest(tmp_path):
    write_run(tmp_path, "FedMD w/ mean", algorithm="FedMD")
    write_run(tmp_path, "Local", server=False)
    with pytest.raises(FedstillError, match=r"no run of 'locl' .* did you mean 'Local'\?"):
        compare(load_runs([tmp_path]), "locl")


def test_an_against_with_two_meanings_asks_which(tmp_path):
    write_run(tmp_path, "AdaFD w/ ENWC", algorithm="AdaFD")
    write_run(tmp_path, "AdaFD w/ mean", algorithm="AdaFD")
    with pytest.raises(FedstillError, match="choose one of AdaFD w/ ENWC, AdaFD w/ mean"):
        compare(load_runs([tmp_path]), "AdaFD")


def test_differences_are_paired_on_common_seeds(tmp_path):
    ours = [write_run(tmp_path, "AdaFD", seed, accuracy=0.9) for seed in range(4)]
    theirs = [write_run(tmp_path, "FedAvg", seed, accuracy=0.6) for seed in range(1, 6)]
    comparison = compare(load_runs([tmp_path]), resamples=1000)
    difference = row_of(comparison, "AdaFD").difference
    first = [stored(folder)["server"]["test"]["f1"] for folder in ours[1:]]
    second = [stored(folder)["server"]["test"]["f1"] for folder in theirs[:3]]
    assert difference.seeds == (1, 2, 3)
    assert difference.mean == pytest.approx(np.mean(first) - np.mean(second))
    assert difference.p_seeds == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert difference.bootstrap.difference == pytest.approx(difference.mean)
    assert difference.bootstrap.low > 0
    assert difference.bootstrap.p == 0.001
    assert "AdaFD against FedAvg: paired on seed 1, 2, 3 only." in comparison.notes
    tests = "paired t-test over 3 seeds; paired bootstrap over 120 test rows per seed, 1,000 resamples"
    assert tests in comparison.notes[0]


def test_the_bootstrap_against_local_means_over_its_clients(tmp_path):
    write_run(tmp_path, "AdaFD", accuracy=0.8)
    write_run(tmp_path, "Local", server=False)
    comparison = compare(load_runs([tmp_path]), resamples=200)
    difference = row_of(comparison, "AdaFD").difference
    assert comparison.against == "Local"
    assert difference.p_seeds is None
    assert difference.bootstrap.difference == pytest.approx(difference.mean)
    assert "no t-test over seeds, which needs 3" in comparison.notes[0]


def test_seeds_with_different_test_rows_are_not_paired(tmp_path):
    write_run(tmp_path, "AdaFD", test_fingerprint="other")
    write_run(tmp_path, "FedAvg")
    comparison = compare(load_runs([tmp_path]))
    assert row_of(comparison, "AdaFD").difference is None
    assert "AdaFD against FedAvg: the test rows differ for seed 0, which cannot be paired." in comparison.notes


def test_without_any_pair_no_test_is_said_to_lack_seeds(tmp_path):
    for seed in range(3):
        write_run(tmp_path, "AdaFD", seed, test_fingerprint="other")
        write_run(tmp_path, "FedAvg", seed)
    notes = compare(load_runs([tmp_path])).notes
    assert notes[0].endswith("No differences to FedAvg, as told below.")
    assert "AdaFD against FedAvg: the test rows differ for seed 0, 1, 2, which cannot be paired." in notes


def test_without_stored_predictions_there_is_a_difference_but_no_bootstrap(tmp_path):
    folder = write_run(tmp_path, "AdaFD")
    write_run(tmp_path, "FedAvg", accuracy=0.6)
    (folder / "predictions" / "server.safetensors").unlink()
    comparison = compare(load_runs([tmp_path]))
    difference = row_of(comparison, "AdaFD").difference
    assert difference.mean > 0
    assert difference.bootstrap is None
    assert any("no bootstrap, because" in note and "server.safetensors is missing" in note for note in comparison.notes)


def test_predictions_for_other_rows_or_damaged_are_not_bootstrapped(tmp_path):
    folder = write_run(tmp_path, "AdaFD")
    damaged = write_run(tmp_path, "FedID")
    write_run(tmp_path, "FedAvg", accuracy=0.6)
    rows, labels, _ = pooled_test(0)
    save_file({"rows": rows + 1, "labels": labels, "predicted": labels}, folder / "predictions" / "server.safetensors")
    (damaged / "predictions" / "server.safetensors").write_bytes(b"no")
    notes = "\n".join(compare(load_runs([tmp_path])).notes)
    assert "hold predictions for different rows" in notes
    assert "server.safetensors cannot be read" in notes


def test_predictions_of_somebody_else_are_said_to_be_unreadable():
    with common_folder() as folder:
        (run,) = load_runs([write_run(folder, "AdaFD")])
        with (
            unreadable(run.folder / "predictions" / "server.safetensors"),
            pytest.raises(Unpaired, match=r"server.safetensors cannot be read \(Permission denied\)"),
        ):
            predictions(run)
        assert predictions(run)[0].shape == (2, 120)


@pytest.mark.parametrize(("key", "value"), [("labels", ["no", "yes"]), ("clients", ["books", "dvd"])])
def test_runs_of_different_corpora_are_refused(tmp_path, key, value):
    write_run(tmp_path, "AdaFD", **{key: value})
    write_run(tmp_path, "FedAvg")
    with pytest.raises(FedstillError, match=f"different {key} .*compare them separately"):
        compare(load_runs([tmp_path]))


def test_runs_with_different_headlines_are_refused(tmp_path):
    write_run(tmp_path, "AdaFD", metrics=["accuracy", "f1"])
    write_run(tmp_path, "FedAvg")
    with pytest.raises(FedstillError, match=r"different headline metrics \(f1; accuracy\): .*compare them separately"):
        compare(load_runs([tmp_path]))


def test_runs_that_share_the_headline_may_differ_in_other_metrics(tmp_path):
    write_run(tmp_path, "AdaFD", metrics=["f1", "accuracy"])
    write_run(tmp_path, "FedAvg")
    assert compare(load_runs([tmp_path]), resamples=100).metric == "f1"


def test_two_experiments_of_one_method_stay_two_rows(tmp_path):
    write_run(tmp_path, "FedAvg", seed=0, name="short")
    write_run(tmp_path, "FedAvg", seed=1, name="long")
    assert {row.method for row in compare(load_runs([tmp_path])).rows} == {"FedAvg (short)", "FedAvg (long)"}


def test_a_copy_of_a_run_is_refused(tmp_path):
    write_run(tmp_path / "a", "FedAvg")
    write_run(tmp_path / "b", "FedAvg")
    with pytest.raises(FedstillError, match="same method, name and seed"):
        compare(load_runs([tmp_path]))


def test_a_run_without_a_pooled_test_leaves_gaps(tmp_path):
    write_run(tmp_path, "AdaFD", scores={"server": {"test/sports": {"f1": 0.5}}, "clients": {}})
    write_run(tmp_path, "FedAvg")
    comparison = compare(load_runs([tmp_path]))
    row = row_of(comparison, "AdaFD")
    assert (row.overall, row.domains["companies"], row.clients_mean, row.difference) == (None, None, None, None)
    assert row.domains["sports"].mean == 0.5
    assert "–" in text_of(comparison)


def test_the_table_shows_points_with_one_decimal(tmp_path):
    for seed, f1 in enumerate([0.660, 0.668, 0.673]):
        write_run(tmp_path, "FedAvg", seed, scores={"server": {"test": {"f1": f1}}})
    write_run(tmp_path, "minilm[:3] local", server=False, algorithm="Local")
    text = text_of(compare(load_runs([tmp_path]), resamples=100))
    assert "66.7 ± 0.7" in text
    assert "1.5 MB + 500.0 KB" in text
    assert "minilm[:3] local" in text
    assert "vs FedAvg" in text
    assert "(p seeds; p rows)" in text
    single = next(line for line in text.splitlines() if line.startswith("minilm"))
    assert "±" not in single


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_terminal_loses_no_number(tmp_path, width):
    for seed in range(3):
        write_run(tmp_path, "AdaFD", seed, accuracy=0.8)
        write_run(tmp_path, "FedAvg", seed)
    comparison = compare(load_runs([tmp_path]), resamples=100)
    text = text_of(comparison, width)
    assert "seeds" in text
    assert comparison.notes[-1].split()[-1] in text
    for row in comparison.rows:
        for spread in (row.overall, *row.domains.values(), row.clients_mean):
            assert f"{100 * spread.mean:.1f}" in text


def test_the_dictionary_is_json_and_keeps_fractions(tmp_path):
    for seed in range(3):
        write_run(tmp_path, "AdaFD", seed, accuracy=0.8)
        write_run(tmp_path, "FedAvg", seed)
    comparison = compare(load_runs([tmp_path]), resamples=100)
    restored = json.loads(json.dumps(to_dict(comparison)))
    adafd = next(row for row in restored["rows"] if row["method"] == "AdaFD")
    difference = row_of(comparison, "AdaFD").difference
    assert restored["against"] == "FedAvg"
    assert adafd["global"]["mean"] == row_of(comparison, "AdaFD").overall.mean
    assert adafd["difference"]["bootstrap"]["p"] == difference.bootstrap.p
    assert adafd["difference"]["seeds"] == [0, 1, 2]
    assert adafd["bytes"] == {"up": 1_500_000, "down": 500_000}
