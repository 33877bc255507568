"""Classifiers of text and images: any Hugging Face one, text-to-text models, small ones, and a user's own."""

from fedstill.models.build import Model, ModelSpec, build, load

__all__ = ["Model", "ModelSpec", "build", "load"]
