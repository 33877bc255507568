"""SuperGLUE: FedDRS's examples to the character, the original files, the Hub's form, and every fault located."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from fedstill.common.errors import FedstillError
from fedstill.data.corpora import CorpusSpec, load, load_public, superglue
from fedstill.data.corpus import Corpus
from fedstill.data.partition import PartitionSpec, split

# FedDRS's appendix A.2: the published record, and the processed rows that the paper prints. Where the paper elides
# with dots, the passage is as short here as its print.
MORALS = (
    "The harrowing stories of women and children locked up for so-called 'moral crimes' in Afghanistan's notorious "
    "female prison have been revealed after cameras were allowed inside."
)
HIGHLIGHTS = (
    "\n@highlight\n\nCrimes include leaving their husbands or refusing an arrange marriage\n@highlight\n\n"
    "62 children live there and share cells with their mothers and five others"
)
NAMED = " Mariam Badam Bagh Nuria"
RECORD_PASSAGE = MORALS + NAMED + HIGHLIGHTS


def spans(*entities: str) -> list[dict[str, int]]:
    """Where the passage names each; its ends are the last characters."""
    starts = [RECORD_PASSAGE.index(entity) for entity in entities]
    return [{"start": start, "end": start + len(entity) - 1} for start, entity in zip(starts, entities, strict=True)]


RECORD_SAYS = (
    "query: The baby she gave birth to is her husbands and he has even offered to have the courts set her free if she "
    "returns but @placeholder has refused. passage: The harrowing stories of women and children locked up for "
    "socalled moral crimes in Afghanistans notorious female prison have been revealed after cameras were allowed "
    "inside Mariam Badam Bagh Nuria Crimes include leaving their husbands or refusing an arrange marriage 62 children "
    "live there and share cells with their mothers and five others"
)

EXAMPLES = {
    "BoolQ": (
        {
            "question": "science begins with the premise that knowledge should first be acquired through observation",
            "passage": "A priori and a posteriori – These terms are used with respect to reasoning (epistemology) to "
            'distinguish "necessary conclusions from first premises" (i.e., what must come before sense observation) '
            'from "conclusions based on sense observation" (which must follow it). Thus, the two kinds of knowledge, '
            "justification, or argument, may be glossed:",
            "idx": 0,
            "label": True,
        },
        [
            (
                "boolq question: science begins with the premise that knowledge should first be acquired through "
                "observation. passage: A priori and a posteriori These terms are used with respect to reasoning "
                "epistemology to distinguish necessary conclusions from first premises ie what must come before sense "
                "observation from conclusions based on sense observation which must follow it Thus the two kinds of "
                "knowledge justification or argument may be glossed",
                "Yes",
            )
        ],
    ),
    "WiC": (
        {
            "word": "place",
            "sentence1": "Do you want to come over to my place later?",
            "sentence2": "A political system with no place for the less prominent groups.",
            "idx": 0,
            "label": False,
            "start1": 31,
        },
        [
            (
                "wic word: place. sentence1: Do you want to come over to my place later. sentence2: A political "
                "system with no place for the less prominent groups",
                "Mismatch",
            )
        ],
    ),
    "WSC": (
        {
            "text": "Mark told Pete many lies about himself, which Pete included in his book. He should have been more "
            "skeptical.",
            "target": {"span1_index": 0, "span1_text": "Mark", "span2_index": 13, "span2_text": "He"},
            "idx": 0,
            "label": False,
        },
        [
            (
                "wsc: Mark told Pete many lies about himself which Pete included in his book * He * should have been "
                "more skeptical",
                "Difference",
            )
        ],
    ),
    "CB": (
        {
            "premise": "It was a complex language. Not written down but handed down. One might say it was peeled down.",
            "hypothesis": "the language was peeled down",
            "label": "entailment",
            "idx": 0,
        },
        [
            (
                "cb hypothesis: the language was peeled down. premise: It was a complex language Not written down but "
                "handed down One might say it was peeled down",
                "Entailment",
            )
        ],
    ),
    "RTE": (
        {
            "premise": "No Weapons of Mass Destruction Found in Iraq Yet.",
            "hypothesis": "Weapons of Mass Destruction Found in Iraq.",
            "label": "not_entailment",
            "idx": 0,
        },
        [
            (
                "rte hypothesis: Weapons of Mass Destruction Found in Iraq. premise: No Weapons of Mass Destruction "
                "Found in Iraq Yet",
                "Not_entailment",
            )
        ],
    ),
    "COPA": (
        {
            "premise": "My body cast a shadow over the grass.",
            "choice1": "The sun was rising.",
            "choice2": "The grass was cut.",
            "question": "cause",
            "label": 0,
            "idx": 0,
        },
        [
            (
                "copa choice1: The sun was rising. choice2: The grass was cut. premise: My body cast a shadow over the "
                "grass. question: cause",
                "Choice_one",
            )
        ],
    ),
    "MultiRC": (
        {
            "idx": 0,
            "version": 1.1,
            "passage": {
                "text": "While this process moved along, diplomacy continued its rounds. Direct pressure on the "
                "Taliban had proved unsuccessful. The U.S. effort continued.",
                "questions": [
                    {
                        "question": "What did the high-level effort to persuade Pakistan include?",
                        "answers": [
                            {"text": "Children, Gerd, or Dorian Popa", "idx": 0, "label": 0},
                            {"text": "A trip", "idx": 1, "label": 1},
                        ],
                        "idx": 0,
                    }
                ],
            },
        },
        [
            (
                "multirc question: What did the highlevel effort to persuade Pakistan include? answer: "
                f"{answer}. paragraph: While this process moved along diplomacy continued its rounds Direct pressure "
                "on the Taliban had proved unsuccessful The US effort continued",
                label,
            )
            for answer, label in (("Children Gerd or Dorian Popa", "False"), ("A trip", "True"))
        ],
    ),
    "ReCoRD": (
        {
            "source": "Daily mail",
            "passage": {
                "text": RECORD_PASSAGE,
                "entities": spans("Mariam", "Badam Bagh", "Nuria", "Afghanistan", "Nuria"),
            },
            "qas": [
                {
                    "query": "The baby she gave birth to is her husbands and he has even offered to have the courts "
                    "set her free if she returns, but @placeholder has refused",
                    "answers": [{"start": 1, "end": 2, "text": "Nuria"}],
                    "idx": 0,
                }
            ],
            "idx": 0,
        },
        [
            (f"record answer: {entity}. {RECORD_SAYS}", "Correct" if entity == "Nuria" else "Wrong")
            for entity in ("Mariam", "Badam Bagh", "Nuria", "Afghanistan")
        ],
    ),
}

LABELS = {
    "BoolQ": ("Yes", "No"),
    "CB": ("Entailment", "Contradiction", "Neutral"),
    "COPA": ("Choice_one", "Choice_two"),
    "MultiRC": ("True", "False"),
    "ReCoRD": ("Correct", "Wrong"),
    "RTE": ("Entailment", "Not_entailment"),
    "WiC": ("Match", "Mismatch"),
    "WSC": ("Same", "Difference"),
}


def write(file: Path, *records: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All tasks as SuperGLUE publishes them, the paper's example in both splits."""
    for task, (record, _) in EXAMPLES.items():
        for file in ("train.jsonl", "val.jsonl"):
            write(tmp_path / task / file, record)
    return tmp_path


