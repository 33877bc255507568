import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fedstill.common.errors import FedstillError
from fedstill.config.source import Source, dump


def read(text):
    return Source(text, "x.yaml").values


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("5e-4", 5e-4),
        ("1E3", 1000.0),
        ("-1.5", -1.5),
        (".5", 0.5),
        ("3.", 3.0),
        ("-.inf", -math.inf),
        ("010", 10),
        ("-7", -7),
        ("+3", 3),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("Off", "Off"),
        ("y", "y"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-01-02", "2024-01-02"),
        ("0x1F", "0x1F"),
        ("'5'", "5"),
        ('"true"', "true"),
        ("minilm[:3]", "minilm[:3]"),
    ],
)
def test_scalars_follow_yaml_1_2(written, value):
    found = read(f"key: {written}")["key"]
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_read():
    assert math.isnan(read("key: .nan")["key"])


def test_a_file_with_nothing_in_it_is_an_experiment_of_defaults():
    assert read("") == read("# only a comment\n") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds: 1\nseed: 2\nrounds: 3\n", "x.yaml:3: the key 'rounds' appears twice."),
        ("train:\n  epochs: 1\n  epochs: 2\n", "x.yaml:3: the key 'epochs' appears twice."),
        ("seed: 1\nclients: [bow\n", "x.yaml:3: expected ',' or ']'"),
        ("seed: 1\nname: *other\n", "x.yaml:2: found undefined alias 'other'."),
        ("name: !!python/object:os.system x\n", "x.yaml:1: could not determine a constructor"),
        ("seed: 1\n? [a, b]\n: 2\n", "x.yaml:2: a key must be plain text."),
        ("seed: 1\x01", "x.yaml: unacceptable character"),
        ("- bow\n- textcnn\n", "x.yaml: an experiment is made of lines such as `rounds: 5`; this is a list."),
        ("bow", "x.yaml: an experiment is made of lines such as `rounds: 5`; this is a value without a key."),
    ],
)
def test_what_is_no_experiment_is_said_with_its_place(text, message):
    with pytest.raises(FedstillError) as refused:
        read(text)
    assert str(refused.value).startswith(message.split(".*")[0])
    assert message.split(".*")[-1] in str(refused.value)


def test_a_file_that_is_not_there_or_not_text_is_a_sentence(tmp_path):
    with pytest.raises(FedstillError, match=r"no experiment file .*missing\.yaml"):
        Source.read(tmp_path / "missing.yaml")
    (tmp_path / "latin.yaml").write_bytes("name: café".encode("latin-1"))
    with pytest.raises(FedstillError, match=r"latin\.yaml cannot be read as UTF-8"):
        Source.read(tmp_path / "latin.yaml")
    with pytest.raises(FedstillError, match="cannot be read"):
        Source.read(tmp_path)


# Overrides


def overridden(text, *assignments):
    source = Source(text, "x.yaml")
    source.override(assignments)
    return source.values


@pytest.mark.parametrize(
    ("text", "assignment", "expected"),
    [
        ("rounds: 3", "rounds=5", {"rounds": 5}),
        ("", "train.rate=5e-4", {"train": {"rate": 5e-4}}),
        ("train: {epochs: 1, batch: 8}", "train.epochs=2", {"train": {"epochs": 2, "batch": 8}}),
        (
            "algorithm: {name: AdaFD, weighting: {name: ENWC, beta: 5}}",
            "algorithm.weighting.beta=1",
            {"algorithm": {"name": "AdaFD", "weighting": {"name": "ENWC", "beta": 1}}},
        ),
        (
            "algorithm: {name: AdaFD, weighting: ENWC}",
            "algorithm.weighting.beta=1",
            {"algorithm": {"name": "AdaFD", "weighting": {"name": "ENWC", "beta": 1}}},
        ),
        ("corpus: amazon", "corpus.path=/data/amazon", {"corpus": {"name": "amazon", "path": "/data/amazon"}}),
        ("clients: bow", "clients=[bow, textcnn]", {"clients": ["bow", "textcnn"]}),
        ("labels: [a, b]", "labels=", {"labels": None}),
        ("name: a", "name=b=c", {"name": "b=c"}),
        ("memory:", "memory.host=4GiB", {"memory": {"host": "4GiB"}}),
        ("", "labels=[yes, no]", {"labels": ["yes", "no"]}),
    ],
)
def test_an_override_sets_the_dotted_key(text, assignment, expected):
    assert overridden(text, assignment) == expected


def test_of_two_overrides_the_later_counts():
    assert overridden("", "rounds=5", "rounds=7") == {"rounds": 7}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("rounds", "'rounds' is not an override: write key=value"),
        ("=5", "'=5' is not an override"),
        ("clients=[bow", r"the value cannot be read \(expected ',' or '\]'"),
        ("rounds.more=5", "rounds holds a int, which has no keys"),
        ("clients.0=bow", "clients holds a list, which has no keys"),
    ],
)
def test_an_override_that_makes_no_sense_is_refused(assignment, message):
    with pytest.raises(FedstillError, match=message):
        overridden("rounds: 3\nclients: [bow]", assignment)


def test_the_place_of_a_value_is_its_line_or_the_command_line():
    source = Source("seed: 1\ntrain:\n  epochs: 1\n  batch: 8\nclients:\n  - bow\n  - name: textcnn\n", "x.yaml")
    source.override(["train.batch=16", "distill.epochs=1"])
    assert source.place(["train", "epochs"]) == "x.yaml:3"
    assert source.place(["clients", 1, "name"]) == "x.yaml:7"
    assert source.place(["train", "rate"]) == "x.yaml:2"
    assert source.place(["rounds"]) == "x.yaml:1"
    assert source.place(["train", "batch"]) == "on the command line"
    assert source.place(["distill", "epochs"]) == "on the command line"


# Writing


texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts)
trees = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))


@given(st.dictionaries(texts, trees, max_size=4))
def test_what_is_written_reads_back_the_same(values):
    assert read(dump(values)) == values


@given(
    st.sampled_from(["yes", "no", "On", "off", "y", "N", "null", "true", "5", "5e-4", "010", "~", "", "a: b", "1:30"])
)
def test_text_that_looks_like_something_else_stays_text_for_other_readers_too(text):
    written = dump({"labels": [text]})
    assert read(written) == {"labels": [text]}
    assert yaml.safe_load(written) == {"labels": [text]}
