"""Classifiers of text and images: any from Hugging Face, text-to-text models, small ones, and a user's own classes."""

from fedstill.models.build import Model, ModelSpec, build, load

__all__ = ["Model", "ModelSpec", "build", "load"]
