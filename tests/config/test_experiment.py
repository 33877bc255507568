import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstill import ENWC, AdaFD, Algorithm, Local, algorithms
from fedstill.common.errors import FedstillError
from fedstill.common.units import bytes_of
from fedstill.config.experiment import Experiment, from_source, load_experiment
from fedstill.config.source import Source

NAMES = ("books", "films", "shoes")


@pytest.fixture
def load(tmp_path):
    """An experiment file of that text, with overrides."""

    def read(text, *overrides):
        (tmp_path / "x.yaml").write_text(text)
        return load_experiment(tmp_path / "x.yaml", overrides)

    return read


@pytest.fixture
def refusal(load):
    """What is said of an experiment file, without the folder."""

    def message(text, *overrides):
        with pytest.raises(FedstillError) as refused:
            load(text, *overrides)
        return "\n".join(
            line[line.find("x.yaml") :] if "x.yaml" in line else line for line in str(refused.value).splitlines()
        )

    return message


# What is accepted


def test_an_empty_file_is_adafd_on_tweets(load):
    experiment = load("")
    assert experiment == Experiment()
    assert (experiment.corpus.name, experiment.method.title) == ("tweets", "AdaFD w/ ENWC")
    assert (experiment.rounds, experiment.participation, experiment.quorum) == (3, 1.0, 1.0)


def test_the_example_of_the_design_reads_as_it_says(load):
    experiment = load(
        """
        name: tweets-adafd
        corpus: tweets
        partition: {kind: domain, public: 0.2, test: 0.1, validation: 0.1}
        clients: [bert-tiny, "minilm[:3]", textcnn, bigru, bow]
        server: bert-tiny
        algorithm: {name: AdaFD, weighting: {name: ENWC, beta: 5}}
        train: {epochs: 3, batch: 32, max_length: 64}
        distill: {epochs: 3}
        rounds: 3
        seed: 0
        engine: local
        """,
        "rounds=5",
        "algorithm.weighting.beta=1",
    )
    assert [spec.name for spec in experiment.clients] == ["bert-tiny", "minilm[:3]", "textcnn", "bigru", "bow"]
    assert experiment.rounds == 5
    assert experiment.method.weighting.beta == 1.0


def test_labels_that_yaml_1_1_would_turn_into_booleans_stay_text(load):
    assert load("labels: [yes, no]").labels == ["yes", "no"]


def test_a_rate_may_be_written_as_people_write_it(load):
    assert load("train: {rate: 5e-4}").train.rate == 5e-4


@pytest.mark.parametrize(
    ("size", "number"),
    [("512MiB", 512 * 2**20), ("4GiB", 2**32), ("1.5 GB", 1_500_000_000), ("10KB", 10_000), (None, None)],
)
def test_sizes_are_bytes(size, number):
    assert bytes_of(size) == number


# Round trips


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clients": ["bow", {"name": "textcnn", "filters": 8, "tokenizer": "bert-tiny"}], "server": "minilm[:3]"},
        {"labels": ["no", "yes", "5", "null", ""], "corpus": {"path": "a b.csv", "text": ["premise", "hypothesis"]}},
        {"algorithm": {"name": "AdaFD", "weighting": {"name": "LLMWC", "chat": {"model": "m", "timeout_s": 3}}}},
        {"train": {"rate": 1e-5, "epochs": 7}, "distill": {"batch": 4}, "memory": {"host": "512MiB"}, "seed": 12},
        {"clients": {"Books & more": {"model": "bow", "train": {"epochs": 9}}, "on": {"model": "bow"}}},
        {"partition": {"kind": "dirichlet", "clients": 4, "alpha": 0.5}},
    ],
)
def test_what_is_written_reads_back_the_same(load, settings):
    experiment = Experiment(**settings)
    again = load(experiment.to_yaml())
    assert again == experiment.resolved()
    assert again.to_yaml() == experiment.to_yaml()


def test_what_is_inherited_is_inherited_after_a_round_trip_too(load):
    experiment = Experiment(
        train={"epochs": 1, "batch": 8, "rate": 1e-3},
        distill={"epochs": 2},
        clients={"books": {"model": "bow", "train": {"batch": 4}}, "films": {"model": "bow", "distill": {"epochs": 5}}},
    )
    again = load(experiment.to_yaml())
    assert again.server_spec() == experiment.server_spec()
    assert again.client_specs(["books", "films"]) == experiment.client_specs(["books", "films"])


@given(st.floats(1e-12, 1e6), st.integers(0, 2**40), st.floats(0.001, 1))
def test_numbers_keep_every_digit(rate, seed, participation):
    experiment = Experiment(train={"rate": rate}, seed=seed, participation=participation)
    again = from_source(Source(experiment.to_yaml(), "x.yaml"))
    assert (again.train.rate, again.seed, again.participation) == (rate, seed, participation)


