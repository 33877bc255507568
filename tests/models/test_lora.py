"""Adapters: what learns, what is sent, what is written, and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill import Experiment, FedstillError, load_model
from fedstill.config.specs import ClientSpec
from fedstill.data.artefacts import fetch
from fedstill.learning.fast.anatomy import dissect
from fedstill.learning.fast.vocabulary import _words_of
from fedstill.models import Model, ModelSpec, build
from fedstill.models.lora import LoraSpec
from tests.models.test_build import encoder
from tests.models.tiny_causal import make_tiny_causal
from tests.models.tiny_t5 import make_tiny_t5

LABELS = ("bad", "good", "so-so")
TEXTS = ["a lovely novel", "broken, awful, useless and late", "it is what it is"]


def make(name: str | Path = "bert-tiny", seed: int = 0, **lora: Any) -> Model:
    return build(ModelSpec.model_validate({"name": str(name), "lora": lora}), LABELS, "bert-tiny", seed)


def shaken(model: Model) -> Model:
    """The model with other adapters: fresh ones change nothing."""
    with torch.no_grad():
        for value in model.module.parameters():
            if value.requires_grad:
                value.add_(0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(3)))
    return model


def test_only_adapters_and_head_learn_and_are_in_the_state() -> None:
    model, whole = make(rank=4, targets=["query", "value"]), build(ModelSpec(name="bert-tiny"), LABELS, "", 0)
    learns = {name for name, value in model.module.named_parameters() if value.requires_grad}
    assert learns == model.module.state_dict().keys()
    heads = {"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"}
    assert {name for name in learns if "lora_" not in name} == heads  # bert-tiny's files have no pooler
    assert sum("lora_" in name for name in learns) == 2 * 2 * 2  # layers, targets, matrices
    assert model.parameters - whole.parameters == 2 * 2 * (4 * 128 + 128 * 4)
    assert model.learnt == model.parameters - whole.parameters + 128 * 128 + 128 + 3 * 128 + 3
    assert model.bytes == 4 * model.learnt
    assert (whole.learnt, whole.bytes) == (whole.parameters, sum(v.nbytes for v in whole.module.state_dict().values()))


def test_a_fresh_adapter_changes_nothing_and_a_pretrained_pooler_is_frozen() -> None:
    model, whole = make("minilm[:2]"), build(ModelSpec(name="minilm[:2]"), LABELS, "", 0)
    assert model.predict(TEXTS).probabilities == pytest.approx(whole.predict(TEXTS).probabilities, abs=1e-6)
    assert not any("pooler" in name and "lora" not in name for name in model.module.state_dict())
    assert shaken(model).predict(TEXTS).probabilities != pytest.approx(whole.predict(TEXTS).probabilities, abs=1e-2)


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "llama", "gpt2"])
def test_other_families_have_their_whole_head(tmp_path: Path, kind: str) -> None:
    folder = encoder(tmp_path / kind, kind) if "bert" in kind else make_tiny_causal(tmp_path / kind, kind)
    model = make(folder, rank=2)
    heads = {name for name in model.module.state_dict() if "lora_" not in name}
    parts = {"roberta": ("classifier",), "distilbert": ("pre_classifier", "classifier")}.get(kind, ("score",))
    assert heads == {name for name, _ in model.module.named_parameters() if name.startswith(parts)}
    assert sum("lora_A" in name for name in model.module.state_dict()) >= 2 * 4


def test_a_state_is_taken_without_touching_the_frozen_weights() -> None:
    one, other = shaken(make(seed=1)), make(seed=2)
    frozen = {name: value.clone() for name, value in other.module.named_parameters() if not value.requires_grad}
    assert frozen.keys() == {name for name, value in one.module.named_parameters() if not value.requires_grad}
    other.module.load_state_dict(one.module.state_dict())
    now = dict(other.module.named_parameters())
    assert all(torch.equal(now[name], value) for name, value in frozen.items())
    assert (other.predict(TEXTS).probabilities == one.predict(TEXTS).probabilities).all()
    mine = dict(one.module.named_parameters())
    assert all(now[name].data_ptr() == mine[name].data_ptr() for name in frozen)  # the same memory for both
    assert not any(now[name].data_ptr() == mine[name].data_ptr() for name in now.keys() - frozen.keys())
    with pytest.raises(RuntimeError, match="Missing key"):
        other.module.load_state_dict({"classifier.bias": torch.zeros(3)})


def test_the_fast_path_steps_aside() -> None:
    model, whole = make(), build(ModelSpec(name="bert-tiny"), LABELS, "", 0)
    assert (dissect(model.module), _words_of(model.module)) == (None, None)
    assert dissect(whole.module) is not None
    assert _words_of(whole.module) is not None


def test_a_saved_adapter_is_read_by_us_and_by_peft(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    model = shaken(make(rank=4, alpha=4, dropout=0.1))
    model.save(tmp_path)
    assert len({file.stat().st_mode for file in tmp_path.iterdir()}) == 1  # also that of the weights
    loaded = load_model(tmp_path)
    assert (loaded.spec, loaded.labels) == (model.spec, model.labels)
    assert (loaded.predict(TEXTS).probabilities == model.predict(TEXTS).probabilities).all()
    assert sum(file.stat().st_size for file in tmp_path.glob("*.safetensors")) < 2 * model.bytes
    base = AutoModelForSequenceClassification.from_pretrained(fetch("bert-tiny"), num_labels=3)
    theirs: Any = PeftModel.from_pretrained(base, str(tmp_path))
    batch = model.tokenizer.inner(TEXTS, padding=True, return_tensors="pt")  # type: ignore[union-attr]
    with torch.inference_mode():
        torch.testing.assert_close(theirs.eval()(**batch).logits, model.module.eval()(**batch).logits)


def test_an_adapter_is_not_read_onto_other_weights(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(fetch("bert-tiny"), tmp_path / "base"))
    make(folder).save(tmp_path / "saved")
    changed = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(changed[:-4] + bytes(4))
    with pytest.raises(FedstillError, match="whose weights have changed since"):
        load_model(tmp_path / "saved")


def test_architectures_are_equal_where_adapters_can_be_averaged(tmp_path: Path) -> None:
    other = encoder(tmp_path / "one", "roberta"), encoder(tmp_path / "two", "roberta")
    one, two = (make(folder, rank=2) for folder in other)
    assert one.module.state_dict().keys() == two.module.state_dict().keys()
    assert one.architecture != two.architecture  # other frozen weights
    assert make(rank=4, seed=1).architecture == make(rank=4, alpha=8, seed=2).architecture
    assert len({make(rank=4).architecture, make(rank=8).architecture, make(rank=4, alpha=4).architecture}) == 3


def test_where_lora_may_stand() -> None:
    wanted = ModelSpec.model_validate({"name": "bert-tiny", "lora": {"rank": 4}})
    short = {"model": "bert-tiny", "lora": {"rank": 4}}
    assert Experiment(clients=short, server=short).clients == wanted
    assert Experiment(clients=short, server=short).server == wanted
    assert Experiment(clients=[short, "bow"]).clients == [wanted, ModelSpec(name="bow")]
    by_client = Experiment(clients={"books": {**short, "train": {"epochs": 1}}, "toys": "bow"}).clients
    assert isinstance(by_client, dict)
    assert isinstance(by_client["books"], ClientSpec)
    assert by_client["books"].model == wanted
    named = Experiment(clients={"model": "bert-tiny", "lora": "bow"}).clients
    assert isinstance(named, dict)  # two clients of these names
    assert str(wanted) == str(ModelSpec.model_validate(wanted.model_dump())) == "bert-tiny + LoRA(rank=4)"
    assert str(LoraSpec(rank=2, targets=("query", "value"))) == "LoRA(rank=2, targets=query/value)"


def test_experiments_without_adapters_are_written_as_ever() -> None:
    assert ModelSpec(name="bow").model_dump() == {"name": "bow", "tokenizer": None}
    assert "lora" not in Experiment(clients={"books": "bow", "toys": "bow"}).to_yaml()
    written = json.loads(ModelSpec.model_validate({"name": "bert-tiny", "lora": {}}).model_dump_json())
    assert written["lora"] == {"rank": 8, "alpha": None, "dropout": 0.0, "targets": None}
    assert ModelSpec.model_validate(written) == ModelSpec.model_validate({"name": "bert-tiny", "lora": {}})


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"name": "bow", "lora": {}}, "lora: bow is learnt from scratch: only pretrained transformers take adapters."),
        ({"name": "textcnn", "lora": {"rank": 2}}, "lora: textcnn is learnt from scratch"),
        ({"name": "bert-tiny", "lora": {"rank": 0}}, "greater than or equal to 1"),
        ({"name": "bert-tiny", "lora": {"targets": []}}, "must name at least one layer"),
        ({"name": "bert-tiny", "lora": {"ranks": 8}}, "unknown key 'clients.lora.ranks'; did you mean 'rank'"),
    ],
)
def test_what_an_experiment_refuses(model: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedstillError, match=sentence):
        Experiment(clients=model)


def test_what_a_model_refuses(tmp_path: Path) -> None:
    with pytest.raises(FedstillError, match="lora: bert-tiny has no linear layer 'querry'; did you mean 'query'"):
        make(targets=["querry"])
    with pytest.raises(FedstillError, match="writes its answers; only classifiers take adapters"):
        make(make_tiny_t5(tmp_path / "t5", TEXTS, LABELS))


def test_without_peft_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(FedstillError, match=r'lora: adapters come from peft: run `pip install "fedstill\[lora\]"`'):
        Experiment(clients={"model": "bert-tiny", "lora": {"rank": 8}})
    assert Experiment(clients="bert-tiny").clients == ModelSpec(name="bert-tiny")
