"""GLUE: every task in its original form, from the Hub's form, and what is said when something is missing."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from fedstill.common.errors import FedstillError
from fedstill.data.corpora import CorpusSpec, glue, load, load_public
from fedstill.data.corpus import Corpus
from fedstill.data.partition import PartitionSpec, split
from fedstill.learning.metrics import METRICS


def mnli(first: str, second: str, gold: str, voters: int) -> list[list[str]]:
    """A split of MNLI with one row: parses beside the sentences, and as many votes as the split has."""
    parses = [f"sentence{number}{kind}" for kind in ("_binary_parse", "_parse") for number in (1, 2)]
    votes = [f"label{number}" for number in range(1, voters + 1)]
    header = ["index", "promptID", "pairID", "genre", *parses, "sentence1", "sentence2", *votes, "gold_label"]
    values = {"sentence1": first, "sentence2": second, "gold_label": gold} | dict.fromkeys(votes, "neutral")
    return [header, [values.get(name, f"( {name} )") for name in header]]


# A file a split in the exact original form: rows are lines, fields are parted by tabs.
FILES: dict[str, dict[str, list[list[str]]]] = {
    "WNLI": {
        "train.tsv": [["index", "sentence1", "sentence2", "label"], ["0", "The pin had a hole.", "It had.", "1"]],
        "dev.tsv": [["index", "sentence1", "sentence2", "label"], ["0", "It is clogged.", "Hair is.", "0"]],
    },
    "RTE": {
        "train.tsv": [["index", "sentence1", "sentence2", "label"], ["0", 'No "weapons".', "None.", "not_entailment"]],
        "dev.tsv": [["index", "sentence1", "sentence2", "label"], ["0", "Bacteria win.", "They win.", "entailment"]],
    },
    "MRPC": {
        "train.tsv": [
            ["\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
            ["1", "702876", "702977", 'He called " the witness', '" the witness " , he said'],
            ["0", "210870", "210883", "He owned the chain .", "He bought it ."],
        ],
        "dev.tsv": [
            ["\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
            ["1", "1", "2", '" The pie', "A pie"],
        ],
    },
    "CoLA": {
        "train.tsv": [["gj04", "1", "", "Our friends won't buy this."], ["gj04", "0", "*", "They drank the pub."]],
        "dev.tsv": [["gj04", "1", "", "The sailors rode the breeze."]],
    },
    "SST-2": {
        "train.tsv": [["sentence", "label"], ['no wit , " only labored gags ', "0"], ["a charming journey ", "1"]],
        "dev.tsv": [["sentence", "label"], ["unflinchingly bleak ", "0"], ["A Charming  journey", "1"]],
    },
    "QNLI": {
        "train.tsv": [["index", "question", "sentence", "label"], ["0", "What?", "That.", "entailment"]],
        "dev.tsv": [["index", "question", "sentence", "label"], ["0", "Who?", "Nobody.", "not_entailment"]],
    },
    "QQP": {
        "train.tsv": [
            ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
            ["0", "1", "2", "How do I?", 'How " would I?', "1"],
            ["1", "3", "4", "A question that was broken"],
            ["in two?", "Another?", "0"],
            ["2", "5", "6", "Is it?", "Was it?", "0"],
        ],
        "dev.tsv": [
            ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
            ["7", "8", "9", "Why?", "Why not?", "0"],
        ],
    },
    "MNLI": {
        "train.tsv": mnli("A.", "B.", "neutral", voters=1),
        "dev_matched.tsv": mnli("C.", "D.", "entailment", voters=5),
        "dev_mismatched.tsv": mnli("E.", "F.", "contradiction", voters=5),
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All tasks as GLUE publishes them; CoLA's last line is not ended."""
    for task, splits in FILES.items():
        (tmp_path / task).mkdir()
        for file, rows in splits.items():
            end = "" if task == "CoLA" else "\n"
            (tmp_path / task / file).write_bytes(("\n".join("\t".join(row) for row in rows) + end).encode())
    return tmp_path