# Inheriting


def test_distilling_is_as_training_where_it_is_not_set():
    experiment = Experiment(train={"epochs": 7, "batch": 4, "rate": 0.1, "max_length": 16}, distill={"epochs": 2})
    distill = experiment.server_spec().distill
    assert (distill.epochs, distill.batch, distill.rate) == (2, 4, 0.1)
    assert all(spec.distill == distill for spec in experiment.client_specs(NAMES).values())


def test_a_setting_of_distilling_equal_to_the_default_is_not_overruled_by_training():
    experiment = Experiment(train={"epochs": 7}, distill={"epochs": 3})
    assert experiment.server_spec().distill.epochs == 3


def test_a_client_takes_what_it_does_not_set_from_the_experiment():
    experiment = Experiment(
        train={"epochs": 7, "batch": 4, "class_weights": "balanced"},
        distill={"epochs": 2},
        clients={
            "books": {"model": "bow", "train": {"batch": 16}},
            "films": {"model": "textcnn", "distill": {"epochs": 1, "rate": 0.5}},
            "shoes": "bow",
        },
    )
    specs = experiment.client_specs(NAMES)
    assert [str(specs[name].model) for name in NAMES] == ["bow", "textcnn", "bow"]
    train = specs["books"].train
    assert (train.epochs, train.batch, train.class_weights) == (7, 16, "balanced")
    assert (specs["films"].train.epochs, specs["films"].train.batch) == (7, 4)
    # A client's own training settings come before the experiment's, its distilling after the experiment's distilling.
    assert (specs["books"].distill.epochs, specs["books"].distill.batch) == (2, 16)
    assert (specs["films"].distill.epochs, specs["films"].distill.batch, specs["films"].distill.rate) == (1, 4, 0.5)


def test_one_model_serves_all_clients_and_a_list_goes_by_the_sorted_names():
    one = Experiment(clients={"name": "textcnn", "filters": 8}).client_specs(NAMES)
    assert [str(one[name].model) for name in NAMES] == ["textcnn(filters=8)"] * 3
    each = Experiment(clients=["bow", "textcnn", "bigru"]).client_specs(NAMES)
    assert {name: spec.model.name for name, spec in each.items()} == {
        "books": "bow",
        "films": "textcnn",
        "shoes": "bigru",
    }


def test_models_of_a_list_shorter_than_the_clients_take_turns():
    names = [f"c{number:02}" for number in range(16)]
    experiment = Experiment(clients=["bow", "textcnn", "bigru", "bert-tiny"])
    specs = experiment.client_specs(names)
    assert [specs[name].model.name for name in names] == ["bow", "textcnn", "bigru", "bert-tiny"] * 4
    said = "4 models take turns among 16 clients: c00 bow, c01 textcnn, c02 bigru, c03 bert-tiny, c04 bow and 11 more."
    assert experiment.turns(names) == [said]
    assert Experiment(clients="bow").turns(names) == []
    assert experiment.turns(names[:4]) == []


def test_a_list_longer_than_there_are_clients_is_refused():
    with pytest.raises(FedstillError, match=r"clients: 4 models for 3 clients \(books, films, shoes\)"):
        Experiment(clients=["bow"] * 4).client_specs(NAMES)


def test_a_client_that_the_partition_does_not_know_is_named_with_the_nearest():
    with pytest.raises(FedstillError, match="no client 'film'; did you mean 'films'"):
        Experiment(clients=dict.fromkeys(("books", "film", "shoes"), "bow")).client_specs(NAMES)


def test_a_client_without_a_model_is_named():
    with pytest.raises(FedstillError, match="no model is given for films, shoes"):
        Experiment(clients={"books": "bow"}).client_specs(NAMES)


