"""Building a model from its name in an experiment: module, tokenizer and default rate; saving and loading it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import absolute, check_options, is_own, nearest, own_class
from fedstill.common.settings import Settings
from fedstill.common.trust import trusting
from fedstill.data.artefacts import fetch
from fedstill.data.tokens import Tokenizer
from fedstill.learning.losses import Loss, ce, likelihood
from fedstill.models import lora as adapters
from fedstill.models.images import IMAGE_MODELS
from fedstill.models.labelling import Predictions, Texts, label, pipeline
from fedstill.models.lora import LoraSpec
from fedstill.models.small import SMALL
from fedstill.models.text_to_text import TextToText, is_text_to_text, keep_layers, label_words
from fedstill.models.tokenizers import HashedNgrams, HashedTokens, load_tokenizer, read_tokenizer

MARKER = "fedstill.json"
"""The file that marks a folder as a small model or an adapter of ours; a Hugging Face model has a `config.json`."""

GIVEN = ("vocabulary", "classes", "pad_id", "channels", "size")
"""The arguments that `build` passes to a small model; all others of its constructor are options."""

FROM_SCRATCH = SMALL | IMAGE_MODELS

Shape = tuple[int, int, int]
"""The channels, height and width of an image."""


class ModelSpec(Settings):
    """A model by name; a plain string is short for {name: ...}. All other keys are options of a small model.

    `{model: ...}` means the same as `{name: ...}`.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    tokenizer: str | None = None
    """The model whose tokenizer a small model uses."""
    lora: LoraSpec | None = None
    """The adapter that learns in place of the whole model."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        options = {"name": value} if isinstance(value, str) else value
        if isinstance(options, dict) and "name" not in options and isinstance(options.get("model"), str):
            options = {"name": options["model"]} | {key: own for key, own in options.items() if key != "model"}
        if isinstance(options, dict) and isinstance(options.get("name"), str):
            name, layers = _split(absolute(options["name"]))
            if Path(name).is_dir():  # an absolute path, so that any process finds it
                name = str(Path(name).resolve())
            return {**options, "name": name if layers is None else f"{name}[:{layers}]"}
        return options

    @model_serializer(mode="wrap")
    def _without_none(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `lora` where there is none: such an experiment has the same file and fingerprint as ever."""
        written: dict[str, Any] = write(self)
        return written if self.lora is not None else {key: v for key, v in written.items() if key != "lora"}

    @property
    def options(self) -> dict[str, Any]:
        """The options of a small model."""
        return dict(self.model_extra or {})

    @property
    def is_small(self) -> bool:
        """Whether the model is one of ours or the user's own, trained from scratch."""
        return self.name in FROM_SCRATCH or is_own(self.name)

    @property
    def reads(self) -> str:
        """What the model reads: `text` or `images`."""
        return str(getattr(_small_class(self), "reads", "text")) if self.is_small else "text"

    @property
    def uses_words(self) -> bool:
        """Whether the model reads words and needs no tokenizer."""
        return self.name == "bow" and self.tokenizer is None

    def check(self) -> None:
        """Refuse what could not be built, before anything is downloaded or trained."""
        if _split(self.name)[1] is not None and _split(self.name)[0] in FROM_SCRATCH:
            raise FedstillError(f"{self.name}: only transformers have layers to choose from.")
        if self.is_small:
            check_options(_small_class(self), self.options, fixed=(*GIVEN, "self"))
            if self.reads == "images" and self.tokenizer is not None:
                raise FedstillError(f"{self.name} reads images: leave out `tokenizer: {self.tokenizer}`.")
            if self.lora is not None:
                raise FedstillError(
                    f"lora: {self.name} is learnt from scratch: only pretrained transformers take adapters."
                )
        elif self.options:
            raise FedstillError(f"{self.name} takes no options (given: {', '.join(self.options)}).")
        elif self.tokenizer is not None:
            raise FedstillError(f"{self.name} comes with its own tokenizer: leave out `tokenizer: {self.tokenizer}`.")
        elif self.lora is not None:
            adapters.check_installed()

    def __str__(self) -> str:
        extras = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}({extras})" if extras else self.name if self.lora is None else f"{self.name} + {self.lora}"


