"""Parts of an experiment that have keys of their own."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag, field_validator, model_validator

from fedstill.common.settings import Settings
from fedstill.common.units import bytes_of
from fedstill.learning.phases import PhaseSettings
from fedstill.models import ModelSpec
from fedstill.parties.party import TrainSettings
from fedstill.wire.masks import MaskSpec


class ClientSpec(Settings):
    """One client's model and settings; settings not given are the experiment's. A plain string is the model.

    `lora` may stand beside `model` or inside it.
    """

    model: ModelSpec
    train: TrainSettings = TrainSettings()
    distill: PhaseSettings = PhaseSettings()

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, dict) and "lora" in value and isinstance(value.get("model"), str | dict):
            model = {"name": value["model"]} if isinstance(value["model"], str) else value["model"]
            rest = {key: own for key, own in value.items() if key != "lora"}
            return rest | {"model": {**model, "lora": value["lora"]}}
        return {"model": value} if isinstance(value, str) else value


class MemorySpec(Settings):
    """How much memory the models of all clients may use together, as `512MiB` or `4GiB`; null: no limit.

    The least recently used models move from the GPU to the host's memory, and from there to disk.
    """

    device: str | None = "8GiB"
    """On a GPU; without one, only `host` counts."""
    host: str | None = "2GiB"

    @field_validator("device", "host")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        bytes_of(value)
        return value


class WireSpec(Settings):
    """The codecs of opinions and parameters: a name, or {name: ..., option: value}; null: the method's own codec.

    `fp32` sends them unchanged, `bf16` and `fp16` halve the bytes, `quantised` and `low_rank` have options.
    """

    opinions: str | dict[str, Any] | None = None
    parameters: str | dict[str, Any] | None = None
    mask: MaskSpec | None = None
    """true, or {range: 256}: the server learns nothing of what clients send but the weighted sum."""

    @field_validator("mask", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return MaskSpec() if value is True else None if value is False else value


def _kind_of_clients(value: Any) -> str:
    if isinstance(value, list):
        return "<list>"
    if isinstance(value, dict) and isinstance(value.get("model"), str) and isinstance(value.get("lora"), dict):
        return "<one for all>"
    by_client = isinstance(value, dict) and not isinstance(value.get("name"), str)
    return "<by client>" if by_client else "<one for all>"


Clients = Annotated[
    Annotated[ModelSpec, Tag("<one for all>")]
    | Annotated[list[ModelSpec], Tag("<list>")]
    | Annotated[dict[str, ClientSpec], Tag("<by client>")],
    Discriminator(_kind_of_clients),
]
