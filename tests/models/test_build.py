"""Fresh models come quickly, and are what transformers itself would make."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    DistilBertConfig,
    DistilBertModel,
    RobertaConfig,
    RobertaModel,
)

from fedstill.data.artefacts import fetch
from fedstill.models import Model, ModelSpec, build
from tests.models.tiny_t5 import make_tiny_t5

LABELS = ("bad", "good", "so-so")
NARROW = {"vocab_size": 30522, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def make(name: str | Path, seed: int) -> Model:
    return build(ModelSpec(name=str(name)), LABELS, "bert-tiny", seed)


def tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = tensors(one), tensors(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def encoder(folder: Path, kind: str) -> Path:
    """A narrow encoder of that kind with random weights and bert-tiny's tokenizer."""
    shutil.copytree(fetch("bert-tiny"), folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    if kind == "roberta":
        RobertaModel(RobertaConfig(**NARROW, intermediate_size=64)).save_pretrained(folder)
    else:
        config = DistilBertConfig(vocab_size=30522, dim=32, n_layers=2, n_heads=2, hidden_dim=64)
        DistilBertModel(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["bert-tiny", "minilm", "roberta", "distilbert"])
def test_the_first_and_the_fifth_model_are_what_transformers_makes(kind: str, tmp_path: Path) -> None:
    name = kind if kind in ("bert-tiny", "minilm") else str(encoder(tmp_path / kind, kind))
    models = [make(name, seed).module for seed in range(5)]
    for seed, ours in enumerate(models):
        torch.manual_seed(seed)
        assert same(ours, AutoModelForSequenceClassification.from_pretrained(fetch(name), num_labels=3))
    assert not same(models[3], models[4])


@pytest.mark.parametrize("name", ["bert-tiny", "minilm[:2]", "textcnn", "t5"])
def test_a_seed_gives_the_same_model_however_many_were_made_before(name: str, tmp_path: Path) -> None:
    named = make_tiny_t5(tmp_path / "t5", ["a good lamp", "a bad one"], LABELS) if name == "t5" else name
    first, *_, last = [make(named, seed) for seed in (7, 8, 9, 10, 7)]
    assert same(first.module, last.module)
    assert first.architecture == last.architecture
    assert (first.labels, first.rate, first.longest) == (last.labels, last.rate, last.longest)
    assert last.module.training


def test_models_share_no_memory_that_one_of_them_could_change() -> None:
    expected = {name: value.clone() for name, value in tensors(make("bert-tiny", 3).module).items()}
    first, second, third = (make("bert-tiny", 3).module for _ in range(3))
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(1.0)  # each once: two that share memory would get it twice
    assert all(torch.equal(expected[name] + 1.0, value) for name, value in first.named_parameters())
    for module in (second, third, make("bert-tiny", 3).module):
        assert all(torch.equal(expected[name], value) for name, value in tensors(module).items())
    assert first.config is not second.config


def test_files_that_change_are_read_again(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(fetch("bert-tiny"), tmp_path / "own"))
    for seed in range(3):
        make(folder, seed)
    weights = load_file(folder / "model.safetensors")
    save_file({name: value * 2 for name, value in weights.items()}, folder / "new", metadata={"format": "pt"})
    (folder / "new").rename(folder / "model.safetensors")
    before, after = (make(name, 0).module.get_input_embeddings().weight for name in ("bert-tiny", folder))
    assert torch.equal(2 * before, after)
