"""Classifiers of text: any Hugging Face sequence classifier, small ones of ours, and classes of a user's own."""

from fedstill.models.build import Model, ModelSpec, build, load

__all__ = ["Model", "ModelSpec", "build", "load"]
