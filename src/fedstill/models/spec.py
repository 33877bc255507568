"""A model's specification: what an experiment says of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import nn

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import absolute, check_options, is_own, own_class
from fedstill.common.settings import Settings
from fedstill.models import lora as adapters
from fedstill.models.images import IMAGE_MODELS
from fedstill.models.lora import LoraSpec
from fedstill.models.small import SMALL

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
            name, layers = split_layers(absolute(options["name"]))
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
        return str(getattr(small_class(self), "reads", "text")) if self.is_small else "text"

    @property
    def uses_words(self) -> bool:
        """Whether the model reads words and needs no tokenizer."""
        return self.name == "bow" and self.tokenizer is None

    def check(self) -> None:
        """Refuse what could not be built, before anything is downloaded or trained."""
        if split_layers(self.name)[1] is not None and split_layers(self.name)[0] in FROM_SCRATCH:
            raise FedstillError(f"{self.name}: only transformers have layers to choose from.")
        if self.is_small:
            check_options(small_class(self), self.options, fixed=(*GIVEN, "self"))
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


def small_class(spec: ModelSpec) -> type[nn.Module]:
    """The class of a model that is trained from scratch."""
    found = FROM_SCRATCH.get(spec.name) or own_class(spec.name)
    if not issubclass(found, nn.Module):
        raise FedstillError(f"{spec.name} is not a torch.nn.Module: a model of your own must be one.")
    return found


def split_layers(name: str) -> tuple[str, int | None]:
    """Name and number of layers: `minilm[:3]` means the first three layers of minilm."""
    match = re.fullmatch(r"(.+)\[:(\d+)\]", name)
    return (match[1], int(match[2])) if match else (name, None)
