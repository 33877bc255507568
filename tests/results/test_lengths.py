"""What is said of runs that did not train for as long as each other."""

from fedstill.results.compare import by_method, compare, load_runs
from fedstill.results.lengths import unequal_alone
from tests.cli.test_cli import fedstill
from tests.results.conftest import write_run


def with_epochs(folder, epochs, clients="bow"):
    (folder / "experiment.yaml").write_text(f"clients: {clients}\ntrain: {{epochs: {epochs}}}\n")


def told(tmp_path):
    return [note for note in compare(load_runs([tmp_path]), resamples=100).notes if "not equally long" in note]


def test_methods_of_other_rounds_and_epochs_are_named(tmp_path):
    with_epochs(write_run(tmp_path, "AdaFD", rounds=3), 3)
    with_epochs(write_run(tmp_path, "DSFL", rounds=1), 1)
    with_epochs(write_run(tmp_path, "FedAvg", rounds=1), 1)
    assert told(tmp_path) == [
        "The runs are not equally long: 3 rounds of 3 epochs (AdaFD); 1 round of 1 epoch (DSFL; FedAvg); "
        "a difference may come from that alone."
    ]


def test_only_what_differs_is_named(tmp_path):
    folders = [write_run(tmp_path / "a", "AdaFD"), write_run(tmp_path / "a", "DSFL")]
    with_epochs(folders[0], 3, "{sports: {train: {epochs: 2}}, companies: {train: {epochs: 5}}}")
    with_epochs(folders[1], 3)
    (epochs,) = told(tmp_path / "a")
    assert ": 2 to 5 epochs a round (AdaFD); 3 epochs a round (DSFL); " in epochs
    write_run(tmp_path / "b", "AdaFD", rounds=3)
    write_run(tmp_path / "b", "DSFL", rounds=4)
    (rounds,) = told(tmp_path / "b")  # no experiment says how many epochs
    assert ": 3 rounds (AdaFD); 4 rounds (DSFL); " in rounds


def test_a_mean_over_seeds_of_different_lengths_is_not_silent(tmp_path):
    for seed in range(3):
        write_run(tmp_path, "AdaFD", seed, rounds=4 if seed == 0 else 3)
    assert told(tmp_path) == [
        "The runs are not equally long: 4 rounds (AdaFD, seed 0); 3 rounds (AdaFD, seed 1, 2); "
        "the mean of AdaFD is over seeds of different lengths."
    ]


def test_nothing_is_said_of_runs_that_are_equally_long_or_of_unknown_length(tmp_path):
    with_epochs(write_run(tmp_path, "AdaFD"), 3)
    with_epochs(write_run(tmp_path, "DSFL"), 3)
    assert told(tmp_path) == []
    (write_run(tmp_path, "FedMD") / "experiment.yaml").write_text("cut short: [")
    assert told(tmp_path) == []


def test_compare_says_below_the_gains_where_alone_is_not_the_same(tmp_path, capsys):
    gained = [{"name": "sports", "model": "bow", "own": {"alone": 0.5, "after": 0.6}, "every": None}]
    write_run(tmp_path, "AdaFD", members=gained, alone_rounds=3)
    write_run(tmp_path, "DSFL", members=gained, alone_rounds=3)
    write_run(tmp_path, "Local", server=False, alone_rounds=1)  # nobody learnt from anybody: it is not in that table
    assert unequal_alone(by_method(load_runs([tmp_path]))) is None
    write_run(tmp_path, "FedMD", members=gained, alone_rounds=1)
    assert fedstill("compare", str(tmp_path)) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Alone is not the same for all: 3 rounds (AdaFD; DSFL); 1 round (FedMD);" in out


def test_a_summary_without_rounds_is_read(tmp_path):
    folder = write_run(tmp_path, "AdaFD", rounds=3)
    path = folder / "summary.json"
    path.write_text(path.read_text().replace('"rounds": 3, ', ""))
    write_run(tmp_path, "DSFL", rounds=4)
    assert load_runs([folder])[0].rounds is None
    assert told(tmp_path) == []
