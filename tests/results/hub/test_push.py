"""A model for the Hub: the card, the folder, and the Hub's own client against a server on this machine."""

from __future__ import annotations

import base64
import json
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file
from sklearn.metrics import f1_score

import fedstill
from fedstill.cli.main import main
from fedstill.common.errors import FedstillError
from fedstill.config.experiment import Experiment
from fedstill.results.hub.push import subject_of, upload, without_paths, write
from fedstill.results.record import Record
from tests.conftest import write_reviews


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Two seeds would cost as much again: one finished run of three shops, with a transformer at the server."""
    folder = tmp_path_factory.mktemp("push")
    reviews = write_reviews(folder / "reviews.csv", rows=120)
    values: dict[str, Any] = {
        "name": "shops",
        "corpus": {"path": str(reviews), "text": "body", "label": "stars", "domain": "shop"},
        "clients": "bow",
        "server": "bert-tiny",
        "train": {"epochs": 1, "max_length": 16},
        "rounds": 1,
        "workers": 1,
    }
    return fedstill.run(Experiment.model_validate(values), folder / "runs" / "seed-0", progress=False)


def parts(folder: Path) -> tuple[dict[str, Any], str]:
    """A card's metadata and its text."""
    _, metadata, text = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(metadata), text


def test_a_transformer_is_loaded_by_transformers_from_the_folder(record: Record, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    write(subject_of(record.folder, "server", "me/shops"), tmp_path / "hub")
    module = AutoModelForSequenceClassification.from_pretrained(tmp_path / "hub").eval()
    tokens = AutoTokenizer.from_pretrained(tmp_path / "hub")(["a lovely novel"], return_tensors="pt")
    ours = record.model("server").predict(["a lovely novel"]).probabilities
    np.testing.assert_allclose(module(**tokens).logits.softmax(-1).detach().numpy(), ours, atol=1e-5)
    about, text = parts(tmp_path / "hub")
    assert (about["library_name"], about["pipeline_tag"]) == ("transformers", "text-classification")
    assert 'AutoModelForSequenceClassification.from_pretrained("me/shops")' in text
    assert "max_length=16" in text


def test_the_card_has_the_records_scores_and_scikit_learn_agrees(record: Record, tmp_path: Path) -> None:
    write(subject_of(record.folder, "server", "me/shops", language="en"), tmp_path / "hub")
    about, text = parts(tmp_path / "hub")
    kept = load_file(record.folder / "predictions" / "server.safetensors")
    f1 = f1_score(kept["labels"], kept["predicted"], average="weighted")
    scores = {one["name"]: one["value"] for one in about["model-index"][0]["results"][0]["metrics"]}
    assert scores["f1"] == pytest.approx(f1, abs=1e-4)
    assert about["language"] == "en"
    line = next(line for line in text.splitlines() if line.startswith("| of all |") and "Weighted F1" in line)
    many, score, interval = (line.split("|")[place].strip() for place in (2, 4, 5))
    low, high = map(float, interval.split(" to "))
    assert (many, score) == (str(len(kept["labels"])), f"{100 * f1:.1f}")
    assert low <= float(score) <= high
    assert high > low
    assert sum(line.startswith("| of ") and "not known" not in line for line in text.splitlines()) >= 6
    for member in record.members:
        assert member.score is not None
        assert f"| {member.name} | bow | {100 * member.score.alone:.1f} |" in text
    assert "AdaFD (Xiao and Liu 2025)" in text
    assert "no differential privacy" in text


def test_no_text_of_a_row_and_no_path_of_this_machine_is_in_what_is_pushed(record: Record, tmp_path: Path) -> None:
    for party in ("server", "books"):
        write(subject_of(record.folder, party, "me/shops"), tmp_path / party)
        for path in (tmp_path / party).iterdir():
            if path.suffix in (".md", ".yaml", ".json") and path.name != "tokenizer.json":
                content = path.read_text()
                assert "order 7" not in content, path
                assert str(record.folder.parents[1]) not in content, path
    again = yaml.safe_load((tmp_path / "server" / "experiment.yaml").read_text())
    assert again["corpus"]["path"] == "reviews.csv"
    assert without_paths({"name": "/home/me/model", "labels": ["/a"]}) == {"name": "model", "labels": ["/a"]}


def test_a_small_model_is_loaded_by_fedstill(record: Record, tmp_path: Path) -> None:
    write(subject_of(record.folder, "books", "me/shops"), tmp_path / "hub")
    loaded = fedstill.load_model(tmp_path / "hub").predict(["a lovely novel"]).probabilities
    np.testing.assert_array_equal(loaded, record.model("books").predict(["a lovely novel"]).probabilities)
    about, text = parts(tmp_path / "hub")
    assert about["library_name"] == "fedstill"
    assert 'fedstill.load_model(snapshot_download("me/shops"))' in text


def test_of_a_real_federation_the_card_names_no_site_and_no_corpus(record: Record, tmp_path: Path) -> None:
    real = tmp_path / "run"
    shutil.copytree(record.folder, real)
    summary = json.loads((real / "summary.json").read_text())
    summary["members"][0]["own"] = summary["members"][0]["every"] = None  # scores: false
    (real / "summary.json").write_text(json.dumps(summary | {"engine": "flare"}))
    files = write(subject_of(real, "server", "me/shops"), tmp_path / "hub")
    assert "experiment.yaml" not in {path.name for path in files}
    _, text = parts(tmp_path / "hub")
    assert not any(name in text for name in ("books", "garden", "reviews.csv", "domain"))
    assert "| site 1 | bow | not told | not told | not told |" in text
    assert "| site 2 | bow | " in text


def test_three_seeds_give_an_interval_over_seeds(record: Record, tmp_path: Path) -> None:
    for seed, shift in enumerate((0.0, 0.01, 0.02)):
        folder = tmp_path / f"seed-{seed}"
        shutil.copytree(record.folder, folder)
        summary = json.loads((folder / "summary.json").read_text()) | {"seed": seed}
        summary["scores"]["server"]["test"]["f1"] = 0.5 + shift
        (folder / "summary.json").write_text(json.dumps(summary))
    write(subject_of(tmp_path / "seed-1", "server", "me/shops"), tmp_path / "hub")
    # Student's t with 2 degrees of freedom: 4.303 * 0.01 / sqrt(3) = 0.0248
    assert "Over 3 seeds of this experiment F1 is 51.0, 95% interval 48.5 to 53.5" in parts(tmp_path / "hub")[1]


@pytest.mark.parametrize(
    ("party", "name", "says"),
    [
        ("server", "shops", "give user/name"),
        ("server", "me/--shops..", "is no name on the Hub"),
        ("bookz", "me/shops", "did you mean 'books'?"),
    ],
)
def test_what_cannot_be_pushed_is_one_sentence(record: Record, party: str, name: str, says: str) -> None:
    with pytest.raises(FedstillError, match=re.escape(says)):
        subject_of(record.folder, party, name)


def test_the_command_writes_a_folder_or_shows_the_card(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["fedstill", "push", str(record.folder), "me/shops", *words])
        with pytest.raises(SystemExit):
            main()
        return "".join(capsys.readouterr())

    assert "holds what the Hub would get" in typed("--out", str(tmp_path / "hub"))
    assert "is not empty" in typed("--out", str(tmp_path / "hub"))
    shown = typed("--dry-run")
    assert "model-index:" in shown
    assert "model.safetensors: 1" in shown
    assert "nothing was pushed" in shown


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as a push needs; `status` other than 200 refuses everything."""

    status = 200
    heard: dict[str, bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        type(self).heard[self.path] = body
        at = f"http://{self.headers['Host']}"
        says: dict[str, Any] = {"errors": [], "warnings": []}
        if self.path.endswith("/repos/create"):
            says = {"url": f"{at}/me/shops", "name": "me/shops", "id": "1"}
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            says = {"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in files]}
        elif "/commit/" in self.path:
            says = {"commitUrl": f"{at}/me/shops/commit/{'a' * 40}", "commitOid": "a" * 40}
        data = json.dumps(says).encode()
        self.send_response(type(self).status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        """Nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A Hub on this machine, and a token for it."""
    handler = type("OwnHub", (Hub,), {"heard": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _turn_to(monkeypatch, f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    server.server_close()


def _turn_to(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 34)


def test_the_hubs_own_client_brings_every_file(record: Record, tmp_path: Path, hub: type[Hub]) -> None:
    files = write(subject_of(record.folder, "books", "me/shops"), tmp_path / "hub")
    assert upload(tmp_path / "hub", "me/shops", is_private=True).endswith("/me/shops")
    created = json.loads(hub.heard["/api/repos/create"])
    assert created["name"] == "shops"
    assert created.get("private") is True or created.get("visibility") == "private"
    commit = next(body for path, body in hub.heard.items() if "/commit/" in path)
    lines = [json.loads(line) for line in commit.splitlines()]
    sent = {
        line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in lines if line["key"] == "file"
    }
    assert sent == {path.name: path.read_bytes() for path in files}


def test_a_hub_that_does_not_know_the_user_is_one_sentence(tmp_path: Path, hub: type[Hub]) -> None:
    hub.status = 401
    with pytest.raises(FedstillError, match="log in with"):
        upload(tmp_path, "me/shops", is_private=False)


def test_without_a_network_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _turn_to(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(FedstillError, match="cannot be reached") as offline:
        upload(tmp_path, "me/shops", is_private=False)
    assert "\n" not in str(offline.value)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FedstillError, match="cannot be reached"):
        upload(tmp_path, "me/shops", is_private=False)