# What is refused, and how


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nround: 3\n", "x.yaml:2: unknown key 'round'; did you mean 'rounds'?"),
        ("train:\n  batch: 8\n  epoch: 1\n", "x.yaml:3: unknown key 'train.epoch'; did you mean 'epochs'?"),
        ("partition: {pubic: 0.1}", "x.yaml:1: unknown key 'partition.pubic'; did you mean 'public'?"),
        ("memory: {hots: 1GiB}", "x.yaml:1: unknown key 'memory.hots'; did you mean 'host'?"),
        (
            "corpus:\n  path: a.csv\n  lable: stars\n",
            "x.yaml:3: unknown key 'corpus.lable'; did you mean 'label'?",
        ),
        (
            "public:\n  path: new.csv\n  text: [title, body]\n  label: null\n",
            "x.yaml:4: public.label: input should be a valid string.",
        ),
        ("public:\n  path: new.csv\n  lable: x\n", "x.yaml:3: unknown key 'public.lable'; did you mean 'label'?"),
        ("public:\n  path: new.csv\n  row: 5\n", "x.yaml:3: unknown key 'public.row'; did you mean 'rows'?"),
        (
            "public:\n  rows: 5\n  corpus:\n    path: new.csv\n    label: 3\n",
            "x.yaml:5: public.corpus.label: input should be a valid string (given: 3).",
        ),
        ("public: {rows: 5}", "x.yaml:1: public: a corpus needs a `name:` or a `path:`."),
        ("rounds: 0", "x.yaml:1: rounds: input should be greater than or equal to 1 (given: 0)."),
        ("seed: 1\nrounds: three", "x.yaml:2: rounds: input should be a valid integer"),
        ("participation: 1.5", "x.yaml:1: participation: input should be less than or equal to 1 (given: 1.5)."),
        ("quorum: -0.1", "x.yaml:1: quorum: input should be greater than or equal to 0 (given: -0.1)."),
        ("train:\n  rate: 0\n", "x.yaml:2: train.rate: input should be greater than 0 (given: 0)."),
        ("train: {class_weights: yes}", "x.yaml:1: train.class_weights: input should be 'none' or 'balanced'"),
        ("train: 5", "x.yaml:1: train: input should be a valid dictionary"),
        ("name: a/b", "x.yaml:1: name: string should match pattern"),
        ("workers: 0", "x.yaml:1: workers: must be at least 1, or auto (given: 0)."),
        ("workers: many", "x.yaml:1: workers: input should be a valid integer"),
        ("memory: {host: 5 elephants}", "x.yaml:1: memory.host: '5 elephants' is not a size; write for example 512MiB"),
        ("labels: [good, bad, good]", "x.yaml:1: labels: must be two or more different names."),
        ("labels: [good]", "x.yaml:1: labels: must be two or more different names."),
        ("labels:\n  - good\n  - 2\n", "x.yaml:3: labels.1: input should be a valid string (given: 2)."),
        ("clients: [bow, 3]", "x.yaml:1: clients.1: input should be a valid dictionary or instance of ModelSpec"),
        (
            "clients:\n  books: {model: bow}\n  Films:\n    model: bow\n    train:\n      epoch: 1\n",
            "x.yaml:6: unknown key 'clients.Films.train.epoch'; did you mean 'epochs'?",
        ),
        (
            "clients:\n  Films:\n    modle: bow\n",
            "x.yaml:3: unknown key 'clients.Films.modle'; did you mean 'model'?",
        ),
        ("clients:\n  films: 3\n", "x.yaml:2: clients.films: input should be a valid dictionary"),
        ("partition: {kind: iid}", "x.yaml:1: partition: kind iid needs `clients:`"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_line(refusal, text, message):
    assert message in refusal(text)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("AdaFd", "there is no algorithm 'AdaFd'; did you mean 'AdaFD'?"),
        ("{name: AdaFD, wieghting: RNWC}", "AdaFD has no option 'wieghting'; did you mean 'weighting'?"),
        ("{name: AdaFD, weighting: ENCW}", "there is no weighting 'ENCW'; did you mean 'ENWC'?"),
        ("{name: AdaFD, weighting: {name: ENWC, bta: 1}}", "ENWC has no option 'bta'; did you mean 'beta'?"),
        ("{name: AdaFD, weighting: {name: ENWC, beta: much}}", "ENWC: option 'beta': Input should be a valid number"),
        ("{name: AdaFD, weighting: 5}", "the weighting is a name or {name: ..., option: value}, not 5."),
        (
            "{name: AdaFD, weighting: {name: LLMWC, chat: {modell: m}}}",
            "Chat has no option 'modell'; did you mean 'model'?",
        ),
        (
            "{name: FedKD, reading: mine}",
            "FedKD: option 'reading': Input should be 'paper', 'released', 'text' or 'original'",
        ),
        ("{name: AdaFD, temperature: 0}", "AdaFD: option 'temperature': Input should be greater than 0"),
        ("own.py:Mine", "own.py could not be loaded (FileNotFoundError: there is no such file"),
        ("fedstill.config.experiment:Experiment", "is not a Algorithm: derive your class from fedstill.Algorithm."),
        ("fedstill.algorithms.adafd:AdaFB", "has no class 'AdaFB'; did you mean 'AdaFD'?"),
    ],
)
def test_a_wrong_algorithm_or_option_is_named_with_the_nearest(refusal, algorithm, message):
    said = refusal(f"seed: 1\nalgorithm: {algorithm}\n")
    assert said.startswith("x.yaml")
    assert message in said


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{name: textcnn, filtres: 3}", "TextCNN has no option 'filtres'; did you mean 'filters'?"),
        ("{name: bert-tiny, filters: 3}", "bert-tiny takes no options (given: filters)."),
        ("{name: bert-tiny, tokenizer: minilm}", "bert-tiny comes with its own tokenizer"),
        ("own.py:Model", "own.py could not be loaded"),
    ],
)
@pytest.mark.parametrize(
    "where", ["server: {}", "clients: {}", "clients: [bow, {}]", "clients: {{books: {{model: {}}}}}"]
)
def test_a_wrong_model_is_named_wherever_it_stands(refusal, where, model, message):
    assert message in refusal(where.format(model))