def read(task: str, folder: Path | None, labels: list[str] | None = None) -> Corpus:
    return load(CorpusSpec(name="glue", task=task, path=folder and str(folder)), labels)


def named(corpus: Corpus) -> list[tuple[str, str | None, str, bool]]:
    """Text, second text, label, and whether the row is held out."""
    pairs = corpus.pairs or [None] * len(corpus)
    labels = [corpus.label_names[label] for label in corpus.labels]
    return list(zip(corpus.texts, pairs, labels, corpus.held_out.tolist(), strict=True))


# The specification


@pytest.mark.parametrize("task", ["SST-2", "sst2", "sst-2", "SST2", "sst_2"])
def test_a_task_may_be_spelled_in_any_case_and_without_hyphen(task):
    assert CorpusSpec(name="glue", task=task).task == "SST-2"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"name": "glue", "task": "sst3"}, r"no GLUE task called 'sst3', did you mean SST-2\? There are WNLI, RTE"),
        ({"name": "glue", "task": "STS-B"}, r"did you mean SST-2\?"),
        ({"name": "glue", "task": ""}, "no GLUE task called ''"),
        ({"name": "glue"}, "glue needs a `task:`, one of WNLI, RTE, MRPC, CoLA, SST-2, QNLI, QQP, MNLI"),
        ({"name": "glue", "task": "RTE", "text": "sentence1"}, "glue takes no `text:`"),
        ({"name": "tweets", "task": "RTE"}, "tweets takes no `task:`"),
        ({"path": "a.csv", "task": "RTE"}, "a.csv takes no `task:`"),
    ],
)
def test_a_wrong_or_idle_task_is_refused(settings, complaint):
    with pytest.raises(ValidationError, match=complaint):
        CorpusSpec.model_validate(settings)


def test_a_written_out_specification_reads_back_the_same():
    spec = CorpusSpec(name="glue", task="cola", path="somewhere")
    assert CorpusSpec.model_validate(spec.model_dump()) == spec


# The original files


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        (
            "WNLI",
            [
                ("The pin had a hole.", "It had.", "entailment", False),
                ("It is clogged.", "Hair is.", "not_entailment", True),
            ],
        ),
        (
            "RTE",
            [
                ('No "weapons".', "None.", "not_entailment", False),
                ("Bacteria win.", "They win.", "entailment", True),
            ],
        ),
        (
            "MRPC",
            [
                ('He called " the witness', '" the witness " , he said', "equivalent", False),
                ("He owned the chain .", "He bought it .", "not_equivalent", False),
                ('" The pie', "A pie", "equivalent", True),
            ],
        ),
        (
            "CoLA",
            [
                ("Our friends won't buy this.", None, "acceptable", False),
                ("They drank the pub.", None, "unacceptable", False),
                ("The sailors rode the breeze.", None, "acceptable", True),
            ],
        ),
        (
            "QNLI",
            [("What?", "That.", "entailment", False), ("Who?", "Nobody.", "not_entailment", True)],
        ),
        (
            "QQP",
            [
                ("How do I?", 'How " would I?', "duplicate", False),
                ("Is it?", "Was it?", "not_duplicate", False),
                ("Why?", "Why not?", "not_duplicate", True),
            ],
        ),
        (
            "MNLI",
            [("A.", "B.", "neutral", False), ("C.", "D.", "entailment", True), ("E.", "F.", "contradiction", True)],
        ),
    ],
)
def test_a_task_is_read_from_its_original_files(folder, task, rows):
    corpus = read(task, folder)
    assert named(corpus) == rows
    assert corpus.name == task


