"""Several corpora as one: a domain a task, labels of their own, and test rows for everybody."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment, load_experiment
from fedstill.data.corpora import CorpusSpec, load, load_public, tasks
from fedstill.data.corpus import Corpus, Images
from fedstill.data.partition import PartitionSpec, split


def write(path: Path, contents: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(contents, encoding="utf-8", newline="")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """AG News with a test file, WNLI in pairs with one, and mail with neither a test file nor equal domains."""
    write(tmp_path / "news" / "train.csv", "0,a vote\n1,a draw\n")
    write(tmp_path / "news" / "test.csv", "2,bears\n")
    header = "index\tsentence1\tsentence2\tlabel\n"
    write(tmp_path / "glue" / "WNLI" / "train.tsv", f"{header}0\tThe pin broke.\tIt broke.\t1\n")
    write(tmp_path / "glue" / "WNLI" / "dev.tsv", f"{header}0\tIt is clogged.\tHair is.\t0\n")
    rows = [f"mail {n},{'spam' if n % 2 else 'ham'},{'home' if n < 20 else 'work'}\n" for n in range(60)]
    write(tmp_path / "mail.csv", "text,label,domain\n" + "".join(rows) + "a vote,ham,home\n")
    return tmp_path


def parts(folder: str | Path) -> dict[str, dict[str, str]]:
    return {
        "pins": {"name": "glue", "task": "WNLI", "path": f"{folder}/glue"},
        "news": {"name": "agnews", "path": f"{folder}/news"},
        "mail": {"path": f"{folder}/mail.csv", "domain": "domain"},
    }


def spec_of(folder: Path) -> CorpusSpec:
    return CorpusSpec.model_validate({"name": "tasks", "tasks": parts(folder)})


def test_tasks_are_domains_with_labels_of_their_own(folder):
    corpus = load(spec_of(folder))
    assert corpus.domain_names == ("mail", "news", "pins")
    assert corpus.label_names == (
        "mail/ham",
        "mail/spam",
        "news/World",
        "news/Sports",
        "news/Business",
        "news/Sci/Tech",
        "pins/not_entailment",
        "pins/entailment",
    )
    assert corpus.label_tasks.tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    assert (corpus.label_tasks[corpus.labels] == corpus.domains).all()
    assert np.bincount(corpus.domains).tolist() == [61, 3, 2]
    assert corpus.texts[-5:] == ["a vote", "a draw", "bears", "The pin broke. It broke.", "It is clogged. Hair is."]
    assert [corpus.label_names[label] for label in corpus.labels[-2:]] == ["pins/entailment", "pins/not_entailment"]
    assert corpus.pairs is None
    assert corpus.name == "tasks"
    assert corpus.metrics == ("accuracy", "f1")


def test_a_text_that_two_tasks_share_is_two_groups(folder):
    corpus = load(spec_of(folder))
    first, second = (row for row, text in enumerate(corpus.texts) if text == "a vote")
    assert corpus.groups[first] != corpus.groups[second]
    assert len(np.unique(corpus.groups)) == 66


def test_a_task_without_a_test_file_gives_a_tenth_of_each_label(folder):
    corpus = load(spec_of(folder))
    assert label_sizes(corpus, corpus.held_out)[:2] == [3, 3]
    assert corpus.held_out[-5:].tolist() == [False, False, True, False, True]
    assert corpus.counts == {"rows read": 66, "mail: held out, having no test file": 6}
    assert corpus.fingerprint() == load(spec_of(folder)).fingerprint()


def label_sizes(corpus: Corpus, rows: np.ndarray) -> list[int]:
    return np.bincount(corpus.labels[rows], minlength=len(corpus.label_names)).tolist()


def test_without_any_test_file_nothing_is_held_out(folder):
    two = {"one": parts(folder)["mail"], "two": parts(folder)["mail"]}
    corpus = load(CorpusSpec.model_validate({"name": "tasks", "tasks": two}))
    assert corpus.held_out is None
    assert corpus.counts == {"rows read": 122}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), min_size=1, max_size=80))
def test_what_is_held_out_is_whole_groups_and_a_tenth_of_each_label_of_groups(cells):
    labels, groups = (np.array(values, np.int64) for values in zip(*cells, strict=True))
    made = Corpus("made", ["x"] * len(cells), labels, ("a", "b", "c"), groups=groups)
    tested = Corpus("tested", ["y"], np.array([0]), ("a",), held_out=np.array([True]))
    held_out = tasks.joined("both", {"made": made, "tested": tested}).held_out[: len(cells)]
    first = [int(np.flatnonzero(groups == group)[0]) for group in np.unique(groups)]
    for row in range(len(cells)):
        assert (held_out[groups == groups[row]] == held_out[row]).all()
    for label in range(3):
        units = [row for row in first if labels[row] == label]
        assert sum(bool(held_out[row]) for row in units) == (len(units) + 5) // 10


def test_every_partition_of_tasks_tests_every_task(folder):
    corpus = load(spec_of(folder))
    alone = split(corpus, PartitionSpec(kind="task_dirichlet", alpha=0, public=0.0, validation=0.0), seed=0)
    assert alone.clients == ("mail", "news", "pins")
    assert [len(alone.test[name]) for name in alone.clients] == [6, 1, 1]


def test_public_texts_of_tasks_have_no_labels(folder):
    corpus = load_public(spec_of(folder))
    assert set(corpus.labels) == {-1}
    assert corpus.label_tasks is None
    assert corpus.held_out is None
    assert corpus.domain_names == ("mail", "news", "pins")
    assert "bears" not in corpus.texts


def test_an_outer_path_is_where_relative_paths_start(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    whole = load(spec_of(folder))
    for root in (str(folder), folder.name):
        spec = CorpusSpec.model_validate({"name": "tasks", "path": root, "tasks": parts(".")})
        assert load(spec).fingerprint() == whole.fingerprint()
    mixed = {"name": "tasks", "path": "/absent", "tasks": parts(folder)}
    assert load(CorpusSpec.model_validate(mixed)).fingerprint() == whole.fingerprint()


def test_an_experiment_finds_tasks_from_everywhere(folder, monkeypatch):
    monkeypatch.chdir(folder)
    bare = Experiment.model_validate({"corpus": {"name": "tasks", "tasks": parts(".")}}).resolved()
    rooted = Experiment.model_validate({"corpus": {"name": "tasks", "path": ".", "tasks": parts("x/..")}}).resolved()
    assert bare.corpus.tasks["news"].path == str(folder / "news")
    (folder / "x").mkdir()
    monkeypatch.chdir("/")
    whole = load(spec_of(folder)).fingerprint()
    assert load(bare.corpus).fingerprint() == load(rooted.corpus).fingerprint() == whole


def test_a_resolved_experiment_reads_back_and_takes_another_path(folder, tmp_path):
    given = {"name": "tasks", "path": "/absent", "tasks": parts(".")}
    written = write(tmp_path / "x.yaml", Experiment.model_validate({"corpus": given}).to_yaml())
    assert load(load_experiment(written, [f"corpus.path={folder}"]).corpus).domain_names == ("mail", "news", "pins")


def test_listed_tasks_of_superglue_survive_an_experiment_file(tmp_path):
    written = write(tmp_path / "x.yaml", "corpus: {name: superglue, path: /data, tasks: [cb, RTE]}\n")
    experiment = load_experiment(written)
    assert list(experiment.corpus.tasks) == ["CB", "RTE"]
    again = load_experiment(write(tmp_path / "y.yaml", experiment.to_yaml()))
    assert again.corpus == experiment.corpus


def test_a_fault_inside_a_task_is_told_with_its_line(tmp_path):
    contents = (
        "corpus:\n  name: tasks\n  tasks:\n    news: {name: agnews}\n    pins:\n      name: glue\n      task: X\n"
    )
    with pytest.raises(FedstillError, match=r"x\.yaml:7: corpus\.tasks\.pins\.task: there is no GLUE task called 'X'"):
        load_experiment(write(tmp_path / "x.yaml", contents))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"name": "tasks"}, "tasks needs `tasks:`, a corpus for each task"),
        ({"name": "tasks", "tasks": {}}, "name at least one task"),
        ({"name": "tasks", "tasks": ["CB"]}, "CB needs a corpus, as in `CB: {name: agnews"),
        ({"name": "tasks", "tasks": {"a/b": "tweets"}}, "'a/b' cannot name a task"),
        ({"name": "tasks", "tasks": {"a": {"name": "tasks", "tasks": {"b": "tweets"}}}}, "a is made of tasks itself"),
        ({"name": "tasks", "tasks": {"a": "superglue"}}, "a is made of tasks itself; name each of them here"),
        ({"name": "tasks", "tasks": {"a": {"name": "glue"}}}, "glue needs a `task:`"),
        ({"name": "tasks", "tasks": {"a": "tweets"}, "label": "x"}, "tasks takes no `label:`"),
        ({"name": "tweets", "tasks": {"a": "tweets"}}, "tweets takes no `tasks:`"),
        ({"path": "a.csv", "tasks": {"a": "tweets"}}, r"a\.csv takes no `tasks:`"),
    ],
)
def test_tasks_that_cannot_be_meant_are_refused(given, complaint):
    with pytest.raises(ValidationError, match=complaint):
        CorpusSpec.model_validate(given)


def test_images_cannot_be_joined_with_texts():
    pixels = Images(np.zeros((1, 1, 2, 2), np.uint8), (0.5,), (0.5,))
    pictures = Corpus("p", [""], np.array([0]), ("a",), images=pixels)
    with pytest.raises(FedstillError, match="tasks: digits holds images"):
        tasks.joined("both", {"digits": pictures})


def test_labels_in_another_order_are_refused(folder):
    with pytest.raises(FedstillError, match=r"tasks has the labels mail/ham, .*, task by task; leave `labels:`"):
        load(spec_of(folder), ["mail/spam", "mail/ham"])
    assert len(load(spec_of(folder), list(load(spec_of(folder)).label_names))) == 66


def test_real_corpora_make_one_of_tasks(shared_data):
    given = {
        "agnews": {"name": "agnews", "path": "agnews"},
        "dbpedia": {"name": "dbpedia", "path": "dbpedia"},
        "rte": {"name": "glue", "task": "RTE", "path": "glue"},
    }
    corpus = load(CorpusSpec.model_validate({"name": "tasks", "path": str(shared_data), "tasks": given}))
    assert len(corpus.label_names) == 4 + 14 + 2
    assert np.bincount(corpus.domains).tolist() == [8_000, 14_000, 2_767]
    tested = np.bincount(corpus.domains[corpus.held_out]).tolist()
    assert (tested[0], tested[2]) == (4_000, 277)
    assert tested[1] == pytest.approx(1_400, abs=14)


def test_the_real_superglue_tasks_are_dealt_to_twenty_clients(shared_data):
    given = {"name": "superglue", "path": str(shared_data / "superglue"), "tasks": ["CB", "COPA", "RTE", "WiC"]}
    corpus = load(CorpusSpec.model_validate(given))
    assert np.bincount(corpus.domains[~corpus.held_out]).tolist() == [250, 368, 2_490, 5_428]
    for reading in ("class", "hsu"):
        spec = PartitionSpec(kind="task_dirichlet", clients=20, alpha=0.5, reading=reading, public=0.0)
        dealt = split(corpus, spec, seed=0)
        dealt.check(len(corpus))
        assert len(dealt.clients) == 20