def read(task: str, folder: Path | None, **more: object) -> Corpus:
    settings = {"name": "superglue", "task": task, "path": folder and str(folder), **more}
    return load(CorpusSpec.model_validate(settings))


def named(corpus: Corpus) -> list[tuple[str, str]]:
    return [(text, corpus.label_names[label]) for text, label in zip(corpus.texts, corpus.labels, strict=True)]


@pytest.mark.parametrize("task", EXAMPLES)
def test_a_record_becomes_what_the_paper_shows(folder, task):
    corpus = read(task, folder)
    rows = EXAMPLES[task][1]
    assert named(corpus) == rows + rows
    assert corpus.held_out.tolist() == [False] * len(rows) + [True] * len(rows)
    assert corpus.label_names == LABELS[task]
    assert corpus.metrics == ("accuracy",)
    assert corpus.pairs is None
    assert corpus.name == task


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  two  spaces\n and a line ", "two spaces and a line"),
        ("don't — “quote” $5.50 & 3%", "dont quote 550 3"),
        ("naïve café, हिन्दी!", "naïve café हिन्दी"),
        ("a,@placeholder's b@c", "a@placeholders bc"),
        ("...", ""),
    ],
)
def test_marks_vanish_and_letters_of_every_script_stay(text, expected):
    assert superglue.cleaned(text) == expected


@pytest.mark.parametrize(
    ("word", "marked"), [(0, "* One * two three"), (1, "One * two * three"), (2, "One two * three *")]
)
def test_wsc_marks_the_span_wherever_it_stands(tmp_path, word, marked):
    target = {"span1_index": 0, "span1_text": "One", "span2_index": word, "span2_text": "x"}
    for file in ("train.jsonl", "val.jsonl"):
        write(tmp_path / "WSC" / file, {"text": "One, two three.", "target": target, "label": True})
    assert named(read("WSC", tmp_path))[0] == (f"wsc: {marked}", "Same")