@dataclass
class Model:
    """A module with everything that is needed to feed, train and save it."""

    module: nn.Module
    tokenizer: Tokenizer | None
    """None for a model that reads images."""
    spec: ModelSpec
    labels: tuple[str, ...]
    rate: float
    longest: int | None = None
    """The most tokens that it can read; None: no limit."""
    pads_left: bool = False
    """Whether it classifies by the last position (XLNet) and so needs padding before the text."""
    shape: Shape | None = None
    """The shape of the images that it reads."""
    loss: Loss = ce
    """The loss on labelled rows."""
    label_tasks: torch.Tensor | None = None
    """The task of each label, if there are several tasks."""
    max_length: int | None = None
    """The most tokens that `predict` reads of a text; None: 128."""
    base: str = ""
    """Of a model with adapters: a checksum of the frozen weights and the adapters' scale, which all must share."""

    @property
    def architecture(self) -> str:
        """Equal for two models if and only if they can exchange parameters."""
        shapes = [(name, tuple(value.shape), str(value.dtype)) for name, value in self.module.state_dict().items()]
        known = repr(sorted(shapes)) + self.base
        return f"{type(self.module).__name__}/{hashlib.sha256(known.encode()).hexdigest()[:12]}"

    @property
    def parameters(self) -> int:
        """The number of its parameters."""
        return sum(p.numel() for p in self.module.parameters())

    @property
    def learnt(self) -> int:
        """The number of those that learn: all, or the adapters' and the head's."""
        return sum(p.numel() for p in self.module.parameters() if self.spec.lora is None or p.requires_grad)

    @property
    def bytes(self) -> int:
        """What a method sends that sends its parameters, before any codec."""
        return sum(value.numel() * value.element_size() for value in self.module.state_dict().values())

    def predict(self, texts: Texts, allowed: Sequence[str] | None = None, int8: bool = False) -> Predictions:
        """The labels of texts, or of pairs of texts, and the probabilities of all; `allowed` leaves only some labels.

        `int8` computes with weights in eight bits: faster for encoders on a CPU, and nearly the same.

        >>> record.model("server").predict(["lovely, thank you"]).labels
        ['good']
        """
        return label(self, texts, allowed, int8)

    def pipeline(self, **options: Any) -> Any:
        """A `transformers` pipeline for text classification, if transformers made the model; options are for it.

        >>> record.model("server").pipeline(top_k=1)("lovely, thank you")
        [{'label': 'good', 'score': 0.93}]
        """
        return pipeline(self, **options)

    def save(self, folder: str | Path) -> None:
        """Write weights, tokenizer and label names, for `load` (or, of transformers' models, `from_pretrained`)."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self.tokenizer is not None:
            self.tokenizer.save(folder)
        if self.spec.is_small:
            state = self.module.state_dict().items()
            tensors = {name: value.cpu().clone(memory_format=torch.contiguous_format) for name, value in state}
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            self._mark(folder, shape=self.shape)
        elif self.spec.lora is not None:
            adapters.save(self.module, self.spec.lora, _split(self.spec.name)[0], folder)
            self._mark(folder, base=self.base)
        else:
            with _quiet():
                self.module.save_pretrained(folder)  # type: ignore[operator]

    def _mark(self, folder: Path, **more: object) -> None:
        about = {"spec": self.spec.model_dump(), "labels": self.labels, **more}
        (folder / MARKER).write_text(json.dumps(about, indent=2) + "\n")


def build(
    spec: ModelSpec, labels: Sequence[str], default_tokenizer: str, seed: int, shape: Shape | None = None
) -> Model:
    """A new model; weights that are not in the pretrained files are drawn from the seed."""
    spec.check()
    if not spec.is_small:
        name, layers = _split(spec.name)
        folder = fetch_model(name)
        whole = spec.model_copy(update={"lora": None})
        source = _pretrained(folder, _stamp(folder), layers, whole, tuple(labels))
        return source.fresh(seed) if spec.lora is None else _adapted(source, spec, spec.lora, seed)
    tokenizer = party_tokenizer(spec, default_tokenizer) if spec.reads == "text" else None
    with _drawing_from(seed):
        return _assemble_small(spec, tuple(labels), tokenizer, shape)


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


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
        return _transformer(folder, ModelSpec(name=str(folder)), layers=None, labels=None)
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


def _adapted(source: _Pretrained, spec: ModelSpec, lora: LoraSpec, seed: int) -> Model:
    """A new model with adapters; all of one process share the memory of what is frozen."""
    model, folder = source.fresh(seed), source.folder
    if isinstance(model.module, TextToText):
        raise FedstillError(f"lora: {spec.name} writes its answers; only classifiers take adapters here.")
    with _drawing_from(seed):
        adapters.adapt(model.module, lora, spec.name)
    adapters.share(model.module, source.frozen)
    base = f"{adapters.checksum(folder, _stamp(folder))}/{lora.scale / lora.rank:g}"
    return replace(model, spec=spec, rate=adapters.FASTER * model.rate, base=base)


def _small_class(spec: ModelSpec) -> type[nn.Module]:
    found = FROM_SCRATCH.get(spec.name) or own_class(spec.name)
    if not issubclass(found, nn.Module):
        raise FedstillError(f"{spec.name} is not a torch.nn.Module: a model of your own must be one.")
    return found


def party_tokenizer(spec: ModelSpec, default: str) -> Tokenizer:
    """The model's tokenizer: its own, the one named in its specification, or the default."""
    if spec.uses_words:
        return HashedNgrams()
    tokenizer = load_tokenizer(_split((spec.tokenizer or default) if spec.is_small else spec.name)[0])
    return HashedTokens(tokenizer) if spec.name == "bow" else tokenizer


