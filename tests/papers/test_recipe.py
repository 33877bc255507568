"""The recipes that ship say what the papers print; what is wrong with one is a sentence with a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment
from fedstill.config.source import Source
from fedstill.papers.grid import Grid, plan_grid
from fedstill.papers.recipe import Recipe, is_grid, read_recipe, recipe_files
from tests.papers.tiny import TINY, tiny_source

TABLES = {name: path for name, path in recipe_files().items() if is_grid(Source.read(path).values)}
SCALES = [(name, scale) for name, path in TABLES.items() for scale in Source.read(path).values["scales"]]
MEDIUM = [name for name, scale in SCALES if scale == "medium"]


def recipe(name: str) -> Recipe:
    return read_recipe(Source.read(TABLES[name]))


def grid(name: str, scale: str, monkeypatch: pytest.MonkeyPatch) -> Grid:
    monkeypatch.setenv("OPENAI_API_KEY", "a key, so that every row is planned")
    asked = recipe(name).asks | recipe(name).scales[scale].asks
    return plan_grid(Source.read(TABLES[name]), scale, Path("out"), [f"{key}=somewhere" for key in asked])


def test_every_table_of_the_four_papers_ships_and_some_of_our_own() -> None:
    adafd = ["adafd/table1", "adafd/table2", *(f"adafd/figure{number}" for number in (1, 3, 4, 5, 6))]
    fedid = [f"fedid/table{number}" for number in range(1, 7)] + [f"fedid/figure{number}" for number in (2, 3, 4)]
    fedsnd = ["fedsnd/table1", *(f"fedsnd/figure{number}" for number in range(6, 11))]
    feddrs = [*(f"feddrs/table{number}" for number in (1, 2, 3, 4)), "feddrs/figure3", "feddrs/figure4"]
    ours = ["adafd/brands", "fedid/chunk", "fedsnd/digits", "feddrs/smoke", "trust/attacks"]
    assert set(TABLES) >= {*adafd, *fedid, *fedsnd, *feddrs, *ours}
    assert {"amazon", "tweets"} == set(recipe_files()) - set(TABLES)


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_cell_is_a_valid_experiment_in_a_folder_of_its_own(
    name: str, scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = grid(name, scale, monkeypatch)
    folders = [run.folder for run in planned.runs]
    assert len(set(folders)) == len(folders)
    wanted = planned.recipe.scales[scale].rows or planned.recipe.rows
    there = {row for group in planned.selection.groups for row in planned.recipe.rows_of(group)}
    assert {run.row for run in planned.runs} == there & set(wanted)
    for run in planned.runs[: len(planned.runs) // planned.recipe.scales[scale].seeds]:  # of the first seed
        assert Experiment.model_validate(run.experiment.model_dump()) == run.experiment
        assert run.experiment.method
        assert run.experiment.client_specs(clients(run.experiment, scale))
        assert run.folder == Path("out") / run.experiment.name / f"seed-{run.experiment.seed}"


def clients(experiment: Experiment, scale: str) -> list[str]:
    """As the partition will name them."""
    if experiment.partition.clients is not None:
        return [f"client-{number:02}" for number in range(experiment.partition.clients)]
    if experiment.corpus.name == "tweets":
        return ["companies", "hardware", "shooters", "sports", "worlds"]
    amazon = ["automotive", "baby", "clothing", "health", "sport"]
    return amazon if scale == "paper" else [name for name in amazon if name != "clothing"]


@pytest.mark.parametrize("name", TABLES)
def test_paper_scale_fills_the_whole_table_and_small_uses_models_without_a_hub(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not recipe(name).values and "paper" not in recipe(name).scales:
        return  # a table of ours
    paper, small = (grid(name, scale, monkeypatch) for scale in ("paper", "small"))
    assert paper.selection.columns == tuple(paper.recipe.columns)
    ours = set(paper.recipe.groups) - set(paper.selection.groups)  # what the paper does not have
    assert not ours & set(paper.recipe.values)
    medium = recipe(name).scales.get("medium")
    assert ours <= {*small.selection.groups, *((medium and medium.groups) or ())}
    assert all(run.experiment.workers == 1 for run in small.runs)
    for run in small.runs:
        specs = run.experiment.client_specs(clients(run.experiment, "small")).values()
        assert {spec.model.name for spec in specs} | {run.experiment.server.name} <= {
            "bert-tiny",
            "textcnn",
            "bigru",
            "bow",
            "lenet",
            "cnn",
        }


@pytest.mark.parametrize("name", MEDIUM)
def test_medium_scale_has_pretrained_models_five_seeds_and_no_bag_of_words(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = grid(name, "medium", monkeypatch)
    assert all(run.experiment.workers == 1 for run in planned.runs if planned.recipe.is_trained)
    if planned.recipe.table not in ("scores", "curves"):
        return
    assert planned.recipe.scales["medium"].seeds == 5
    for run in planned.runs:
        specs = run.experiment.client_specs(clients(run.experiment, "medium")).values()
        models = {str(spec.model) for spec in specs} | {str(run.experiment.server)}
        assert "bow" not in models
        if name.startswith(("adafd/", "fedid/")):
            assert run.experiment.train.batch == 32
            assert str(run.experiment.server) == "minilm"
            assert models <= {"minilm", "minilm[:3]", "bert-tiny", "textcnn"}


@pytest.mark.parametrize("name", [name for name in TABLES if name.startswith(("adafd/", "fedid/"))])
def test_small_scale_has_five_seeds_and_a_thousand_rows_a_client_unless_it_counts_bytes_or_clients(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = grid(name, "small", monkeypatch)
    if planned.recipe.table not in ("scores", "curves") or name == "fedid/figure4":
        return
    assert planned.recipe.scales["small"].seeds >= 5
    for run in planned.runs:
        spec = run.experiment.partition
        share = 1.0 if spec.clients is None else (1 - spec.public) / spec.clients
        assert (spec.rows_per_domain or 0) * share >= 1000 or run.row == "downsampled"


def test_numbers_are_those_that_the_papers_print() -> None:
    first, second = recipe("adafd/table1"), recipe("adafd/table2")
    assert first.printed("homogeneous, original", "AdaFD w/ ENWC", "global") == "82.0"
    assert first.printed("heterogeneous, downsampled", "MHAT", "clot.") == "77.3"
    assert first.printed("heterogeneous, original", "FedKD", "sport") == "82.6"
    assert second.printed("heterogeneous, original", "AdaFD w/ ENWC", "global") == "82.5"
    assert second.printed("homogeneous, downsampled", "Centralized", "global") == "73.8"
    glue, mixed = recipe("fedid/table1"), recipe("fedid/table2")
    assert glue.printed("", "Centralized", "MNLI") == "82.8/83.5"
    assert glue.printed("alpha=100", "FedDF", "QQP") == "85.7/88.5"
    assert glue.printed("alpha=1", "FedID", "CoLA") == "49.6"
    assert mixed.printed("alpha=100", "FedID", "MRPC") == "88.5/83.6"
    assert mixed.printed("alpha=1", "FedKD", "WNLI") == "52.7"
    assert recipe("fedid/table3").printed("", "FedID", "QQP → PAWS") == "84.1/87.1"
    assert recipe("fedid/table4").printed("", "w/o g_distill", "SST-2") == "91.1"
    assert recipe("fedid/table5").printed("", "FedKD", "Formulation") == "(|D⁰| × K) × 1"
    assert not recipe("fedid/figure2").values
    assert recipe("fedid/table6").printed("", "CoLA", "dev") == "1043"
    noise, samples = recipe("fedsnd/table1"), recipe("feddrs/table1")
    assert noise.printed("CIFAR10", "FedKD", "alpha=5") == "78.69"
    assert noise.printed("Dbpedia", "FedSND", "alpha=0.5") == "97.83"
    assert samples.printed("RoBERTa-Base", "FedDF", "alpha=0.05") == "67.11"
    assert samples.printed("T5-Base", "FedDRS(PostOnly)", "alpha=0, written") == "71.36"
    assert samples.printed("four tasks", "FedAvg", "alpha=0") is None
    assert recipe("feddrs/table2").printed("RoBERTa-Base", "+adversary sample", "Accuracy") == "36.41"
    assert recipe("feddrs/table3").printed("CIFAR 100 (ResNet18)", "FedOpt", "RS") == "-0.05"


def test_paper_scale_is_the_papers_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    amazon = {run.experiment.name: run.experiment for run in grid("adafd/table2", "paper", monkeypatch).runs}
    mixed = amazon["heterogeneous-downsampled-adafd-w-enwc"]
    assert [spec.model.name for spec in mixed.client_specs(["a", "b", "c", "d", "e"]).values()] == [
        "google-bert/bert-base-cased",
        "google-bert/bert-large-cased",
        "FacebookAI/roberta-base",
        "FacebookAI/roberta-large",
        "xlnet/xlnet-large-cased",
    ]
    assert (mixed.rounds, mixed.train.epochs, mixed.train.rate, mixed.train.max_length) == (5, 3, 2e-5, 128)
    assert (mixed.partition.rows_per_domain, mixed.partition.public, mixed.partition.global_test) == (32000, 0.2, True)
    assert amazon["homogeneous-original-fedavg"].partition.rows_per_domain is None
    glue = {run.experiment.name: run.experiment for run in grid("fedid/table2", "paper", monkeypatch).runs}
    mnli = glue["alpha-1-mnli-fedid"]
    assert (mnli.rounds, mnli.train.batch, mnli.distill.epochs, mnli.partition.clients) == (10, 32, 3, 10)
    assert (mnli.partition.alpha, mnli.partition.public, mnli.partition.labelled_public) == (1, 0.5, 0.1)
    assert (mnli.corpus.name, mnli.corpus.task) == ("glue", "MNLI")
    shares = [run.experiment.partition.public_share for run in grid("fedid/figure2", "paper", monkeypatch).runs[::5]]
    assert shares[:5] == [0.1, 0.2, 0.4, 0.8, 1.0]
    figure = grid("fedid/figure3", "paper", monkeypatch).runs
    assert [run.experiment.algorithm.get("labelled") for run in figure[:4]] == [True, True, True, None]
    for name in ("table1", "table2", "figure3", "figure4", "figure5", "figure6"):
        planned = grid(f"adafd/{name}", "paper", monkeypatch)
        adafd = [run.experiment.algorithm for run in planned.runs if not planned.recipe.rows[run.row].ours]
        assert {settings["reading"] for settings in adafd if settings["name"] == "AdaFD"} == {"paper"}
    betas = [run.experiment.algorithm["weighting"]["beta"] for run in grid("adafd/figure4", "paper", monkeypatch).runs]
    assert betas == [1, 5, 10, 15, 20] * 3
    assert {run.experiment.rounds for run in grid("adafd/figure5", "paper", monkeypatch).runs} == {20}
    assert {run.experiment.partition.clients for run in grid("fedid/figure4", "paper", monkeypatch).runs} == {5, 10, 20}
    noise = {run.experiment.name: run.experiment for run in grid("fedsnd/table1", "paper", monkeypatch).runs}
    snd = noise["cifar10-alpha-0.5-fedsnd"]
    assert (snd.partition.clients, snd.participation, snd.train.epochs, snd.rounds) == (100, 0.2, 10, 100)
    assert (snd.algorithm["target"], snd.partition.alpha, snd.server.name, snd.corpus.size) == (0.001, 0.5, "lenet", 28)
    figure = {run.experiment.name: run.experiment for run in grid("fedsnd/figure10", "paper", monkeypatch).runs}
    epochs = [figure[f"cifar10-alpha-200-{row}"].train.epochs for row in ("epochs-5", "xi-0.001", "epochs-20")]
    assert epochs == [5, 10, 20]
    samples = {run.experiment.name: run.experiment for run in grid("feddrs/table1", "paper", monkeypatch).runs}
    drs = samples["roberta-base-alpha-0.05-feddrs-mixed"]
    assert (drs.partition.alpha, drs.partition.clients, drs.participation, drs.train.epochs) == (0.05, 20, 0.8, 5)
    assert (drs.train.optimiser, drs.train.rate, drs.server.name) == ("adafactor", 1e-3, "FacebookAI/roberta-base")
    assert (drs.corpus.cut, samples["t5-base-alpha-0-fedavg"].partition.clients) == (True, None)
    fedkd = samples["roberta-base-alpha-0-fedkd-2xroberta"]
    assert (fedkd.algorithm["name"], fedkd.algorithm["balance"], fedkd.wire.parameters) == ("MutualKD", True, "fp32")
    figure = {run.row: run.experiment for run in grid("feddrs/figure4", "paper", monkeypatch).runs}
    plain, balanced = figure["CE, lambda=0.1, without balance"], figure["CE, lambda=0.1"]
    assert (plain.train.rows, balanced.train.rows) == (None, 250)  # else both would train on the same rows
    assert (plain.algorithm["weights"], plain.algorithm["balance"], "balance" in balanced.algorithm) == (
        "size",
        False,
        False,
    )
    assert bases(grid("feddrs/table3", "paper", monkeypatch)) == {"FedAvg": "FedAvg", "FedOpt": "FedOpt"}


def bases(planned: Grid) -> dict[str, str]:
    """The base of every row of a FedDRS table."""
    return {run.row: run.experiment.method.base.title for run in planned.runs}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [name for name in TABLES if name.startswith(("feddrs/", "fedsnd/"))])
def test_the_methods_without_public_data_have_scale_medium_with_five_seeds(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales = recipe(name).scales
    if name in ("feddrs/smoke", "feddrs/table4"):  # tasks at chance, and sizes
        assert "medium" not in scales
        return
    planned = grid(name, "medium", monkeypatch)
    if recipe(name).table == "partitions":
        return
    assert {run.experiment.seed for run in planned.runs} == {0, 1, 2, 3, 4}
    assert {run.experiment.server.name for run in planned.runs} <= {"minilm", "lenet", "cnn"}
    assert scales["small"].seeds >= 5
    for run in planned.runs:
        experiment = run.experiment
        if name.startswith("feddrs/") and experiment.server.name == "minilm":
            assert experiment.train.heads == ("union" if "one head" in run.row else "task")
            assert experiment.algorithm.get("rate", 1e-5) == 1e-5
        if name.startswith("fedsnd/"):
            assert experiment.partition.reading == "hsu"
            makes_noise = experiment.algorithm["name"] == "FedSND" and experiment.algorithm.get("target") is not None
            assert experiment.algorithm.get("balanced", False) == makes_noise


@pytest.mark.parametrize("scale", ["paper", "medium", "small"])
@pytest.mark.parametrize("name", ["digits", "table1", "figure7", "figure8", "figure9"])
def test_every_comparison_of_fedsnd_has_plain_averaging_at_twice_the_rate(
    name: str, scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = grid(f"fedsnd/{name}", scale, monkeypatch).runs
    plain, twice = (
        [run.experiment.train.rate for run in runs if run.row in rows]
        for rows in (("FedAvg", "exp1 (neither)"), ("FedAvg, twice the rate", "exp1, twice the rate"))
    )
    assert len(plain) == len(twice)
    expected = [2 * (rate or 4e-3) for rate in plain]  # textcnn's own rate is 4e-3
    assert twice == pytest.approx(expected)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("method: AdaFD", "method: AdaFed", "tiny.yaml:4: there is no row 'AdaFed'; did you mean 'AdaFD'?"),
        ("title: three", "titel: three", "unknown key 'titel'; did you mean 'title'?"),
        ("title: three shops\n", "", "a recipe needs the key 'title'"),
        ("seeds: 3", "seeds: 0", "tiny.yaml:12: scales.paper.seeds: input should be greater than or equal to 1"),
        ("groups: [few]", "groups: [fwe]", "the table has no 'fwe' among its groups; did you mean 'few'?"),
        ("shows: [[test/books, f1]]", "shows: [[test/books, f2]]", "tiny.yaml:23: there is no metric 'f2'"),
        ("[70.0, 71.0, 60.5/61.5]", "[70.0, 71.0]", "tiny.yaml:28: 2 values for 3 columns"),
        ("  many:\n    FedAvg", "  most:\n    FedAvg", "tiny.yaml:30: there is no group 'most'"),
        ("    FedAvg: [72.0", "    FedAve: [72.0", "there is no row 'FedAve'; did you mean 'FedAvg'?"),
        ("  books: {shows", "  GLOBAL: {shows", "'global' and 'GLOBAL' would share a folder"),
        ("heading: all", "headnig: all", "unknown key 'columns.global.headnig'; did you mean 'heading'?"),
    ],
)
def test_a_mistake_in_a_recipe_is_a_sentence_with_its_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in TINY
    with pytest.raises(FedstillError) as error:
        read_recipe(tiny_source(tmp_path, TINY.replace(old, new, 1)))
    assert says in str(error.value)


def test_a_scale_says_how_long_it_takes_after_its_notes(tmp_path: Path) -> None:
    text = TINY.replace("notes: [Three shops are few.]", "notes: [Three shops are few.], takes: seconds on one core")
    recipe = read_recipe(tiny_source(tmp_path, text))
    assert recipe.remarks("small") == ["Three shops are few.", "All of it takes seconds on one core."]
    assert recipe.remarks("paper") == []
