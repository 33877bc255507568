"""Models that transformers reads from files: one party's, and quick copies for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from fedstill.common.errors import FedstillError
from fedstill.common.files import refuse_unreadable
from fedstill.common.plugins import nearest
from fedstill.data.artefacts import fetch
from fedstill.learning.losses import ce, likelihood
from fedstill.models.model import Model, quiet
from fedstill.models.spec import FROM_SCRATCH, ModelSpec
from fedstill.models.text_to_text import TextToText, is_text_to_text, keep_layers, label_words
from fedstill.models.tokenizers import load_tokenizer


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Inside, everything that is drawn comes from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@lru_cache(maxsize=8)
def pretrained(
    folder: Path, stamp: tuple[int, ...], layers: int | None, spec: ModelSpec, labels: tuple[str, ...]
) -> Pretrained:
    """One object for all parties that start from these files with these labels; `stamp` changes when the files do."""
    return Pretrained(folder, partial(read_transformer, folder, spec, layers, labels))


def stamp(folder: Path) -> tuple[int, ...]:
    """When the files of a folder were last changed."""
    return tuple(sorted(file.stat().st_mtime_ns for file in folder.glob("*")))


class Pretrained:
    """A pretrained model that parties start from. Transformers reads it for the first two, we copy it for the others.

    A copy must equal what transformers would read, to the last bit. This is checked with the second party's model; if
    it is not equal, transformers reads the files for every party.
    """

    def __init__(self, folder: Path, read: Callable[[], Model]) -> None:
        self.folder, self.read, self.times_read = folder, read, 0
        self.original: Model | None = None
        self.places: dict[str, tuple[Path, str]] = {}
        """Parameter -> the file that holds it, and its name there."""
        self.frozen: dict[str, torch.Tensor] = {}
        """The parameters that models with adapters share."""

    def fresh(self, seed: int) -> Model:
        """A new model; weights that are not in the files are drawn from the seed."""
        if self.original is not None:
            return self._copy(self.original, seed)
        model = self._read(seed)
        self.times_read += 1
        if self.times_read == 2:
            original = self._read(seed + 1)
            self.places = _places(self.folder, _inner(original.module))
            self.original = original if _equal(self._copy(original, seed).module, model.module) else None
        return model

    def _read(self, seed: int) -> Model:
        with drawing_from(seed):
            return self.read()

    def _copy(self, original: Model, seed: int) -> Model:
        """A copy with parameters memory-mapped from the files; transformers draws the others again."""
        inner = _inner(original.module)
        shared: dict[int, Any] = {id(inner.config): copy(inner.config)}
        parameters = dict(inner.named_parameters())
        for path in {path for path, _ in self.places.values()}:
            with safe_open(path, framework="pt") as file:
                for name, (where, key) in self.places.items():
                    if where == path:
                        old = parameters[name]
                        shared[id(old)] = nn.Parameter(file.get_tensor(key), requires_grad=old.requires_grad)
        module = deepcopy(original.module, shared)
        twin = _inner(module)
        for part in (*twin.modules(), *twin.buffers()):
            part._is_hf_initialized = isinstance(part, torch.Tensor)
        for old, new in zip(parameters.values(), twin.parameters(), strict=True):
            new._is_hf_initialized = getattr(old, "_is_hf_initialized", False)  # set for parameters from a file
        with drawing_from(seed):
            twin.initialize_weights()
        return replace(original, module=module)


def _inner(module: nn.Module) -> Any:
    """The module that transformers made."""
    return module.inner if isinstance(module, TextToText) else module


def _places(folder: Path, module: nn.Module) -> dict[str, tuple[Path, str]]:
    """Where a module's parameters are in the files; found by content, because names differ between versions."""
    wanted = {name: value for name, value in module.named_parameters() if getattr(value, "_is_hf_initialized", False)}
    found: dict[str, tuple[Path, str]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for key in file.offset_keys():
                value = file.get_tensor(key)
                same = [name for name, own in wanted.items() if own.dtype == value.dtype and torch.equal(own, value)]
                if same:  # only for the first: two parameters must not share memory
                    found[same[0]] = (path, key)
                    del wanted[same[0]]
    return found


def _equal(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules have the same parameters and buffers, including buffers that are not saved."""
    mine, theirs = (dict([*module.named_parameters(), *module.named_buffers()]) for module in (one, other))
    return mine.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in mine.items())


def fetch_model(name: str) -> Path:
    """A model's folder; the error for an unknown name suggests known ones."""
    try:
        return fetch(name)
    except FedstillError as error:
        known = ["bert-tiny", "minilm", *FROM_SCRATCH]
        hint = "" if name in known else f" Among the models, {nearest(name, known)}"
        raise FedstillError(f"{error}{hint}") from error


def read_transformer(folder: Path, spec: ModelSpec, layers: int | None, labels: Sequence[str] | None) -> Model:
    """A model as transformers reads it, with its first `layers`, and a new head for `labels`, unless they are None."""
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

    refuse_unreadable(folder.glob("*.safetensors"))
    names = {} if labels is None else {"id2label": dict(enumerate(labels))}
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **names)
        writes = is_text_to_text(config)
        if layers is not None and writes:
            keep_layers(config, layers, spec.name)
        elif layers is not None:
            if not 0 < layers <= config.num_hidden_layers:
                raise FedstillError(f"{spec.name}: the model has {config.num_hidden_layers} layers, not {layers}.")
            config.num_hidden_layers = layers
        config.label2id = {label: number for number, label in config.id2label.items()}
        with quiet():
            kind = AutoModelForSeq2SeqLM if writes else AutoModelForSequenceClassification
            module = kind.from_pretrained(
                folder,
                config=config,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                dtype=torch.float32,
                # Of a classifier with other labels only the encoder is used: it gets a new head.
                ignore_mismatched_sizes=labels is not None,
            )
    except (OSError, ValueError) as error:
        raise FedstillError(
            f"{spec.name}: {folder} is not a text classifier that transformers can load ({error})."
        ) from error
    tokenizer = load_tokenizer(str(folder))
    if tokenizer.pad_id >= (words := module.get_input_embeddings().weight.shape[0]):
        raise FedstillError(
            f"{spec.name}: its tokenizer pads with number {tokenizer.pad_id}, and it knows {words} tokens."
        )
    # Language models find a text's last token by comparing ids with this one.
    module.config.pad_token_id = module.config.get_text_config().pad_token_id = tokenizer.pad_id
    label_names = tuple(config.id2label[number] for number in range(config.num_labels))
    if writes:
        start = config.decoder_start_token_id if config.decoder_start_token_id is not None else tokenizer.pad_id
        module = TextToText(module, *label_words(tokenizer.inner, label_names), start)
    module.train()
    rate = _default_rate(config.hidden_size, writes)
    loss = likelihood if writes else ce
    # Others count positions from the first column, and padding after the text changes nothing for them.
    pads_left = tokenizer.pads_left and hasattr(module, "sequence_summary")
    return Model(module, tokenizer, spec, label_names, rate, tokenizer.longest, pads_left, loss=loss)


def _default_rate(hidden: int, text_to_text: bool = False) -> float:
    """The papers' 2e-5 for models as wide as BERT-base or wider; narrower ones need a higher rate.

    Text-to-text models use 1e-4, T5's usual rate with AdamW; narrow ones 3e-3, the best rate of a short test.
    """
    if text_to_text:
        return 3e-3 if hidden <= 128 else 1e-4
    if hidden <= 128:
        return 5e-4
    return 1e-4 if hidden < 768 else 2e-5


@lru_cache(maxsize=8)
def measures(folder: Path) -> tuple[int, int]:
    """The width and the number of layers of a model in a folder."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return config.hidden_size, config.num_hidden_layers
