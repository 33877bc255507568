"""The base of everything that is read from an experiment file."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Typed, immutable, and strict about names: an unknown key is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)