def test_questions_on_one_passage_stay_together_inside_a_split(tmp_path):
    questions = [{"question": f"q{n}", "passage": f"p{n // 3}", "label": n % 2 == 0} for n in range(60)]
    write(tmp_path / "BoolQ" / "train.jsonl", *questions)
    write(tmp_path / "BoolQ" / "val.jsonl", {"question": "other", "passage": "p0", "label": True})
    corpus = read("BoolQ", tmp_path)
    assert len(np.unique(corpus.groups)) == 21
    parts = split(corpus, PartitionSpec(kind="iid", clients=2, validation=0.3), seed=0)
    for rows in (parts.public, parts.validation["client-1"], parts.train["client-2"]):
        assert all(np.isin(np.flatnonzero(corpus.groups == corpus.groups[row]), rows).all() for row in rows)


def test_a_cut_keeps_the_first_rows_to_train_on_and_counts_the_others(folder):
    choices = [{**EXAMPLES["COPA"][0], "premise": f"Number {n}."} for n in range(403)]
    write(folder / "COPA" / "train.jsonl", *choices)
    corpus = read("COPA", folder, cut=True)
    assert np.count_nonzero(~corpus.held_out) == 400
    assert "premise: Number 399." in corpus.texts[399]
    assert corpus.counts == {"rows read": 404, "training rows cut off": 3}
    assert len(read("COPA", folder)) == 404


def test_the_cuts_are_those_of_the_papers_table():
    cuts = {name: task.cut for name, task in superglue.TASKS.items()}
    assert cuts == {
        "BoolQ": 9427,
        "CB": 250,
        "COPA": 400,
        "MultiRC": 963,
        "ReCoRD": 9000,
        "RTE": 2500,
        "WiC": 6000,
        "WSC": 554,
    }


@pytest.mark.parametrize("place", ["WiC_dataset/{split}", "wic", "WiC/{split}"])
def test_wic_is_read_in_its_own_publishers_form(tmp_path, place):
    for part, gold in (("train", "F"), ("dev", "T")):
        home = tmp_path / place.format(split=part)
        write(home / f"{part}.data.txt", "board\tN\t2-2\tRoom and board .\tHe did n't nail boards , did he ?")
        write(home / f"{part}.gold.txt", gold)
    corpus = read("WiC", tmp_path)
    text = "wic word: board. sentence1: Room and board. sentence2: He did nt nail boards did he"
    assert named(corpus) == [(text, "Mismatch"), (text, "Match")]
    assert corpus.held_out.tolist() == [False, True]


@pytest.mark.parametrize("name", ["cb", "Cb", "CB"])
def test_folders_and_tasks_are_found_in_any_case(tmp_path, name):
    for file in ("train.jsonl", "val.jsonl"):
        write(tmp_path / name / file, EXAMPLES["CB"][0])
    assert len(read("cB", tmp_path)) == 2


# Faults


@pytest.mark.parametrize(
    ("task", "record", "complaint"),
    [
        ("CB", "{broken", r"CB/val\.jsonl, row 2: this is not JSON"),
        ("CB", "[1]", r"row 2: this is not a JSON object"),
        ("CB", {"premise": "a", "label": "neutral"}, r"row 2: there is no field 'hypothesis'; the fields are premise,"),
        ("CB", {"premise": "a", "hypothesis": 3, "label": "neutral"}, r"row 2: the field 'hypothesis' must be text"),
        ("CB", {"premise": "a", "hypothesis": "b"}, r"row 2: the label is missing; CB needs one in every row"),
        ("CB", {"premise": "a", "hypothesis": "b", "label": "maybe"}, r"row 2: the label is 'maybe'; CB has 'ent"),
        ("CB", {"premise": "a", "hypothesis": "b", "label": [0]}, r"row 2: the label is \[0\]"),
        ("COPA", {**EXAMPLES["COPA"][0], "label": 2}, r"row 2: the label is 2; COPA has 0, 1"),
        ("MultiRC", {"passage": "flat"}, r"row 2: the field 'passage' must be an object, and is \"flat\""),
        ("MultiRC", {"passage": {"text": "a", "questions": [3]}}, "'questions' must be a list of objects"),
        ("ReCoRD", {"passage": {"text": "a", "entities": [{"start": "x"}]}}, "'start' must be a whole number"),
        (
            "ReCoRD",
            {"passage": {"text": "a", "entities": [{"start": 0, "end": 0}]}, "qas": [{"query": "q"}]},
            "the label is missing",
        ),
        ("ReCoRD", {"query": "q", "passage": "a", "entities": [1]}, "'entities' must be a list of texts"),
        (
            "WSC",
            {"text": "one two", "target": {"span2_index": 2, "span2_text": "it"}, "label": True},
            "row 2: the second span is words 2 to 2 of a text of 2",
        ),
    ],
)
def test_a_bad_record_is_located(folder, task, record, complaint):
    write(folder / task / "val.jsonl", EXAMPLES[task][0], record)
    with pytest.raises(FedstillError, match=complaint):
        read(task, folder)


