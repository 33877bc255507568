"""The commands as a user types them, bad input included: one clear message, nothing lost."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from fedstill.algorithms.adafd import AdaFD
from fedstill.cli.main import main
from fedstill.common.version import VERSION

TEN_LINES = """\
name: shops
corpus: {path: reviews.csv, text: [title, body], label: stars, domain: shop}
partition: {kind: domain, public: 0.2, test: 0.1, validation: 0.1}
clients: [bow, textcnn, bow]
server: {name: textcnn, tokenizer: bert-tiny}
algorithm: {name: AdaFD, weighting: {name: ENWC, beta: 5}}
train: {epochs: 4, batch: 8, max_length: 16}
rounds: 2
workers: 1
"""


@pytest.fixture
def here(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a user's own CSV and a ten-line experiment."""
    monkeypatch.chdir(reviews.parent)
    (reviews.parent / "shops.yaml").write_text(TEN_LINES)
    return reviews.parent


def fedstill(*words: str) -> int:
    """Type a command; its exit status."""
    before = sys.argv
    sys.argv = ["fedstill", *words]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    return 0


def test_a_users_own_csv_runs_predicts_and_compares(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("run", "shops.yaml", "--seeds", "2") == 0
    printed = capsys.readouterr().out
    assert "round 2/2: server F1" in printed
    assert "AdaFD w/ ENWC" in printed
    assert "alone: round 2/2, clients' mean" in printed
    assert "worse off than alone for as long" in printed
    assert "Alone is one round" not in printed
    assert fedstill("run", "shops.yaml", "algorithm=Local", "name=alone", "--seeds", "2") == 0
    capsys.readouterr()
    assert fedstill("compare", "runs", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["method"] for row in rows} == {"AdaFD w/ ENWC", "Local"}
    assert fedstill("predict", "runs/shops/seed-0", "reviews.csv", "--out", "labelled.csv") == 0
    with (here / "labelled.csv").open() as file:
        labelled = list(csv.DictReader(file))
    with (here / "reviews.csv").open() as file:
        true = list(csv.DictReader(file))
    assert len(labelled) == 240
    assert [row["body"] for row in labelled] == [row["body"] for row in true]
    right = sum(ours["predicted"] == theirs["stars"] for ours, theirs in zip(labelled, true, strict=True))
    assert right / 240 > 0.7  # three classes with tell-tale words


def test_a_comparison_with_one_round_alone_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("run", "shops.yaml", "alone=first") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "worse off than after one round alone" in printed
    assert "Alone is one round of training, of 2; with alone=rounds everybody first trains alone for all." in printed
    assert not Path("runs/shops/seed-0/alone").exists()


def test_predictions_of_a_saved_model_are_those_of_the_run(here: Path) -> None:
    from safetensors.torch import load_file

    from fedstill import load_model
    from fedstill.data.corpora import CorpusSpec, load
    from fedstill.data.examples import Examples
    from fedstill.data.tokens import TokenStore
    from fedstill.learning.predict import predict

    assert fedstill("run", "shops.yaml") == 0
    corpus = load(CorpusSpec(path="reviews.csv", text=["title", "body"], label="stars", domain="shop"))
    for party in ("server", "books", "garden"):
        model = load_model(here / "runs/shops/seed-0/models" / party)
        saved = load_file(here / f"runs/shops/seed-0/predictions/{party}.safetensors")
        store = TokenStore(*model.tokenizer.encode(corpus.texts, corpus.pairs, 16), pad_id=model.tokenizer.pad_id)
        logits = predict(model.module, Examples(store, saved["rows"].numpy()))
        assert model.labels == ("bad", "good", "so-so")
        torch.testing.assert_close(logits, saved["logits"], atol=1e-5, rtol=1e-5)


def test_check_says_what_would_happen_and_trains_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("check", "shops.yaml") == 0
    printed = capsys.readouterr().out
    assert "240" in printed
    assert "48 public rows" in printed
    assert "Nothing was trained." in printed
    assert not (here / "runs").exists()


@pytest.mark.parametrize("what", ["corpora", "models", "algorithms", "recipes"])
def test_show_lists_what_there_is(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("show", what) == 0
    name = {"corpora": "tweets", "models": "minilm", "algorithms": "AdaFD", "recipes": "amazon"}[what]
    assert name in capsys.readouterr().out
    assert fedstill("show", what, "--json") == 0
    assert name in [row["name"] for row in json.loads(capsys.readouterr().out)]


def test_show_a_method_of_your_own_says_how_to_run_it(capsys: pytest.CaptureFixture[str]) -> None:
    own = Path(__file__).resolve().parents[2] / "examples" / "own_method.py"
    assert fedstill("show", f"{own}:Confident", "--trust-code") == 0
    assert capsys.readouterr().out.rstrip().endswith("sharpness: 2}' --trust-code")


def test_show_a_method_tells_its_options_with_defaults_what_it_sends_and_its_paper(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert fedstill("show", "FedAUX") == 0
    lines = [" ".join(line.replace("│", " ").split()) for line in capsys.readouterr().out.splitlines()]
    assert "paper: FedAUX (Sattler 2021)" in lines
    assert "needs: public rows, one architecture" in lines
    assert "clients send: parameters" in lines
    assert "negatives number above 0 below 1 or null 0.2" in lines
    assert "epochs whole number from 0 1" in lines
    assert fedstill("show", "AdaFD", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    options = {option["name"]: option for option in told["options"]}
    assert options["weighting"] == {"name": "weighting", "type": "ENWC | LLMWC | RNWC | Uniform", "default": "ENWC"}
    assert options["weighting.beta"]["type"] == "number from 0 or null"
    assert options["per_class"] == {"name": "per_class", "type": "true or false", "default": "false"}
    assert set(options) - {"weighting.beta", "weighting.learnable"} == {item.name for item in fields(AdaFD)}


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedstill("--version") == 0
    assert capsys.readouterr().out == f"fedstill {VERSION}\n"


def test_help_waits_for_no_library_that_learns() -> None:
    program = (
        "import sys; sys.argv = ['fedstill', '--help']\nfrom fedstill.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'transformers', 'pydantic', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    assert "reproduce" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "begins"), [(["workers=2"], True), (["workers=1"], False), (["engine=flare"], False), (["rounds"], False)]
)
def test_workers_load_before_this_process_has_loaded_anything_slow(here: Path, words: list[str], begins: bool) -> None:
    program = (
        "import os, signal, sys\nfrom multiprocessing import forkserver\nfrom pathlib import Path\n"
        "from fedstill.cli.common import load_workers_early\n"
        f"load_workers_early(Path('shops.yaml'), {words})\n"
        "begun = forkserver._forkserver._forkserver_pid\n"
        "print(begun is not None, 'torch' in sys.modules)\n"
        "if begun: os.kill(begun, signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(begins), "False"]


def test_a_folder_of_seeds_names_them_and_one_that_went_on_is_told_apart(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ("clients=bow", "server=bow", "train.epochs=1", "rounds=1", "alone=first")
    assert fedstill("run", "shops.yaml", *quick, "--seeds", "2") == 0
    capsys.readouterr()
    for folder in ("runs/shops", "runs"):
        assert fedstill("run", "--resume", folder, "rounds=2") == 1
        told = " ".join(capsys.readouterr().err.split())
        there = "runs/shops/seed-0, runs/shops/seed-1"
        assert told == f"error: {folder} holds no run itself; go on with one that is in it: {there}."
    assert fedstill("run", "--resume", "runs/shops/seed-0", "rounds=2") == 0
    capsys.readouterr()
    assert fedstill("compare", "runs/shops") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "2 rounds (AdaFD w/ ENWC, seed 0); 1 round (AdaFD w/ ENWC, seed 1); the mean of AdaFD w/ ENWC is over" in told
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str) -> None:
    asked = {"_FEDSTILL_COMPLETE": f"complete_{shell}", "COMP_WORDS": "fedstill pre", "COMP_CWORD": "1"}
    asked |= {"_TYPER_COMPLETE_ARGS": "fedstill pre", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    program = "import sys; sys.argv = ['fedstill']; from fedstill.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | asked, capture_output=True, text=True, timeout=600
    )
    assert "predict" in done.stdout
    assert "compare" not in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "nowhere.yaml"], "there is no experiment file nowhere.yaml"),
        (["run"], "give an experiment file to run, or --resume DIR"),
        (["run", "--resume", "nowhere"], "no experiment.yaml"),
        (["run", "shops.yaml", "--resume", "runs/shops/seed-0"], "give an experiment file to run, or --resume DIR"),
        (["run", "--resume", "nowhere", "seed=3"], "seed=3: a run goes on as it began; only more rounds can be"),
        (["run", "--resume", "nowhere", "rounds=many"], "only more rounds can be asked for, as in rounds=5"),
        (["run", "shops.yaml", "--resume", "rounds=5"], "runs/shops/seed-0 holds no run to go on with"),
        (["show", "Adafed"], "did you mean 'AdaFD'?"),
        (["show", "AdaFD", "--from", "x"], "--from and --write are for the claims"),
        (["run", "shops.yaml", "rounds"], "is not an override: write key=value"),
        (["run", "shops.yaml", "round=2"], "unknown key 'round'; did you mean 'rounds'?"),
        (["run", "shops.yaml", "train.epoch=2"], "did you mean 'epochs'?"),
        (["run", "shops.yaml", "rounds=0"], "greater than or equal to 1"),
        (["check", "shops.yaml", "engine=lokal"], "on the command line: engine: there is no engine 'lokal'; did you"),
        (["run", "shops.yaml", "algorithm=AdaFed"], "there is no algorithm 'AdaFed'; did you mean 'AdaFD'?"),
        (["run", "shops.yaml", "algorithm.weighting.betta=1"], "ENWC has no option 'betta'; did you mean 'beta'?"),
        (["run", "shops.yaml", "corpus.label=star"], "there is no column 'star', did you mean 'stars'?"),
        (["run", "shops.yaml", "corpus.path=gone.csv"], "gone.csv does not exist"),
        (["run", "shops.yaml", "labels=[bad, good]"], "so-so"),
        (["run", "shops.yaml", "clients=[bow, bow, bow, bow]"], "4 models for 3 clients (books, garden, toys)"),
        (["run", "shops.yaml", "clients=bertiny"], "bertiny"),
        (["run", "shops.yaml", "partition.public=0"], "needs public samples"),
        (["run", "shops.yaml", "partition={kind: iid, clients: 500}"], "500"),
        (["run", "shops.yaml", "algorithm.weighting.learnable=true"], "set partition.labelled_public"),
        (["run", "shops.yaml", "device=cuda"], "no usable CUDA GPU"),
        (["run", "shops.yaml", "train.rate=1e30", "clients=textcnn"], "lower the rate"),
        (["run", "shops.yaml", "clients=bert-tiny", "train.max_length=1000"], "reads 512 tokens at most"),
        (["compare", "."], "no finished run"),
        (["predict", "nowhere", "reviews.csv"], "is not a run folder"),
        (["show", "modles"], "did you mean 'models'?"),
    ],
)
def test_bad_input_is_one_message(here: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert fedstill(*words) == 1
    captured = capsys.readouterr()
    printed = " ".join((captured.out + captured.err).split())
    assert says in printed
    assert "Traceback" not in printed
    assert (here / "reviews.csv").exists()


def test_a_file_that_is_not_yaml_names_its_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "shops.yaml").write_text("name: shops\ntrain: {epochs: 2\nrounds: 3\n")
    assert fedstill("run", "shops.yaml") == 1
    assert "shops.yaml:3" in capsys.readouterr().err
