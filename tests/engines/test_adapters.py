"""Federations of models with adapters: they learn, send little, resume, and never touch what is frozen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedstill import Experiment, FedstillError, Record, load_model, resume, run
from fedstill.cli.main import app
from fedstill.models import ModelSpec, build
from tests.engines.conftest import content
from tests.engines.test_resume import stop_in

Small = Callable[..., Experiment]
LORA = {"model": "bert-tiny", "lora": {"rank": 4}}


def adapters(small: Small, algorithm: Any = "FedAvg", **changes: Any) -> Experiment:
    settings = {"clients": LORA, "server": LORA, "rounds": 2, "train": {"epochs": 1, "max_length": 16}}
    return small(algorithm=algorithm, **settings | changes)


def frozen(lora: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What all models with adapters of this process share."""
    model = build(ModelSpec.model_validate(lora), ("bad", "good", "so-so"), "bert-tiny", 0)
    return {name: value.clone() for name, value in model.module.named_parameters() if not value.requires_grad}


def test_a_federation_sends_adapters_and_its_models_load(small: Small, tmp_path: Path) -> None:
    # Rows of one shop per client, two rounds: enough to learn words that tell the label.
    record = run(adapters(small, train={"epochs": 4, "max_length": 16}), tmp_path / "run")
    assert record.f1() > 0.8
    model = record.model("server")
    assert model.learnt < 0.01 * model.parameters
    assert model.predict(["lovely, perfect", "broken, awful"]).labels == ["good", "bad"]
    # Up: three clients, two rounds. Down: likewise, and once more at the end. The rest are greetings and measurements.
    assert 6 * model.bytes < record.summary["bytes"]["up"] < 6.5 * model.bytes
    assert 9 * model.bytes < record.summary["bytes"]["down"] < 9.5 * model.bytes
    texts = tmp_path / "texts.csv"
    texts.write_text("title,body\nthe novel,lovely perfect\n")
    result = CliRunner().invoke(app, ["predict", str(record.folder), str(texts), "--out", str(tmp_path / "said.csv")])
    assert result.exit_code == 0, result.output
    assert ",good," in (tmp_path / "said.csv").read_text()


@pytest.mark.parametrize(
    "algorithm",
    [
        "FedAvg",
        pytest.param({"name": "FedDRS", "samples": 4, "length": 8, "sampling_steps": 2}, marks=pytest.mark.slow),
        pytest.param("FedOpt", marks=pytest.mark.slow),
        pytest.param({"name": "FedSND", "steps": 3}, marks=pytest.mark.slow),
        pytest.param("FedGKD", marks=pytest.mark.slow),
        pytest.param("FedDF", marks=pytest.mark.slow),
        pytest.param("FedID", marks=pytest.mark.slow),
        pytest.param("MutualKD", marks=pytest.mark.slow),
        pytest.param("AdaFD", marks=pytest.mark.slow),
    ],
    ids=lambda algorithm: algorithm if isinstance(algorithm, str) else algorithm["name"],
)
def test_an_interrupted_run_ends_as_it_would_have_and_the_base_stays(
    small: Small, tmp_path: Path, algorithm: Any
) -> None:
    before = frozen(LORA)
    chosen = adapters(small, algorithm, partition={"kind": "domain", "public": 0.3, "labelled_public": 0.2})
    whole = run(chosen, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(chosen, tmp_path / "run", tell=stop_in(2))
    found = content(resume(tmp_path / "run").folder)
    assert found == content(whole.folder)
    assert any(name.endswith("adapter_model.safetensors") for name in found)
    after = frozen(LORA)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.slow
def test_workers_and_little_memory_change_nothing(small: Small, tmp_path: Path) -> None:
    one = run(adapters(small), tmp_path / "one")
    two = run(adapters(small, workers=2, memory={"host": "1MiB"}), tmp_path / "two")
    assert content(one.folder) == content(two.folder)


@pytest.mark.parametrize(
    "other", ["bert-tiny", {"name": "bert-tiny", "lora": {"rank": 2}}, {**LORA, "lora": {"rank": 4, "alpha": 4}}]
)
def test_averaging_needs_the_same_adapters(small: Small, tmp_path: Path, other: Any) -> None:
    with pytest.raises(FedstillError, match=r"garden has another\. Give all the same model with the same rank, alpha"):
        run(adapters(small, clients=[LORA, other, LORA]), tmp_path / "run")


def test_check_says_what_learns(small: Small, tmp_path: Path) -> None:
    file = tmp_path / "adapters.yaml"
    file.write_text(adapters(small).to_yaml())
    result = CliRunner().invoke(app, ["check", str(file), "--picture", str(tmp_path / "rows.png")])
    said = " ".join(result.output.split())
    assert "35,331 of 4,404,739 parameters learn (0.8%); a message with parameters is 141,324 bytes" in said, said


def test_a_client_may_have_adapters_where_opinions_are_sent(small: Small, tmp_path: Path) -> None:
    record: Record = run(
        adapters(small, "AdaFD", clients=["bow", LORA, "bow"], server="bow", rounds=1), tmp_path / "run"
    )
    assert load_model(record.folder / "models" / "garden").spec.lora is not None