def test_bytes_that_are_not_utf8_are_located(folder):
    (folder / "CB" / "train.jsonl").write_bytes(b'{"premise": 1}\n\xff\n')
    with pytest.raises(FedstillError, match=r"train\.jsonl, row 2: byte 16 of the file is not UTF-8"):
        read("CB", folder)


def test_a_missing_folder_or_file_is_named(folder):
    (folder / "RTE" / "val.jsonl").unlink()
    with pytest.raises(FedstillError, match=r"RTE/val\.jsonl is missing; RTE needs train\.jsonl and val\.jsonl as Sup"):
        read("RTE", folder)
    with pytest.raises(FedstillError, match=r"absent is not a folder; set `path:` to the one that holds RTE/train"):
        read("RTE", folder / "absent")
    with pytest.raises(FedstillError, match=f"CB is one task's folder; set `path:` to the folder above, {folder}\\."):
        read("CB", folder / "CB")


@pytest.mark.parametrize(
    ("data", "gold", "complaint"),
    [
        ("a\tN\t0-0\tb", "T", r"train\.data\.txt, row 1: expected 5 fields separated by tabs and found 4"),
        ("a\tN\t0-0\tb\tc", "X", r"train\.gold\.txt, row 1: the label is 'X'; it must be T or F"),
        ("a\tN\t0-0\tb\tc", "T\nF", r"has 1 lines and .* has 2; they must match line by line"),
        ("a\tN\t0-0\tb\tc", None, r"train\.gold\.txt is missing; it has WiC's labels"),
    ],
)
def test_bad_files_of_wics_own_form_are_located(tmp_path, data, gold, complaint):
    for part in ("train", "dev"):
        write(tmp_path / "wic" / f"{part}.data.txt", data)
        if gold:
            write(tmp_path / "wic" / f"{part}.gold.txt", gold)
    with pytest.raises(FedstillError, match=complaint):
        read("WiC", tmp_path)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"task": "CBB"}, r"no SuperGLUE task called 'CBB'; did you mean 'CB'\?"),
        ({"task": "SST-2"}, "no SuperGLUE task called 'SST-2'"),
        ({"task": "CB", "text": "premise"}, "superglue takes no `text:`"),
        ({"tasks": ["CB", "MRPC"]}, "no SuperGLUE task called 'MRPC'"),
        ({"tasks": ["CB", "cb"]}, "a task is named twice"),
        ({"tasks": []}, "name at least one task"),
        ({"task": "CB", "tasks": ["CB"]}, "superglue has a `task:` or `tasks:`, not both"),
        ({"tasks": {"news": {"name": "agnews"}}}, r"superglue's own tasks are a list, as in \[CB, RTE\]"),
    ],
)
def test_a_wrong_or_idle_setting_is_refused(settings, complaint):
    with pytest.raises(ValidationError, match=complaint):
        CorpusSpec.model_validate({"name": "superglue", **settings})


def test_cut_belongs_to_superglue():
    with pytest.raises(ValidationError, match="glue takes no `cut:`"):
        CorpusSpec(name="glue", task="RTE", cut=True)


# All tasks as one


def test_all_tasks_are_one_corpus_with_seventeen_labels(folder):
    corpus = load(CorpusSpec(name="superglue", path=str(folder)))
    assert corpus.domain_names == ("BoolQ", "CB", "COPA", "MultiRC", "RTE", "ReCoRD", "WSC", "WiC")
    assert len(corpus.label_names) == 17
    assert corpus.label_names[:3] == ("BoolQ/Yes", "BoolQ/No", "CB/Entailment")
    assert np.bincount(corpus.label_tasks).tolist() == [2, 3, 2, 2, 2, 2, 2, 2]
    assert (corpus.label_tasks[corpus.labels] == corpus.domains).all()
    assert corpus.metrics == ("accuracy", "f1")
    assert len(corpus) == 2 * (6 + 2 + 4)


