"""Language models as classifiers: padded so that a text's logits are its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedstill import Experiment, Record, load_model, run
from fedstill.data.examples import Examples
from fedstill.data.tokens import TokenStore
from fedstill.learning.predict import predict
from fedstill.models import Model, ModelSpec, build
from tests.models.tiny_causal import make_tiny_causal

LABELS = ("bad", "good", "so-so")
TEXTS = ["great novel", "the awful author chapter refund angry useless the order", "", "okay the hose", "order"]


def logits(model: Model, texts: list[str]) -> torch.Tensor:
    assert model.tokenizer is not None
    store = TokenStore(*model.tokenizer.encode(texts, None, 32), model.tokenizer.pad_id, model.pads_left)
    return predict(model.module, Examples(store, np.arange(len(texts))))


@pytest.mark.parametrize(
    ("kind", "side", "pad", "eos"),
    [
        ("llama", "left", None, "</s>"),
        ("llama", "right", 0, "</s>"),
        ("llama", "right", None, None),
        ("qwen2", "right", None, "</s>"),
        ("qwen2", "left", 0, "</s>"),
        ("gpt2", "left", None, "</s>"),
    ],
)
def test_logits_do_not_depend_on_the_other_texts_of_a_batch(
    tmp_path: Path, kind: str, side: str, pad: int | None, eos: str | None
) -> None:
    model = build(ModelSpec(name=str(make_tiny_causal(tmp_path / kind, kind, side, pad, eos))), LABELS, "", 0)
    together = logits(model, TEXTS)
    alone = torch.cat([logits(model, [text]) for text in TEXTS])
    assert torch.isfinite(together).all()
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    # They are those of the last token's state: another last word changes them, as does the first.
    changed = logits(model, ["great novel", "great shovel", "awful novel"])
    assert (changed[0] - changed[1]).abs().max() > 1e-3
    assert (changed[0] - changed[2]).abs().max() > 1e-4


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_the_loaded_model_pads_as_the_saved_one(tmp_path: Path, kind: str) -> None:
    model = build(ModelSpec(name=str(make_tiny_causal(tmp_path / kind, kind))), LABELS, "", 0)
    model.save(tmp_path / "saved")
    loaded = load_model(tmp_path / "saved")
    assert loaded.labels == LABELS
    assert torch.equal(logits(loaded, TEXTS), logits(model, TEXTS))
    assert [row["label"] for row in loaded.pipeline(batch_size=4)(["great novel", "the order okay"])] == (
        loaded.predict(["great novel", "the order okay"]).labels
    )


@pytest.mark.parametrize(("kind", "lora"), [("qwen2", None), ("llama", None), ("llama", {"rank": 8})])
def test_a_federation_of_language_models_learns(
    tmp_path: Path, reviews: Path, kind: str, lora: dict[str, int] | None
) -> None:
    model = {"name": str(make_tiny_causal(tmp_path / kind, kind))} | ({"lora": lora} if lora else {})
    experiment = Experiment(
        corpus={"path": str(reviews), "text": ["title", "body"], "label": "stars", "domain": "shop"},
        algorithm="FedAvg", clients=model, server=model, rounds=2, workers=1,
        train={"epochs": 8, "max_length": 32, "rate": 1e-2},
    )  # fmt: skip
    run(experiment, tmp_path / "run")
    record = Record(tmp_path / "run")
    assert record.f1() > 0.8
    assert record.model("server").predict(["perfect happy", "awful broken"]).labels == ["good", "bad"]
