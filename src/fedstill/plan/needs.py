"""What a method needs, checked in one place before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from fedstill.algorithms.base import Algorithm
from fedstill.common.errors import FedstillError
from fedstill.common.words import listed
from fedstill.parties.server import Server

KNOWN_NEEDS = {"public", "labelled", "label_counts", "parameters", "pooled", "openai"}


def check_needs(algorithm: Algorithm, public: int, labelled: int, advice: Mapping[str, str]) -> None:
    """Refuse a method that lacks rows; `advice` says how the user provides `public` or `labelled` ones."""
    name, needs = type(algorithm).__name__, algorithm.requires()
    if "public" in needs and not public:
        raise FedstillError(f"{name} needs public samples: {advice['public']}.")
    if unknown := needs - KNOWN_NEEDS:
        raise FedstillError(f"{name} needs {', '.join(sorted(unknown))}, which no engine can give.")
    if "labelled" in needs and not labelled:
        raise FedstillError(f"{algorithm.title} needs labelled rows at the server: {advice['labelled']}.")


def check_chat(algorithm: Algorithm) -> None:
    """Refuse a method whose server talks to a language model if the package for that is not installed."""
    if "openai" in algorithm.requires() and find_spec("openai") is None:
        raise FedstillError(f'{algorithm.title} talks to a language model: run `pip install "fedstill[llm]"` first.')


def same_architecture(algorithm: Algorithm, server: Server, architectures: Mapping[str, str]) -> None:
    """Refuse clients whose architecture is not the server's: their parameters cannot be averaged."""
    if others := [name for name, own in architectures.items() if own != server.model.architecture]:
        raise FedstillError(
            f"{algorithm.title} exchanges parameters, so everybody needs the server's architecture "
            f"({server.spec.model}): {listed(others)} {'has' if len(others) == 1 else 'have'} another. Give all the "
            "same model, or use a method that exchanges predictions (AdaFD, FedID) or averages by architecture (FedDF)."
        )