def _assemble_small(
    spec: ModelSpec, labels: tuple[str, ...], tokenizer: Tokenizer | None, shape: Shape | None
) -> Model:
    cls = _small_class(spec)
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


def _split(name: str) -> tuple[str, int | None]:
    """Name and number of layers: `minilm[:3]` means the first three layers of minilm."""
    match = re.fullmatch(r"(.+)\[:(\d+)\]", name)
    return (match[1], int(match[2])) if match else (name, None)


@lru_cache(maxsize=8)
def _pretrained(
    folder: Path, stamp: tuple[int, ...], layers: int | None, spec: ModelSpec, labels: tuple[str, ...]
) -> _Pretrained:
    """One object for all parties that start from these files with these labels; `stamp` changes when the files do."""
    return _Pretrained(folder, partial(_transformer, folder, spec, layers, labels))


def _stamp(folder: Path) -> tuple[int, ...]:
    return tuple(sorted(file.stat().st_mtime_ns for file in folder.glob("*")))


class _Pretrained:
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
        with _drawing_from(seed):
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
        with _drawing_from(seed):
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


def _transformer(folder: Path, spec: ModelSpec, layers: int | None, labels: Sequence[str] | None) -> Model:
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

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
        with _quiet():
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


@contextmanager
def _quiet() -> Any:
    """Silence transformers, which reports the new head that every classifier made from an encoder has."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def cost(spec: ModelSpec) -> float:
    """Roughly the multiplications per token, without building the model; used to divide clients among workers."""
    if spec.is_small:
        return {"textcnn": 2e5, "bigru": 3e5, "bow": 1e4, "resnet18": 1e9}.get(spec.name, 3e5)
    name, layers = _split(spec.name)
    width, all_layers = _measures(fetch_model(name))
    return float(12 * (layers or all_layers) * width**2)


@lru_cache(maxsize=8)
def _measures(folder: Path) -> tuple[int, int]:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return config.hidden_size, config.num_hidden_layers
