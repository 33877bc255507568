"""LoRA: low-rank adapters beside the frozen layers of a transformer. Only they and the classifier's head learn.

The adapters are put into the module in place, so that it stays the class that transformers made. Its `state_dict` has
only what learns: this is what methods send, what checkpoints hold, and all that `load_state_dict` needs.
"""

from __future__ import annotations

import hashlib
import warnings
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedstill.common.errors import FedstillError
from fedstill.common.plugins import nearest
from fedstill.common.settings import Settings

WEIGHTS = "adapter_model.safetensors"
FASTER = 10.0
"""How many times the rate of the whole model adapters learn with, where the experiment sets none."""


class LoraSpec(Settings):
    """An adapter: two matrices of this rank beside every layer in `targets`, whose product is scaled by alpha/rank."""

    rank: int = Field(8, ge=1)
    alpha: float | None = Field(None, gt=0)
    """null: twice the rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: tuple[str, ...] | None = None
    """The layers that get one, by the last parts of their names, such as `query`; null: all linear ones."""

    @field_validator("targets")
    @classmethod
    def _some(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and not value:
            raise ValueError("must name at least one layer, or be left out for all linear ones")
        return value

    @property
    def scale(self) -> float:
        """The alpha that is used."""
        return self.alpha if self.alpha is not None else 2.0 * self.rank

    def __str__(self) -> str:
        defaults = LoraSpec(rank=self.rank)
        values = {name: value for name, value in self if name == "rank" or value != getattr(defaults, name)}
        said = (f"{name}={'/'.join(v) if isinstance(v, tuple) else v}" for name, v in values.items())
        return f"LoRA({', '.join(said)})"


def check_installed() -> None:
    """Refuse adapters where peft is missing."""
    if find_spec("peft") is None:
        raise FedstillError('lora: adapters come from peft: run `pip install "fedstill[lora]"` first.')


def adapt(module: Any, spec: LoraSpec, name: str) -> None:
    """Freeze the module, and give it adapters, drawn from torch's generator.

    What its files do not hold was drawn for this party alone, and learns too: parties must share all that is frozen.
    """
    from peft import LoraConfig, inject_adapter_in_model

    inside = f"{module.base_model_prefix}."
    head = {
        key
        for key, value in module.named_parameters()
        if not key.startswith(inside) or not getattr(value, "_is_hf_initialized", False)
    }
    targets = _targets(module, head, spec, name)
    config = LoraConfig(
        r=spec.rank, lora_alpha=spec.scale, lora_dropout=spec.dropout, target_modules=targets, bias="none"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it found the transposed layers of GPT-2 and set the option for them
        inject_adapter_in_model(config, module)
    module.lora_learns = frozenset(key for key, _ in module.named_parameters() if key in head or ".lora_" in key)
    for key, value in module.named_parameters():
        value.requires_grad_(key in module.lora_learns)
    module.register_state_dict_post_hook(_drop_frozen)
    module.register_load_state_dict_pre_hook(_restore_frozen)


def share(module: nn.Module, frozen: dict[str, Tensor]) -> None:
    """Use the frozen tensors that are there already in place of the module's own, which are equal, and add the rest."""
    for key, value in module.named_parameters():
        if not value.requires_grad:
            value.data = frozen.setdefault(key.replace(".base_layer.", "."), value.data)


def _targets(module: nn.Module, head: set[str], spec: LoraSpec, name: str) -> list[str]:
    """The names of the layers that get an adapter."""
    from transformers.pytorch_utils import Conv1D

    linear = [
        key
        for key, part in module.named_modules()
        if isinstance(part, nn.Linear | Conv1D) and f"{key}.weight" not in head
    ]
    if spec.targets is None:
        return linear
    endings = {".".join(key.split(".")[-many:]) for key in linear for many in (1, 2, 3)}
    for wanted in spec.targets:
        if not any(f".{key}".endswith(f".{wanted}") for key in linear):
            raise FedstillError(f"lora: {name} has no linear layer {wanted!r}; {nearest(wanted, sorted(endings))}")
    return [key for key in linear if any(f".{key}".endswith(f".{wanted}") for wanted in spec.targets)]


def _drop_frozen(module: Any, state: dict[str, Tensor], prefix: str, about: Any) -> None:
    for key, _ in module.named_parameters(remove_duplicate=False):
        if key not in module.lora_learns:
            state.pop(prefix + key, None)


def _restore_frozen(module: Any, state: dict[str, Tensor], prefix: str, *about: Any) -> None:
    for key, value in module.named_parameters(remove_duplicate=False):
        if key not in module.lora_learns:  # the tensor itself, which torch does not copy onto itself
            state.setdefault(prefix + key, value)


# On disk, as peft writes it


def save(module: Any, spec: LoraSpec, base: str, folder: Path) -> None:
    """Write adapter and head as peft's `PeftModel.from_pretrained` reads them."""
    from peft import LoraConfig

    state = module.state_dict()
    tensors = {_peft_name(key): value.detach().cpu().contiguous() for key, value in state.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    layers = sorted({key.partition(".lora_")[0] for key in state if ".lora_" in key})
    heads = sorted({key.rpartition(".")[0] for key in state if ".lora_" not in key})
    LoraConfig(
        r=spec.rank,
        lora_alpha=spec.scale,
        lora_dropout=spec.dropout,
        target_modules=layers,
        modules_to_save=heads,
        task_type="SEQ_CLS",
        base_model_name_or_path=base,
        inference_mode=True,
    ).save_pretrained(folder)


def load(module: Any, folder: Path) -> None:
    """Read what `save` wrote into a module with adapters."""
    tensors = load_file(folder / WEIGHTS)
    try:
        module.load_state_dict({key: tensors[_peft_name(key)] for key in module.state_dict()})
    except (KeyError, RuntimeError) as error:
        raise FedstillError(f"{folder / WEIGHTS} does not fit the adapter that {folder} describes.") from error


def _peft_name(key: str) -> str:
    return "base_model.model." + key.replace(".lora_A.default.", ".lora_A.").replace(".lora_B.default.", ".lora_B.")


@lru_cache(maxsize=8)
def checksum(folder: Path, stamp: tuple[int, ...]) -> str:
    """Of a base model's weights; `stamp` changes when the files do."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while piece := file.read(1 << 22):
                digest.update(piece)
    return digest.hexdigest()[:16]