def test_some_tasks_may_be_listed_and_cut(folder):
    spec = CorpusSpec.model_validate({"name": "superglue", "path": str(folder), "tasks": ["rte", "CB"], "cut": True})
    assert CorpusSpec.model_validate(spec.model_dump()) == spec
    write(folder / "CB" / "train.jsonl", *[{**EXAMPLES["CB"][0], "premise": str(n)} for n in range(251)])
    corpus = load(spec)
    assert corpus.domain_names == ("CB", "RTE")
    assert corpus.counts["CB: training rows cut off"] == 1
    assert corpus.counts["rows read"] == 254


def test_a_task_that_is_not_there_is_answered_with_those_that_are(folder):
    (folder / "WSC").rename(folder / "elsewhere")
    with pytest.raises(FedstillError, match=r"no folder WSC; of SuperGLUE's it has BoolQ, CB, .*`tasks: \[\.\.\.\]`"):
        load(CorpusSpec(name="superglue", path=str(folder)))


# Public, and the Hub


def test_public_texts_need_neither_labels_nor_a_development_file(folder):
    (folder / "CB" / "val.jsonl").unlink()
    write(folder / "CB" / "train.jsonl", {"premise": "a", "hypothesis": "b"})
    corpus = load_public(CorpusSpec(name="superglue", task="CB", path=str(folder)))
    assert corpus.texts == ["cb hypothesis: b. premise: a"]
    assert corpus.labels.tolist() == [-1]
    assert corpus.held_out is None


FLAT = {
    "WSC": {**EXAMPLES["WSC"][0], **EXAMPLES["WSC"][0]["target"], "label": 0},
    "MultiRC": {
        "paragraph": EXAMPLES["MultiRC"][0]["passage"]["text"],
        "question": EXAMPLES["MultiRC"][0]["passage"]["questions"][0]["question"],
        "answer": "A trip",
        "label": 1,
    },
    "ReCoRD": {
        "passage": RECORD_PASSAGE,
        "query": EXAMPLES["ReCoRD"][0]["qas"][0]["query"],
        "entities": ["Mariam", "Badam Bagh", "Nuria", "Afghanistan"],
        "answers": ["Nuria"],
    },
    "RTE": {**EXAMPLES["RTE"][0], "label": 1},
}


@pytest.mark.parametrize("task", FLAT)
def test_the_hubs_flat_records_give_the_same_rows(tmp_path, monkeypatch, task):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(superglue, "HUB", str(tmp_path / "hub"))
    record = {key: value for key, value in FLAT[task].items() if key != "target"}
    files = [{"split": part, "path": f"{part}.jsonl"} for part in ("train", "validation")]
    card = {"configs": [{"config_name": task.lower(), "data_files": files}]}
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n")
    for part in ("train", "validation"):
        write(tmp_path / "hub" / f"{part}.jsonl", record)
    rows = EXAMPLES[task][1][-1:] if task == "MultiRC" else EXAMPLES[task][1]
    assert named(read(task, None)) == rows + rows


def test_without_the_hub_a_folder_is_asked_for(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("FEDSTILL_OFFLINE", "1")
    with pytest.raises(FedstillError, match=r"aps/super_glue \(cb, split train\) could not .* give a file or folder"):
        read("CB", None)


# The real files


@pytest.mark.parametrize(
    ("task", "train", "by_label"),
    [
        ("CB", 250, [23, 28, 5]),
        ("COPA", 368, [55, 45]),
        ("RTE", 2_490, [146, 131]),
        ("WiC", 5_428, [319, 319]),
    ],
)
def test_the_real_tasks_have_their_rows_and_labels(shared_data, task, train, by_label):
    corpus = read(task, shared_data / "superglue")
    assert np.count_nonzero(~corpus.held_out) == train
    assert np.bincount(corpus.labels[corpus.held_out]).tolist() == by_label
    assert corpus.label_names == LABELS[task]


@pytest.mark.parametrize("task", ["CB", "COPA", "RTE"])
def test_the_real_files_begin_with_the_papers_examples(shared_data, task):
    assert named(read(task, shared_data / "superglue"))[:1] == EXAMPLES[task][1]


def test_the_real_wic_is_read_from_text_and_gold(shared_data):
    rows = named(read("WiC", shared_data / "superglue"))
    text = "wic word: carry. sentence1: You must carry your camping gear. sentence2: Sound carries well over water"
    assert rows[0] == (text, "Mismatch")


def test_the_real_folder_lacks_tasks_and_says_so(shared_data):
    with pytest.raises(FedstillError, match="no folder BoolQ; of SuperGLUE's it has CB, COPA, RTE, WiC"):
        load(CorpusSpec(name="superglue", path=str(shared_data / "superglue")))
