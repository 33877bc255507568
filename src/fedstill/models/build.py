"""Building a model from its specification, and loading one that was saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fedstill.common.errors import FedstillError
from fedstill.common.files import refuse_unreadable
from fedstill.common.trust import trusting
from fedstill.data.tokens import Tokenizer
from fedstill.models import lora as adapters
from fedstill.models.lora import LoraSpec
from fedstill.models.model import MARKER, Model
from fedstill.models.pretrained import (
    Pretrained,
    drawing_from,
    fetch_model,
    measures,
    pretrained,
    read_transformer,
    stamp,
)
from fedstill.models.spec import ModelSpec, Shape, small_class, split_layers
from fedstill.models.text_to_text import TextToText
from fedstill.models.tokenizers import HashedNgrams, HashedTokens, load_tokenizer, read_tokenizer


def build(
    spec: ModelSpec, labels: Sequence[str], default_tokenizer: str, seed: int, shape: Shape | None = None
) -> Model:
    """A new model; weights that are not in the pretrained files are drawn from the seed."""
    spec.check()
    if not spec.is_small:
        name, layers = split_layers(spec.name)
        folder = fetch_model(name)
        whole = spec.model_copy(update={"lora": None})
        source = pretrained(folder, stamp(folder), layers, whole, tuple(labels))
        return source.fresh(seed) if spec.lora is None else _adapted(source, spec, spec.lora, seed)
    tokenizer = party_tokenizer(spec, default_tokenizer) if spec.reads == "text" else None
    with drawing_from(seed):
        return _assemble_small(spec, tuple(labels), tokenizer, shape)


def load(folder: str | Path, trust_code: bool = False) -> Model:
    """A model that `Model.save` wrote: one of a run's `models/<party>` folders.

    A model of somebody's own class runs the code of a file that the folder names, which needs `trust_code`.

    >>> fedstill.load_model("runs/shops/seed-0/models/books").predict(["lovely, thank you"]).labels
    ['good']
    """
    folder = Path(folder)
    if not (folder / MARKER).exists():
        if not (folder / "config.json").exists():
            raise FedstillError(
                f"{folder} holds no model: a run's models are in RUN/models/server and RUN/models/<client>."
            )
        return read_transformer(folder, ModelSpec(name=str(folder)), layers=None, labels=None)
    refuse_unreadable(folder.glob("*.safetensors"))
    about = json.loads((folder / MARKER).read_text())
    if "base" in about:
        return _load_adapter(folder, about)
    spec = ModelSpec(**about["spec"])
    tokenizer = read_tokenizer(folder) if spec.reads == "text" else None
    shape = about.get("shape")
    with trusting(trust_code):
        model = _assemble_small(spec, tuple(about["labels"]), tokenizer, None if shape is None else tuple(shape))
    model.module.load_state_dict(load_file(folder / "model.safetensors"))
    return model


def _load_adapter(folder: Path, about: dict[str, Any]) -> Model:
    model = build(ModelSpec(**about["spec"]), about["labels"], "", 0)
    if model.base != about["base"]:
        raise FedstillError(f"{folder} holds an adapter of {model.spec.name}, whose weights have changed since.")
    adapters.load(model.module, folder)
    return model


def _adapted(source: Pretrained, spec: ModelSpec, lora: LoraSpec, seed: int) -> Model:
    """A new model with adapters; all of one process share the memory of what is frozen."""
    model, folder = source.fresh(seed), source.folder
    if isinstance(model.module, TextToText):
        raise FedstillError(f"lora: {spec.name} writes its answers; only classifiers take adapters here.")
    with drawing_from(seed):
        adapters.adapt(model.module, lora, spec.name)
    adapters.share(model.module, source.frozen)
    base = f"{adapters.checksum(folder, stamp(folder))}/{lora.scale / lora.rank:g}"
    return replace(model, spec=spec, rate=adapters.FASTER * model.rate, base=base)


def party_tokenizer(spec: ModelSpec, default: str) -> Tokenizer:
    """The model's tokenizer: its own, the one named in its specification, or the default."""
    if spec.uses_words:
        return HashedNgrams()
    tokenizer = load_tokenizer(split_layers((spec.tokenizer or default) if spec.is_small else spec.name)[0])
    return HashedTokens(tokenizer) if spec.name == "bow" else tokenizer


def _assemble_small(
    spec: ModelSpec, labels: tuple[str, ...], tokenizer: Tokenizer | None, shape: Shape | None
) -> Model:
    cls = small_class(spec)
    given: dict[str, int] = {"classes": len(labels)}
    if tokenizer is not None:
        given |= {"vocabulary": tokenizer.vocabulary, "pad_id": tokenizer.pad_id}
    elif shape is not None:
        given |= {"channels": shape[0], "size": shape[1]}
    try:
        module = cls(**given, **spec.options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FedstillError(f"the model {spec} cannot be built: {error}") from error
    if shape is not None:  # 1.6 times as fast for LeNet's noise on a CPU
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Model(module, tokenizer, spec, labels, rate=float(getattr(cls, "rate", 1e-3)), shape=shape)


def cost(spec: ModelSpec) -> float:
    """Roughly the multiplications per token, without building the model; used to divide clients among workers."""
    if spec.is_small:
        return {"textcnn": 2e5, "bigru": 3e5, "bow": 1e4, "resnet18": 1e9}.get(spec.name, 3e5)
    name, layers = split_layers(spec.name)
    width, all_layers = measures(fetch_model(name))
    return float(12 * (layers or all_layers) * width**2)