def test_everything_wrong_is_said_at_once(refusal):
    said = refusal("rounds: abc\nseed: -1\nfoo: 1\ntrain: {epoch: 2, batch: 0}\n").splitlines()
    places = sorted(line.split(": ")[0] for line in said)
    assert places == ["x.yaml:1", "x.yaml:2", "x.yaml:3", "x.yaml:4", "x.yaml:4"]


def test_what_the_command_line_brought_in_is_blamed_on_it(refusal):
    said = refusal("rounds: 3\nseed: -1\n", "rounds=0", "train.epoch=1").splitlines()
    assert any(line.startswith("on the command line: rounds: ") for line in said)
    assert "on the command line: unknown key 'train.epoch'; did you mean 'epochs'?" in said
    assert any(line.startswith("x.yaml:2: seed: ") for line in said)


def test_an_experiment_made_in_python_is_refused_in_the_same_words():
    with pytest.raises(FedstillError, match="AdaFD has no option 'wieghting'"):
        Experiment(algorithm={"name": "AdaFD", "wieghting": "RNWC"})


def test_options_without_a_name_are_those_of_the_default(tmp_path):
    (tmp_path / "x.yaml").write_text("algorithm: {weighting: {beta: 2}}\n")
    assert load_experiment(tmp_path / "x.yaml").method.weighting.beta == 2
    (tmp_path / "y.yaml").write_text("seed: 1\n")
    assert load_experiment(tmp_path / "y.yaml", ["algorithm.weighting=RNWC"]).method.title == "AdaFD w/ RNWC"


def test_algorithms_may_be_objects_and_are_written_down_as_settings():
    chosen = Experiment(algorithm=AdaFD(temperature=2, weighting=ENWC(beta=1)))
    assert chosen.algorithm == {"name": "AdaFD", "weighting": {"name": "ENWC", "beta": 1}, "temperature": 2}
    assert chosen.method == AdaFD(temperature=2, weighting=ENWC(beta=1))
    assert Experiment(algorithm=AdaFD()) == Experiment()
    assert Experiment(algorithm=Local).algorithm == {"name": "Local"}
    nested = Experiment(algorithm={"name": "AdaFD", "weighting": ENWC(beta=1)})
    assert nested == Experiment(algorithm=AdaFD(weighting=ENWC(beta=1)))
    assert from_source(Source(nested.to_yaml(), "x")).method == nested.method
    with pytest.raises(FedstillError, match="temperature"):
        Experiment(algorithm=AdaFD(temperature=-1))


def test_every_built_in_method_comes_back_from_its_settings():
    for cls in algorithms.known(Algorithm).values():
        assert Experiment(algorithm=cls(), blend="mean").method == cls()


def test_a_class_of_ones_own_is_found_by_its_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nimport fedstill\n\n@dataclass(frozen=True)\n"
        "class Mine(fedstill.Algorithm):\n    pace: int = 1\n"
    )
    first = Experiment(algorithm=f"{tmp_path / 'mine.py'}:Mine")
    again = Experiment(algorithm=type(first.method)(pace=3))
    assert again.algorithm == {"name": f"{tmp_path / 'mine.py'}:Mine", "pace": 3}

    class Hidden(Algorithm):
        pass

    with pytest.raises(FedstillError, match="write it at the top level of a file"):
        Experiment(algorithm=Hidden())


def test_mistakes_in_a_program_are_sentences():
    with pytest.raises(FedstillError, match=r"^Experiment: rounds: input should be greater than or equal to 1"):
        Experiment(rounds=0)
    with pytest.raises(FedstillError, match="unknown key 'roundz'; did you mean 'rounds'"):
        Experiment(roundz=3)


def test_a_changed_experiment_is_checked_and_keeps_the_rest():
    first = Experiment(rounds=5, train={"epochs": 2})
    assert first.changed(rounds=2) == Experiment(rounds=2, train={"epochs": 2})
    with pytest.raises(FedstillError, match="rounds"):
        first.changed(rounds=0)


def test_a_program_is_told_the_key_of_public_that_it_gave():
    with pytest.raises(FedstillError, match=r"^Experiment: public\.label: input should be a valid string\.$"):
        Experiment(public={"path": "new.csv", "text": ["title", "body"], "label": None})
