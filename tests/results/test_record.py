import random
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

import fedstill
from fedstill import Experiment
from fedstill.common.errors import FedstillError
from fedstill.results.compare import compare, load_runs
from fedstill.results.record import Record

WORDS = ("apple", "river", "stone", "cloud", "glass", "tiger", "piano", "wheel")


def write_pairs(path: Path, rows: int) -> None:
    """Sentence pairs in the form of MRPC, two thirds of them equivalent."""
    random_ = random.Random(path.name)
    lines = ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    for row in range(rows):
        first, second = " ".join(random_.sample(WORDS, 4)), " ".join(random_.sample(WORDS, 4))
        lines.append(f"{int(row % 3 > 0)}\t{row}\t{row}\t{first}\t{second}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A finished run on a task whose headline is the F1 of the positive class."""
    folder = tmp_path_factory.mktemp("glue")
    write_pairs(folder / "MRPC" / "train.tsv", 90)
    write_pairs(folder / "MRPC" / "dev.tsv", 30)
    settings = {
        "name": "pairs",
        "corpus": {"name": "glue", "task": "MRPC", "path": str(folder)},
        "partition": {"kind": "iid", "clients": 2, "public": 0.3, "validation": 0.2},
        "clients": "bow",
        "server": "bow",
        "algorithm": "LogitAvg",
        "rounds": 3,
        "workers": 1,
    }
    return fedstill.run(Experiment.model_validate(settings), folder / "run")


def test_the_summary_names_the_corpus_metrics_and_holds_every_score(record):
    assert record.summary["metrics"] == ["positive_f1", "accuracy"]
    assert set(record.summary["scores"]["server"]["test"]) == {"f1", "macro_f1", "accuracy", "matthews", "positive_f1"}


def test_scores_are_those_of_the_stored_predictions(record):
    for party in ("server", "client-1"):
        stored = load_file(record.folder / "predictions" / f"{party}.safetensors")
        labels, predicted = stored["labels"], stored["predicted"]
        assert len(labels) == 30
        assert record.score("positive_f1", party) == pytest.approx(f1_score(labels, predicted, zero_division=0))
        assert record.score("accuracy", party) == pytest.approx(accuracy_score(labels, predicted))
        assert record.score("matthews", party) == pytest.approx(matthews_corrcoef(labels, predicted))
        weighted = f1_score(labels, predicted, average="weighted", zero_division=0)
        assert record.f1(party) == record.score("f1", party) == pytest.approx(weighted)


def test_the_best_round_on_validation_goes_by_the_headline(record):
    scores = {
        split: [line["positive_f1"] for line in record.metrics if (line.get("party"), line.get("split")) == split]
        for split in (("server", "validation"), ("server", "test"))
    }
    validation, test = scores["server", "validation"], scores["server", "test"]
    assert len(validation) == len(test) == 3
    best = validation.index(max(validation))
    expected = {
        "round": best + 1,
        "metric": "positive_f1",
        "validation": max(validation),
        "test": test[best],
        "note": "simulation only",
    }
    assert record.summary["best_on_validation"] == expected


def test_the_table_of_a_run_is_in_its_headline_metric(record):
    comparison = compare(load_runs([record.folder]))
    assert comparison.rows[0].overall.mean == record.score("positive_f1")
    assert comparison.notes[0].startswith("F1 of the positive class in points")


def test_a_score_that_was_not_measured_is_one_sentence(record):
    with pytest.raises(FedstillError, match="nothing was measured for client-9 on test"):
        record.score("accuracy", "client-9")
    with pytest.raises(FedstillError, match="pearson was not measured; there are f1, macro_f1, accuracy, matthews"):
        record.score("pearson")
