"""A model with everything that is needed to feed, train, use and save it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from fedstill.common.files import follow_umask
from fedstill.data.tokens import Tokenizer
from fedstill.learning.losses import Loss, ce
from fedstill.models import lora as adapters
from fedstill.models.labelling import Predictions, Texts, label, pipeline
from fedstill.models.spec import ModelSpec, Shape, split_layers

MARKER = "fedstill.json"
"""The file that marks a folder as a small model or an adapter of ours; a Hugging Face model has a `config.json`."""


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
    def is_linear(self) -> bool:
        """Whether its class says so."""
        return bool(getattr(self.module, "is_linear", False))

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
            adapters.save(self.module, self.spec.lora, split_layers(self.spec.name)[0], folder)
            self._mark(folder, base=self.base)
        else:
            with quiet():
                self.module.save_pretrained(folder)  # type: ignore[operator]
        follow_umask(folder.glob("*.safetensors"))

    def _mark(self, folder: Path, **more: object) -> None:
        about = {"spec": self.spec.model_dump(), "labels": self.labels, **more}
        (folder / MARKER).write_text(json.dumps(about, indent=2) + "\n")


@contextmanager
def quiet() -> Any:
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
