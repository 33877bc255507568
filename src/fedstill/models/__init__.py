"""Classifiers of text and images: any from Hugging Face, text-to-text models, small ones, and a user's own classes."""

from fedstill.models.build import build, load
from fedstill.models.model import Model
from fedstill.models.spec import ModelSpec

__all__ = ["Model", "ModelSpec", "build", "load"]