@pytest.mark.parametrize(
    ("task", "labels", "metrics"),
    [
        ("WNLI", ("not_entailment", "entailment"), ("accuracy",)),
        ("RTE", ("entailment", "not_entailment"), ("accuracy",)),
        ("MRPC", ("not_equivalent", "equivalent"), ("positive_f1", "accuracy")),
        ("CoLA", ("unacceptable", "acceptable"), ("matthews",)),
        ("SST-2", ("negative", "positive"), ("accuracy",)),
        ("QNLI", ("entailment", "not_entailment"), ("accuracy",)),
        ("QQP", ("not_duplicate", "duplicate"), ("positive_f1", "accuracy")),
        ("MNLI", ("entailment", "neutral", "contradiction"), ("accuracy",)),
    ],
)
def test_a_task_has_its_labels_in_glues_order_and_its_own_metrics(folder, task, labels, metrics):
    corpus = read(task, folder)
    assert corpus.label_names == labels
    assert corpus.metrics == metrics
    assert set(metrics) <= set(METRICS)
    assert read(task, folder, list(labels)).fingerprint() == corpus.fingerprint()


def test_other_corpora_are_measured_by_weighted_f1(reviews):
    assert load(CorpusSpec(path=str(reviews), text="body", label="stars")).metrics == ("f1",)


def test_rows_of_qqp_that_lack_fields_are_left_out_and_counted(folder):
    assert read("QQP", folder).counts == {"rows read": 5, "too few fields": 2}


def test_a_row_of_another_task_that_lacks_fields_is_a_fault(folder):
    with (folder / "RTE" / "train.tsv").open("a") as file:
        file.write("1\tcut off\n")
    with pytest.raises(FedstillError, match=r"train\.tsv, row 3: expected 4 fields and found 2"):
        read("RTE", folder)


def test_a_text_in_both_splits_is_counted_and_never_trained_on(folder):
    corpus = read("SST-2", folder)
    assert corpus.counts == {"rows read": 4, "duplicate texts": 1, "texts in both train and test": 1}
    parts = split(corpus, PartitionSpec(kind="iid", clients=1, public=0.0, validation=0.0), seed=0)
    assert parts.train["client-1"].tolist() == [0]
    assert parts.unused.tolist() == [1]
    assert parts.test["client-1"].tolist() == [2, 3]


def test_mnli_is_tested_in_a_matched_and_a_mismatched_domain(folder):
    corpus = read("MNLI", folder)
    assert [corpus.domain_names[number] for number in corpus.domains] == ["matched", "matched", "mismatched"]
    assert read("RTE", folder).domains is None


def test_labels_in_another_order_are_refused(folder):
    with pytest.raises(FedstillError, match=r"MRPC has the labels not_equivalent, equivalent, in GLUE's order"):
        read("MRPC", folder, ["equivalent", "not_equivalent"])


def test_a_strange_label_is_located(folder):
    with (folder / "SST-2" / "dev.tsv").open("a") as file:
        file.write("so-so\t2\n")
    message = r"dev\.tsv, row 4: the label is '2'; SST-2 has negative, positive, or their numbers from 0\."
    with pytest.raises(FedstillError, match=message):
        read("SST-2", folder)


@pytest.mark.parametrize(
    ("task", "file", "needs"),
    [
        ("QNLI", "train.tsv", "train.tsv and dev.tsv"),
        ("RTE", "dev.tsv", "train.tsv and dev.tsv"),
        ("MNLI", "dev_mismatched.tsv", "train.tsv and dev_matched.tsv and dev_mismatched.tsv"),
    ],
)
def test_a_missing_split_is_named(folder, task, file, needs):
    (folder / task / file).unlink()
    with pytest.raises(FedstillError, match=f"{task}/{file} is missing; {task} needs {needs} as GLUE publishes them"):
        read(task, folder)


def test_a_wrong_folder_is_answered_with_the_right_one(folder):
    with pytest.raises(FedstillError, match=r"absent/RTE is not a folder; set `path:` to the folder that holds RTE/"):
        read("RTE", folder / "absent")
    with pytest.raises(FedstillError, match=f"set `path:` to the folder above, {folder}\\."):
        read("RTE", folder / "RTE")


# The Hub


