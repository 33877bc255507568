import pytest

from fedstill.common.errors import FedstillError
from fedstill.results.compare import compare, load_runs
from tests.results.conftest import write_run


@pytest.mark.parametrize("given", [["."], ["tweets-fedavg"], ["tweets-fedavg/seed-0", "tweets-fedavg/seed-1"]])
def test_runs_are_found_at_every_level(tmp_path, given):
    for seed in (0, 1):
        write_run(tmp_path, "FedAvg", seed)
    assert [run.seed for run in load_runs([tmp_path / path for path in given])] == [0, 1]


def test_a_run_reached_by_two_paths_is_loaded_once(tmp_path):
    folder = write_run(tmp_path, "FedAvg")
    assert len(load_runs([tmp_path, folder, folder.parent])) == 1


def test_unfinished_folders_are_skipped_and_noted(tmp_path):
    write_run(tmp_path, "FedAvg")
    unfinished = tmp_path / "tweets-fedavg" / "seed-1"
    unfinished.mkdir()
    runs = load_runs([tmp_path])
    assert [run.seed for run in runs] == [0]
    assert runs.skipped == (unfinished,)
    assert f"Left out: {unfinished} is not finished (no summary.json)." in compare(runs).notes


def test_no_finished_run_says_what_to_do(tmp_path):
    (tmp_path / "x" / "seed-0").mkdir(parents=True)
    with pytest.raises(FedstillError, match=r"looked in .*seed-0.*fedstill run --resume"):
        load_runs([tmp_path])


def test_an_empty_folder_is_named_in_the_error(tmp_path):
    with pytest.raises(FedstillError, match=f"looked in {tmp_path} for"):
        load_runs([tmp_path])


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(FedstillError, match="is not a folder"):
        load_runs([tmp_path / "nowhere"])


def test_a_summary_without_metrics_means_weighted_f1(tmp_path):
    write_run(tmp_path, "FedAvg", scores={"server": {"test": {"f1": 0.5, "accuracy": 0.75}}})
    write_run(tmp_path, "FedMD", scores={"server": {"test": {"f1": 0.5, "accuracy": 0.75}}}, metrics=["accuracy"])
    assert [(run.metric, run.overall) for run in load_runs([tmp_path])] == [("f1", 0.5), ("accuracy", 0.75)]


def test_a_metric_of_another_version_is_named(tmp_path):
    folder = write_run(tmp_path, "FedAvg", metrics=["pearson"])
    with pytest.raises(FedstillError, match=r"summary.json cannot be read \(there is no metric 'pearson'"):
        load_runs([folder])


@pytest.mark.parametrize(
    ("content", "message"), [("{", "cannot be read"), ("[]", "cannot be read"), ('{"name": "x"}', "has no 'method'")]
)
def test_a_broken_summary_is_named(tmp_path, content, message):
    folder = write_run(tmp_path, "FedAvg")
    (folder / "summary.json").write_text(content)
    with pytest.raises(FedstillError, match=rf"summary.json {message}"):
        load_runs([folder])