def test_the_hub_gives_the_same_labels_splits_and_domains(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(glue, "HUB", str(tmp_path / "hub"))
    write_hub(tmp_path / "hub", "mnli", ["entailment", "neutral", "contradiction"], ["premise", "hypothesis"])
    corpus = read("MNLI", None)
    assert named(corpus) == [
        ("premise of train", "hypothesis of train", "contradiction", False),
        ("premise of validation_matched", "hypothesis of validation_matched", "contradiction", True),
        ("premise of validation_mismatched", "hypothesis of validation_mismatched", "contradiction", True),
    ]
    assert [corpus.domain_names[number] for number in corpus.domains] == ["matched", "matched", "mismatched"]
    assert load_public(CorpusSpec(name="glue", task="MNLI")).texts == ["premise of train"]


def write_hub(folder: Path, config: str, labels: list[str], texts: list[str]) -> None:
    """A data set as the Hub lays it out: a card that names configurations, and a file a split with a row of class 2."""
    splits = ["train", "validation_matched", "validation_mismatched"]
    features = [{"name": text, "dtype": "string"} for text in texts]
    features.append({"name": "label", "dtype": {"class_label": {"names": dict(enumerate(labels))}}})
    data_files = [{"split": name, "path": f"{config}/{name}.jsonl"} for name in splits]
    card = {
        "configs": [{"config_name": config, "data_files": data_files}],
        "dataset_info": [{"config_name": config, "features": features}],
    }
    (folder / config).mkdir(parents=True)
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n")
    for name in splits:
        values = ", ".join(f'"{text}": "{text} of {name}"' for text in texts)
        (folder / config / f"{name}.jsonl").write_text(f'{{{values}, "label": 2}}\n')


def test_without_the_hub_a_folder_is_asked_for(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("FEDSTILL_OFFLINE", "1")
    with pytest.raises(FedstillError, match=r"nyu-mll/glue \(sst2, split train\) could not .* give a file or folder"):
        read("SST-2", None)


# As public texts


def test_public_texts_of_a_task_are_its_training_texts_without_labels(folder):
    (folder / "MRPC" / "dev.tsv").unlink()
    corpus = load_public(CorpusSpec(name="glue", task="MRPC", path=str(folder)))
    assert corpus.texts == ['He called " the witness', "He owned the chain ."]
    assert corpus.pairs == ['" the witness " , he said', "He bought it ."]
    assert corpus.labels.tolist() == [-1, -1]
    assert corpus.label_names == ()
    assert corpus.held_out is None


# The real files


@pytest.mark.parametrize(
    ("task", "train", "development", "by_label"),
    [
        ("SST-2", 67_349, 872, [428, 444]),
        ("RTE", 2_490, 277, [146, 131]),
        ("MRPC", 3_667, 408, [129, 279]),  # the paper's Table 6 has 3,668
        ("CoLA", 8_551, 1_043, [322, 721]),
        ("WNLI", 635, 71, [40, 31]),
    ],
)
def test_the_real_tasks_have_the_papers_row_counts(shared_data, task, train, development, by_label):
    corpus = read(task, shared_data / "glue")
    assert (np.count_nonzero(~corpus.held_out), np.count_nonzero(corpus.held_out)) == (train, development)
    assert np.bincount(corpus.labels[corpus.held_out]).tolist() == by_label


def test_texts_in_both_splits_of_the_real_cola_are_counted(shared_data):
    corpus = read("CoLA", shared_data / "glue")
    assert corpus.counts == {"rows read": 9_594, "duplicate texts": 41, "texts in both train and test": 16}


def test_the_real_qnli_folder_lacks_its_training_split(shared_data):
    with pytest.raises(FedstillError, match=r"QNLI/train\.tsv is missing"):
        read("QNLI", shared_data / "glue")
    file = shared_data / "glue" / "QNLI" / "dev.tsv"
    assert len(load_public(CorpusSpec(path=str(file), text=["question", "sentence"]))) == 5_463
